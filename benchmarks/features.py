"""Few labels on photographs: `momatch train` on features against what scikit-learn makes of the same features and labels.

    momatch embed cifar10 --limit 12000 --image-size 96 --out FILE
    python benchmarks/features.py --files FILE [FILE ...]

Labels are drawn balanced, or as classes occur: as many in all, at least one of each class. Every method sees the same labels;
the test images are seen once. Finished runs lie in --out and are kept. One thread. With ``--rivals RECORD.json`` the rivals are
those of an earlier record of the same files and seeds.
"""

import argparse
import tempfile
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.semi_supervised import LabelSpreading

from _calibration import chance_error, joint_error, reliability
from _features import about
from _record import HERE, kept, recorded, spread, write_result
from momatch import TrainConfig, fit, load_dataset
from momatch.data.dataset import Dataset, Split
from momatch.evaluation.metrics import calibration
from momatch.models.outputs import run_classifier

OUT = HERE.parent / "out" / "features"
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
DRAWS = ("balanced", "as they occur")
OURS = "momatch train"
#: Of ours alone: the last is the calibration error that exact posteriors would have with as many test images.
OF_OURS = ("confidence", "calibration error", "by chance", "reliability")


def drawn(y, draw, per_class, seed):
    """Rows that are labelled."""
    rng = np.random.default_rng([seed, per_class, DRAWS.index(draw)])
    classes = np.unique(y)
    if draw == "balanced":
        return np.concatenate([rng.choice(np.flatnonzero(y == k), per_class, replace=False) for k in classes])
    while True:
        rows = rng.choice(len(y), per_class * len(classes), replace=False)
        if len(np.unique(y[rows])) == len(classes):
            return rows


def rivals(x, y, shown, x_test):
    """Name -> predictions of the test rows."""
    probe = LogisticRegression(max_iter=1000)
    for name, scaler in (("raw", None), ("standardised", StandardScaler())):
        yield f"logistic regression, {name}", make_pipeline(scaler, probe).fit(x[shown], y[shown]).predict(x_test)
        search = GridSearchCV(make_pipeline(scaler, probe), {"logisticregression__C": STRENGTHS}, cv=4)
        yield f"logistic regression, {name}, C by the labels", search.fit(x[shown], y[shown]).predict(x_test)
    unit, unit_test = Normalizer().transform(x), Normalizer().transform(x_test)
    neighbors = KNeighborsClassifier(min(5, len(shown)))
    yield "nearest neighbours", neighbors.fit(unit[shown], y[shown]).predict(unit_test)
    labels = np.full(len(y), -1)
    labels[shown] = y[shown]
    yield "LabelSpreading", LabelSpreading(kernel="knn").fit(unit, labels).predict(unit_test)


