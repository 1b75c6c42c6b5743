"""The card of a model: README.md of its folder, with the head that the Hugging Face hub reads.

The last line holds a digest of all before it. A card that still fits its digest is replaced when the model is saved again; one
that was edited is its author's and stays.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from momatch.config import RUNTIME_KEYS, TrainConfig
from momatch.storage.durable import sign

if TYPE_CHECKING:
    from momatch.models.saved_model import SavedModel

_MOST_CLASSES = 50
#: Up to so many labels a class the card warns of their draw.
_FEW_LABELS = 100
#: Metric of result.json -> its name, how it is written, what it means; {note} is what result.json itself says about it.
_METRICS: dict[str, tuple[str, str, str]] = {
    "test_accuracy": ("test accuracy", "{:.2%}", "{note}"),
    "best_test_accuracy": ("best test accuracy", "{:.2%}", "{note}"),
    "ece": ("calibration error (ECE)", "{:.2%}", "how far confidence is from accuracy on the test images"),
    "compactness": ("compactness", "{:.4g}", "mean distance of test embeddings to the center of the predicted class"),
    "pseudo_label_accuracy": (
        "pseudo-labels right",
        "{:.2%}",
        "of those used at the end of training whose class is known but was not shown",
    ),
    "utilisation": ("pseudo-labels used", "{:.2%}", "mean weight of unlabelled images at the end of training"),
    "parameters": ("parameters", "{:,}", "{note}"),
    "steps": ("steps", "{:,}", ""),
    "seed": ("seed", "{}", "one run; other seeds give other results"),
    "seconds": ("training time", "{:,.0f} s", ""),
}
_TAGS = ("momatch", "image-classification", "semi-supervised-learning", "out-of-distribution-detection")


def model_card(model: "SavedModel", entries: Mapping[str, Any]) -> str:
    """The text of the card.

    Args:
        model: that it is about.
        entries: for the head, over our own; plain values, lists and mappings.
    """
    return sign("\n".join([*_head(model, entries), *_body(model)]) + "\n\n")


def _head(model: "SavedModel", entries: Mapping[str, Any]) -> Iterator[str]:
    """The front matter: each entry in JSON, which is YAML too."""
    head: dict[str, Any] = {"library_name": "momatch", "pipeline_tag": "image-classification", "tags": list(_TAGS)}
    accuracy = (model.result or {}).get("test_accuracy")
    if accuracy is not None:
        dataset = model.spec.dataset
        kind = re.sub(r"[^\w.\-]+", "-", dataset, flags=re.ASCII).strip("-") or "dataset"
        result = {
            "task": {"type": "image-classification"},
            "dataset": {"name": dataset, "type": kind},
            "metrics": [{"type": "accuracy", "value": accuracy}],
        }
        head["model-index"] = [{"name": _title(model), "results": [result]}]
    yield "---"
    for key, value in (head | dict(entries)).items():
        yield f"{key}: {json.dumps(value)}"
    yield "---"


def _body(model: "SavedModel") -> Iterator[str]:
    spec = model.spec
    width = f"{spec.embedding_dim} dimensions" if spec.embedding_dim else "the network's own features"
    yield f"# {_plain(_title(model))}"
    yield ""
    yield (
        f"An image classifier for {len(spec.class_names)} classes that also says how well it knows an image: "
        f"`{spec.backbone}` network, `{spec.head}` head on {width}, trained by {_plain(spec.created_by)}."
    )
    yield from ("", "## Use", "", *_use(model), "", "## Data", "")
    yield from _table(("", ""), _data_rows(model))
    yield from ("", "## Settings", "", *_settings(model), "", "## Metrics", "")
    rows = _metric_rows(model.result or {})
    yield from _table(("", "", "note"), rows) if rows else ["None were recorded with this model."]
    yield from ("", "## Limits", "", *_limits(model))


def _title(model: "SavedModel") -> str:
    return f"{model.spec.backbone} for {model.spec.dataset}"


def _data_rows(model: "SavedModel") -> Iterator[tuple[str, str]]:
    spec, result, settings = model.spec, model.result or {}, model.settings or {}
    height, width = spec.image_size
    colours = {1: "gray", 3: "RGB"}.get(spec.in_channels, f"{spec.in_channels} channels")
    shown = ", ".join(spec.class_names[:_MOST_CLASSES])
    more = len(spec.class_names) - _MOST_CLASSES
    yield "dataset", spec.dataset
    yield "classes", shown + (f" and {more:,} more, all in model.json" if more > 0 else "")
    yield "images", f"{height} x {width} pixels, {colours}, uint8"
    for name, key in (("labelled images", "labeled_images"), ("unlabelled images", "unlabeled_images")):
        if result.get(key) is not None:
            yield name, f"{result[key]:,}"
    if result.get("test_images") is not None:
        yield "test images", f"{result['test_images']:,}"
    if result.get("feature_views") is not None:
        yield (
            "trained on",
            f"features that the network, frozen, had made of {result['feature_views']} views of each image (momatch embed): "
            "projection and head were trained, the network was not",
        )
    if settings.get("held_out_classes"):
        yield "classes kept out of training", str(settings["held_out_classes"])
    calibration = model.calibration
    yield (
        "outlier p-values",
        "none: nothing was kept for calibration"
        if calibration is None
        else f"ranked among {len(calibration.scores):,} scores ({calibration.score}) of {calibration.source}",
    )


def _settings(model: "SavedModel") -> Iterator[str]:
    if model.settings is None:
        yield "None were recorded with this model."
        return
    # Resolved as the settings are: what a default comes to is no choice.
    given = {"head": model.spec.head, "dataset": str(model.settings.get("dataset", ""))}
    plain = TrainConfig()
    defaults = plain.updated(given).resolved().to_dict() | {key: getattr(plain, key) for key in given}
    chosen = {
        key: value
        for key, value in model.settings.items()
        if key not in RUNTIME_KEYS and (key not in defaults or value != defaults[key])
    }
    yield "All of them are in model.json; these are not the defaults of `momatch train`:"
    yield ""
    yield from _table(("setting", "value"), [(f"`{key}`", str(value)) for key, value in chosen.items()])


def _metric_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, value and meaning of the metrics that are known."""
    rows = [
        (name, form.format(result[key]), meaning.format(note=result.get(f"{key}_note", "")))
        for key, (name, form, meaning) in _METRICS.items()
        if isinstance(result.get(key), int | float) and math.isfinite(result[key])
    ]
    made = result.get("versions")
    if rows and isinstance(made, Mapping):
        rows.append(("versions", ", ".join(f"{name} {version}" for name, version in made.items()), ""))
    return rows


