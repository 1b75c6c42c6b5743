"""What else was tried for pools that hold junk: thresholds on the judge's distance, and a class for junk.

    python benchmarks/open_set_rules.py --data-dir DIR

The digits' pools of open_set.py with 40 % junk. The rules that the paper's experiments put on the head's score are put on the
judge's distances instead: a percentile of the labelled samples' (90), the same rising to 100 during the training (annealed),
and a chi-square quantile (0.99). They give weights of 0 and 1. For the class for junk, the images that `auto` takes for
outliers after one training are labelled as a further class in a second one, 4 of them as of every class; the accuracy is that
among the known classes, and a junk image counts as pseudo-labelled if the model predicts a known class with the confidence of
a pseudo-label. Runs lie in --out and are kept.
"""

import argparse
from pathlib import Path
from unittest import mock

import torch
from scipy.stats import chi2

from _record import HERE, spread, write_result
from momatch import TrainConfig, fit
from momatch.data.dataset import Dataset, Split
from momatch.evaluation.evaluate import run_classifier
from momatch.evaluation.pool_judging import judge_pool, rank_pool
from momatch.inference.evaluate import fitted
from momatch.outliers import Judge
from momatch.storage.run_directory import RunDirectory
from momatch.training import fit as training_loop
from momatch.training import refit
from momatch.training.pool_outliers import read_outlier_list
from open_set import DATASETS, JUNK, KNOWN, contaminated, source

OUT = HERE.parent / "out" / "open-set-rules"
POOLS = (("near", 0.4), ("far", 0.4))
FOUND = "found"


def percentile(outputs, labels, _progress):
    """Inliers are below the labelled samples' 90th percentile."""
    return _below(outputs, labels, 0.9)


def annealed(outputs, labels, progress):
    """The same, rising to their largest distance."""
    return _below(outputs, labels, 0.9 + 0.1 * progress)


def chi_square(outputs, labels, _progress):
    """Inliers are below a quantile of the distances that Gaussian samples would have to a judge of the labelled ones."""
    is_pool, size = labels < 0, outputs.stages.shape[1]
    judge = Judge(size, outputs.log_joint.shape[1]).fit([(outputs.stages[~is_pool], labels[~is_pool])])
    distance = judge.mahalanobis(outputs.stages[is_pool]).amin(1)
    return _weights(labels, distance <= chi2.ppf(0.99, size) ** 0.5)


def _below(outputs, labels, level):
    ranking = rank_pool(outputs, labels)
    return _weights(labels, ranking.by_core <= ranking.left_out.quantile(level))


def _weights(labels, is_inlier):
    weights = torch.ones(len(labels), dtype=torch.float64)
    weights[labels < 0] = is_inlier.double()
    return weights


#: Rule -> P(inlier) from outputs, labels and the progress of the training.
RULES = {
    "auto": lambda outputs, labels, _progress: judge_pool(outputs, labels),
    "judge, P90": percentile,
    "judge, annealed": annealed,
    "judge, chi-square": chi_square,
}


def trained(rule, given, folder, seed, arguments):
    """A run whose pool is weighed by the rule."""
    preset, settings = DATASETS["digits"]
    config = TrainConfig.preset(
        preset,
        **settings,
        outliers="auto",
        held_out_classes=JUNK,
        held_out_in_pool=True,
        dataset="digits",
        seed=seed,
        run_dir=str(arguments.out / folder),
        progress=False,
        resume="auto",
    )

    def weigh(training):
        progress = training.stream.step / config.steps
        with mock.patch.object(refit, "judge_pool", lambda *given: RULES[rule](*given, progress)):
            refit.weigh_pool(training)

    with mock.patch.object(training_loop, "weigh_pool", weigh):
        return fit(config, given)


def with_class_for_junk(run, given):
    """The dataset with the images that the run found as a class before that of the junk that it did not find."""
    labels = given.train.labels.clone()
    labels[labels == KNOWN] = KNOWN + 1
    labels[[one.row for one in read_outlier_list(run.directory / "outliers.csv")]] = KNOWN
    names = (*given.class_names[:KNOWN], FOUND, JUNK)
    return Dataset(given.name, names, Split(given.train.rows, labels), given.test, given.features)


def measure(pool, seed, data, arguments):
    """Rule -> accuracy and junk that was pseudo-labelled."""
    kind, share = pool
    given = contaminated(*data, kind, share, seed)
    found = {}
    for rule in RULES:
        run = trained(rule, given, f"{rule}_{kind}_seed{seed}".replace(" ", "-").replace(",", ""), seed, arguments)
        last = RunDirectory(run.directory).read_metrics()[-1]
        found[rule] = (100 * run.result["test_accuracy"], 100 * last["outliers_pseudo_labeled"])
    first = trained("auto", given, f"auto_{kind}_seed{seed}", seed, arguments)
    more = with_class_for_junk(first, given)
    run = trained("auto", more, f"class_{kind}_seed{seed}", seed, arguments)
    test, junk = (fitted(rows, run.spec) for rows in (given.test.rows, _junk(given)))
    of_test, of_junk = (run_classifier(run.classifier, rows).log_joint.double() for rows in (test, junk))
    is_right = of_test[:, :KNOWN].argmax(1) == given.test.labels
    confidence, predicted = of_junk.softmax(1).max(1)
    labeled = (predicted < KNOWN) & (confidence >= run.config.cutoff)
    found["a class for junk"] = tuple(100 * float(which.double().mean()) for which in (is_right, labeled))
    print(kind, seed, found, flush=True)
    return found


def _junk(given):
    return given.train.rows.select(torch.nonzero(given.train.labels == KNOWN).flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="*", type=int, default=[5, 6, 7])
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.dataset = "digits"
    data = source("digits", arguments)
    rows = []
    for pool in POOLS:
        by_seed = [measure(pool, seed, data, arguments) for seed in arguments.seeds]
        for rule in by_seed[0]:
            accuracy, labeled = zip(*(found[rule] for found in by_seed), strict=True)
            named = {"accuracy": spread(accuracy, 1), "junk pseudo-labelled": spread(labeled, 1)}
            rows.append({"pool": f"{pool[1]:.0%} {pool[0]}", "rule": rule, **named})
    notes = (
        f"digits, the first six classes known, {DATASETS['digits'][1]} on top of the preset, AAGMM, seeds {arguments.seeds}; "
        "mean ± standard deviation, in percent. See the script for the rules."
    )
    write_result("open-set-rules", rows, notes)


if __name__ == "__main__":
    main()
