"""One fit: from a weighted set of samples to a scaling, a network and a calibrated scorer."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from momatch.console.progress import Progress
from momatch.data.batches import Batch
from momatch.data.dataset import UNLABELED
from momatch.data.graph import LabelGraph, nearest_neighbors, reach
from momatch.estimator.encoder import build_classifier, start_at_class_means
from momatch.estimator.samples import WeightedSet, hold_out, weighted_batches
from momatch.estimator.scaling import Scaling
from momatch.estimator.settings import Settings
from momatch.estimator.views import Vectors, VectorView
from momatch.evaluation.evaluate import confident_samples, refit_head
from momatch.evaluation.judging import fit_judge, likely_inliers
from momatch.evidence import Blend, Evidence, Neighborhood, RowEvidence, gather_evidence
from momatch.heads import log_posterior
from momatch.models.classifier import Classifier
from momatch.models.outputs import Outputs
from momatch.models.scorer import Scorer, Scores, joined, score_images
from momatch.outliers import StageReader, find_stages
from momatch.training.average import AveragedModel
from momatch.training.objective import build_objective
from momatch.training.optimizer import build_optimizer, learning_rate
from momatch.training.step import StepOptions, TrainStep

#: Rows per forward pass. Every pass has this many, because rounding in a matrix product depends on its shape.
_CHUNK = 256
#: Scores that differ by less than this, relative to max(score, 1), count as equal.
_TIE = 1e-7
#: Steps between updates of the progress display.
_SHOWN_EVERY = 25
#: Consecutive skipped steps that count as divergence (half of the steps in short fits); see `TrainConfig.max_skipped_steps`.
_MAX_SKIPPED = 50
#: Judge, refitted mixture and the answer's temperature are fitted to at most so many labelled and so many unlabelled samples.
_MOST_JUDGED = 10_000
#: The distance to this nearest neighbour is the unit of augmentation strength.
REACH_NEIGHBORS = 10


@dataclass(frozen=True)
class Fitted:
    """The result of a fit; can be pickled.

    Attributes:
        scaling: scales raw features.
        classifier: maps scaled features to embeddings and log joints, in float64.
        scorer: computes labels, posterior, log density and p-values from embeddings.
        calibration_source: "unlabeled", "labeled" or "training".
        blend: of the network and the supervised views; None for the network alone.
    """

    scaling: Scaling
    classifier: Classifier
    scorer: Scorer
    calibration_source: str
    blend: Blend | None

    def evidence(self) -> tuple[dict[str, float], Float64[np.ndarray, " K"]]:
        """What the prediction rests on, and the frequency of the classes."""
        if self.blend is None:
            return {"network": 1.0}, np.ones(1)
        return self.blend.shares(), self.blend.evidence.frequencies

    def embed(self, x: Float64[np.ndarray, "n F"]) -> Float[Tensor, "n D"]:
        """Embeddings of raw features."""
        return embed(self.classifier, self.scaling(x))

    def scores(self, x: Float64[np.ndarray, "n F"]) -> Scores:
        """Scores of raw features. A sample's scores do not depend on the other samples in `x`."""
        rows = torch.from_numpy(self.scaling(x))
        with torch.no_grad():
            parts = [score_images(self.classifier, self.scorer, chunk) for chunk in _chunks(rows)]
        padded = joined(parts)
        scores = Scores(**{field.name: getattr(padded, field.name)[: len(rows)] for field in fields(Scores)})
        if self.blend is None:
            return scores
        posterior = torch.from_numpy(self.blend(rows.numpy(), scores.posterior.numpy()))
        return replace(scores, posterior=posterior, labels=posterior.argmax(1))