def _use(model: "SavedModel") -> Iterator[str]:
    """Code that runs as it stands, in the folder of the model."""
    C, (H, W) = model.spec.in_channels, model.spec.image_size
    yield "```python"
    yield "import torch"
    yield "from momatch import SavedModel  # pip install momatch"
    yield ""
    trust = ", trust_code=True" if ":" in model.spec.backbone else ""
    yield f'model = SavedModel.from_pretrained("."{trust})  # this folder'
    yield f"images = torch.zeros(1, {C}, {H}, {W}, dtype=torch.uint8)  # yours: raw pixels"
    yield "scores = model.predict(images)"
    yield "names = [model.spec.class_names[label] for label in scores.labels.tolist()]"
    yield "print(names, scores.confidence, scores.p_value)"
    yield "```"
    if model.calibration is not None:
        yield "`scores.p_value <= 0.05` flags images unlike those of training, and of inliers about one in twenty."


def _limits(model: "SavedModel") -> Iterator[str]:
    """What the model does not promise."""
    spec, labelled = model.spec, (model.result or {}).get("labeled_images")
    K, (height, width) = len(spec.class_names), spec.image_size
    yield f"- It puts every image into one of its {K} classes, whatever the image shows: look at the p-value before the label."
    if labelled is not None and labelled < _FEW_LABELS * K:
        yield (
            f"- It was shown {labelled:,} labels, {labelled / K:.3g} a class. With so few, another draw of them may give a "
            "clearly better or worse model: test it on labelled images of your own."
        )
    yield (
        f"- It sees {height} x {width} pixels. Files and Pillow images of another size are resized by their shorter side and "
        "cropped to the centre, as files were in training; arrays and tensors are stretched."
    )
    yield from _p_value_limits(model)
    if not model.classifier.head.has_centers:
        yield (
            "- The head has no centers, so there is no distance (NaN), and its log density is the negative "
            "energy of its logits, not that of a distribution."
        )
    elif model.refitted_head is None:
        yield "- Densities and distances are those of the head as trained; no mixture was refitted in closed form."
    else:
        yield (
            "- Labels are those of the head as trained; densities and distances those of a mixture that was refitted to the "
            "embeddings, one axis-aligned Gaussian a class."
        )
    yield "- Confidence is only as well calibrated as the metrics above say, and means nothing for images of no known class."


def _p_value_limits(model: "SavedModel") -> Iterator[str]:
    calibration = model.calibration
    if calibration is None:
        yield "- There are no outlier p-values (NaN): nothing was kept out of training among which scores could be ranked."
        return
    yield (
        "- An image of the same kind as the calibration images gets a p-value of at most alpha with a probability of at most "
        "alpha, taken over such images and over calibration sets. That bounds false alarms. It does not say how many outliers "
        "are found, and does not hold for images of the known classes that were taken in another way."
    )
    yield f"- The smallest p-value is {1 / (len(calibration.scores) + 1):.2g}: a smaller alpha flags nothing."
    if "test images" in calibration.source:
        yield "- The test images served for calibration, without their labels: false alarms counted on them prove nothing."
    else:
        yield "- Calibration images come from the unlabelled pool: outliers among them make p-values larger: fewer are found."


def _table(head: Sequence[str], rows: "Iterator[tuple[str, ...]] | Sequence[tuple[str, ...]]") -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(map(_plain, row))} |"


def _plain(text: str) -> str:
    """One line that breaks no table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