def ours(dataset, shown, seed):
    """Test log posteriors of `momatch train` with its defaults."""
    labels = torch.full_like(dataset.train.labels, -1)
    labels[shown] = dataset.train.labels[shown]
    given = Dataset(
        dataset.name, dataset.class_names, Split(dataset.train.rows, labels), dataset.test, dataset.features
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = {"labels_per_class": 0, "seed": seed, "progress": False, "run_dir": str(Path(folder) / "run")}
        run = fit(TrainConfig.preset("features", dataset=dataset.name, **settings), given)
        outputs = run_classifier(run.classifier, dataset.test.rows)
        return torch.log_softmax(outputs.log_joint.double() / run.model.temperature, 1)


def measure(dataset, draw, per_class, seed, before):
    """Accuracies in percent; ours also with confidence and calibration error. Rivals measured before are not measured again."""
    x, y = dataset.train.features[:, 0].float().numpy(), dataset.train.labels.numpy()
    x_test, y_test = dataset.test.features[:, 0].float().numpy(), dataset.test.labels
    shown = drawn(y, draw, per_class, seed)
    found = {name: accuracy for name, accuracy in before.items() if name not in (OURS, *OF_OURS)} or {
        name: 100 * float(np.mean(predicted == y_test.numpy())) for name, predicted in rivals(x, y, shown, x_test)
    }
    log_posterior = ours(dataset, shown, seed)
    found[OURS] = 100 * float((log_posterior.argmax(1) == y_test).double().mean())
    found["confidence"] = 100 * float(log_posterior.exp().amax(1).mean())
    measured = calibration(log_posterior, y_test)
    found["calibration error"], found["reliability"] = 100 * measured.error, reliability(measured)
    found["by chance"] = chance_error(log_posterior)
    return found


def summarise(found):
    """A row a cell: ours, every rival, and the distance to the best of them."""
    rows, gains = [], []
    for (name, draw, per_class), runs in found.items():
        names = [key for key in runs[0] if key not in (OURS, *OF_OURS)]
        means = {key: float(np.mean([run[key] for run in runs])) for key in runs[0] if key != "reliability"}
        best = max(names, key=means.get)
        gain = means[OURS] - means[best]
        gains.append((per_class, gain))
        rows.append(
            {
                "features": name,
                "labels": f"{per_class} a class, {draw}",
                OURS: spread([run[OURS] for run in runs], 1),
                **{key: f"{means[key]:.1f}" for key in names},
                "against the best": f"{gain:+.1f}",
                "confidence": f"{means['confidence']:.1f}",
                "calibration error": f"{means['calibration error']:.1f}",
                "by chance": f"{means['by chance']:.1f}",
            }
        )
    few = [gain for per_class, gain in gains if per_class <= 10]
    errors, chance = (
        np.mean([run[key] for runs in found.values() for run in runs]) for key in ("calibration error", "by chance")
    )
    together = joint_error([run["reliability"] for runs in found.values() for run in runs])
    verdict = (
        "Smallest distance to the best rival of a cell (best by its mean over the seeds) "
        f"{min(gain for _, gain in gains):+.1f} points; mean distance at 4 and 10 labels a class {np.mean(few):+.1f}; "
        f"calibration error {errors:.1f} % on average; by chance, with exact posteriors, it would be {chance:.1f} %; of all "
        f"runs together it is {together:.1f} %. "
    )
    return rows, verdict


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=Path, nargs="+", required=True)
    parser.add_argument("--labels", type=int, nargs="+", default=[4, 10, 40])
    parser.add_argument("--seeds", type=int, nargs="+", default=[5, 6, 7, 8, 9])
    parser.add_argument("--draws", nargs="+", choices=DRAWS, default=list(DRAWS))
    parser.add_argument("--name", default="features", help="of the record")
    parser.add_argument("--rivals", type=Path, help="record to take the rivals' runs from")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    arguments.out.mkdir(parents=True, exist_ok=True)
    found, seen, before = {}, [], recorded(arguments.rivals, arguments.seeds)
    for path in arguments.files:
        dataset = load_dataset(path)
        seen.append(about(path, dataset))
        for per_class in arguments.labels:
            for draw in arguments.draws:
                runs, cell = [], before.get(f"{path.stem} | {draw} | {per_class}", [{}] * len(arguments.seeds))
                for seed, rivals_run in zip(arguments.seeds, cell, strict=True):
                    file = arguments.out / f"{path.stem}_{draw.replace(' ', '-')}_{per_class}_seed{seed}.json"
                    runs.append(kept(file, partial(measure, dataset, draw, per_class, seed, rivals_run)))
                    print(f"{file.stem}: {runs[-1]}", flush=True)
                found[path.stem, draw, per_class] = runs
    rows, verdict = summarise(found)
    notes = (
        f"{verdict}{'; '.join(seen)}. Seeds {arguments.seeds}; test accuracy in percent, ours with "
        "standard deviation. Nearest neighbours and LabelSpreading see features of unit length. Calibration error in 15 "
        "bins."
    )
    earlier = [path.stem for path in arguments.files if any(cell.startswith(f"{path.stem} |") for cell in before)]
    notes += f" The rivals' runs on {' and '.join(earlier)} are those of an earlier record." if earlier else ""
    write_result(arguments.name, rows, notes, details={" | ".join(map(str, key)): runs for key, runs in found.items()})


if __name__ == "__main__":
    main()
