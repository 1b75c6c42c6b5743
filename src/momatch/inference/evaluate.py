"""`evaluate_run`: figures about a finished run's classifier, on its own dataset or another, and against outliers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from momatch.data.contaminate import HeldOut
from momatch.data.conversion import convert_images
from momatch.data.dataset import Dataset, Split
from momatch.data.feature_facts import read_facts
from momatch.data.load import BY_EXTENSION, BY_NAME
from momatch.data.rows import Examples, ImageRows
from momatch.evaluation.evaluate import Outputs, evaluate_outputs, outlier_scores, run_classifier, separation
from momatch.models.classifier import Classifier
from momatch.models.spec import ModelSpec
from momatch.training.data import HELD_OUT, load_images, part_classes
from momatch.training.features import check_backbone
from momatch.training.run import Run


def evaluate_run(
    run: Run,
    *,
    dataset: str | None = None,
    data_dir: str | None = None,
    image_size: int | None = None,
    test_fraction: float | None = None,
    outliers: Sequence[str] = (),
    batch_size: int = 512,
) -> dict[str, Any]:
    """Figures about a run's classifier, as plain values for JSON.

    Args:
        run: finished.
        dataset: name or path; None for the run's own. Its test images are taken, or where another dataset than the run's has
            none, all its labelled images. Classes are matched by name.
        data_dir: where known datasets lie; None for where the run found them.
        image_size: as `TrainConfig.image_size`; None for the run's.
        test_fraction: as `TrainConfig.test_fraction`, of another dataset than the run's; None for the run's.
        outliers: datasets whose images (test images, where there are any) are to be told from the test images. The classes
            that a run held out are told from its own test images in any case.
        batch_size: images a pass.

    Returns:
        What `Evaluation.to_dict` gives, with `run`, `dataset`, `images` (in words), `class_names` and `outliers`: dataset ->
        `n`, and `as_trained` and `refitted` (None without a refitted head): score -> `auroc` and `fpr95`.

    Raises:
        ValueError: if the run is not finished, a dataset cannot be used, has no test images or classes that the run does not
            know, or another part of the run's own dataset is asked for than was held out.
    """
    classifier = run.classifier
    data_dir = data_dir or run.config.data_dir
    name = dataset or run.config.dataset
    own = _is_same(name, run.config.dataset)
    strangers: dict[str, ImageRows] = {}
    if own:
        parts = _own_parts(run, data_dir, image_size, test_fraction)
        test, source = parts.test, "test images"
        if test is None:
            raise ValueError(
                f"{name}: got no test images, expected some; train with test_fraction, which holds some out, or name "
                "another dataset"
            )
        if parts.unknown_test is not None and len(parts.unknown_test):
            strangers[HELD_OUT] = fitted(parts.unknown_test.images, run.spec)
    else:
        test, source = _other_examples(run, name, data_dir, image_size, test_fraction)
    # Loaded first: a name that is wrong should not show after minutes of work.
    strangers |= {other: _outlier_images(run, other, data_dir) for other in outliers}
    inliers = run_classifier(classifier, fitted(test.images, run.spec), batch_size=batch_size)
    return {
        "run": str(run.directory),
        "dataset": name,
        "images": source,
        "class_names": list(run.class_names),
        **evaluate_outputs(classifier.head, inliers, test.labels).to_dict(),
        "outliers": {
            other: _separations(run, inliers, run_classifier(classifier, images, batch_size=batch_size))
            for other, images in strangers.items()
        },
    }


def test_outputs(run: Run) -> tuple[Outputs, Int64[Tensor, " n"]] | None:
    """What a finished run's classifier says about its own labelled test images, and their labels; None if there are none."""
    test = _own_parts(run, run.config.data_dir, None, None).test
    if test is None or not bool((test.labels >= 0).any()):
        return None
    return run_classifier(run.classifier, fitted(test.images, run.spec)), test.labels


def _own_parts(run: Run, data_dir: str | None, image_size: int | None, test_fraction: float | None) -> HeldOut:
    config = run.config
    if test_fraction not in (None, config.test_fraction):
        raise ValueError(
            f"test_fraction: got {test_fraction}, expected {config.test_fraction} as in training: other images were trained on"
        )
    loaded = load_images(
        config.dataset,
        data_dir=data_dir,
        image_size=config.image_size if image_size is None else image_size,
        test_fraction=config.test_fraction,
    )
    check_features(run.classifier, loaded)
    return part_classes(loaded, config.held_out_classes)


def _other_examples(
    run: Run, name: str, data_dir: str | None, image_size: int | None, test_fraction: float | None
) -> tuple[Examples, str]:
    """Labelled images of another dataset than the run's, and what they are in words."""
    if image_size is None:
        image_size = size_of_files(name, run.spec)
    loaded = load_images(name, data_dir=data_dir, image_size=image_size, test_fraction=test_fraction)
    check_features(run.classifier, loaded)
    split = loaded.test or loaded.train
    examples = Examples(ImageRows.of_split(split), _matched(loaded, split, run.class_names))
    return examples, "test images" if split is loaded.test else "all labelled images"


def _is_same(name: str, other: str) -> bool:
    """Whether two names mean one dataset: a folder may be written in many ways."""
    if name in BY_NAME or other in BY_NAME:
        return name == other
    return Path(name).expanduser().resolve() == Path(other).expanduser().resolve()


def _outlier_images(run: Run, name: str, data_dir: str | None) -> ImageRows:
    loaded = load_images(name, data_dir=data_dir, image_size=size_of_files(name, run.spec))
    check_features(run.classifier, loaded)
    return fitted(ImageRows.of_split(loaded.test or loaded.train), run.spec)


def _separations(run: Run, inliers: Outputs, outliers: Outputs) -> dict[str, Any]:
    heads = {"as_trained": run.classifier.head, "refitted": run.refitted_head}
    return {"n": len(outliers)} | {
        key: None if head is None else separation(outlier_scores(head, inliers), outlier_scores(head, outliers))
        for key, head in heads.items()
    }


def size_of_files(name: str, facts: ModelSpec) -> int | None:
    """At which size to load image files that a model was not trained on: the model's. Other datasets have a size."""
    path = Path(name).expanduser()
    extension = "" if path.is_dir() else path.suffix.lower()
    if name in BY_NAME or extension not in BY_EXTENSION or "size" not in BY_EXTENSION[extension][1]:
        return None
    if read_facts(path) is not None:
        return None
    return min(facts.image_size)


def check_features(classifier: Classifier, dataset: Dataset) -> None:
    """Check that features are of the classifier's own backbone; images always are in order.

    Raises:
        ValueError: if they are another's.
    """
    if dataset.features is not None:
        check_backbone(classifier, dataset.features)


def fitted(images: ImageRows, facts: ModelSpec) -> ImageRows:
    """The images with the channels and the size that a model takes; features as they are."""
    if images.are_features:
        return images
    return convert_images(images, (facts.in_channels, *facts.image_size))


def _matched(dataset: Dataset, split: Split, class_names: Sequence[str]) -> Int64[Tensor, " n"]:
    """The labels of `split` as numbers of the run's classes, by the classes' names."""
    unknown = [name for name in dataset.class_names if name not in class_names]
    if unknown:
        raise ValueError(
            f"{dataset.name}: got classes that the run does not know: {_listed(unknown)}; expected some of "
            f"{_listed(class_names)}; images of other classes can be given as outliers"
        )
    numbers = torch.tensor([class_names.index(name) for name in dataset.class_names])
    return torch.where(split.labels < 0, split.labels, numbers[split.labels.clamp_min(0)])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
