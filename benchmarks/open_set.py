"""Training on a pool that holds things of no class: what `--outliers auto` saves, and what it costs on a clean pool.

    python benchmarks/open_set.py digits --data-dir DIR
    python benchmarks/open_set.py cifar10 --data-dir DIR
    python benchmarks/open_set.py digits --data-dir DIR --rules "AAGMM, auto" --keep    # the other rows stand as recorded

The last four classes are unknown. A share of the pool is junk: images of the unknown classes (near) or of Fashion-MNIST (far).
Every rule trains on the same pools. Recorded: test accuracy on the known classes; the share of the pool's junk that has a
pseudo-label's weight in the last log interval; AUROC of the judge (for linear heads too) between test images of known
classes and new junk. Runs lie in --out and are kept.
"""

import argparse
import json
import time
from pathlib import Path

import torch

from _record import HERE, RESULTS, spread, write_result
from momatch import TrainConfig, fit
from momatch.data.dataset import Dataset, Split
from momatch.embedding import EmbedOptions, embed
from momatch.evaluation.evaluate import run_classifier
from momatch.evaluation.judging import judge_scores
from momatch.evaluation.metrics import auroc
from momatch.inference.evaluate import fitted
from momatch.storage.run_directory import RunDirectory
from momatch.training.data import load_by_name

OUT = HERE.parent / "out" / "open-set"
#: Dataset -> preset and settings.
DATASETS = {
    "digits": ("digits", {"steps": 600}),
    "mnist": ("mnist-cpu", {"steps": 600}),
    "cifar10": ("features", {"labels_per_class": 8}),
}
#: For clean pools only: what `auto` must not cost.
NO_RULE = "AAGMM, no rule"
#: Rule -> settings.
RULES = {
    "linear FlexMatch": {"head": "linear", "embedding_dim": 0, "outliers": "none"},
    "linear, annealed energy": {"head": "linear", "embedding_dim": 0, "outliers": "annealed"},
    NO_RULE: {"outliers": "none"},
    "AAGMM, P90": {"outliers": "percentile"},
    "AAGMM, auto": {"outliers": "auto"},
}
#: Kind of junk and its share of the pool.
POOLS = [("clean", 0.0), *((kind, share) for kind in ("near", "far") for share in (0.2, 0.4, 0.6))]
KNOWN = 6
JUNK = "junk"
#: Training images of MNIST that are used.
MOST_IMAGES = 10_000
#: Images of CIFAR-10 and of Fashion-MNIST that are embedded.
EMBEDDED = {"cifar10": (6000, 2500), "fashion-mnist": (6000, 1000)}


def source(dataset, arguments):
    """The dataset and the far junk, as datasets of the same kind of rows."""
    if dataset != "cifar10":
        images = load_by_name(dataset, data_dir=arguments.data_dir, image_size=16)
        some = torch.arange(0, len(images.train), max(1, len(images.train) // MOST_IMAGES))
        train = Split(images.train.rows.select(some), images.train.labels[some])
        images = Dataset(images.name, images.class_names, train, images.test, images.features)
        return images, load_by_name("fashion-mnist", data_dir=arguments.data_dir)
    found = []
    for name, (limit, limit_test) in EMBEDDED.items():
        path = arguments.out / f"{name}.npz"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            given = {"limit": limit, "limit_test": limit_test, "data_dir": arguments.data_dir, "progress": False}
            embed(EmbedOptions(dataset=name, out=path, **given))
        found.append(load_by_name(str(path)))
    return found


def contaminated(dataset, far, kind, share, seed):
    """The dataset with so much junk among its training images, as classes that are held out.

    Where there is too little junk for the share, known images are left out.
    """
    labels = dataset.train.labels
    known, unknown = (torch.nonzero(mask).flatten() for mask in (labels < KNOWN, labels >= KNOWN))
    rows, junk = dataset.train.rows, dataset.train.rows.select(unknown) if kind == "near" else far.train.rows
    count = round(len(known) * share / (1 - share))
    shuffled = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))
    if count > len(junk):
        count = len(junk)
        known = known[shuffled[: round(count * (1 - share) / share)]]
    chosen = torch.randperm(len(junk), generator=torch.Generator().manual_seed(seed))[:count]
    inliers = rows.select(known)
    train = inliers.append(junk.select(chosen).like(inliers)) if count else inliers
    labels = torch.cat([labels[known], torch.full((count,), KNOWN)])
    is_known = torch.nonzero(dataset.test.labels < KNOWN).flatten()
    test = Split(dataset.test.rows.select(is_known), dataset.test.labels[is_known])
    names = (*dataset.class_names[:KNOWN], JUNK)
    return Dataset(dataset.name, names, Split(train, labels), test, dataset.features)


def new_junk(run, dataset, far, kind):
    """Junk that was not in the pool."""
    test = far.test if kind == "far" else dataset.test
    rows = test.rows if kind == "far" else test.rows.select(torch.nonzero(test.labels >= KNOWN).flatten())
    return fitted(rows.even_share(1000), run.spec)


