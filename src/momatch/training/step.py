"""One training step, from a batch to updated weights, without the host waiting for the device.

Images, cached features and vectors all train by it: what a batch holds is known to the views alone, which turn it into what the
network takes (images stay bytes, the classifier normalises them).
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

#: The weak view of the labelled samples has random numbers of its own.
LABELED_VIEW = 2

#: Metrics that are summed over the steps of a log interval. Skipped steps count in the last three alone.
METRICS = (
    *("loss", "supervised_loss", "unlabeled_loss", "constraint_loss", "fairness_loss", "gradient_norm"),
    *("utilisation", "known_weight", "correct_weight", "outlier_share", "good_steps"),
    *("skipped_steps", "skipped_in_a_row", "longest_skip"),
)
_LOSSES = METRICS[: METRICS.index("utilisation")]
_SUMMED = METRICS[: METRICS.index("good_steps")]


@dataclass(frozen=True)
class StepOptions:
    """How a step is carried out; the fields are those of `momatch.TrainConfig`."""

    seed: int
    forward: Literal["joint", "split"] = "joint"
    accumulate: int = 1
    clip_norm: float = 1.0
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    channels_last: bool = True


class TrainStep:
    """Views, forward, losses, backward, clipping, optimiser and average of one batch.

    Args:
        classifier: the model that trains.
        average: its averaged model.
        objective: the loss.
        optimizer: of the classifier's parameters.
        weak: makes the weak view of what a batch holds.
        strong: makes the strong view.
        truth: (N_u,) true classes of the pool where known, -1 where not, -2 for samples of no class; read by the metrics alone.
        options: how the step is carried out.
        guide: (N_u, K) class probabilities of the pool from another source, mixed into the pseudo-labels with a weight that
            falls from 1 to 0 over the training; None for the model's own alone.
        processes: the other processes.
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
        processes: Processes | None = None,
    ) -> None:
        self.classifier = classifier
        self.average = average
        self.objective = objective
        self.optimizer = optimizer
        self.weak = weak
        self.strong = strong
        self.truth = truth
        self.guide = guide
        self.options = options
        self.processes = processes if processes is not None else Processes()
        self.device = truth.device
        self.metrics = torch.zeros(len(METRICS), device=self.device)
        self.last_metrics: dict[str, Tensor] = {}
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=options.precision == "float16")
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        memory = [] if objective.policy is None else objective.policy.buffers()
        state = [*classifier.buffers(), *state_tensors(optimizer).values(), *memory]
        self._guard = Guard([*self._parameters, *state])
        self._statistics = [
            buffer for module in classifier.modules() if isinstance(module, _NormBase) for buffer in _statistics(module)
        ]

    def __call__(self, batch: Batch, *, lr: float, progress: float) -> None:
        """Train on `batch`; its metrics are added to `metrics`, which stay on the device.

        Args:
            batch: this process's part of the global batch.
            lr: learning rate of this step.
            progress: how much of the training is done, 0 to 1.
        """
        self._seed_draws(batch.step)
        set_learning_rate(self.optimizer, lr)
        self._guard.save()
        self.classifier.train()
        self.optimizer.zero_grad()
        parts = [self._backward(part, progress) for part in self._views(batch)]
        self._update(batch.step, _mean_losses(parts))

    def interval_metrics(self) -> dict[str, float | None]:
        """Means over the steps since the last call, read from the device; None where there is nothing to take a mean of."""
        sums = dict(zip(METRICS, self.metrics.tolist(), strict=True))
        self.metrics[: METRICS.index("good_steps") + 1] = 0.0
        good = sums["good_steps"]
        names = _LOSSES if self.objective.policy is None else (*_LOSSES, "utilisation", "outlier_share")
        means: dict[str, float | None] = {name: sums[name] / good if good else None for name in names}
        known = sums["known_weight"]
        means["pseudo_label_accuracy"] = sums["correct_weight"] / known if known > 0 else None
        return {**means, "skipped_steps": sums["skipped_steps"]}

    def longest_skip(self) -> int:
        """The longest row of skipped steps since the last call, read from the device."""
        longest, in_a_row = METRICS.index("longest_skip"), METRICS.index("skipped_in_a_row")
        found = int(self.metrics[longest])
        self.metrics[longest] = self.metrics[in_a_row]
        return found

    def _seed_draws(self, step: int) -> None:
        """Seed whatever else draws at random in the network (dropout), by seed, step and process: it repeats after a resume."""
        ours = (self.options.seed, step, self.processes.rank)
        seed = int.from_bytes(hashlib.sha256(repr(ours).encode()).digest()[:7], "little")
        # Not torch.manual_seed: for every accelerator that is not in use it formats a traceback, in each step.
        torch.default_generator.manual_seed(seed)
        if self.device.type in ("cuda", "mps"):
            getattr(torch, self.device.type).manual_seed(seed)

    def _views(self, batch: Batch) -> list["_Views"]:
        """The views of the batch, in as many parts as gradients are accumulated over."""
        draws = {"seed": self.options.seed, "step": batch.step}
        labeled = self.weak(batch.labeled, view=LABELED_VIEW, offset=batch.labeled_offset, **draws)
        offset = batch.unlabeled_offset
        weak = self.weak(batch.unlabeled, offset=offset, **draws)
        strong = self.strong(batch.unlabeled, offset=offset, **draws)
        columns = (labeled, batch.labels, weak, strong, batch.unlabeled_indices)
        # Every N-th sample: so the parts are the same ones, however many processes share the batch.
        count = self.options.accumulate
        return [_Views(*(column[part::count] for column in columns)) for part in range(count)]

    def _backward(self, views: "_Views", progress: float) -> Losses:
        z = self._embed(views)
        losses: Losses = self.objective(
            self.classifier.head,
            z,
            views.labels,
            views.indices,
            self.truth.index_select(0, views.indices),
            progress=progress,
            guide=None if self.guide is None else Guide(self.guide.index_select(0, views.indices), 1.0 - progress),
        )
        scaled: Tensor = self.scaler.scale(losses.total / self.options.accumulate)
        scaled.backward()
        return losses

    def _autocast(self) -> AbstractContextManager[object]:
        if self.options.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.options.precision))

    def _embed(self, views: "_Views") -> Embeddings:
        b, u = len(views.labeled), len(views.weak)
        if self.options.forward == "split":
            with torch.no_grad():
                weak = self._network(views.weak) if u else None
            labeled, strong = self._network(torch.cat([views.labeled, views.strong])).split([b, u])
            return Embeddings(labeled, strong.new_empty(strong.shape) if weak is None else weak, strong)
        labeled, weak, strong = self._network(torch.cat([views.labeled, views.weak, views.strong])).split([b, u, u])
        return Embeddings(labeled, weak, strong)

    def _network(self, images: Tensor) -> Float[Tensor, "n D"]:
        layout = torch.channels_last if self.options.channels_last and images.ndim == 4 else torch.contiguous_format
        # One context a pass: casts of the weights that a pass without gradient has cached must not serve one with gradient.
        with self._autocast():
            # While the pixels are bytes, bringing them in order moves a quarter of the memory.
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
        self._count(good)

    def _count(self, good: Tensor) -> None:
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
class _Views:
    """A part of the batch as the network takes it."""

    labeled: Tensor
    labels: Tensor
    weak: Tensor
    strong: Tensor
    indices: Tensor


def _statistics(module: _NormBase) -> list[Tensor]:
    """Running mean and variance, where the layer keeps them: each process sees its own part of the batch."""
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
