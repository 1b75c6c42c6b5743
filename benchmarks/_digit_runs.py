"""Runs on digits for benchmarks/conformal.py: trained once and kept, with the images that belong to them."""

import time
from pathlib import Path

from _record import HERE
from momatch import TrainConfig, fit
from momatch.data.rows import Rows
from momatch.inference.evaluate import fitted
from momatch.training.data import load_by_name, part_classes, split_rows

OUT = HERE.parent / "out" / "digit-runs"
#: Model -> settings on top of the defaults.
MODELS = {
    "AAGMM 8-D, order 1": {},
    "linear, all features": {"head": "linear", "embedding_dim": 0},
}


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
