"""Densities and outlier scores of the test images beside those of images that do not belong."""

from collections.abc import Sequence

from momatch.evaluation.evaluate import outlier_scores, separation
from momatch.report.findings import Densities
from momatch.report.judged import Judged


def collect_densities(origins: Sequence[Judged]) -> Densities:
    """log p(x) of every origin, and how well each score tells the others from the first.

    A log density that is not finite, which a model that diverged gives, is left out of the histograms; in the separations it
    counts as most outlying.

    Args:
        origins: the test images first.

    Raises:
        ValueError: if the outputs of no test image are finite.
    """
    if not bool(origins[0].is_finite.any()):
        raise ValueError("No log density of a test image is finite: the model has diverged")
    model = origins[0].model
    heads = {"as trained": model.classifier.head, "refitted": model.refitted}
    log_density, apart = {}, {}
    for state, head in heads.items():
        if head is None:
            continue
        scores = {origin.name: outlier_scores(head, origin.outputs) for origin in origins}
        inliers = scores[origins[0].name]
        log_density[state] = {name: -found["density"][found["density"].isfinite()] for name, found in scores.items()}
        apart[state] = {origin.name: separation(inliers, scores[origin.name]) for origin in origins[1:]}
    return Densities(log_density, apart)
