"""One fit, from the weighted set of samples to a network, its scaling and a calibrated scorer."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from momatch.classifier import Classifier
from momatch.estimator.encoder import build_classifier, start_at_class_means
from momatch.estimator.samples import WeightedSet, hold_out
from momatch.estimator.scaling import Scaling
from momatch.estimator.settings import Settings
from momatch.estimator.train import Samples, train
from momatch.estimator.views import VectorViews
from momatch.evaluate import Outputs, confident_samples, refit_head
from momatch.heads import AAGMM, GaussianMixtureHead, KMeans, Linear
from momatch.neighbors import nearest_neighbors, reach, spread_labels
from momatch.scoring import Scorer

#: Rows that go through the network at a time: memory is bounded for any number of samples.
_CHUNK = 8192
#: Up to which neighbour "near" goes: views are measured by the distance to that one.
REACH_NEIGHBORS = 10


@dataclass(frozen=True)
class Fitted:
    """What a fit leaves; pickled as it is.

    Attributes:
        scaling: features to standard deviations.
        classifier: from there to embeddings and log joints, in float64: a prediction must not depend, by rounding, on which
            other samples are predicted with it.
        scorer: labels, posterior, log density and p-values from embeddings.
        calibration_source: "unlabeled", "labeled" or "training".
    """

    scaling: Scaling
    classifier: Classifier
    scorer: Scorer
    calibration_source: str

    def embed(self, x: Float64[np.ndarray, "n F"]) -> Float[Tensor, "n D"]:
        """Embeddings of features as they come."""
        return embed(self.classifier, self.scaling(x))


def fit_set(samples: WeightedSet, settings: Settings, *, num_classes: int, seed: int) -> Fitted:
    """Train on a weighted set. torch's global random state is left as it was.

    Raises:
        ValueError: if training diverged.
    """
    training, held_out, source = hold_out(samples, settings.calibration_fraction, seed)
    scaling = Scaling.of(training, settings.scale)
    table = scaling(training.x)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = _train(training, scaling, settings, num_classes=num_classes, seed=seed).double()
    judge = _refit(classifier, table, training, settings.config.cutoff)
    head = classifier.head
    assert isinstance(head, AAGMM | KMeans | Linear), "the config names no other"
    assert judge is None or isinstance(judge, AAGMM | KMeans), "a copy of it"
    scorer = Scorer(head, judge, score=settings.outlier_score)
    scorer.calibrate(embed(classifier, scaling(held_out)))
    return Fitted(scaling, classifier, scorer.requires_grad_(False), source)


@torch.no_grad()
def embed(classifier: Classifier, x: Float64[np.ndarray, "n F"]) -> Float[Tensor, "n D"]:
    """Embeddings of standardised features."""
    return torch.cat([classifier.embed(chunk) for chunk in torch.from_numpy(x).split(_CHUNK)])


def _train(training: WeightedSet, scaling: Scaling, settings: Settings, *, num_classes: int, seed: int) -> Classifier:
    table = scaling(training.x)
    rows = torch.from_numpy(table.astype(np.float32))
    labeled = torch.from_numpy(np.flatnonzero(training.codes >= 0))
    labels = torch.from_numpy(training.codes)[labeled]
    config = settings.config.updated({"seed": seed})
    classifier = build_classifier(
        settings.encoder,
        config.head,
        in_features=rows.shape[1],
        hidden_sizes=settings.hidden_sizes,
        embedding_dim=config.embedding_dim,
        num_classes=num_classes,
    )
    if settings.encoder == "none" and isinstance(classifier.head, GaussianMixtureHead):
        start_at_class_means(classifier.head, rows[labeled], labels)
    of_graph = settings.graph_neighbors if config.policy != "supervised" else 0
    distance, neighbors = nearest_neighbors(table, max(settings.neighbors, of_graph, REACH_NEIGHBORS))
    spread = None
    if of_graph:
        reached = spread_labels(distance[:, :of_graph], neighbors[:, :of_graph], training.codes, training.weight)
        spread = torch.from_numpy(reached.astype(np.float32))
    deviation = torch.from_numpy(scaling.deviation.astype(np.float32))
    generator = torch.Generator().manual_seed(seed)
    views = VectorViews(
        rows,
        deviation,
        torch.from_numpy(neighbors[:, : settings.neighbors]),
        generator,
        reach=reach(distance[:, :REACH_NEIGHBORS], table),
    )
    samples = Samples(views, training.weight, labeled, labels, spread)
    return train(classifier, samples, config, weak=settings.weak, strong=settings.strong, verbose=settings.verbose)


def _refit(
    classifier: Classifier, table: Float64[np.ndarray, "n F"], training: WeightedSet, cutoff: float
) -> GaussianMixtureHead | None:
    """The mixture in closed form over the samples that the trained model is sure of; it judges outliers."""
    z = embed(classifier, table)
    with torch.no_grad():
        outputs = Outputs(z, classifier.head(z))
    positions, classes = confident_samples(outputs, torch.from_numpy(training.codes), cutoff=cutoff)
    return refit_head(classifier.head, z[positions], classes)
