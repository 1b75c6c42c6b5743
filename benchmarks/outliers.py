"""Telling outliers apart: momatch's mixture against the linear layer's scores and pytorch-ood's detectors, on the same runs.

    pip install --no-deps pytorch-ood==0.4.0
    python benchmarks/outliers.py --data-dir DIR

Digits are the inliers (their 500 test images). Outliers are Fashion-MNIST's test images and, for runs that do not know the
classes 6 to 9, the test images of these. Every detector is used on features of the same trained networks, and those that are
fitted are fitted on the same samples as momatch's closed-form refit: the labelled images and the confidently pseudo-labelled
ones of the pool. No detector sees an outlier, and none is tuned. Runs lie in --out and are kept.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from _digit_runs import KINDS, MODELS, OUT, fashion_images, parts_of, trained, trusted, with_features
from _outlier_tables import differences, table, verdict
from _pytorch_ood import VERSION, on_activations, on_features, on_features_and_head, on_logits, scores
from _record import write_result
from momatch import AAGMM
from momatch.evaluation.evaluate import outlier_scores, run_classifier
from momatch.evaluation.metrics import auroc, fpr95
from momatch.models.outputs import Outputs

#: Of the head's scores, those that are compared, by the names they have in the table.
SHOWN = {"density": "density", "nearest": "nearest Mahalanobis", "confidence": "max posterior"}
LINEAR = {"density": "energy", "confidence": "max softmax"}
#: As in the recorded density grid (docs/results.md).
STEPS = 600
#: pytorch-ood is put on the features of these.
RIVALS_ON = ("AAGMM 8-D, order 1", "linear, all features", "linear 8-D")


def with_momatch(run, known, classes, batches: dict[str, Outputs]):
    """Row -> origin -> scores, of what momatch itself computes."""
    head = run.classifier.head
    if run.refitted_head is not None:
        judges = {("momatch", "as trained: "): (head, SHOWN), ("momatch", "refitted: "): (run.refitted_head, SHOWN)}
    else:
        mixture = AAGMM(known.z.shape[1], head.num_classes)
        mixture.refit(known.z, classes)
        judges = {
            ("linear layer", ""): (head, LINEAR),
            ("momatch", "AAGMM fitted on its features: "): (mixture, SHOWN),
        }
    found = {}
    for (by, judge), (module, names) in judges.items():
        by_origin = {origin: outlier_scores(module, outputs) for origin, outputs in batches.items()}
        for name, shown in names.items():
            found[by, f"{judge}{shown}"] = {origin: given[name] for origin, given in by_origin.items()}
    return found


def with_pytorch_ood(run, known, classes, batches):
    """Row -> origin -> scores by pytorch-ood, on embeddings and logits, and on the features before a projection."""
    head, found = run.classifier.head, {}

    def judge(detectors, where, pick: Callable[[Outputs], torch.Tensor]):
        for name, detector in detectors.items():
            given = {origin: pick(outputs) for origin, outputs in batches.items()}
            found["pytorch-ood", f"{name}{where}"] = scores(detector, pick(known), classes, given)

    judge(on_logits(), "", lambda outputs: outputs.log_joint)
    judge(on_features(), "", lambda outputs: outputs.z)
    if isinstance(head, torch.nn.Linear):
        judge(on_features_and_head(head), "", lambda outputs: outputs.z)
        if run.classifier.projection is None:
            judge(on_activations(head), "", lambda outputs: outputs.z)
    return found


def measure(run, rivals, data_dir):
    """Row -> origin -> (AUROC, FPR95), of one run, and how many samples detectors were fitted on."""
    parts, data, _ = parts_of(run)
    images = {"inliers": parts.test.images, "Fashion-MNIST": fashion_images(run, data_dir, every=5)}
    if parts.unknown_test is not None:
        images["classes 6-9"] = parts.unknown_test.images
    trusted_images, classes = trusted(run, data)
    known = run_classifier(run.classifier, trusted_images)
    batches = {origin: run_classifier(run.classifier, rows) for origin, rows in images.items()}
    found = with_momatch(run, known, classes, batches)
    if rivals:
        found |= with_pytorch_ood(run, known, classes, batches)
    if rivals and run.classifier.projection is not None:
        network = with_features(run.classifier)
        wide = run_classifier(network, trusted_images)
        before = {origin: run_classifier(network, rows) for origin, rows in images.items()}
        for name, detector in on_features().items():
            given = {origin: outputs.z for origin, outputs in before.items()}
            found["pytorch-ood", f"{name}, on the 64 features before the projection"] = scores(
                detector, wide.z, classes, given
            )
    figures = {}
    for row, given in found.items():
        inliers = given.pop("inliers")
        figures[row] = {origin: (auroc(inliers, of), fpr95(inliers, of)) for origin, of in given.items()}
    return figures, len(classes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--models", nargs="*", default=list(MODELS), help="models whose name begins with one of these")
    parser.add_argument("--data-dir")
    parser.add_argument("--notes", default="")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    models = {name: given for name, given in MODELS.items() if name.startswith(tuple(arguments.models))}
    #: (model, by whom, detector) -> (outliers, known classes) -> seed -> (AUROC, FPR95)
    results, accuracies, fitted_on = {}, {}, {}
    for seed in arguments.seeds:
        for kind, held_out in KINDS.items():
            for name, settings in models.items():
                run = trained({**settings, **held_out, "steps": STEPS}, seed, arguments.out)
                figures, samples = measure(run, name in RIVALS_ON, arguments.data_dir)
                accuracies.setdefault((name, kind), []).append(run.result["test_accuracy"])
                fitted_on.setdefault(kind, []).append(samples)
                for (by, detector), by_origin in figures.items():
                    for origin, pair in by_origin.items():
                        of_row = results.setdefault((name, by, detector), {})
                        of_row.setdefault((origin, kind), {})[seed] = pair
    right = "; ".join(f"{model}, {kind}: {100 * sum(of) / len(of):.1f} %" for (model, kind), of in accuracies.items())
    samples = "; ".join(f"{kind}: {min(of)} to {max(of)}" for kind, of in fitted_on.items())
    notes = (
        f"{verdict(results)}\n\n"
        f"Digits at 16 px, default settings (4 labels a class) but {STEPS} steps as in the density grid of "
        f"docs/results.md, seeds {arguments.seeds}; mean ± standard deviation over seeds. "
        "Inliers: the test images of known classes. Outliers: every fifth of Fashion-MNIST's "
        "test images, 2,000, and the test images of classes 6-9 for runs that held them out. AUROC: 1 is perfect, 0.5 "
        f"chance. FPR95: share of outliers accepted where 95 % of inliers are; 0 is perfect. pytorch-ood {VERSION} "
        "with its default settings (ViM, which has none: half of the features as subspace; DICE: p = 0.9), installed "
        "without torchvision: the package's own __init__, which imports datasets and models, is passed over, and "
        "pytorch_ood.detector is imported unchanged. Detectors that are fitted are fitted on the same samples as the "
        "refit: labelled images, and those of the pool with a posterior of at least 0.95 with their pseudo-labels "
        f"({samples} samples). On an AAGMM run pytorch-ood takes the log joint as logits and the 8-D embedding as "
        "features; on a linear one the logits and what the layer is fed. momatch's max softmax and max posterior are "
        f"taken in log space, where confident samples do not tie. Test accuracy: {right}. {arguments.notes}"
    )
    details = {
        " | ".join(row): {" | ".join(column): of for column, of in columns.items()} for row, columns in results.items()
    }
    write_result("outliers", table(results), notes, details=details, differences="\n\n" + differences(results))


if __name__ == "__main__":
    main()
