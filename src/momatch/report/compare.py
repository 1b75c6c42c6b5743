"""Several runs beside each other: what they were given, and what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from html import escape

from momatch.config import RUNTIME_KEYS, TrainConfig
from momatch.report.figures import FIGURES, Figure, code, figure_values
from momatch.report.findings import Densities, Findings, Missing
from momatch.report.panels import badge, run_name, table
from momatch.report.words import accuracy_of, headline, judged_separation, missing, percent, summary

#: Figures of which less is better, and of which more; of others, such as compactness, neither can be said.
LESS_IS_BETTER = {"ece", "nll", "center_offset", "seconds", "peak_memory_mb"}
MORE_IS_BETTER = {"test_accuracy", "pseudo_label_accuracy", "images_per_second"}


def headline_of_all(findings: Sequence[Findings]) -> str:
    """The result of several runs in one line."""
    if len(findings) == 1:
        return headline(findings[0])
    known = [accuracy for accuracy in map(accuracy_of, findings) if accuracy is not None]
    if not known:
        return f"{len(findings)} runs, none with a known accuracy"
    low, high = percent(min(known)), percent(max(known))
    span = low if low == high else f"{low} to {high}"
    return f"{len(findings)} runs: {span} of test images classified correctly"


def summaries(findings: Sequence[Findings]) -> str:
    """Each run in words."""
    if len(findings) == 1:
        return summary(findings[0])
    entries = "".join(
        f'<li data-run="{number}"><p class="run">{run_name(run, number)}</p>{summary(run)}</li>'
        for number, run in enumerate(findings)
    )
    return f'<ul class="runs">{entries}</ul>'


def comparison(findings: Sequence[Findings]) -> str:
    """A table of the settings that differ and of all figures, a column for each run; the best of each figure is bold."""
    header = ("", *(badge(number) for number in range(len(findings))))
    rows = [*_settings(findings), *_figures(findings), *_outliers(findings)]
    return table(header, rows, kind="compare") if rows else missing("No figures yet: no run has finished.")


def _settings(findings: Sequence[Findings]) -> list[tuple[str, ...]]:
    known = [None if isinstance(run.config, Missing) else run.config.to_dict() for run in findings]
    rows = []
    for field in fields(TrainConfig):
        values = [None if settings is None else str(settings[field.name]) for settings in known]
        differ = len({value for value in values if value is not None}) > 1
        if differ and field.name not in RUNTIME_KEYS:
            rows.append((escape(field.name), *("-" if value is None else code(value) for value in values)))
    return rows


def _figures(findings: Sequence[Findings]) -> list[tuple[str, ...]]:
    values = [figure_values(run) for run in findings]
    rows = []
    for figure in FIGURES:
        known = [each[figure.key] for each in values if figure.key in each]
        if not known:
            continue
        best = None
        if len(set(known)) > 1 and figure.key in LESS_IS_BETTER | MORE_IS_BETTER:
            best = min(known) if figure.key in LESS_IS_BETTER else max(known)
        name = f'<span title="{escape(figure.meaning)}">{figure.name}</span>'
        rows.append((name, *(_cell(figure, each, best) for each in values)))
    return rows


def _outliers(findings: Sequence[Findings]) -> list[tuple[str, ...]]:
    found = [None if isinstance(run.densities, Missing) else run.densities for run in findings]
    scores = {
        "distance (energy of a linear head)": [_by_distance(each) for each in found],
        "lack of confidence": [_by_confidence(each) for each in found],
    }
    rows = []
    for origin in dict.fromkeys(origin for judged in scores.values() for each in judged for origin in each):
        for score, judged in scores.items():
            known = [each[origin] for each in judged if origin in each]
            best = max(known) if len(set(known)) > 1 else None
            cells = [
                "-" if origin not in each else _bold(f"{each[origin]:.3f}", each[origin] == best) for each in judged
            ]
            if known:
                rows.append((f"AUROC, {escape(origin)}, {score}", *cells))
    return rows


def _by_distance(found: Densities | None) -> dict[str, float]:
    return {} if found is None else {origin: auroc for origin, (auroc, _) in judged_separation(found).items()}


def _by_confidence(found: Densities | None) -> dict[str, float]:
    """By the posterior that predictions are made with, so as trained."""
    by_origin = {} if found is None else found.separation.get("as trained", {})
    return {origin: scores["confidence"]["auroc"] for origin, scores in by_origin.items() if "confidence" in scores}


def _cell(figure: Figure, values: Mapping[str, float | int], best: float | int | None) -> str:
    if figure.key not in values:
        return "-"
    return _bold(figure.write(values[figure.key]), values[figure.key] == best)


def _bold(text: str, best: bool) -> str:
    return f"<b>{text}</b>" if best else text
