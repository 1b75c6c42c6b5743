"""The card of a model: README.md of its folder, with the head that the Hugging Face hub reads.

The last line holds a digest of all before it. A card that still fits its digest is replaced when the model is saved again; one
that was edited is its author's and stays.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from momatch.config import RUNTIME_KEYS, TrainConfig
from momatch.models.card_words import figure_rows, limits, use
from momatch.storage.signed_text import sign

if TYPE_CHECKING:
    from momatch.models.saved_model import SavedModel

_MOST_CLASSES = 50
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
    accuracy = (model.figures or {}).get("test_accuracy")
    if accuracy is not None:
        dataset = model.facts.dataset
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
    facts = model.facts
    width = f"{facts.embedding_dim} dimensions" if facts.embedding_dim else "the network's own features"
    yield f"# {_plain(_title(model))}"
    yield ""
    yield (
        f"An image classifier for {len(facts.class_names)} classes that also says how well it knows an image: "
        f"`{facts.backbone}` network, `{facts.head}` head on {width}, trained by {_plain(facts.created_by)}."
    )
    yield from ("", "## Use", "", *use(model), "", "## Data", "")
    yield from _table(("", ""), _data_rows(model))
    yield from ("", "## Settings", "", *_settings(model), "", "## Figures", "")
    rows = figure_rows(model.figures or {})
    yield from _table(("", "", "note"), rows) if rows else ["None were recorded with this model."]
    yield from ("", "## Limits", "", *limits(model))


def _title(model: "SavedModel") -> str:
    return f"{model.facts.backbone} for {model.facts.dataset}"


def _data_rows(model: "SavedModel") -> Iterator[tuple[str, str]]:
    facts, figures, settings = model.facts, model.figures or {}, model.settings or {}
    height, width = facts.image_size
    colours = {1: "gray", 3: "RGB"}.get(facts.in_channels, f"{facts.in_channels} channels")
    shown = ", ".join(facts.class_names[:_MOST_CLASSES])
    more = len(facts.class_names) - _MOST_CLASSES
    yield "dataset", facts.dataset
    yield "classes", shown + (f" and {more:,} more, all in model.json" if more > 0 else "")
    yield "images", f"{height} x {width} pixels, {colours}, uint8"
    for name, key in (("labelled images", "labeled_images"), ("unlabelled images", "unlabeled_images")):
        if figures.get(key) is not None:
            yield name, f"{figures[key]:,}"
    if figures.get("test_images") is not None:
        yield "test images", f"{figures['test_images']:,}"
    if figures.get("feature_views") is not None:
        yield (
            "trained on",
            f"features that the network, frozen, had made of {figures['feature_views']} views of each image (momatch embed): "
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
    given = {"head": model.facts.head, "dataset": str(model.settings.get("dataset", ""))}
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


def _table(head: Sequence[str], rows: "Iterator[tuple[str, ...]] | Sequence[tuple[str, ...]]") -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(map(_plain, row))} |"


def _plain(text: str) -> str:
    """One line that breaks no table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
