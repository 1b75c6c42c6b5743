"""One training step, from a batch to updated weights, without a host sync.

Works for images, cached features and vectors: only the views know what a batch holds. Images stay bytes until the classifier
normalises them.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from momatch.algorithms import Mixing
from momatch.augment import View
from momatch.augment.draws import below, draw
from momatch.data.batches import Batch
from momatch.data.dataset import NO_CLASS
from momatch.models.classifier import Classifier
from momatch.training.average import AveragedModel
from momatch.training.guard import Guard
from momatch.training.objective import BatchFacts, Embeddings, Guide, Losses, Objective, PseudoLabeled
from momatch.training.optimizer import Optimizer, set_learning_rate, state_tensors
from momatch.training.processes import Processes

#: Random stream of the labelled samples' weak view; the unlabelled weak and strong views use 0 and 1, further ones 3, 4, ...
LABELED_VIEW = 2
#: Random stream of rotations.
TURNS = 1 << 20

#: Metrics summed over a log interval. Skipped steps contribute only to the last three. An algorithm's own terms follow them.
METRICS = (
    *("loss", "supervised_loss", "unlabeled_loss", "constraint_loss", "fairness_loss", "gradient_norm"),
    *("utilisation", "known_weight", "correct_weight", "outlier_share"),
    *("true_outliers", "found_outliers", "outlier_weight", "good_steps"),
    *("skipped_steps", "skipped_in_a_row", "longest_skip"),
)
_LOSSES = METRICS[: METRICS.index("utilisation")]
#: Those that are an algorithm's to give.
_TERMS = ("unlabeled_loss", "fairness_loss")
_SUMMED = METRICS[: METRICS.index("good_steps")]


@dataclass(frozen=True)
class StepOptions:
    """Options of a step; see the fields of `momatch.TrainConfig`."""

    seed: int
    forward: Literal["joint", "split"] = "joint"
    accumulate: int = 1
    clip_norm: float = 1.0
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    channels_last: bool = True


class TrainStep:
    """Augmentation, forward, loss, backward, clipping, optimiser step and weight average for one batch.

    Args:
        classifier: the model to train.
        average: its weight average.
        objective: the loss.
        optimizer: of the classifier's parameters.
        weak: weak augmentation.
        strong: strong augmentation.
        truth: (N_u,) true classes of the pool, -1 if unknown, -2 for outliers; used only for metrics.
        options: see `StepOptions`.
        guide: (N_u, K) class probabilities of the pool that are mixed into the pseudo-labels with a weight that falls from 1
            to `guide_floor` during training; None for none.
        guide_floor: see `guide`.
        processes: for distributed training.
    """

    def __init__(
        self,
        classifier: Classifier,
        average: AveragedModel,
        objective: Objective,
        optimizer: Optimizer,
        *,
        weak: View,
        strong: View,
        truth: Int64[Tensor, " N_u"],
        options: StepOptions,
        guide: Float[Tensor, "N_u K"] | None = None,
        guide_floor: float = 0.0,
        processes: Processes | None = None,
    ) -> None:
        self.classifier = classifier
        self.average = average
        self.objective = objective
        self.optimizer = optimizer
        self.weak = weak
        self.strong = strong
        self.truth = truth
        self.guide, self.guide_floor = guide, guide_floor
        self.options = options
        self.processes = processes if processes is not None else Processes()
        self.device = truth.device
        for name in {*objective.algorithm.terms} & {*METRICS} - {*_TERMS}:
            raise ValueError(
                f"{type(objective.algorithm).__name__}: has the term {name!r}, which the log has for something else; rename it"
            )
        #: Terms of the loss that only this algorithm has.
        self._terms = tuple(name for name in objective.algorithm.terms if name not in METRICS)
        self.metrics = torch.zeros(len(METRICS) + len(self._terms), device=self.device)
        self.last_metrics: dict[str, Tensor] = {}
        self._left_out: dict[str, Tensor] | None = None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=options.precision == "float16")
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._check_forward()
        state = [*classifier.buffers(), *state_tensors(optimizer).values(), *objective.algorithm.buffers()]
        self._guard = Guard([*self._parameters, *state])
        self._norms = [module for module in classifier.modules() if isinstance(module, _NormBase)]
        self._statistics = [buffer for module in self._norms for buffer in _statistics(module)]

    def __call__(self, batch: Batch, *, lr: float, progress: float) -> None:
        """Train on `batch` and add to `metrics`, which stay on the device.

        Args:
            batch: this process's part of the global batch.
            lr: learning rate of this step.
            progress: fraction of the training that is done, 0 to 1.
        """
        self._seed_network_rng(batch.step)
        set_learning_rate(self.optimizer, lr)
        self._guard.save()
        self.classifier.train()
        self.optimizer.zero_grad()
        losses = [self._backward(micro_batch, progress) for micro_batch in self._micro_batches(batch)]
        self._update(batch.step, _mean_losses(losses))

    def interval_metrics(self) -> dict[str, float | None]:
        """Mean metrics since the last call, read from the device; None if a metric has no samples."""
        sums = dict(zip((*METRICS, *self._terms), self.metrics.tolist(), strict=True))
        self.metrics[: METRICS.index("good_steps") + 1] = 0.0
        self.metrics[len(METRICS) :] = 0.0
        good = sums["good_steps"]
        names = (*_LOSSES, *self._terms)
        if self.objective.has_pseudo_labels:
            names = (*names, "utilisation", "outlier_share")
        means: dict[str, float | None] = {name: sums[name] / good if good else None for name in names}
        known = sums["known_weight"]
        means["pseudo_label_accuracy"] = sums["correct_weight"] / known if known > 0 else None
        if sums["true_outliers"] > 0:
            means["true_outlier_share"] = sums["true_outliers"] / good
            means["outlier_precision"] = (
                sums["found_outliers"] / found if (found := sums["outlier_share"]) > 0 else None
            )
            means["outlier_recall"] = sums["found_outliers"] / sums["true_outliers"]
            means["outliers_pseudo_labeled"] = sums["outlier_weight"] / sums["true_outliers"]
        return {**means, "skipped_steps": sums["skipped_steps"]}

    def count_left_out(self, is_left_out: Bool[Tensor, " N_u"]) -> None:
        """Metrics stay those of the whole pool where batches are drawn from a part: the rest are outliers without a weight."""
        true = (is_left_out & (self.truth == NO_CLASS)).float().mean()
        found = is_left_out.float().mean()
        self._left_out = {"outlier_share": found, "true_outliers": true, "found_outliers": true}

    def longest_skip(self) -> int:
        """Longest run of consecutive skipped steps since the last call, read from the device."""
        longest, in_a_row = METRICS.index("longest_skip"), METRICS.index("skipped_in_a_row")
        found = int(self.metrics[longest])
        self.metrics[longest] = self.metrics[in_a_row]
        return found

    def _seed_network_rng(self, step: int) -> None:
        """Seed torch (for dropout) by seed, step and process, so that a resumed run draws the same numbers."""
        seed = _hashed(self.options.seed, step, self.processes.rank)
        # Not torch.manual_seed, which is slow: it formats a traceback for every unused accelerator.
        torch.default_generator.manual_seed(seed)
        if self.device.type in ("cuda", "mps"):
            getattr(torch, self.device.type).manual_seed(seed)

    def _micro_batches(self, batch: Batch) -> list["_MicroBatch"]:
        """Augment the batch and split it for gradient accumulation."""
        rng = {"seed": self.options.seed, "step": batch.step}
        views = {"labeled": self.weak(batch.labeled, view=LABELED_VIEW, offset=batch.labeled_offset, **rng)}
        offset = batch.unlabeled_offset
        for name in self._wanted_views():
            augment = self.weak if name.startswith("weak") else self.strong
            views[name] = augment(batch.unlabeled, view=_view_number(name), offset=offset, **rng)
        turns = None
        rotated = self.objective.algorithm.wants.rotated
        if rotated is not None:
            draws = draw(len(batch.unlabeled), 1, view=TURNS, offset=offset, device=self.device, **rng)
            turns = below(draws[:, 0], 4)
            views["rotated"] = _rotate(views[rotated], turns)
        # Strided, so that the split does not depend on the number of processes.
        count = self.options.accumulate
        return [
            _MicroBatch(
                {name: images[part::count] for name, images in views.items()},
                batch.labels[part::count],
                batch.labeled_indices[part::count],
                batch.unlabeled_indices[part::count],
                None if turns is None else turns[part::count],
                seed=_hashed(self.options.seed, batch.step, part),
            )
            for part in range(count)
        ]

    def _wanted_views(self) -> list[str]:
        """The views of the unlabelled samples, each once."""
        wants = self.objective.algorithm.wants
        rotated = () if wants.rotated is None else (wants.rotated,)
        return list(dict.fromkeys([*wants.guessed, *wants.trained, *wants.mixed, *rotated]))

    def _backward(self, batch: "_MicroBatch", progress: float) -> Losses:
        wants, head = self.objective.algorithm.wants, self.classifier.head
        facts = self._facts(batch, progress)
        images, pseudo, mixing = dict(batch.views), None, None
        if wants.guess != "trained":
            pseudo = self._label_first(batch, facts)
        if wants.mixed and pseudo is not None:
            mixing = self.objective.mix(pseudo, facts, batch.seed)
            images |= self._mixed(images, mixing)
        z = self._embed(images)
        losses: Losses = self.objective(head, z, facts, pseudo, mixing)
        scaled: Tensor = self.scaler.scale(losses.total / self.options.accumulate)
        scaled.backward()
        return losses

    def _facts(self, batch: "_MicroBatch", progress: float) -> BatchFacts:
        guide = None
        if self.guide is not None:
            weight = 1.0 - progress * (1.0 - self.guide_floor)
            guide = Guide(self.guide.index_select(0, batch.indices), weight)
        return BatchFacts(
            batch.labels,
            batch.indices,
            self.truth.index_select(0, batch.indices),
            progress,
            guide=guide,
            labeled_indices=batch.labeled_indices,
            turns=batch.turns,
        )

    @torch.no_grad()
    def _label_first(self, batch: "_MicroBatch", facts: BatchFacts) -> PseudoLabeled:
        """Pseudo-labels from a pass without gradient, by the network or its average."""
        wants = self.objective.algorithm.wants
        names = [*wants.guessed]
        if self.objective.detector is not None or wants.features:
            names = ["labeled", *names]
        images = {name: batch.views[name] for name in names}
        if wants.guess == "first":
            # Only the pass that is trained on counts in the running statistics, as in the published codes.
            with _untracked(self._norms):
                z = self._pass(self.classifier, images)
            return self.objective.label(self.classifier.head, z, facts)
        teacher = self.average.classifier
        # As the network that is trained, by the statistics of the batch; the update of the average resets its own.
        teacher.train()
        z = self._pass(teacher, images)
        teacher.eval()
        return self.objective.label(teacher.head, z, facts)

    @torch.no_grad()
    def _mixed(self, views: Mapping[str, Tensor], mixing: Mixing) -> dict[str, Tensor]:
        """This process's part of the mixed samples, each view as "mixed_" and its name."""
        names, gather = [*mixing.targets], self.processes.gather
        whole = torch.cat([gather(views[name]) for name in names])
        parts, first = {}, 0
        for name in names:
            count, total = len(views[name]), len(views[name]) * self.processes.world_size
            begin = first + self.processes.rank * count
            partner = whole.index_select(0, mixing.partner[begin : begin + count])
            own, other = (self.classifier.normalized(images) for images in (views[name], partner))
            parts[f"mixed_{name}"] = torch.lerp(_to_single(other), _to_single(own), mixing.share)
            first += total
        return parts

    def _autocast(self) -> AbstractContextManager[object]:
        if self.options.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.options.precision))

    def _embed(self, images: Mapping[str, Tensor]) -> Embeddings:
        """Pass with gradient whatever is to be trained, in one batch; with forward="split", the guessed views before it.

        Rotated images pass alone.
        """
        wants = self.objective.algorithm.wants
        names = [*(["labeled"] if wants.labeled else []), *wants.trained]
        names += [f"mixed_{name}" for name in ("labeled", *wants.mixed) if wants.mixed]
        if self.options.forward == "joint" or not wants.guessed:
            parts = [self._pass(self.classifier, {name: images[name] for name in names})]
        else:
            with torch.no_grad():
                weak = self._pass(self.classifier, {name: images[name] for name in wants.guessed})
            rest = {name: images[name] for name in names if name not in wants.guessed}
            parts = [self._pass(self.classifier, rest), weak]
        if wants.rotated is not None:
            # Alone and without a trace in the statistics of batch norm, which are those of upright images.
            with _untracked(self._norms):
                parts.append(self._pass(self.classifier, {"rotated": images["rotated"]}))
        return parts[0] if len(parts) == 1 else Embeddings.joined(parts)

    def _pass(self, classifier: Classifier, images: Mapping[str, Tensor]) -> Embeddings:
        """All views in one batch through the network."""
        sizes = [len(view) for view in images.values()]
        batch = torch.cat([*images.values()]) if len({view.dtype for view in images.values()}) == 1 else None
        if batch is None:  # mixed samples are normalised already
            batch = torch.cat([classifier.normalized(view) for view in images.values()])
        layout = torch.channels_last if self.options.channels_last and batch.ndim == 4 else torch.contiguous_format
        features = None
        # One autocast context per pass: weight casts cached under no_grad must not be reused with gradient.
        with self._autocast():
            # Change the layout while pixels are bytes, which moves a quarter of the memory.
            batch = batch.contiguous(memory_format=layout)
            if self.objective.algorithm.wants.features:
                z, features = classifier.embed_with_features(batch)
            else:
                z = classifier.embed(batch)
        parts = _to_single(z).split(sizes)
        of_features = {} if features is None else dict(zip(images, _to_single(features).split(sizes), strict=True))
        return Embeddings.of(dict(zip(images, parts, strict=True)), of_features)

    def _check_forward(self) -> None:
        wants = self.objective.algorithm.wants
        if self.options.forward == "split" and wants.guessed and (wants.guess != "trained" or not wants.splits):
            reason = (
                "its pseudo-labels come from a pass of their own anyway"
                if wants.guess != "trained"
                else "it trains on the very view that its pseudo-labels come from"
            )
            name = type(self.objective.algorithm).__name__
            raise ValueError(f"forward: got 'split' with algorithm {name}, expected 'joint': {reason}")

    @torch.no_grad()
    def _update(self, step: int, losses: Losses) -> None:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        means = losses.means
        if self._left_out is not None:
            drawn = 1.0 - self._left_out["outlier_share"]
            means = {name: drawn * value + self._left_out.get(name, 0.0) for name, value in means.items()}
        metrics = torch.stack([losses.total.detach(), *losses.parts.values(), *means.values()])
        self.processes.average_([*gradients, *self._statistics, metrics])
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.get_total_norm(gradients)
        good = norm.isfinite() & metrics[0].isfinite()
        if self.options.clip_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self.options.clip_norm, norm)
        self.optimizer.step()
        good = good & self.classifier.head.is_usable()
        self._guard.restore_unless(good)
        if self.scaler.is_enabled():
            self.scaler.update()
        share = self.average.update(step, good.to(norm.dtype))
        self.objective.algorithm.follow(share)
        names = ["loss", *losses.parts, *losses.means]
        self.last_metrics = {**dict(zip(names, metrics.unbind(), strict=True)), "gradient_norm": norm}
        self._add_metrics(good)

    def _add_metrics(self, good: Tensor) -> None:
        zero = torch.zeros((), device=self.device)
        names = (*_SUMMED, *self._terms)
        new = torch.stack([self.last_metrics.get(name, zero).float() for name in names])
        new = torch.where(good, new, 0.0)
        self.metrics[: len(_SUMMED)] += new[: len(_SUMMED)]
        self.metrics[len(METRICS) :] += new[len(_SUMMED) :]
        ok = good.float()
        good_steps, skipped, in_a_row, longest = self.metrics[len(_SUMMED) : len(METRICS)].unbind()
        good_steps += ok
        skipped += 1.0 - ok
        in_a_row.add_(1.0 - ok).mul_(1.0 - ok)
        torch.maximum(longest, in_a_row, out=longest)


