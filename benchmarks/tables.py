"""Few labels on tables: momatch against scikit-learn's classifiers, all with their defaults.

    python benchmarks/tables.py --file TABLES.npz

TABLES.npz holds NAME/X and NAME/y of each table. A third of the rows is for testing; the labels are drawn as classes occur, or
balanced; with ``--labels 0`` all are shown. Supervised rivals see standardised labelled rows, semi-supervised ones all rows.
Every method sees the same labels. Finished runs lie in --out and are kept. With ``--rivals RECORD.json`` the rivals are
those of an earlier record of the same seeds. With ``--unseen`` the record is one of its own: tables that nothing was
chosen on (benchmarks/keel_tables.py).
"""

import argparse
import warnings
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelPropagation, LabelSpreading, SelfTrainingClassifier
from sklearn.svm import SVC

from _calibration import chance_error, joint_error, reliability
from _record import HERE, kept, recorded, write_result
from momatch import MoMatchClassifier
from momatch.evaluation.metrics import calibration

OUT = HERE.parent / "out" / "tables"
OURS, BALANCED = "momatch", "momatch, balanced"
DRAWS = ("as they occur", "balanced")


def task(x, y, draw, per_class, seed):
    """Train rows, their labels with -1, test rows and classes."""
    rng = np.random.default_rng([seed, per_class, DRAWS.index(draw)])
    is_test = np.zeros(len(y), dtype=bool)
    for k in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == k))
        is_test[rows[: len(rows) // 3]] = True
    train = np.flatnonzero(~is_test)
    K = len(np.unique(y))
    if per_class == 0:
        return x[train], y[train], x[is_test], y[is_test]
    if draw == "balanced":
        of_class = [train[y[train] == k] for k in np.unique(y)]
        shown = np.concatenate([rng.choice(rows, min(per_class, len(rows)), replace=False) for rows in of_class])
    else:
        shown = rng.choice(train, min(per_class * K, len(train)), replace=False)
    labels = np.full(len(y), -1)
    labels[shown] = y[shown]
    return x[train], labels[train], x[is_test], y[is_test]


def rivals(seed):
    """Name -> (model, whether it sees unlabelled rows)."""
    bases = {
        "logistic regression": lambda: LogisticRegression(max_iter=1000),
        "SVC": lambda: SVC(probability=True, random_state=seed),
        "random forest": lambda: RandomForestClassifier(random_state=seed),
    }
    return {
        **{name: (base(), False) for name, base in bases.items()},
        "gradient boosting": (HistGradientBoostingClassifier(random_state=seed), False),
        "LabelSpreading": (LabelSpreading(kernel="knn"), True),
        "LabelPropagation": (LabelPropagation(kernel="knn"), True),
        **{f"self-training, {name}": (SelfTrainingClassifier(base()), True) for name, base in bases.items()},
    }


def measure(x, labels, x_test, y_test, *, seed, before):
    """Method -> accuracy and balanced accuracy in percent; ours also with log loss and calibration error.

    Rivals that were measured before are not measured again.
    """
    found = {name: figures for name, figures in before.items() if name not in (OURS, BALANCED)}
    shown = labels >= 0
    for name, (model, semi) in ({} if found else rivals(seed)).items():
        rows = slice(None) if semi else shown
        fitted = make_pipeline(StandardScaler(), model).fit(x[rows], labels[rows])
        found[name] = scores(fitted.predict(x_test), y_test)
    model = MoMatchClassifier(random_state=seed).fit(x, labels)
    posterior = model.predict_proba(x_test)
    found[OURS] = scores(model.classes_[posterior.argmax(1)], y_test)
    found[BALANCED] = scores(model.classes_[(posterior / model.class_prior_).argmax(1)], y_test)
    seen = np.isin(y_test, model.classes_)
    codes = np.searchsorted(model.classes_, y_test[seen])
    log_posterior = torch.from_numpy(np.log(posterior[seen]))
    measured = calibration(log_posterior, torch.from_numpy(codes), bins=10)
    found[OURS] |= {
        "log loss": log_loss(codes, posterior[seen], labels=np.arange(len(model.classes_))),
        "calibration error": 100 * measured.error,
        "reliability": reliability(measured),
        "chance": chance_error(log_posterior, bins=10),
        "confidence": 100 * float(posterior.max(1).mean()),
    }
    return found


def scores(predicted, truth):
    return {
        "accuracy": 100 * float(np.mean(predicted == truth)),
        "balanced": 100 * float(balanced_accuracy_score(truth, predicted)),
    }


def summarise(found):
    """Rows: means over tables, draws and sizes; mean ranks; and the table that is worst against logistic regression."""
    methods = list(next(iter(found.values()))[0])
    cells = {}  # (table, method, metric) -> mean
    by_draw = defaultdict(list)
    for (table, draw, _), runs in found.items():
        for method in methods:
            for metric in ("accuracy", "balanced"):
                values = [run[method][metric] for run in runs]
                cells.setdefault((table, method, metric), []).extend(values)
                by_draw[method, metric, draw] += values
    tables = sorted({table for table, _, _ in found})
    mean = {key: float(np.mean(values)) for key, values in cells.items()}
    rows = []
    single = [method for method in methods if method != BALANCED]
    for method in methods:
        rank = [1 + sum(mean[t, other, "accuracy"] > mean[t, method, "accuracy"] for other in single) for t in tables]
        worst = min(tables, key=lambda t: mean[t, method, "accuracy"] - mean[t, "logistic regression", "accuracy"])
        gaps = np.subtract(cells[worst, method, "accuracy"], cells[worst, "logistic regression", "accuracy"])
        half = 1.96 * gaps.std(ddof=1) / np.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
        rows.append(
            {
                "method": method,
                **{
                    f"accuracy, {draw}": f"{np.mean(by_draw[method, 'accuracy', draw]):.1f}"
                    for draw in DRAWS
                    if by_draw[method, "accuracy", draw]
                },
                "accuracy": f"{np.mean([mean[t, method, 'accuracy'] for t in tables]):.2f}",
                "balanced accuracy": f"{np.mean([mean[t, method, 'balanced'] for t in tables]):.2f}",
                "mean rank": f"{np.mean(rank):.2f}",
                "worst table against logistic regression": f"{gaps.mean():+.1f} ± {half:.1f} ({worst})",
            }
        )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[5, 6, 7, 8, 9])
    parser.add_argument("--labels", type=int, nargs="+", default=[5, 10], help="a class, on average")
    parser.add_argument("--rivals", type=Path, help="record to take the rivals' runs from")
    parser.add_argument("--unseen", action="store_true", help="nothing was chosen on these tables")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    data, before = np.load(arguments.file), recorded(arguments.rivals, arguments.seeds)
    found = defaultdict(list)
    for seed in arguments.seeds:
        for name in sorted({key.split("/")[0] for key in data.files}):
            x, y = data[f"{name}/X"].astype(np.float64), data[f"{name}/y"].astype(np.int64)
            for draw in DRAWS[: 1 if arguments.labels == [0] else None]:
                for per_class in arguments.labels:
                    drawn = task(x, y, draw, per_class, seed)
                    if len(np.unique(drawn[1][drawn[1] >= 0])) < 2:
                        continue  # chance showed a single class, which most rivals refuse
                    file = arguments.out / f"{name}_{draw.replace(' ', '-')}_{per_class}_seed{seed}.json"
                    cell = before.get(f"{name} | {draw} | {per_class}")
                    rivals_run = cell[len(found[name, draw, per_class])] if cell else {}
                    run = kept(file, partial(measure, *drawn, seed=seed, before=rivals_run))
                    found[name, draw, per_class].append(run)
                    best = max(run, key=lambda method: run[method]["accuracy"])
                    print(
                        f"{name}, {draw}, {per_class}, seed {seed}: {run[OURS]['accuracy']:.1f}, best {best}",
                        flush=True,
                    )
    ours = [run[OURS] for runs in found.values() for run in runs]
    shown = (
        "all labels shown"
        if arguments.labels == [0]
        else f"{' and '.join(map(str, arguments.labels))} labels a class on average, drawn as they occur and balanced"
    )
    average = {
        key: np.mean([run[key] for run in ours]) for key in ("log loss", "calibration error", "chance", "confidence")
    }
    notes = (
        f"{len({name for name, _, _ in found})} tables, {shown}, seeds {arguments.seeds}; a third of the rows for testing; "
        'percent. Balanced: class_weight="balanced". Intervals of 95 % over draws and seeds. momatch on average: log loss '
        f"{average['log loss']:.3f}, calibration error {average['calibration error']:.1f} % (by chance, with exact posteriors, "
        f"{average['chance']:.1f} %), of all draws together {joint_error([run['reliability'] for run in ours]):.1f} %, "
        f"confidence {average['confidence']:.1f} %. "
    )
    notes += (
        "No setting was chosen on them."
        if arguments.unseen
        else "Settings were found on seeds 0 and 1 of the same tables."
    )
    notes += " The rivals' runs are those of an earlier record." if before else ""
    details = {" | ".join(map(str, key)): runs for key, runs in found.items()}
    name = "tables" + "-unseen" * arguments.unseen + "-all-labels" * (arguments.labels == [0])
    write_result(name, summarise(found), notes, details=details)


if __name__ == "__main__":
    main()
