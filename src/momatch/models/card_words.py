"""What a model's card says in words: how the model is used, what its figures mean, what it does not promise."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from momatch.models.saved_model import SavedModel

#: Up to so many labels a class the card warns of their draw.
FEW_LABELS = 100
#: Figure of result.json -> its name, how it is written, what it means; {note} is what result.json itself says about it.
_FIGURES: dict[str, tuple[str, str, str]] = {
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
    "seed": ("seed", "{}", "one run; other seeds give other figures"),
    "seconds": ("training time", "{:,.0f} s", ""),
}


def figure_rows(figures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, value and meaning of the figures that are known."""
    rows = [
        (name, form.format(figures[key]), meaning.format(note=figures.get(f"{key}_note", "")))
        for key, (name, form, meaning) in _FIGURES.items()
        if isinstance(figures.get(key), int | float) and math.isfinite(figures[key])
    ]
    made = figures.get("versions")
    if rows and isinstance(made, Mapping):
        rows.append(("versions", ", ".join(f"{name} {version}" for name, version in made.items()), ""))
    return rows


def use(model: "SavedModel") -> Iterator[str]:
    """Code that runs as it stands, in the folder of the model."""
    C, (H, W) = model.facts.in_channels, model.facts.image_size
    yield "```python"
    yield "import torch"
    yield "from momatch import SavedModel  # pip install momatch"
    yield ""
    yield 'model = SavedModel.from_pretrained(".")  # this folder'
    yield f"images = torch.zeros(1, {C}, {H}, {W}, dtype=torch.uint8)  # yours: raw pixels"
    yield "scores = model.predict(images)"
    yield "names = [model.facts.class_names[label] for label in scores.labels.tolist()]"
    yield "print(names, scores.confidence, scores.p_value)"
    yield "```"
    if model.calibration is not None:
        yield "`scores.p_value <= 0.05` flags images unlike those of training, and of inliers about one in twenty."


def limits(model: "SavedModel") -> Iterator[str]:
    """What the model does not promise."""
    facts, labelled = model.facts, (model.figures or {}).get("labeled_images")
    K, (height, width) = len(facts.class_names), facts.image_size
    yield f"- It puts every image into one of its {K} classes, whatever the image shows: look at the p-value before the label."
    if labelled is not None and labelled < FEW_LABELS * K:
        yield (
            f"- It was shown {labelled:,} labels, {labelled / K:.3g} a class. With so few, another draw of them may give a "
            "clearly better or worse model: test it on labelled images of your own."
        )
    yield (
        f"- It sees {height} x {width} pixels. Files and Pillow images of another size are resized by their shorter side and "
        "cropped to the centre, as files were in training; arrays and tensors are stretched."
    )
    yield from _limits_of_p_values(model)
    if facts.head == "linear":
        yield (
            "- The head is linear: it has no centers, so there is no distance (NaN), and its log density is the negative "
            "energy of its logits, not that of a distribution."
        )
    elif model.refitted_head is None:
        yield "- Densities and distances are those of the head as trained; no mixture was refitted in closed form."
    else:
        yield (
            "- Labels are those of the head as trained; densities and distances those of a mixture that was refitted to the "
            "embeddings, one axis-aligned Gaussian a class."
        )
    yield "- Confidence is calibrated no further than the figures say, and means nothing for images of no known class."


def _limits_of_p_values(model: "SavedModel") -> Iterator[str]:
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