def fit_set(samples: WeightedSet, settings: Settings, *, num_classes: int, seed: int) -> Fitted:
    """Train on a weighted set. Leaves torch's global random state unchanged.

    Raises:
        ValueError: if training diverges.
    """
    training, held_out, source = hold_out(samples, settings.calibration_fraction, seed)
    scaling = Scaling.of(training, settings.scale)
    table = scaling(training.x)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        trained = _train(training, table, scaling.deviation, settings, num_classes=num_classes, seed=seed)
    classifier, kept = trained.classifier.double(), _at_most(training.codes, _MOST_JUDGED)
    is_judged = settings.outlier_score == "judge"
    names = find_stages(classifier.backbone, torch.from_numpy(table[:1])) if is_judged else None
    outputs, labels = _outputs(classifier, table[kept], names), torch.from_numpy(training.codes[kept])
    of_held_out = _outputs(classifier, scaling(held_out), names)
    judge = None
    if names is not None:
        found = fit_judge(outputs, labels, cutoff=settings.loss.cutoff, stage_names=names)
        judge = found.judge
        if source == "unlabeled":
            of_held_out = of_held_out.select(likely_inliers(found, of_held_out))
    # Each distinct sample counts once, as in calibration.
    positions, classes = confident_samples(outputs, labels, cutoff=settings.loss.cutoff)
    refitted = refit_head(classifier.head, outputs.z[positions], classes)
    scorer = Scorer(classifier.head, refitted, judge=judge, score=settings.outlier_score)
    scores = scorer.calibrate(of_held_out.z, of_held_out.stages).calibration_scores
    # Rounding must not break a tie with a calibration sample: ties get the larger p-value.
    scorer.calibration_scores = scores + _TIE * scores.abs().clamp_min(1.0)
    blend = None
    if trained.evidence is not None:
        unlabeled = np.flatnonzero(training.codes[kept] < 0)
        pool = kept[unlabeled]
        network = log_posterior(outputs.log_joint[torch.from_numpy(unlabeled)]).exp().numpy()
        of_rows = trained.of_rows
        assert of_rows is not None
        count = settings.loss.graph_neighbors if trained.has_graph else 0
        blend = Blend.fit(
            trained.evidence,
            table[pool],
            network,
            of_rows.posterior[pool],
            of_rows.guide[pool],
            neighborhood=Neighborhood(table[kept], of_rows.guide[kept], count) if count else None,
            rows=unlabeled,
        )
    return Fitted(scaling, classifier, scorer.requires_grad_(False), source, blend)


