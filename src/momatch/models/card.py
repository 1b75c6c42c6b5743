"""The model card: README.md of a model folder, with the front matter that the Hugging Face hub reads.

The last line is a digest of the rest. Saving the model again replaces a card that matches its digest; an edited card is kept.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from momatch.config import RUNTIME_KEYS, TrainConfig
from momatch.models.backbones.custom import imports_code
from momatch.storage.durable import sign

if TYPE_CHECKING:
    from momatch.models.saved_model import SavedModel

_MOST_CLASSES = 50
#: Below this many labels per class, the card warns that the result depends on which were drawn.
_FEW_LABELS = 100
#: Metric of result.json -> display name, number format, note; {note} is the note in result.json.
_METRICS: dict[str, tuple[str, str, str]] = {
    "test_accuracy": ("test accuracy", "{:.2%}", "{note}"),
    "best_test_accuracy": ("best test accuracy", "{:.2%}", "{note}"),
    "ece": ("calibration error (ECE)", "{:.2%}", "gap between confidence and accuracy on the test images"),
    "compactness": ("compactness", "{:.4g}", "mean distance of test embeddings to the center of their predicted class"),
    "pseudo_label_accuracy": (
        "pseudo-labels correct",
        "{:.2%}",
        "of those used at the end of training, where the true class is known (it was hidden from training)",
    ),
    "utilisation": ("pseudo-labels used", "{:.2%}", "mean weight of the unlabelled images at the end of training"),
    "parameters": ("parameters", "{:,}", "{note}"),
    "steps": ("steps", "{:,}", ""),
    "seed": ("seed", "{}", "a single run; results vary with the seed"),
    "seconds": ("training time", "{:,.0f} s", ""),
}
_TAGS = ("momatch", "image-classification", "semi-supervised-learning", "out-of-distribution-detection")


def model_card(model: "SavedModel", entries: Mapping[str, Any]) -> str:
    """The text of the card.

    Args:
        model: the model to describe.
        entries: front matter that is added to the default entries or replaces them; plain values, lists and mappings.
    """
    return sign("\n".join([*_head(model, entries), *_body(model)]) + "\n\n")


def _head(model: "SavedModel", entries: Mapping[str, Any]) -> Iterator[str]:
    """The front matter: one entry per line, in JSON, which is valid YAML."""
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
    embedding = f"{spec.embedding_dim}-dimensional embeddings" if spec.embedding_dim else "the backbone's features"
    yield f"# {_plain(_title(model))}"
    yield ""
    yield (
        f"An image classifier for {len(spec.class_names)} classes that also detects outliers: `{spec.backbone}` backbone, "
        f"`{spec.head}` head on {embedding}. Trained with {_plain(spec.created_by)}."
    )
    yield from ("", "## Use", "", *_use(model), "", "## Data", "")
    yield from _table(("", ""), _data_rows(model))
    yield from ("", "## Settings", "", *_settings(model), "", "## Metrics", "")
    rows = _metric_rows(model.result or {})
    yield from _table(("metric", "value", "note"), rows) if rows else ["Not recorded."]
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
    yield "classes", shown + (f" and {more:,} more (see model.json)" if more > 0 else "")
    yield "images", f"{height} x {width} pixels, {colours}, uint8"
    for name, key in (("labelled images", "labeled_images"), ("unlabelled images", "unlabeled_images")):
        if result.get(key) is not None:
            yield name, f"{result[key]:,}"
    if result.get("test_images") is not None:
        yield "test images", f"{result['test_images']:,}"
    if result.get("feature_views") is not None:
        yield (
            "trained on",
            f"cached features of {result['feature_views']} views of each image (momatch embed): projection and head "
            "were trained, the backbone was frozen",
        )
    if settings.get("held_out_classes"):
        yield "classes held out of training", str(settings["held_out_classes"])
    judge, calibration = model.scorer.judge, model.calibration
    if judge is not None:
        shrinkage = f"covariance shrunk by {float(judge.shrinkage):.2g}"
        yield (
            "outlier scores",
            f"by a judge of the network's stages, fitted to {int(judge.count):,} images ({shrinkage})",
        )
    yield (
        "outlier p-values",
        "none: no images were held out for calibration"
        if calibration is None
        else f"calibrated on {len(calibration.scores):,} scores ({calibration.score}) of {calibration.source}",
    )


def _settings(model: "SavedModel") -> Iterator[str]:
    if model.settings is None:
        yield "Not recorded."
        return
    # Both sides are resolved, so that a default that resolves to a value is not listed.
    given = {"head": model.spec.head, "dataset": str(model.settings.get("dataset", ""))}
    plain = TrainConfig()
    defaults = plain.updated(given).resolved().to_dict() | {key: getattr(plain, key) for key in given}
    chosen = {
        key: value
        for key, value in model.settings.items()
        if key not in RUNTIME_KEYS and (key not in defaults or value != defaults[key])
    }
    yield "Settings that differ from the defaults of `momatch train`; model.json has all of them:"
    yield ""
    yield from _table(("setting", "value"), [(f"`{key}`", str(value)) for key, value in chosen.items()])


def _metric_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, value and note of each recorded metric."""
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
    """Example code that runs unchanged in the model folder."""
    C, (H, W) = model.spec.in_channels, model.spec.image_size
    yield "```python"
    yield "import torch"
    yield "from momatch import SavedModel  # pip install momatch"
    yield ""
    trust = ", trust_code=True" if imports_code(model.spec.backbone) else ""
    yield f'model = SavedModel.from_pretrained("."{trust})  # this folder'
    yield f"images = torch.zeros(1, {C}, {H}, {W}, dtype=torch.uint8)  # replace with your images: raw pixels"
    yield "scores = model.predict(images)"
    yield "names = [model.spec.class_names[label] for label in scores.labels.tolist()]"
    yield "print(names, scores.confidence, scores.p_value)"
    yield "```"
    if model.calibration is not None:
        yield "`scores.p_value <= 0.05` flags images unlike the training data, and at most about 5 % of those like it."


