"""Which images to label: `momatch suggest` against random ones and against scikit-activeml's strategies.

    pip install scikit-activeml
    python benchmarks/suggest.py --files FEATURES.npz [FEATURES.npz ...]

The user is played with the true labels: 10 images are chosen and labelled, then 10 more, 20, 40 and 80 more, each time with the
labels so far. `momatch train` with its defaults is then trained on the labels at each budget. Strategies that need a model get
logistic regression, and random images to begin with. All see the same features: directions, 128 principal components.
Finished runs lie in --out and are kept. One thread.
"""

import argparse
import tempfile
import time
import warnings
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

import momatch
from _features import about
from _record import HERE, interval, kept, spread, write_result
from momatch import TrainConfig, fit, load_dataset, suggest
from momatch.data.dataset import Dataset, Split
from momatch.models.outputs import run_classifier
from momatch.storage.machine import commit
from momatch.sweep.statistics import paired_difference
from momatch.training.guide import directions, leading_components

OUT = HERE.parent / "out" / "suggest"
BUDGETS = (10, 20, 40, 80, 160)
OURS, RANDOM = "momatch suggest", "random"
#: scikit-activeml's strategies; those with a model begin with random images.
WITHOUT_MODEL = ("TypiClust", "ProbCover", "CoreSet", "MaxHerding")
WITH_MODEL = ("UncertaintySampling", "Badge", "Falcun", "DropQuery", "Clue")


def of_random(features, labels, count, seed):
    """Rows drawn at random."""
    free = np.flatnonzero(labels < 0)
    return np.random.default_rng([seed, len(labels) - len(free)]).choice(free, count, replace=False)


def of_rival(name, num_classes):
    """The function that chooses rows by a strategy of scikit-activeml."""
    from skactiveml import pool
    from skactiveml.classifier import SklearnClassifier

    given = {"UncertaintySampling": {"method": "margin_sampling"}, "ProbCover": {"n_classes": num_classes}}

    def choose(features, labels, count, seed):
        classes = np.unique(labels[labels >= 0])
        if name in WITH_MODEL and len(classes) < 2:
            return of_random(features, labels, count, seed)
        strategy = getattr(pool, name)(missing_label=-1, random_state=seed, **given.get(name, {}))
        arguments = {"X": features, "y": labels, "batch_size": count}
        if name in WITH_MODEL:
            model = SklearnClassifier(
                LogisticRegression(max_iter=1000), classes=classes, missing_label=-1, random_state=seed
            )
            arguments |= {"estimator" if name == "Clue" else "clf": model}
        return np.asarray(strategy.query(**arguments))

    return choose


def of_momatch(features, labels, count, seed):
    """Rows that momatch suggests."""
    return suggest(features, labels, n=count, seed=seed).rows


def chooser(name, num_classes):
    """The function that chooses rows."""
    own = {OURS: of_momatch, RANDOM: of_random}
    return own[name] if name in own else of_rival(name, num_classes)


def play(name, features, truth, seed):
    """Budget -> rows labelled at it; and seconds spent on choosing."""
    labels, shown, begin = np.full(len(truth), -1), {}, time.process_time()
    choose = chooser(name, len(np.unique(truth)))
    for budget in BUDGETS:
        rows = choose(features, labels, budget - int((labels >= 0).sum()), seed)
        labels[rows] = truth[rows]
        shown[budget] = np.flatnonzero(labels >= 0).tolist()
    return shown, time.process_time() - begin


def accuracy(dataset, shown, seed):
    """Test accuracy in percent of `momatch train` with its defaults. A class without a label cannot be predicted."""
    truth = dataset.train.labels[shown]
    present = truth.unique()
    if len(present) < 2:
        return 100 * float((dataset.test.labels == present[0]).double().mean())
    labels = torch.full_like(dataset.train.labels, -1)
    labels[shown] = torch.searchsorted(present, truth)
    names = tuple(dataset.class_names[k] for k in present)
    given = Dataset(dataset.name, names, Split(dataset.train.rows, labels), None, dataset.features)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"labels_per_class": 0, "seed": seed, "progress": False, "run_dir": str(Path(folder) / "run")}
        run = fit(TrainConfig.preset("features", dataset=dataset.name, **settings), given)
        predicted = present[run_classifier(run.classifier, dataset.test.rows).log_joint.argmax(1)]
    return 100 * float((predicted == dataset.test.labels).double().mean())


