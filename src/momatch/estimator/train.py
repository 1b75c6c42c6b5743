"""The training loop of the estimator: losses, policies, optimiser and average of `momatch.training`, on vectors in memory."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from tqdm import tqdm

from momatch.config import TrainConfig
from momatch.data.dataset import UNLABELED
from momatch.estimator.views import VectorViews, View
from momatch.models.classifier import Classifier
from momatch.training.average import AveragedModel
from momatch.training.objective import Embeddings, Guide, Losses
from momatch.training.objective_setup import build_objective
from momatch.training.optimizer import build_optimizer, learning_rate, set_learning_rate

#: Steps between updates of the progress line.
_SHOWN_EVERY = 25


@dataclass(frozen=True)
class Samples:
    """What is trained on.

    Attributes:
        views: draws views of rows.
        weight: (N,) weight of each row.
        labeled: (m,) rows with a label.
        labels: (m,) their class numbers.
        spread: (N, K) class probabilities of all rows by the graph, which guide the pseudo-labels; None for no guide.
    """

    views: VectorViews
    weight: Float64[np.ndarray, " N"]
    labeled: Int64[Tensor, " m"]
    labels: Int64[Tensor, " m"]
    spread: Float32[Tensor, "N K"] | None


class WeightedDraws:
    """Places drawn in proportion to their weights, one from each of `size` equal shares of the total weight.

    Args:
        weight: (N,) weights, above 0.
        size: places a draw.
        bits: source of the uniform numbers.
    """

    def __init__(self, weight: Float64[np.ndarray, " N"], size: int, bits: np.random.Generator) -> None:
        self._edges = np.cumsum(weight)
        self._size = size
        self._bits = bits

    def __call__(self) -> Int64[Tensor, " size"]:
        """The next places."""
        share = (np.arange(self._size) + self._bits.random(self._size)) / max(self._size, 1)
        places = np.searchsorted(self._edges, share * self._edges[-1], side="right")
        return torch.from_numpy(np.minimum(places, len(self._edges) - 1))  # rounding may end on the last edge


def train(
    classifier: Classifier,
    samples: Samples,
    config: TrainConfig,
    *,
    weak: View,
    strong: View,
    verbose: bool,
) -> Classifier:
    """Train `classifier`; returns its average over the steps, in evaluation mode.

    Args:
        classifier: encoder and head.
        samples: what to train on; labelled rows are part of the unlabelled pool, too.
        config: a resolved one; sizes of batches, schedule, losses.
        weak: view of labelled samples, and of unlabelled ones that get their pseudo-label by it.
        strong: view that must get the same label.
        verbose: show progress on stderr.

    Raises:
        ValueError: if training diverged.
    """
    head = classifier.head
    objective = build_objective(config, head, len(samples.weight))
    optimizer = build_optimizer(classifier, config)
    average = AveragedModel(classifier, config.ema_decay)
    bits = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(1,)))
    draw_labeled = WeightedDraws(samples.weight[samples.labeled.numpy()], config.labeled_batch_size, bits)
    draw_pool = WeightedDraws(samples.weight, config.unlabeled_batch_size, bits)
    parameters = [parameter for parameter in classifier.parameters() if parameter.requires_grad]
    truth = torch.full((config.unlabeled_batch_size,), UNLABELED)
    classifier.train()
    with tqdm(total=config.steps, desc="MoMatchClassifier", unit="step", disable=not verbose) as bar:
        for step in range(config.steps):
            set_learning_rate(optimizer, learning_rate(config, step))
            places, rows = draw_labeled(), draw_pool()
            labeled = samples.views(samples.labeled[places], weak)
            z = _embed(classifier, labeled, samples.views(rows, weak), samples.views(rows, strong))
            progress = step / config.steps
            guide = None if samples.spread is None else Guide(samples.spread[rows], 1.0 - progress)
            losses: Losses = objective(head, z, samples.labels[places], rows, truth, progress=progress, guide=guide)
            optimizer.zero_grad()
            losses.total.backward()
            norm = clip_grad_norm_(parameters, config.clip_norm or torch.inf)
            if bool(norm.isfinite()):
                optimizer.step()
                average.update(step, torch.ones(()))
            if verbose:
                _show(bar, step + 1, config.steps, losses)
    _check_converged(average.classifier)
    return average.classifier


def _embed(classifier: Classifier, labeled: Tensor, weak: Tensor, strong: Tensor) -> Embeddings:
    sizes = [len(labeled), len(weak), len(strong)]
    return Embeddings(*classifier.embed(torch.cat([labeled, weak, strong])).split(sizes))


def _show(bar: "tqdm[None]", done: int, steps: int, losses: Losses) -> None:
    bar.update()
    if done % _SHOWN_EVERY and done != steps:
        return
    figures = {"loss": f"{float(losses.total.detach()):.3f}"}
    if "utilisation" in losses.sums:
        figures["pseudo-labels used"] = f"{float(losses.sums['utilisation']):.0%}"
    bar.set_postfix(figures)


def _check_converged(classifier: Classifier) -> None:
    finite = all(bool(tensor.isfinite().all()) for tensor in classifier.state_dict().values())
    if not (finite and bool(classifier.head.is_usable())):
        raise ValueError("training diverged: got weights that are not finite, expected finite ones; lower lr")
