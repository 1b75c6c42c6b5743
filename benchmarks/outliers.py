"""Telling outliers apart: momatch's judge against every detector of pytorch-ood, on the same trained networks.

    pip install --no-deps pytorch-ood==0.4.0
    python benchmarks/outliers.py --data-dir DIR

Four datasets, each trained without four of its classes: their test images are the near outliers, another dataset's the far
ones. On CIFAR-10 a frozen efficientnet-lite0 gives features, and the last layers are trained on them. Detectors that are fitted
are fitted to the same images: the labelled ones and those of the pool that the run predicts with a posterior of at least its
cutoff. No detector sees an outlier, and none is tuned. Runs and features lie in --out and are kept.
"""

import argparse
import time
from pathlib import Path

import torch

from _outlier_tables import differences, table, verdict
from _pytorch_ood import VERSION, on_activations, on_features, on_features_and_head, on_logits, scores
from _record import HERE, write_result
from momatch import Linear, TrainConfig, fit
from momatch.data.rows import FeatureRows
from momatch.embedding import EmbedOptions, embed
from momatch.evaluation.evaluate import confident_samples, outlier_scores, run_classifier
from momatch.evaluation.judging import judge_scores
from momatch.evaluation.metrics import auroc, fpr95
from momatch.heads import log_posterior
from momatch.inference.evaluate import fitted
from momatch.models.classifier import Classifier
from momatch.training.data import load_by_name, load_run_data, part_classes, split_rows

OUT = HERE.parent / "out" / "outliers"
#: Dataset -> preset, settings, far outliers. Each is trained without its last four classes.
DATASETS = {
    "digits": ("digits", {}, ("fashion-mnist",)),
    "mnist": ("mnist-cpu", {"steps": 600}, ("fashion-mnist",)),
    "fashion-mnist": ("fashion-cpu", {"steps": 600}, ("mnist",)),
    "cifar10": ("features", {"labels_per_class": 8}, ("fashion-mnist", "mnist")),
}
#: Model -> settings.
MODELS = {"AAGMM": {"outliers": "none"}, "linear": {"head": "linear", "embedding_dim": 0, "outliers": "none"}}
OURS = ("AAGMM", "momatch", "judge")
#: Images of each kind of far outliers, and most inliers and near outliers.
COUNT = 2000
#: Images of CIFAR-10 that are embedded, and their size.
EMBEDDED = {"limit": 6000, "limit_test": 2500, "image_size": 96}


def trained(dataset, model, seed, arguments):
    """The run: a finished one is read, an interrupted one goes on."""
    preset, settings, _ = DATASETS[dataset]
    source = features_file(arguments) if dataset == "cifar10" else dataset
    names = load_by_name(str(source), data_dir=arguments.data_dir).class_names
    begin = time.perf_counter()
    run = fit(
        TrainConfig.preset(
            preset,
            **{**settings, **MODELS[model]},
            dataset=str(source),
            data_dir=arguments.data_dir,
            held_out_classes=",".join(names[6:]),
            seed=seed,
            run_dir=str(arguments.out / f"{dataset}_{model}_seed{seed}"),
            progress=False,
            resume="auto",
        )
    )
    took = time.perf_counter() - begin
    print(f"{dataset}, {model}, seed {seed}: {run.result['test_accuracy']:.2%} right ({took:.0f} s)", flush=True)
    return run


def features_file(arguments):
    """CIFAR-10's features; embedded if they are not there."""
    path = arguments.out / "cifar10.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        embed(EmbedOptions(dataset="cifar10", out=path, data_dir=arguments.data_dir, progress=False, **EMBEDDED))
    return path


def far_rows(run, name, arguments):
    """Far outliers as the run's network takes them; for features they are embedded once."""
    images = load_by_name(name, data_dir=arguments.data_dir).test.rows.even_share(COUNT)
    rows = fitted(images, run.spec)
    if run.config.dataset.endswith(".npz"):
        kept = arguments.out / f"{name}.pt"
        if not kept.exists():
            whole = without_projection(run.classifier)
            outputs = run_classifier(whole, rows, stage_names=run.model.stage_names, batch_size=64)
            torch.save((outputs.z.half(), outputs.stages), kept)
        features, stages = torch.load(kept)
        rows = FeatureRows([features[:, None]], stages=[stages])
    return rows


def without_projection(classifier):
    """The same network with the backbone's own features as its embedding; its head is not used."""
    unused = Linear(classifier.backbone.num_features, classifier.head.num_classes)
    return Classifier(classifier.backbone, unused, preprocess=classifier.preprocess)


def rows_of(run, dataset, arguments):
    """What detectors are fitted to, as rows and labels; and the images to tell apart, by origin."""
    parts = part_classes(load_run_data(run.directory, data_dir=arguments.data_dir), run.config.held_out_classes)
    data, _ = split_rows(run.config.resolved(), parts)
    pool = data.unlabeled.even_share(10_000)
    known = data.labeled.plain().append(pool.plain())
    labels = torch.cat([data.labels, torch.full((len(pool),), -1)])
    some = {"inliers": parts.test.rows, "near: four classes": parts.unknown_test.rows}
    batches = {origin: fitted(rows.even_share(COUNT), run.spec) for origin, rows in some.items()}
    return known, labels, batches | {f"far: {name}": far_rows(run, name, arguments) for name in DATASETS[dataset][2]}