def measure(dataset, features, name, seed):
    """Accuracies and numbers of classes at each budget, and the commit that trained."""
    shown, seconds = play(name, features, dataset.train.labels.numpy(), seed)
    return {
        "accuracy": {budget: accuracy(dataset, rows, seed) for budget, rows in shown.items()},
        "classes": {budget: len(dataset.train.labels[rows].unique()) for budget, rows in shown.items()},
        "seconds": seconds,
        "commit": commit(Path(momatch.__file__).parent),
    }


def summarise(found, names):
    """A row a dataset and budget, with the lead over the best rival seed by seed; the smallest lead over random images."""
    rows, verdict = [], []
    for path in dict.fromkeys(key[0] for key in found):
        for budget in BUDGETS:
            of_name = {name: [run["accuracy"][str(budget)] for run in found[path, name]] for name in names}
            means = {name: float(np.mean(values)) for name, values in of_name.items()}
            rivals = [name for name in names if name not in (OURS, RANDOM)]
            lead = means[OURS] - means[RANDOM]
            row = {"features": path, "labels": budget, **{name: spread(of_name[name], 1) for name in names}}
            row["against random"] = f"{lead:+.1f}"
            if rivals:
                best = max(rivals, key=means.get)
                ahead = paired_difference(dict(enumerate(of_name[OURS])), dict(enumerate(of_name[best])))
                row["against the best of scikit-activeml, 95 %"] = f"{interval(ahead, 1)} ({best})"
            rows.append(row)
            verdict.append((lead, f"{path}, {budget} labels"))
    least = min(verdict)
    return rows, f"Smallest lead over random images: {least[0]:+.1f} points ({least[1]}). "


def origins(found):
    """Which commit trained on whose images: kept runs may be older than the record."""
    names = {}
    for (path, name), runs in found.items():
        for run in runs:
            names.setdefault(run["commit"], {})[f"{name} ({path})"] = None
    return "; ".join(f"{made}: {', '.join(of)}" for made, of in names.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=Path, nargs="+", required=True)
    parser.add_argument("--strategies", nargs="+", default=[OURS, RANDOM, *WITHOUT_MODEL, *WITH_MODEL])
    parser.add_argument("--seeds", type=int, nargs="+", default=[5, 6, 7, 8, 9])
    parser.add_argument("--name", default="suggest", help="of the record")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    arguments.out.mkdir(parents=True, exist_ok=True)
    found, seen = {}, []
    for path in arguments.files:
        dataset = load_dataset(path)
        unit = directions(dataset.train.rows, dataset.features.weak_views)
        # suggest makes the components itself.
        of_rivals, of_ours = leading_components(unit).double().numpy(), unit.numpy()
        seen.append(about(path, dataset))
        for name in arguments.strategies:
            for seed in arguments.seeds:
                file = arguments.out / f"{path.stem}_{name.replace(' ', '-')}_seed{seed}.json"
                run = kept(file, partial(measure, dataset, of_ours if name == OURS else of_rivals, name, seed))
                found.setdefault((path.stem, name), []).append(run)
                print(f"{file.stem}: {run}", flush=True)
    rows, verdict = summarise(found, arguments.strategies)
    rivals = set(arguments.strategies) - {OURS, RANDOM}
    by = f"scikit-activeml {version('scikit-activeml')}; " if rivals else ""
    notes = (
        f"{verdict}Test accuracy in percent of the default training on features (mean ± standard deviation over seeds "
        f"{arguments.seeds}). {by}{'; '.join(seen)}. "
        f"Commits that trained: {origins(found)}."
    )
    details = {" | ".join(key): runs for key, runs in found.items()}
    write_result(arguments.name, rows, notes, details=details)


if __name__ == "__main__":
    main()
