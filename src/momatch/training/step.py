"""One training step, from a batch to updated weights, without a host sync.

Works for images, cached features and vectors: only the views know what a batch holds. Images stay bytes until the classifier
normalises them.
"""

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from momatch.augment import View
from momatch.data.batches import Batch
from momatch.models.classifier import Classifier
from momatch.training.average import AveragedModel
from momatch.training.guard import Guard
from momatch.training.objective import Embeddings, Guide, Losses, Objective
from momatch.training.optimizer import Optimizer, set_learning_rate, state_tensors
from momatch.training.processes import Processes

#: Random stream of the labelled samples' weak view; the unlabelled weak and strong views use 0 and 1.
LABELED_VIEW = 2

#: Metrics summed over a log interval. Skipped steps contribute only to the last three.
METRICS = (
    *("loss", "supervised_loss", "unlabeled_loss", "constraint_loss", "fairness_loss", "gradient_norm"),
    *("utilisation", "known_weight", "correct_weight", "outlier_share"),
    *("true_outliers", "found_outliers", "outlier_weight", "good_steps"),
    *("skipped_steps", "skipped_in_a_row", "longest_skip"),
)
_LOSSES = METRICS[: METRICS.index("utilisation")]
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
        self.metrics = torch.zeros(len(METRICS), device=self.device)
        self.last_metrics: dict[str, Tensor] = {}
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=options.precision == "float16")
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        policy_state = [] if objective.policy is None else objective.policy.buffers()
        state = [*classifier.buffers(), *state_tensors(optimizer).values(), *policy_state]
        self._guard = Guard([*self._parameters, *state])
        self._statistics = [
            buffer for module in classifier.modules() if isinstance(module, _NormBase) for buffer in _statistics(module)
        ]

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
        sums = dict(zip(METRICS, self.metrics.tolist(), strict=True))
        self.metrics[: METRICS.index("good_steps") + 1] = 0.0
        good = sums["good_steps"]
        names = _LOSSES if self.objective.policy is None else (*_LOSSES, "utilisation", "outlier_share")
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

    def longest_skip(self) -> int:
        """Longest run of consecutive skipped steps since the last call, read from the device."""
        longest, in_a_row = METRICS.index("longest_skip"), METRICS.index("skipped_in_a_row")
        found = int(self.metrics[longest])
        self.metrics[longest] = self.metrics[in_a_row]
        return found

    def _seed_network_rng(self, step: int) -> None:
        """Seed torch (for dropout) by seed, step and process, so that a resumed run draws the same numbers."""
        key = (self.options.seed, step, self.processes.rank)
        seed = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:7], "little")
        # Not torch.manual_seed, which is slow: it formats a traceback for every unused accelerator.
        torch.default_generator.manual_seed(seed)
        if self.device.type in ("cuda", "mps"):
            getattr(torch, self.device.type).manual_seed(seed)

    def _micro_batches(self, batch: Batch) -> list["_MicroBatch"]:
        """Augment the batch and split it for gradient accumulation."""
        rng = {"seed": self.options.seed, "step": batch.step}
        labeled = self.weak(batch.labeled, view=LABELED_VIEW, offset=batch.labeled_offset, **rng)
        offset = batch.unlabeled_offset
        weak = self.weak(batch.unlabeled, offset=offset, **rng)
        strong = self.strong(batch.unlabeled, offset=offset, **rng)
        columns = (labeled, batch.labels, weak, strong, batch.unlabeled_indices)
        # Strided, so that the split does not depend on the number of processes.
        count = self.options.accumulate
        return [_MicroBatch(*(column[part::count] for column in columns)) for part in range(count)]

    def _backward(self, batch: "_MicroBatch", progress: float) -> Losses:
        z = self._embed(batch)
        losses: Losses = self.objective(
            self.classifier.head,
            z,
            batch.labels,
            batch.indices,
            self.truth.index_select(0, batch.indices),
            progress=progress,
            guide=None
            if self.guide is None
            else Guide(self.guide.index_select(0, batch.indices), 1.0 - progress * (1.0 - self.guide_floor)),
        )
        scaled: Tensor = self.scaler.scale(losses.total / self.options.accumulate)
        scaled.backward()
        return losses

    def _autocast(self) -> AbstractContextManager[object]:
        if self.options.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.options.precision))

    def _embed(self, batch: "_MicroBatch") -> Embeddings:
        b, u = len(batch.labeled), len(batch.weak)
        if self.options.forward == "split":
            with torch.no_grad():
                weak = self._network(batch.weak) if u else None
            labeled, strong = self._network(torch.cat([batch.labeled, batch.strong])).split([b, u])
            return Embeddings(labeled, strong.new_empty(strong.shape) if weak is None else weak, strong)
        labeled, weak, strong = self._network(torch.cat([batch.labeled, batch.weak, batch.strong])).split([b, u, u])
        return Embeddings(labeled, weak, strong)

    def _network(self, images: Tensor) -> Float[Tensor, "n D"]:
        layout = torch.channels_last if self.options.channels_last and images.ndim == 4 else torch.contiguous_format
        # One autocast context per pass: weight casts cached under no_grad must not be reused with gradient.
        with self._autocast():
            # Change the layout while pixels are bytes, which moves a quarter of the memory.
            z = self.classifier.embed(images.contiguous(memory_format=layout))
        return z.to(torch.promote_types(z.dtype, torch.float32))

    @torch.no_grad()
    def _update(self, step: int, losses: Losses) -> None:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        metrics = torch.stack([losses.total.detach(), *losses.parts.values(), *losses.means.values()])
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
        self.average.update(step, good.to(norm.dtype))
        names = ["loss", *losses.parts, *losses.means]
        self.last_metrics = {**dict(zip(names, metrics.unbind(), strict=True)), "gradient_norm": norm}
        self._add_metrics(good)

    def _add_metrics(self, good: Tensor) -> None:
        zero = torch.zeros((), device=self.device)
        new = torch.stack([self.last_metrics.get(name, zero).float() for name in _SUMMED])
        self.metrics[: len(_SUMMED)] += torch.where(good, new, 0.0)
        ok = good.float()
        good_steps, skipped, in_a_row, longest = self.metrics[len(_SUMMED) :].unbind()
        good_steps += ok
        skipped += 1.0 - ok
        in_a_row.add_(1.0 - ok).mul_(1.0 - ok)
        torch.maximum(longest, in_a_row, out=longest)


@dataclass(frozen=True)
class _MicroBatch:
    """An augmented part of the batch."""

    labeled: Tensor
    labels: Tensor
    weak: Tensor
    strong: Tensor
    indices: Tensor


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
