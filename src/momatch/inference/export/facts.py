"""What goes with a graph so that its numbers can be read: class names, the shape of images, what p-values rank."""

import json
from typing import Any

from momatch.models.saved_model import SavedModel


def description(model: SavedModel) -> dict[str, str]:
    """Text by key: what ONNX calls metadata. Lists are JSON."""
    facts, calibration = model.facts, model.calibration
    C, (H, W) = facts.in_channels, facts.image_size
    values: dict[str, Any] = {
        "class_names": list(facts.class_names),
        "input": (
            f"images: uint8 (n, {C}, {H}, {W}), {'gray' if C == 1 else 'RGB'}, raw pixels 0-255 of exactly this size; "
            "normalisation is in the graph"
        ),
        "outputs": {
            "label": "int64 (n,): index into class_names",
            "posterior": f"(n, {len(facts.class_names)}): p(class | image)",
            "log_density": "(n,): log p(image's embedding)" if facts.head != "linear" else "(n,): negative energy",
            "distance": "(n,): Mahalanobis distance to the nearest center; NaN for a linear head",
            "p_value": "(n,): conformal outlier p-value; NaN without calibration",
        },
        "score": model.scorer.detector.score_name,
        "calibration": 0 if calibration is None else len(calibration.scores),
        "calibration_source": "" if calibration is None else calibration.source,
        "alpha": (
            "there are no p-values"
            if calibration is None
            else f"p_value <= alpha flags an outlier with a false-alarm rate of at most alpha; alpha of at least "
            f"{1 / (len(calibration.scores) + 1):.2g}"
        ),
        "backbone": facts.backbone,
        "head": facts.head,
        "dataset": facts.dataset,
        "created_by": facts.created_by,
    }
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
