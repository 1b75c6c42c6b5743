"""Evidence about a pool's classes, of which the labels themselves decide how much is believed (docs/method.md, "Evidence").

Linear models and forests know the labels alone; the graph of nearest neighbours carries them through the pool. Each view is
cross-fitted: it predicts labels that were hidden from it. The better it does, the more it counts. Where classes are not
clusters the graph counts nothing, and the answer is that of the supervised views.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.special import expit, softmax

from momatch.console.wording import percentages
from momatch.evidence.pooling import log_likelihood, pooled, pooling_weights
from momatch.evidence.prior import is_balanced_draw, is_nearly_balanced, label_prior, pool_prior, reweighted
from momatch.evidence.views import SUPERVISED, SupervisedViews

#: Folds of the labels. All are hidden in turn if there are at most so many labels and rows; of more, as many folds as it takes
#: to hide enough labels.
_FOLDS, _FEW, _FEW_ROWS, _ENOUGH = 5, 2_000, 20_000, 40
#: Trees of the forests that are fitted to all folds but one.
_FEW_TREES = 25
GRAPH = "graph"

#: Labels with -1, frequencies of the classes -> class probabilities of every row, by several graphs.
Spread = Callable[[Int64[np.ndarray, " n"], Float64[np.ndarray, " K"]], Iterator[Float64[np.ndarray, "n K"]]]


@dataclass(frozen=True)
class Evidence:
    """What the labels say; can be pickled.

    Attributes:
        supervised: the supervised views.
        weights: of the supervised views alone, and their sum is an inverse temperature.
        all_weights: of the supervised views and the graph.
        frequencies: (K,) of the classes, estimated: the mean of what all evidence says of each row.
        prior_ratio: (K,) how many times as frequent as among the labels; 1 if labels were drawn as classes occur.
        trust: probability that the graph alone explains the hidden labels better than the supervised views do.
    """

    supervised: SupervisedViews
    weights: Float64[np.ndarray, " V"]
    all_weights: Float64[np.ndarray, " U"]
    frequencies: Float64[np.ndarray, " K"]
    prior_ratio: Float64[np.ndarray, " K"]
    trust: float

    def __call__(self, x: Float64[np.ndarray, "n F"]) -> Float64[np.ndarray, "n K"]:
        """Posterior of new rows by the supervised views."""
        return reweighted(pooled(self.supervised(x), self.weights), self.prior_ratio)

    def shares(self) -> dict[str, float]:
        """Share of each view in what is believed."""
        total = max(float(self.all_weights.sum()), np.finfo(float).tiny)
        return {
            name: float(weight) / total for name, weight in zip((*SUPERVISED, GRAPH), self.all_weights, strict=True)
        }

    def describe(self) -> str:
        """What counts how much, for a person."""
        return f"evidence: {percentages({**self.shares(), 'trust that classes are clusters': self.trust})}"


@dataclass(frozen=True)
class RowEvidence:
    """What the evidence says of the rows that it was gathered on.

    Attributes:
        posterior: (n, K) by all views.
        guide: (n, K) what a network should learn of them: the graph alone, as far as it counts, and else the posterior.
        floor: weight of the guide at the end of the training: the less the graph counts, the less a network may leave it.
        hidden_confidence: mean confidence of all views in labels that were hidden from them; None if none could be hidden.
    """

    posterior: Float64[np.ndarray, "n K"]
    guide: Float64[np.ndarray, "n K"]
    floor: float
    hidden_confidence: float | None

    def confidence(self, rows: Int64[np.ndarray, " m"]) -> float | None:
        """Mean confidence of the posterior of some rows; without any, in hidden labels."""
        return float(self.posterior[rows].max(1).mean()) if len(rows) else self.hidden_confidence


def gather_evidence(
    x: Float64[np.ndarray, "n F"],
    codes: Int64[np.ndarray, " n"],
    sample_weight: Float64[np.ndarray, " n"],
    *,
    num_classes: int,
    spread: Spread | None,
    is_blended: bool,
    seed: int,
) -> tuple[Evidence, RowEvidence]:
    """Fit and cross-fit all views.

    Args:
        x: scaled features.
        codes: class numbers, -1 for unlabelled; every class has a label.
        sample_weight: of each row.
        num_classes: K.
        spread: spreads labels over the graph of the rows; None to do without.
        is_blended: the supervised views have a say in the answer beside the network (`Blend`). Then it is taught the graph as
            far as that beats them; a network that is the whole answer, only as far as it beats all views together.
        seed: of forests and folds.
    """
    is_labeled = codes >= 0
    labels = codes[is_labeled]
    prior = label_prior(np.bincount(labels, weights=sample_weight[is_labeled], minlength=num_classes))
    fit = partial(SupervisedViews.fit, num_classes=num_classes, seed=seed)
    few_trees = partial(fit, trees=_FEW_TREES)
    with_prior = None if spread is None else lambda fewer: spread(fewer, prior)
    hidden = _cross_fit(x, codes, sample_weight, fit=few_trees, spread=with_prior, seed=seed)
    weights, all_weights, trust, lead = _weights(hidden, has_graph=spread is not None)
    taught = trust if is_blended else lead
    supervised = fit(x[is_labeled], labels, sample_weight[is_labeled])
    of_rows = supervised(x)
    posterior = pooled(of_rows, weights)
    ratio = np.ones(num_classes)
    counts = np.bincount(labels, minlength=num_classes)
    if not is_labeled.all() and is_nearly_balanced(counts):
        found = pool_prior(posterior[~is_labeled], sample_weight[~is_labeled], prior)
        if is_balanced_draw(counts, found):
            prior, ratio = found, found / prior
    posterior = guide = reweighted(posterior, ratio)
    if spread is not None:
        graph = _averaged(spread(codes, prior), None if hidden is None else hidden.of_graphs)
        # The graph is balanced to the estimated frequencies, and the other views are not.
        views = np.concatenate([of_rows, reweighted(graph, 1.0 / ratio)[None]])
        posterior = reweighted(pooled(views, all_weights), ratio)
        guide = (1.0 - taught) * posterior + taught * graph
    posterior[is_labeled] = guide[is_labeled] = np.eye(num_classes)[labels]
    known = None if hidden is None else float(pooled(hidden.views, all_weights[: len(hidden.views)]).max(1).mean())
    frequencies = np.average(posterior, axis=0, weights=sample_weight)
    evidence = Evidence(supervised, weights, all_weights, frequencies, ratio, trust)
    return evidence, RowEvidence(posterior, guide, 1.0 - taught, known)


@dataclass(frozen=True)
class _Hidden:
    """What the views say of labels that were hidden from them.

    Attributes:
        views: the graph last, if there is one.
        labels: the hidden labels.
        weight: of each.
        of_graphs: probability of each graph, given the hidden labels.
    """

    views: Float64[np.ndarray, "U m K"]
    labels: Int64[np.ndarray, " m"]
    weight: Float64[np.ndarray, " m"]
    of_graphs: Float64[np.ndarray, " A"]


def _cross_fit(
    x: Float64[np.ndarray, "n F"],
    codes: Int64[np.ndarray, " n"],
    sample_weight: Float64[np.ndarray, " n"],
    *,
    fit: Callable[..., SupervisedViews],
    spread: Callable[[Int64[np.ndarray, " n"]], Iterator[Float64[np.ndarray, "n K"]]] | None,
    seed: int,
) -> _Hidden | None:
    """Hide each fold of the labels in turn; None if there are too few to hide any."""
    labeled = np.flatnonzero(codes >= 0)
    folds = _folds(codes[labeled], len(codes), np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,))))
    found = []
    for fold in folds:
        known, hidden = labeled[~fold], labeled[fold]
        views = fit(x[known], codes[known], sample_weight[known])(x[hidden])
        if spread is not None:
            fewer = codes.copy()
            fewer[hidden] = -1
            views = np.concatenate([views, [graph[hidden] for graph in spread(fewer)]])
        found.append(views)
    if not found:
        return None
    rows = np.concatenate([labeled[fold] for fold in folds])
    labels, weight = codes[rows], sample_weight[rows] / sample_weight[labeled].mean()
    supervised, graphs = np.split(np.concatenate(found, 1), [len(SUPERVISED)])
    if spread is None:
        return _Hidden(supervised, labels, weight, np.empty(0))
    of_graphs = softmax([log_likelihood(graph[None], np.ones(1), labels, weight) for graph in graphs])
    return _Hidden(np.concatenate([supervised, _averaged(graphs, of_graphs)[None]]), labels, weight, of_graphs)


def _averaged(
    graphs: Iterable[Float64[np.ndarray, "n K"]], probability: Float64[np.ndarray, " A"] | None
) -> Float64[np.ndarray, "n K"]:
    """The graphs' class probabilities, averaged by the probability of each graph; all alike without any.

    One graph at a time is in memory.
    """
    total, average = 0.0, np.zeros(())
    for graph, share in zip(graphs, repeat(1.0) if probability is None else probability.tolist(), strict=False):
        total, average = total + share, average + share * graph
    return average / total


def _weights(
    hidden: _Hidden | None, *, has_graph: bool
) -> tuple[Float64[np.ndarray, " V"], Float64[np.ndarray, " U"], float, float]:
    """Weights of the supervised views and of all views; the trust in the graph and its lead.

    These are the probabilities that the graph alone explains the hidden labels better than the supervised views do, and than
    all views together do.
    """
    V = len(SUPERVISED)
    beginning = np.full(V, 1.0 / V)
    if hidden is None:
        unknown = 0.5 if has_graph else 0.0
        return beginning, np.append(beginning, 0.0), unknown, unknown
    given = (hidden.labels, hidden.weight)
    weights = pooling_weights(hidden.views[:V], *given, beginning)
    if not has_graph:
        return weights, np.append(weights, 0.0), 0.0, 0.0
    all_weights = pooling_weights(hidden.views, *given, np.append(beginning, 0.0))
    of_graph = log_likelihood(hidden.views[V:], np.ones(1), *given)
    trust = expit(of_graph - log_likelihood(hidden.views[:V], weights, *given))
    lead = expit(of_graph - log_likelihood(hidden.views, all_weights, *given))
    return weights, all_weights, float(trust), float(lead)


def _folds(labels: Int64[np.ndarray, " m"], rows: int, rng: np.random.Generator) -> list[Bool[np.ndarray, " m"]]:
    """Masks of the labels to hide: each class in equal parts, but never all labels of a class."""
    if len(labels) < 2:
        return []
    fold, begin = np.full(len(labels), -1), 0
    counts = np.bincount(labels)
    for k in np.flatnonzero(counts > 1):
        of_class = rng.permutation(np.flatnonzero(labels == k))
        fold[of_class] = (np.arange(len(of_class)) + begin) % _FOLDS
        begin += len(of_class)
    is_small = len(labels) <= _FEW and rows <= _FEW_ROWS
    folds = _FOLDS if is_small else min(_FOLDS, -(-_ENOUGH * _FOLDS // len(labels)))
    return [fold == part for part in range(folds) if (fold == part).any()]
