"""A folder of photographs with junk in the pool: TrashNet, two classes unknown, CIFAR-10 images and crops as junk.

    python benchmarks/photographs.py --data-dir DIR

DIR/trash has a folder per class. Four classes are known, with 8 labels each; the last two are unknown. Junk: CIFAR-10's test
images, and small patches of the photographs, half of them for the pool and half new. Everything is embedded once, at 128
pixels. p-values are calibrated on a tenth of the pool, as for a folder without test images, so the junk is among the
calibration images too. Features and runs lie in --out and are kept.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from _record import HERE, spread, write_result
from momatch import TrainConfig, fit
from momatch.data.dataset import Dataset, Split
from momatch.embedding import EmbedOptions, embed
from momatch.evaluation.evaluate import run_classifier
from momatch.evaluation.metrics import auroc
from momatch.training.data import load_by_name

OUT = HERE.parent / "out" / "photographs"
SIZE, PATCH = 128, 32
KNOWN = 4
#: Images of each kind of junk, in the pool and again new.
JUNK = 150
ORIGINS = ("unknown classes", "CIFAR-10", "patches")
ALPHA = 0.05
RULES = {"no rule": {"outliers": "none"}, "auto": {"outliers": "auto"}}


def embedded(arguments):
    """The features of all images; classes after the known ones are the origins of outliers."""
    path = arguments.out / "trash.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        images = arguments.out / "images.npz"
        np.savez(images, **pictures(arguments))
        embed(EmbedOptions(dataset=str(images), out=path, image_size=SIZE, progress=False))
    return load_by_name(str(path))


def pictures(arguments):
    """Photographs and junk as arrays."""
    trash = load_by_name(str(arguments.data_dir / "trash"), image_size=SIZE, test_fraction=0.2)
    cifar = load_by_name("cifar10", data_dir=str(arguments.data_dir)).test.images
    generator = torch.Generator().manual_seed(0)
    cifar = cifar[torch.randperm(len(cifar), generator=generator)[: 2 * JUNK]]
    photographs = trash.train.images[trash.train.labels < KNOWN]
    chosen = photographs[torch.randperm(len(photographs), generator=generator)[: 2 * JUNK]]
    places = torch.randint(SIZE - PATCH, (2 * JUNK, 2), generator=generator).tolist()
    patches = torch.stack(
        [image[:, y : y + PATCH, x : x + PATCH] for image, (y, x) in zip(chosen, places, strict=True)]
    )
    junk = [_enlarged(cifar), _enlarged(patches)]
    is_known = trash.train.labels < KNOWN
    # A few of the unknown classes, because a dataset needs an image of every class; they are not used.
    unused = trash.train.images[~is_known][:2]
    train = torch.cat([trash.train.images[is_known], unused, *(kind[:JUNK] for kind in junk)])
    of_junk = [torch.full((JUNK,), KNOWN + 1 + i) for i in range(len(junk))]
    labels = torch.cat([trash.train.labels[is_known], torch.full((len(unused),), KNOWN), *of_junk])
    test = torch.cat([trash.test.images, *(kind[JUNK:] for kind in junk)])
    test_labels = [trash.test.labels.clamp_max(KNOWN), *(torch.full((JUNK,), KNOWN + 1 + i) for i in range(len(junk)))]
    return {
        "images": train.permute(0, 2, 3, 1).numpy(),
        "labels": labels.numpy(),
        "test_images": test.permute(0, 2, 3, 1).numpy(),
        "test_labels": torch.cat(test_labels).numpy(),
        "class_names": np.array([*trash.class_names[:KNOWN], *ORIGINS]),
    }


def _enlarged(images):
    resized = F.interpolate(images.float(), (SIZE, SIZE), mode="bilinear", antialias=True)
    return resized.round().clamp(0, 255).to(torch.uint8)


def measure(dataset, rule, dirty, seed, arguments):
    """Accuracy, and for each origin the share that is flagged and its AUROC."""
    labels, test = dataset.train.labels, dataset.test
    rows = torch.nonzero(labels < (KNOWN + len(ORIGINS) if dirty else KNOWN)).flatten()
    kept = torch.nonzero(test.labels < KNOWN).flatten()
    train = Split(dataset.train.rows.select(rows), labels[rows])
    given = Dataset(
        dataset.name, dataset.class_names, train, Split(test.rows.select(kept), test.labels[kept]), dataset.features
    )
    config = TrainConfig.preset(
        "features",
        **RULES[rule],
        dataset="trash",
        labels_per_class=8,
        calibration_fraction=0.1,
        held_out_classes=",".join(ORIGINS),
        held_out_in_pool=dirty,
        seed=seed,
        run_dir=str(arguments.out / f"{rule.replace(' ', '-')}_{'dirty' if dirty else 'clean'}_seed{seed}"),
        progress=False,
        resume="auto",
    )
    run = fit(config, given)

    def scores(some):
        outputs = run_classifier(run.classifier, some, stage_names=run.model.stage_names)
        return run.model.scorer(outputs.z, outputs.stages)

    inliers = scores(given.test.rows)
    found = {
        "accuracy": run.result["test_accuracy"],
        "false alarms": float((inliers.p_value <= ALPHA).double().mean()),
    }
    for k, origin in enumerate(ORIGINS):
        new = scores(test.rows.select(torch.nonzero(test.labels == KNOWN + k).flatten()))
        found[f"{origin}: flagged"] = float((new.p_value <= ALPHA).double().mean())
        found[f"{origin}: AUROC"] = auroc(inliers.outlier_score, new.outlier_score)
    in_pool = torch.nonzero(labels > KNOWN).flatten()
    found["junk of the pool: flagged"] = float(
        (scores(dataset.train.rows.plain().select(in_pool)).p_value <= ALPHA).double().mean()
    )
    print(f"{rule}, {'dirty' if dirty else 'clean'}, seed {seed}: {found}", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="*", type=int, default=[5, 6, 7, 8, 9])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--notes", default="")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dataset = embedded(arguments)
    rows = []
    for dirty in (False, True):
        for rule in RULES:
            by_seed = [measure(dataset, rule, dirty, seed, arguments) for seed in arguments.seeds]
            line = {"pool": "with junk" if dirty else "clean", "rule": rule}
            for key in by_seed[0]:
                scale, digits = (1, 3) if key.endswith("AUROC") else (100, 1)
                line[key] = spread([scale * values[key] for values in by_seed], digits)
            rows.append(line)
    counts = torch.bincount(dataset.test.labels, minlength=KNOWN + len(ORIGINS))
    notes = (
        f"TrashNet at {SIZE} px, efficientnet-lite0, the preset 'features', 8 labels for each of "
        f"{', '.join(dataset.class_names[:KNOWN])}; seeds {arguments.seeds}; percent but AUROC; flagged: p <= {ALPHA}, "
        f"calibrated on a tenth of the pool. Junk in the dirty pool: {2 * JUNK} images of "
        f"{len(dataset.train)}. New images: {int(counts[:KNOWN].sum())} of known classes, "
        f"{', '.join(f'{int(counts[KNOWN + k])} {origin}' for k, origin in enumerate(ORIGINS))}. {arguments.notes}"
    )
    write_result("photographs", rows, notes)


if __name__ == "__main__":
    main()
