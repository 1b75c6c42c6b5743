"""Whether the files of a run tell the same story: each may be whole and yet another run's, or edited."""

from typing import Any

from momatch.config import TrainConfig
from momatch.evaluation.evaluate import Evaluation
from momatch.report.findings import Missing
from momatch.report.models import Model
from momatch.report.words import is_number, percent

#: Another device or release may turn a prediction; more than this share of them, and more than two, means other images.
TURNED = 0.005
_CAUSE = "one of the two was changed or is another run's."


def disagreements(
    config: TrainConfig, result: dict[str, Any] | None, model: Model, evaluation: Evaluation | Missing
) -> list[str]:
    """A sentence for each figure that two files give differently."""
    facts, found = model.facts, []
    for key in ("backbone", "backbone_variant", "head", "embedding_dim"):
        ours, theirs = getattr(config, key), getattr(facts, key)
        if ours != theirs:
            found.append(f"config.json says {key} {ours!r}, model.json {theirs!r}: {_CAUSE}")
    result = result or {}
    for key in ("seed", "steps"):
        if key in result and result[key] != getattr(config, key):
            found.append(f"config.json says {key} {getattr(config, key)!r}, result.json {result[key]!r}: {_CAUSE}")
    recorded = result.get("test_accuracy")
    # The model of an earlier step has another accuracy.
    if isinstance(evaluation, Missing) or not is_number(recorded) or model.step not in (None, config.steps):
        return found
    if abs(evaluation.accuracy - recorded) > max(TURNED, 2 / evaluation.n):
        found.append(
            f"The test images at hand give an accuracy of {percent(evaluation.accuracy)}, result.json says "
            f"{percent(recorded)}: the images are not those that the run was tested with, or a file is another run's."
        )
    return found
