"""Small real runs for the tests of a report: four classes, each bright in a corner of its own."""

from pathlib import Path

import numpy as np

from momatch.config import TrainConfig
from momatch.data.dataset import Dataset
from momatch.training.fit import fit

NAMES = ("left", "right", "low", "high")
STEPS = 40


def write_dataset(path: Path, *, seed: int = 0, test: int = 20, labelled_test: bool = True, classes: int = 4) -> Path:
    """An .npz of noisy 8x8 images, each class bright in a corner of its own; `test` images of each in the test set."""
    random = np.random.default_rng(seed)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(n * classes) % classes
        images = random.integers(0, 120, (n * classes, 8, 8), dtype=np.uint8)
        for k in range(classes):
            top, left = 4 * (k // 2), 4 * (k % 2)
            images[labels == k, top : top + 4, left : left + 4] += 100
        return images, labels

    (images, labels), (test_images, test_labels) = draw(40), draw(max(test, 1))
    arrays = {"images": images, "labels": labels, "class_names": np.array(NAMES[:classes])}
    if test:
        known = test_labels if labelled_test else np.full_like(test_labels, -1)
        arrays |= {"test_images": test_images, "test_labels": known}
    np.savez(path, **arrays)
    return path


def train(folder: Path, **settings: object) -> Path:
    """Train for a moment in `folder`; returns the run's directory. The dataset is written where it is not given."""
    if "dataset" not in settings:
        settings["dataset"] = str(write_dataset(folder / "corners.npz"))
    small = {
        "backbone": "mlp",
        "flip": "no",
        "labels_per_class": 4,
        "embedding_dim": 4,
        "steps": STEPS,
        "labeled_batch_size": 12,
        "unlabeled_batch_size": 12,
        "eval_interval": 20,
        "log_interval": 10,
        "checkpoint_interval": 20,
        "ema_decay": 0.9,
        "progress": False,
        "run_dir": str(folder / "run"),
    }
    dataset = settings["dataset"]
    if isinstance(dataset, Dataset):
        return fit(TrainConfig.from_dict(small | settings | {"dataset": dataset.name}), dataset).directory
    return fit(TrainConfig.from_dict(small | settings)).directory