def _at_most(codes: Int64[np.ndarray, " n"], most: int) -> Int64[np.ndarray, " m"]:
    """Every k-th labelled and every k-th unlabelled row, so that there are at most `most` of each."""
    parts = (np.flatnonzero(codes < 0), np.flatnonzero(codes >= 0))
    return np.concatenate([rows[:: max(1, -(-len(rows) // most))] for rows in parts])


@torch.no_grad()
def embed(classifier: Classifier, x: Float64[np.ndarray, "n F"]) -> Float[Tensor, "n D"]:
    """Embeddings of scaled features."""
    return torch.cat([classifier.embed(chunk) for chunk in _chunks(torch.from_numpy(x))])[: len(x)]


@torch.no_grad()
def _outputs(classifier: Classifier, x: Float64[np.ndarray, "n F"], stage_names: Sequence[str] | None) -> Outputs:
    """Embeddings and log joints of scaled features, and stages if they are named."""
    if stage_names is None:
        z = embed(classifier, x)
        return Outputs(z, classifier.head(z))
    reader = StageReader(classifier.backbone, stage_names)
    parts = [classifier.inspect(chunk, reader) for chunk in _chunks(torch.from_numpy(x))]
    z, stages = (torch.cat(tensors)[: len(x)] for tensors in zip(*parts, strict=True))
    return Outputs(z, classifier.head(z), stages)


def _chunks(rows: Float[Tensor, "n d"]) -> Iterator[Float[Tensor, "chunk d"]]:
    """The rows in chunks of equal shape and memory layout, the last padded with zeros."""
    for chunk in rows.split(_CHUNK):
        table = rows.new_zeros(_CHUNK, rows.shape[1])
        table[: len(chunk)] = chunk
        yield table


@dataclass(frozen=True)
class _Trained:
    """The averaged model in evaluation mode, and what guided it."""

    classifier: Classifier
    evidence: Evidence | None
    of_rows: RowEvidence | None
    has_graph: bool


def _train(
    training: WeightedSet,
    table: Float64[np.ndarray, "n F"],
    deviation: Float64[np.ndarray, " F"],
    settings: Settings,
    *,
    num_classes: int,
    seed: int,
) -> "_Trained":
    """Train a classifier.

    Raises:
        ValueError: if training diverges.
    """
    rows = torch.from_numpy(table.astype(np.float32))
    classifier = build_classifier(
        settings.encoder,
        settings.head,
        in_features=rows.shape[1],
        hidden_sizes=settings.hidden_sizes,
        embedding_dim=settings.embedding_dim,
        num_classes=num_classes,
    )
    if settings.encoder == "none" and classifier.head.has_centers:
        labeled = torch.from_numpy(np.flatnonzero(training.codes >= 0))
        start_at_class_means(classifier.head, rows[labeled], torch.from_numpy(training.codes)[labeled])
    of_graph = settings.loss.graph_neighbors if settings.loss.algorithm != "supervised" else 0
    distance, neighbors = nearest_neighbors(table, max(settings.neighbors, of_graph, REACH_NEIGHBORS))
    graph = LabelGraph(distance[:, :of_graph], neighbors[:, :of_graph], training.weight) if of_graph else None
    evidence = of_rows = None
    if num_classes > 1:
        spread = None if graph is None else graph.spread
        evidence, of_rows = gather_evidence(
            table, training.codes, training.weight, num_classes=num_classes, spread=spread, is_blended=True, seed=seed
        )
        if settings.verbose:
            print(evidence.describe(), file=sys.stderr)
    vectors = Vectors(
        rows,
        torch.from_numpy(deviation.astype(np.float32)),
        torch.from_numpy(neighbors[:, : settings.neighbors]),
        reach(distance[:, :REACH_NEIGHBORS], table),
    )
    guide = None if of_rows is None or settings.loss.algorithm == "supervised" else of_rows
    step = _build_step(classifier, vectors, guide, settings, seed)
    batches = weighted_batches(
        training,
        labeled_batch_size=settings.optimizer.labeled_batch_size,
        unlabeled_batch_size=settings.optimizer.unlabeled_batch_size,
        seed=seed,
    )
    _run_steps(step, batches, settings)
    return _Trained(step.average.classifier, evidence, of_rows, graph is not None)


def _build_step(
    classifier: Classifier, vectors: Vectors, guide: RowEvidence | None, settings: Settings, seed: int
) -> TrainStep:
    optimizer, n = settings.optimizer, len(vectors.table)
    # An algorithm of the user's own is named in their code, not in a file.
    objective = build_objective(
        settings.loss, classifier.head, n, num_features=classifier.num_features, trust_code=True
    )
    return TrainStep(
        classifier,
        AveragedModel(classifier, optimizer.ema_decay),
        objective,
        build_optimizer(classifier, optimizer, objective.algorithm),
        weak=VectorView(vectors, settings.weak, default_view=0),
        strong=VectorView(vectors, settings.strong, default_view=1),
        truth=torch.full((n,), UNLABELED),
        guide=None if guide is None else torch.from_numpy(guide.guide.astype(np.float32)),
        guide_floor=0.0 if guide is None else guide.floor,
        options=StepOptions(seed=seed, clip_norm=optimizer.clip_norm),
    )


def _run_steps(step: TrainStep, batches: Iterator[Batch], settings: Settings) -> None:
    """Run all training steps.

    Raises:
        ValueError: if training diverges.
    """
    optimizer, steps = settings.optimizer, settings.optimizer.steps
    samples = _SHOWN_EVERY * (optimizer.labeled_batch_size + 2 * optimizer.unlabeled_batch_size)
    with ExitStack() as stack:
        progress = stack.enter_context(closing(Progress(steps, unit="row"))) if settings.verbose else None
        for number, batch in zip(range(steps), batches, strict=False):
            step(batch, lr=learning_rate(optimizer, number), progress=number / steps)
            done = number + 1
            if progress is not None and (done % _SHOWN_EVERY == 0 or done == steps):
                progress.update(done, step.interval_metrics(), samples)
    skipped = step.longest_skip()
    finite = all(bool(tensor.isfinite().all()) for tensor in step.average.classifier.state_dict().values())
    if not finite or skipped >= min(_MAX_SKIPPED, math.ceil(steps / 2)):
        raise ValueError(
            f"training diverged: loss, gradients or weights were not finite for {skipped} consecutive steps; lower lr"
        )