def measure(run, dataset, arguments):
    """Row (by whom, detector) -> origin -> (AUROC, FPR95) of one run."""
    known, labels, batches = rows_of(run, dataset, arguments)
    outputs = run_classifier(run.classifier, known)
    positions, classes = confident_samples(outputs, labels, cutoff=run.config.cutoff)
    trusted = outputs.select(positions)
    found = with_momatch(run, batches)
    given = {origin: run_classifier(run.classifier, rows) for origin, rows in batches.items()}
    head = run.classifier.head

    def add(detectors, where, fitted_to, values):
        for name, detector in detectors.items():
            found["pytorch-ood", f"{name}{where}"] = scores(detector, fitted_to, classes, values)

    add(on_logits(), "", trusted.log_joint, {origin: of.log_joint for origin, of in given.items()})
    embedded = {origin: of.z for origin, of in given.items()}
    add(on_features(), "", trusted.z, embedded)
    if isinstance(head, torch.nn.Linear):
        add(on_features_and_head(head), "", trusted.z, embedded)
        # Detectors of activations expect what comes out of a ReLU.
        if run.classifier.projection is None and bool((trusted.z >= 0).all()):
            add(on_activations(head), "", trusted.z, embedded)
    if run.classifier.projection is not None:
        network = without_projection(run.classifier)
        before = {origin: run_classifier(network, rows).z for origin, rows in batches.items()}
        add(on_features(), ", before the projection", run_classifier(network, known).z[positions], before)
    figures = {}
    for row, of in found.items():
        inliers = of.pop("inliers")
        figures[row] = {origin: (auroc(inliers, others), fpr95(inliers, others)) for origin, others in of.items()}
    return figures, len(classes)


def with_momatch(run, batches):
    """Row -> origin -> scores: the judge, its parts, the judge as it was before, and by name the head's own."""
    head = run.classifier.head if run.refitted_head is None else run.refitted_head
    found = {}
    for origin, rows in batches.items():
        outputs = run_classifier(run.classifier, rows, stage_names=run.model.stage_names)
        by_judge = judge_scores(run.model.judge, outputs)
        judge, posterior = run.model.judge, log_posterior(outputs.log_joint).exp()
        distance, entropy = by_judge["nearest"], torch.special.entr(posterior).sum(1)
        scores_of = {
            "judge": by_judge["judge"],
            "judge: distance alone": distance,
            "judge: answer alone": judge.answers(posterior.to(judge.scale)),
            "judge, entropy instead of the answer's distance": (
                (distance - judge.typical_distance) / judge.distance_deviation + entropy
            ),
        }
        for name, score in scores_of.items():
            found.setdefault(("momatch", name), {})[origin] = score
        by_head = outlier_scores(head, outputs)
        for name in ("density", "nearest"):
            if name in by_head:
                found.setdefault(("momatch", f"head: {name}"), {})[origin] = by_head[name]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="*", type=int, default=[10, 11, 12, 13, 14])
    parser.add_argument("--datasets", nargs="*", default=list(DATASETS))
    parser.add_argument("--data-dir")
    parser.add_argument("--notes", default="")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    #: (model, by whom, detector) -> (dataset, outliers) -> seed -> (AUROC, FPR95)
    results, accuracies, fitted_to = {}, {}, {}
    for dataset in arguments.datasets:
        for seed in arguments.seeds:
            for model in MODELS:
                run = trained(dataset, model, seed, arguments)
                figures, samples = measure(run, dataset, arguments)
                accuracies.setdefault(f"{dataset}, {model}", []).append(run.result["test_accuracy"])
                fitted_to.setdefault(dataset, []).append(samples)
                for (by, detector), of in figures.items():
                    for origin, pair in of.items():
                        results.setdefault((model, by, detector), {}).setdefault((dataset, origin), {})[seed] = pair
    right = "; ".join(f"{name} {100 * sum(of) / len(of):.1f} %" for name, of in accuracies.items())
    samples = "; ".join(f"{name} {min(of)} to {max(of)}" for name, of in fitted_to.items())
    notes = (
        f"{verdict(results, OURS)}\n\n"
        f"Presets' settings (MNIST and Fashion-MNIST: 600 steps), 4 labels a class (CIFAR-10: 8), the last four classes held "
        f"out, seeds {arguments.seeds}; the judge's settings were chosen on seeds 0-2 of digits, MNIST, Fashion-MNIST and "
        "CIFAR-10, the last with other held-out classes too. "
        "AUROC: 1 is perfect, 0.5 chance. FPR95: share of outliers accepted where 95 % of "
        f"inliers are. Inliers and outliers: at most {COUNT:,} test images of each kind. pytorch-ood {VERSION} with its "
        "default settings (ViM: half of the features; DICE: p = 0.9), its package's own __init__, which needs torchvision, "
        "passed over. Fitted detectors are fitted to the labelled images and those of the pool with a posterior of at least "
        f"0.95 ({samples} images). On AAGMM, pytorch-ood takes the log joint as logits and the embedding as features, and "
        "the features before the projection; on the linear model the logits and what the layer is fed. Detectors of "
        "activations need features of at least 0, so they are on the linear model where its features are. "
        f"Test accuracy: {right}. {arguments.notes}"
    )
    details = {
        " | ".join(row): {" | ".join(column): of for column, of in of_row.items()} for row, of_row in results.items()
    }
    write_result("outliers", table(results), notes, details=details, differences="\n\n" + differences(results, OURS))


if __name__ == "__main__":
    main()
