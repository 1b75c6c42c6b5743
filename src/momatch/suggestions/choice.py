"""`suggest`: the images whose labels say most about the others (docs/labeling.md, "Which images").

From nothing, the most typical image of each of n clusters. With labels, that of n clusters that lie apart from them.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64

from momatch.data.dataset import NO_CLASS, UNLABELED
from momatch.data.graph import nearest_neighbors
from momatch.evaluation.pool_judging import LIKELY_OUTLIER
from momatch.numerics.checks import check_positive_int
from momatch.suggestions.neighborhood import NEIGHBORS, Neighborhood
from momatch.suggestions.typical import most_typical
from momatch.training.guide import leading_components, row_evidence
from momatch.training.threads import one_thread

#: Of a larger pool as many rows are considered, drawn by the seed: more change little and take longer.
MOST_ROWS = 10_000
#: And at least so many for each that is asked for.
_ROWS_EACH = 4
#: Labels a class with which what the posterior is sure of counts by half.
_TRUSTED = 10


@dataclass(frozen=True)
class Suggestions:
    """What to label next.

    Attributes:
        rows: (n,) row numbers, the most useful first; fewer than asked for if the pool has no more.
        guess: (n,) most likely class of each; -1 if nothing is known yet.
        confidence: (n,) its probability; NaN if nothing is known yet.
        outliers: (m,) unlabelled rows that look like no class, most outlying first; never among `rows`.
    """

    rows: Int64[np.ndarray, " n"]
    guess: Int64[np.ndarray, " n"]
    confidence: Float64[np.ndarray, " n"]
    outliers: Int64[np.ndarray, " m"]


def suggest(
    features: Float[np.ndarray, "N F"],
    labels: Int64[np.ndarray, " N"] | None = None,
    *,
    n: int = 20,
    posterior: Float[np.ndarray, "N K"] | None = None,
    p_inlier: Float[np.ndarray, " N"] | None = None,
    seed: int = 0,
) -> Suggestions:
    """Choose images to label. The same arguments give the same answer.

    A labelled image, or a near duplicate of one, is never suggested; nor are two near duplicates of each other.

    Args:
        features: of all images, compared by their direction.
        labels: class numbers; -1 for unlabelled, -2 for images known to be of no class. None if there are none.
        n: how many to suggest.
        posterior: class probabilities by a trained model; None to gather the evidence of the labels themselves.
        p_inlier: probability of each image to be of some class (`momatch.evaluation.pool_judging`); likely outliers are listed
            apart. None to look at distances to neighbours alone.
        seed: of clusters, of the evidence, and of the rows considered in a large pool.

    Raises:
        ValueError: if an array does not fit, has values out of range, or every image is labelled.
    """
    check_positive_int("n", n)
    labels = np.full(len(features), UNLABELED) if labels is None else labels
    _check(features, labels, posterior, p_inlier)
    rows = considered_rows(labels, n=n, seed=seed)
    with one_thread():
        neighborhood = neighborhood_of(features[rows])
        codes = labels[rows]
        known = (
            evidence_posterior(neighborhood, codes, seed) if posterior is None else posterior[rows].astype(np.float64)
        )
        inlier = neighborhood.p_inlier() if p_inlier is None else p_inlier[rows].astype(np.float64)
        chosen = choose(neighborhood, codes, known, inlier, n=n, seed=seed)
    outliers = np.flatnonzero(_is_outlier(codes, inlier))
    of_chosen = np.full((len(chosen), 1), np.nan) if known is None else known[chosen]
    return Suggestions(
        rows[chosen],
        np.full(len(chosen), -1) if known is None else of_chosen.argmax(1),
        of_chosen.max(1) if len(chosen) else np.empty(0),
        rows[outliers[np.argsort(inlier[outliers], kind="stable")]],
    )


def choose(
    neighborhood: Neighborhood,
    codes: Int64[np.ndarray, " M"],
    posterior: Float64[np.ndarray, "M K"] | None,
    p_inlier: Float64[np.ndarray, " M"],
    *,
    n: int,
    clusters: int | None = None,
    seed: int,
) -> Int64[np.ndarray, " n"]:
    """`suggest` among rows that are prepared: their positions, the most useful first.

    Args:
        neighborhood: of the rows.
        codes: as `labels` of `suggest`.
        posterior: class probabilities; None if nothing is known.
        p_inlier: as of `suggest`.
        n: how many.
        clusters: as of `most_typical`.
        seed: as of `suggest`.
    """
    labeled = np.flatnonzero(codes != UNLABELED)
    is_candidate = (codes == UNLABELED) & ~_is_outlier(codes, p_inlier) & ~neighborhood.is_near(labeled)
    need = p_inlier * _need(posterior, codes)
    candidates = np.flatnonzero(is_candidate)
    return most_typical(neighborhood, candidates, labeled, need, n=n, clusters=clusters, seed=seed)


def _is_outlier(codes: Int64[np.ndarray, " M"], p_inlier: Float64[np.ndarray, " M"]) -> Bool[np.ndarray, " M"]:
    is_outlier: np.ndarray = (codes == UNLABELED) & (p_inlier < LIKELY_OUTLIER)
    return is_outlier


def considered_rows(labels: Int64[np.ndarray, " N"], *, n: int, seed: int) -> Int64[np.ndarray, " M"]:
    """All labelled rows, and as many of the others as are considered; ascending.

    Raises:
        ValueError: if every row is labelled.
    """
    free = np.flatnonzero(labels == UNLABELED)
    if len(free) == 0:
        raise ValueError(f"labels: got {len(labels):,} labelled images, expected some without a label to suggest")
    most = max(MOST_ROWS, _ROWS_EACH * n)
    if len(free) > most:
        free = np.random.default_rng(seed).choice(free, most, replace=False)
    return np.sort(np.concatenate([free, np.flatnonzero(labels != UNLABELED)]))


def neighborhood_of(features: Float[np.ndarray, "M F"]) -> Neighborhood:
    """Which rows are near each other, by the direction of their features as seen from the mean of all."""
    normalize = torch.nn.functional.normalize
    components = leading_components(normalize(torch.from_numpy(features.astype(np.float32)), dim=1)).double()
    # The directions of one network's features are alike; what differs between images is how they leave the mean.
    table = normalize(components - components.mean(0), dim=1).numpy()
    return Neighborhood(components.numpy(), table, *nearest_neighbors(table, NEIGHBORS))


def evidence_posterior(
    neighborhood: Neighborhood, codes: Int64[np.ndarray, " M"], seed: int
) -> Float64[np.ndarray, "M K"] | None:
    """What the labels say of every row; None without labels. Classes without a label have no probability."""
    classes = np.unique(codes[codes >= 0])
    if len(classes) == 0:
        return None
    posterior = np.zeros((len(codes), classes[-1] + 1))
    if len(classes) == 1:
        posterior[:, classes[0]] = 1.0
        return posterior
    dense = np.where(codes >= 0, np.searchsorted(classes, codes), UNLABELED)
    neighbors = (neighborhood.distance, neighborhood.neighbors)
    _, of_rows = row_evidence(neighborhood.components, dense, neighbors, num_classes=len(classes), seed=seed)
    posterior[:, classes] = of_rows.posterior
    return posterior


def _need(posterior: Float64[np.ndarray, "M K"] | None, codes: Int64[np.ndarray, " M"]) -> Float64[np.ndarray, " M"]:
    """How much a label near each row is needed: the less sure its class, and the fewer labels that class has, the more.

    w = (1 - t max_k p_k) sum_k p_k (1 + m_k)^(-t/2), m_k the labels of class k, t = m / (m + 10 K) the trust in the posterior:
    few labels make a model that is sure of the wrong things, so at first every row counts alike.
    """
    counts = np.bincount(codes[codes >= 0], minlength=1)
    if posterior is None or (counts > 0).sum() < 2:
        return np.ones(len(codes))
    counts = np.pad(counts, (0, posterior.shape[1] - len(counts)))
    trust = counts.sum() / (counts.sum() + _TRUSTED * len(counts))
    need: np.ndarray = (1.0 - trust * posterior.max(1)) * (posterior @ (1.0 + counts) ** (-trust / 2))
    return need


def _check(
    features: Float[np.ndarray, "N F"],
    labels: Int64[np.ndarray, " N"],
    posterior: Float[np.ndarray, "N K"] | None,
    p_inlier: Float[np.ndarray, " N"] | None,
) -> None:
    if features.ndim != 2 or 0 in features.shape or not np.issubdtype(features.dtype, np.floating):
        raise ValueError(
            f"features: got {features.dtype} {features.shape}, expected floating (N, F), N and F at least 1"
        )
    if not np.isfinite(features).all():
        raise ValueError("features: got NaN or infinite values, expected finite ones; leave those images out")
    size = len(features)
    if labels.shape != (size,) or not np.issubdtype(labels.dtype, np.integer) or labels.min() < NO_CLASS:
        raise ValueError(
            f"labels: got {labels.dtype} {labels.shape}, expected ({size},) class numbers, -1 for unlabelled, -2 for no class"
        )
    if posterior is not None:
        fits = posterior.ndim == 2 and len(posterior) == size and posterior.shape[1] > labels.max()
        # A NaN fails this as well.
        if not fits or not (np.abs(posterior.sum(1) - 1.0) < 1e-3).all() or posterior.min() < 0:
            raise ValueError(
                f"posterior: got {posterior.shape}, expected probabilities ({size}, K), K above every label, that sum to 1"
            )
    if p_inlier is not None and (p_inlier.shape != (size,) or not ((p_inlier >= 0) & (p_inlier <= 1)).all()):
        raise ValueError(f"p_inlier: got {p_inlier.shape}, expected ({size},) probabilities from 0 to 1")