def _limits(model: "SavedModel") -> Iterator[str]:
    spec, labelled = model.spec, (model.result or {}).get("labeled_images")
    K, (height, width) = len(spec.class_names), spec.image_size
    yield f"- Every image gets one of the {K} classes, whatever it shows. Check the p-value before you trust the label."
    if labelled is not None and labelled < _FEW_LABELS * K:
        yield (
            f"- It was trained with {labelled:,} labels, {labelled / K:.3g} per class. With so few, accuracy depends on which "
            "images were labelled. Test it on your own labelled images."
        )
    yield (
        f"- Images are resized to {height} x {width} pixels. Files and Pillow images are resized by the shorter side and "
        "centre-cropped, as files are in training; arrays and tensors are stretched."
    )
    yield from _p_value_limits(model)
    if model.scorer.judge is not None:
        yield (
            "- Labels come from the head. Densities, distances and outlier scores come from a judge of the network's stages: "
            "one Gaussian per class with a shared covariance, fitted to statistics of the layers' outputs."
        )
    elif not model.classifier.head.has_centers:
        yield (
            "- The head has no centers, so `distance` is NaN, and `log_density` is the negative energy of the logits, not a "
            "log density."
        )
    elif model.refitted_head is None:
        yield "- Densities and distances come from the head as trained; no mixture was refitted."
    else:
        yield (
            "- Labels come from the head as trained. Densities and distances come from a mixture refitted to the embeddings, "
            "one axis-aligned Gaussian per class."
        )
    yield "- Confidence is only as well calibrated as the metrics above show, and means nothing for images of unknown classes."


def _p_value_limits(model: "SavedModel") -> Iterator[str]:
    calibration = model.calibration
    if calibration is None:
        yield "- There are no outlier p-values (NaN), because no images were held out for calibration."
        return
    yield (
        "- Flagging `p_value <= alpha` has a false-positive rate of at most alpha, on average over calibration sets, for "
        "images from the same distribution as the calibration images. It says nothing about how many outliers are found, and "
        "does not hold for images of the known classes that were taken under other conditions."
    )
    yield f"- The smallest possible p-value is {1 / (len(calibration.scores) + 1):.2g}; a smaller alpha flags nothing."
    if "test images" in calibration.source:
        yield "- p-values are calibrated on the test images (without labels): do not measure false positives on them."
    else:
        yield (
            "- Calibration images come from the unlabelled pool. Outliers among them that were not recognised raise p-values, "
            "so fewer are found; ordinary images that were taken for outliers lower them, so more are flagged than alpha says."
        )


def _table(head: Sequence[str], rows: "Iterator[tuple[str, ...]] | Sequence[tuple[str, ...]]") -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(map(_plain, row))} |"


def _plain(text: str) -> str:
    """Text as one line, escaped for a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