@dataclass(frozen=True)
class _MicroBatch:
    """An augmented part of the batch: images by name of the view."""

    views: dict[str, Tensor]
    labels: Tensor
    labeled_indices: Tensor
    indices: Tensor
    turns: Tensor | None
    seed: int


def _view_number(name: str) -> int:
    """Random stream of a view: weak 0, strong 1, weak_1 3, strong_1 4, weak_2 5, ...; 2 is the labelled samples'."""
    kind, _, number = name.partition("_")
    is_strong = int(kind == "strong")
    return 2 * int(number) + 1 + is_strong if number else is_strong


def _rotate(images: Tensor, turns: Tensor) -> Tensor:
    """Turn each image by so many quarters.

    Raises:
        ValueError: if they are not square images.
    """
    if images.ndim != 4 or images.shape[2] != images.shape[3]:
        raise ValueError(
            f"rotation_weight: got samples of shape {tuple(images.shape[1:])}, expected square images (C, H, H): only they can "
            "be turned by a quarter; set rotation_weight to 0"
        )
    every = torch.stack([torch.rot90(images, quarter, (2, 3)) for quarter in range(4)])
    return every[turns, torch.arange(len(images), device=images.device)]


def _to_single(z: Tensor) -> Tensor:
    return z.to(torch.promote_types(z.dtype, torch.float32))


def _hashed(*key: int) -> int:
    """A seed of 56 bits."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:7], "little")


@contextmanager
def _untracked(norms: Sequence[_NormBase]) -> Iterator[None]:
    """Layers normalise by the statistics of the batch, and leave their running ones as they are."""
    tracked = [module for module in norms if module.track_running_stats]
    for module in tracked:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracked:
            module.track_running_stats = True


def _statistics(module: _NormBase) -> list[Tensor]:
    """Running mean and variance, if the layer tracks them; averaged over the processes."""
    return [buffer for buffer in (module.running_mean, module.running_var) if buffer is not None]


def _mean_losses(losses: Sequence[Losses]) -> Losses:
    if len(losses) == 1:
        return losses[0]

    def mean(values: Sequence[Tensor]) -> Tensor:
        return torch.stack(tuple(values)).mean(0)

    return Losses(
        mean([part.total.detach() for part in losses]),
        {name: mean([part.parts[name] for part in losses]) for name in losses[0].parts},
        {name: mean([part.means[name] for part in losses]) for name in losses[0].means},
    )
