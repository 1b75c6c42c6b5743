"""Puts the page together and onto the disk."""

from html import escape
from pathlib import Path

from jaxtyping import Int64
from torch import Tensor

from momatch.evaluate import Evaluation, Outputs, evaluate_outputs
from momatch.report.classes import classes_section, confusion_section
from momatch.report.figures import figures_section, settings_section, versions_section
from momatch.report.pictures import calibration_section, curves_section, embeddings_section
from momatch.report.style import STYLE
from momatch.report.words import headline, summary
from momatch.run_evaluation import test_outputs
from momatch.training.durable import replace_files
from momatch.training.run import Run

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><h1>{headline}</h1>{summary}</header>
<main>
{sections}
</main>
</body>
</html>
"""


def report_run(run: Run) -> Path:
    """Write the report of a finished run, with everything that its own test images tell.

    Returns:
        The path of the page.

    Raises:
        ValueError: if the run is not finished, or its dataset or model cannot be used.
        OSError: if the page cannot be written; the run itself is finished and whole.
    """
    found = test_outputs(run)
    if found is None:
        return write_report(run)
    outputs, labels = found
    evaluation = evaluate_outputs(run.classifier.head, outputs, labels)
    return write_report(run, evaluation=evaluation, outputs=outputs, labels=labels)


def write_report(
    run: Run,
    *,
    evaluation: Evaluation | None = None,
    outputs: Outputs | None = None,
    labels: Int64[Tensor, " n"] | None = None,
) -> Path:
    """Write ``report.html`` into the directory of the run; an earlier one is replaced only by a whole new one.

    Args:
        run: the run, finished or not.
        evaluation: figures on the test images; without it, what depends on single classes is left out, and said so.
        outputs: of the test images; without it there is no map of embeddings.
        labels: true classes of the `outputs`, -1 for unlabelled; without it the map is coloured by prediction.

    Returns:
        The path of the page.

    Raises:
        ValueError: if evaluation, outputs or labels do not fit the classes of the run or each other, or come with a run
            that has not finished; or if the model is damaged.
        OSError: if the page cannot be written; an earlier one is still there.
    """
    # A run that has not finished has no model, which is what knows the names.
    unknown = run.result is None and evaluation is None and outputs is None
    names = () if unknown else run.class_names
    _check_sizes(len(names), evaluation, outputs, labels)
    path = run.directory / "report.html"
    # Names of files may hold bytes that are no text; they become question marks.
    replace_files({path: build_page(run, names, evaluation, outputs, labels).encode("utf-8", "replace")})
    return path


def build_page(
    run: Run,
    names: tuple[str, ...],
    evaluation: Evaluation | None,
    outputs: Outputs | None,
    labels: Int64[Tensor, " n"] | None,
) -> str:
    """The page as text, with `names` for the classes; other arguments as in `write_report`."""
    config, result = run.config, run.result or {}
    head = run.classifier.head if outputs is not None else None
    sections = {
        "Figures": figures_section(result, evaluation),
        "Training": curves_section(run.metrics()),
        "Classes": classes_section(evaluation, names),
        "Confusion": confusion_section(evaluation, names),
        "Calibration": calibration_section(evaluation),
        "Embeddings": embeddings_section(head, outputs, labels, names),
        "Settings": settings_section(config),
        "Versions": versions_section(result),
    }
    return PAGE.format(
        title=f"momatch: {escape(config.dataset)}",
        style=STYLE,
        headline=headline(run.result, evaluation),
        summary=summary(config, run.result, names, evaluation),
        sections="\n".join(f"<section><h2>{title}</h2>{content}</section>" for title, content in sections.items()),
    )


def _check_sizes(K: int, evaluation: Evaluation | None, outputs: Outputs | None, labels: Tensor | None) -> None:
    if evaluation is not None and len(evaluation.per_class) != K:
        raise ValueError(f"evaluation: got {len(evaluation.per_class)} classes, expected the {K} of the run")
    if outputs is not None and outputs.log_joint.shape[1] != K:
        raise ValueError(f"outputs: got {outputs.log_joint.shape[1]} classes, expected the {K} of the run")
    if labels is not None and (outputs is None or len(labels) != len(outputs)):
        expected = "outputs as well" if outputs is None else f"one for each of the {len(outputs)} outputs"
        raise ValueError(f"labels: got {len(labels)}, expected {expected}")
