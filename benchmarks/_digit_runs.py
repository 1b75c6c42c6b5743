"""The runs on digits that the benchmarks about outliers share: trained once and kept, with the images that belong to them."""

import time
from pathlib import Path

import torch

from _record import HERE
from momatch import Classifier, Linear, TrainConfig, fit
from momatch.data.rows import Rows
from momatch.evaluation.evaluate import confident_samples, run_classifier
from momatch.inference.evaluate import fitted
from momatch.models.outputs import Outputs
from momatch.training.data import load_by_name, part_classes, split_rows

OUT = HERE.parent / "out" / "digit-runs"
#: Model -> settings on top of the defaults.
MODELS = {
    "AAGMM 8-D, order 1": {},
    "linear, all features": {"head": "linear", "embedding_dim": 0},
    "linear 8-D": {"head": "linear"},
    "AAGMM 8-D, no constraint": {"moment_order": 0},
    "AAGMM 8-D, order 2": {"moment_order": 2},
    "AAGMM, all features, order 1": {"embedding_dim": 0},
}
#: Which classes the runs know -> settings.
KINDS = {"all classes": {}, "6-9 held out": {"held_out_classes": "6,7,8,9"}}


def trained(settings, seed, out=OUT):
    """The run with these settings: a finished one is read, an interrupted one goes on."""
    words = [f"{key}-{value}" for key, value in settings.items()] or ["default"]
    folder = Path(out) / ("_".join(words).replace(",", "") + f"_seed{seed}")
    started = (folder / "config.json").exists()
    config = {**settings, "seed": seed, "run_dir": str(folder), "progress": False, "resume": started}
    begin = time.perf_counter()
    run = fit(TrainConfig.from_dict(config))
    took = time.perf_counter() - begin
    print(f"{folder.name}: {run.result['test_accuracy']:.2%} of the test images right ({took:.0f} s)", flush=True)
    return run


def parts_of(run):
    """The run's images: known and held-out classes apart, then labelled set, pool and what was kept out for calibration."""
    config = run.config.resolved()
    parts = part_classes(load_by_name(config.dataset, image_size=config.image_size), config.held_out_classes)
    return (parts, *split_rows(config, parts))


def fashion_images(run, data_dir=None, every=1):
    """Fashion-MNIST's test images, or every so many-th, at the size of the run's."""
    images = load_by_name("fashion-mnist", data_dir=data_dir).test.images[::every]
    return fitted(Rows.of(images), run.spec)


def with_features(classifier):
    """The same network with the backbone's own features as its embedding; its head is not used."""
    unused = Linear(classifier.backbone.num_features, classifier.head.num_classes)
    return Classifier(classifier.backbone, unused, preprocess=classifier.preprocess)


def trusted(run, data):
    """What a user has to fit a detector on, the same as the closed-form refit uses.

    These are the labelled images with their labels, and the pool's images whose posterior is at least the run's cutoff with
    their pseudo-labels.

    Returns:
        The images, and their classes.
    """
    images = torch.cat([*data.labeled.chunks(4096), *data.unlabeled.chunks(4096)])
    labels = torch.cat([data.labels, torch.full((len(data.unlabeled),), -1)])
    outputs = run_classifier(run.classifier, images)
    positions, classes = confident_samples(Outputs(outputs.z, outputs.log_joint), labels, cutoff=run.config.cutoff)
    return images[positions], classes