def measure(rule, pool, seed, arguments, data):
    """Accuracy, junk that was pseudo-labelled, AUROC of new junk by kind, estimated share."""
    kind, share = pool
    name = arguments.dataset
    preset, settings = DATASETS[name]
    dataset, far = data
    given = contaminated(dataset, far, kind, share, seed)
    held = {"held_out_classes": JUNK, "held_out_in_pool": True}
    folder = f"{name}_{rule}_{kind}_{share}_seed{seed}".replace(" ", "-").replace(",", "")
    config = TrainConfig.preset(
        preset,
        **{**settings, **RULES[rule], **held},
        dataset=name,
        seed=seed,
        data_dir=arguments.data_dir,
        run_dir=str(arguments.out / folder),
        progress=False,
        resume="auto",
    )
    begin = time.perf_counter()
    run = fit(config, given)
    last = RunDirectory(run.directory).read_metrics()[-1]
    names = run.model.stage_names
    inliers = judge_scores(
        run.model.judge, run_classifier(run.classifier, fitted(given.test.rows, run.spec), stage_names=names)
    )
    found = {
        "accuracy": 100 * run.result["test_accuracy"],
        "junk pseudo-labelled": None if share == 0 else 100 * last["outliers_pseudo_labeled"],
        "judged outliers": 100 * last["outlier_share"],
    }
    for junk in ("near", "far"):
        others = judge_scores(
            run.model.judge, run_classifier(run.classifier, new_junk(run, dataset, far, junk), stage_names=names)
        )
        found[f"AUROC {junk}"] = auroc(inliers["judge"], others["judge"])
    took = time.perf_counter() - begin
    print(f"{folder}: {found} ({took:.0f} s)", flush=True)
    return found


def recorded(name):
    """(rule, pool) -> seed -> figures of the present record, and its commit."""
    record = json.loads((RESULTS / f"open-set-{name}.json").read_text())
    found = {}
    for key, by_seed in record["details"].items():
        rule, _, pool = key.partition(" | ")
        kind, share = pool.split()
        found[rule, (kind, float(share))] = by_seed
    return found, record["environment"]["commit"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=list(DATASETS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[5, 6, 7, 8, 9])
    parser.add_argument("--pools", nargs="*", default=[f"{kind}:{share}" for kind, share in POOLS])
    parser.add_argument("--rules", nargs="*", default=list(RULES))
    parser.add_argument("--keep", action="store_true", help="keep rows of the present record that are not made again")
    parser.add_argument("--data-dir")
    parser.add_argument("--notes", default="")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pools = [(kind, float(share)) for kind, share in (text.split(":") for text in arguments.pools)]
    data = source(arguments.dataset, arguments)
    found = {}
    for seed in arguments.seeds:
        for pool in pools:
            for rule in arguments.rules:
                if rule == NO_RULE and pool[1] > 0:
                    continue  # linear FlexMatch has no rule either
                values = measure(rule, pool, seed, arguments, data)
                found.setdefault((rule, pool), {})[seed] = values
    notes = arguments.notes
    if arguments.keep:
        earlier, commit = recorded(arguments.dataset)
        made = [f"{rule} ({share:.0%} {kind})" for rule, (kind, share) in found]
        found = earlier | found
        notes += f" Made again: {', '.join(made)}. The other rows: commit {commit}."
    rows = []
    for (rule, (kind, share)), by_seed in sorted(found.items(), key=_place):
        figures = {
            key: [values[key] for values in by_seed.values() if values[key] is not None]
            for key in next(iter(by_seed.values()))
        }
        rows.append(
            {"pool": "clean" if share == 0 else f"{share:.0%} {kind}", "rule": rule}
            | {key: spread(of, 3 if key.startswith("AUROC") else 1) for key, of in figures.items()}
        )
    notes = (
        f"{arguments.dataset}: the first six classes known, {DATASETS[arguments.dataset][1]} on top of the preset "
        f"{DATASETS[arguments.dataset][0]!r}, seeds {arguments.seeds}; mean ± standard deviation, in percent but AUROC. Near "
        "junk: training images of the other four classes; far junk: Fashion-MNIST's. Where the near junk is too little for "
        "its share, known images are left out of the pool. Junk pseudo-labelled: its mean pseudo-label weight in the last log "
        "interval. Judged outliers: share of the pool that the rule takes for outliers there. AUROC: of the judge, between "
        f"test images of known classes and new junk of each kind. {notes}"
    )
    details = {f"{rule} | {kind} {share}": by_seed for (rule, (kind, share)), by_seed in found.items()}
    write_result(f"open-set-{arguments.dataset}", rows, notes, details=details)


def _place(item):
    """Pools, then rules, in the order of their lists."""
    (rule, pool), _ = item
    return POOLS.index(pool), list(RULES).index(rule)


if __name__ == "__main__":
    main()
