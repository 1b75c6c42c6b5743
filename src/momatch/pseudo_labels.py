"""Pseudo-label policies: how much each unlabelled sample counts, from the weak view's posterior (docs/method.md).

Each policy is a module: ``weight = policy(posterior, indices, exclude)``. Running state lives in buffers, so ``.to()`` and
checkpoints just work; nothing is read back to the host. Excluded samples (outliers) get weight 0 and leave no trace in the
state.
"""

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from momatch.validation import check_fraction, check_positive_int, is_readable

CUTOFF = 0.95
MOMENTUM = 0.999
#: How far rounding may take a probability out of 0 to 1, half precision included.
PROBABILITY_SLACK = 0.01


class FixMatchPolicy(nn.Module):
    """1 where the posterior's maximum reaches a fixed cutoff.

    Args:
        cutoff: the confidence from which a pseudo-label counts.
    """

    def __init__(self, *, cutoff: float = CUTOFF) -> None:
        super().__init__()
        self.cutoff = check_fraction("cutoff", cutoff)

    @torch.no_grad()
    def forward(
        self, posterior: Float[Tensor, "n K"], indices: Integer[Tensor, " n"], exclude: Bool[Tensor, " n"] | None = None
    ) -> Float[Tensor, " n"]:
        """Weight of each sample, 0 or 1; `indices` are not needed.

        Raises:
            ValueError: if shapes do not fit or the batch is empty.
        """
        posterior, keep = _prepare(posterior, indices, exclude)
        return keep * (posterior.amax(-1) >= self.cutoff)

    def thresholds(self, num_classes: int) -> Float[Tensor, " {num_classes}"]:
        """The confidence from which a pseudo-label of each class counts."""
        return torch.full((num_classes,), self.cutoff)


class FlexMatchPolicy(nn.Module):
    """FixMatch whose cutoff is lowered for the classes that have been learned less so far.

    A memory holds, for every unlabelled sample, the class it was last confidently given (-1: never). With beta_c a class's
    count relative to the largest, a sample counts if max p >= cutoff * beta_c / (2 - beta_c), c its class.

    Args:
        num_classes: K.
        num_samples: N_u, the size of the unlabelled pool that `indices` point into.
        cutoff: the confidence at beta = 1, and from which the memory is written.
        warmup: let the samples never selected take part in the largest count, so that cutoffs start low.
    """

    selected: Tensor
    counts: Tensor
    beta: Tensor
    _latest: Tensor

    def __init__(self, num_classes: int, num_samples: int, *, cutoff: float = CUTOFF, warmup: bool = True) -> None:
        super().__init__()
        self.num_classes = check_positive_int("num_classes", num_classes)
        self.num_samples = check_positive_int("num_samples", num_samples)
        self.cutoff = check_fraction("cutoff", cutoff)
        self.warmup = warmup
        counts = torch.zeros(num_classes + 1, dtype=torch.int64)
        counts[-1] = num_samples  # the last place counts the -1
        self.register_buffer("selected", torch.full((num_samples,), -1, dtype=torch.int64))
        self.register_buffer("counts", counts)
        self.register_buffer("beta", torch.zeros(num_classes))
        self.register_buffer("_latest", torch.full((num_samples,), -1, dtype=torch.int64), persistent=False)

    @torch.no_grad()
    def forward(
        self, posterior: Float[Tensor, "n K"], indices: Integer[Tensor, " n"], exclude: Bool[Tensor, " n"] | None = None
    ) -> Float[Tensor, " n"]:
        """Weight of each sample, 0 or 1, by the beta of the steps before; then the memory takes this batch in.

        Raises:
            ValueError: if shapes do not fit, the batch is empty or an index is outside the pool.
        """
        posterior, keep = _prepare(
            posterior, indices, exclude, num_classes=self.num_classes, num_samples=self.num_samples
        )
        confidence, labels = posterior.max(-1)
        weight = keep * (confidence >= self.thresholds(self.num_classes)[labels])
        self._remember(indices.long(), labels, (confidence >= self.cutoff) & (keep > 0))
        return weight

    def thresholds(self, num_classes: int) -> Float[Tensor, " {num_classes}"]:
        """The confidence from which a pseudo-label of each class counts in the next step."""
        return self.cutoff * (self.beta / (2.0 - self.beta))

    def _remember(self, indices: Tensor, labels: Tensor, confident: Tensor) -> None:
        """Write confident labels into the memory and move their counts; an index that comes twice takes its last label."""
        place = torch.arange(len(indices), device=indices.device)
        write = torch.where(confident, place, -1)
        self._latest.index_fill_(0, indices, -1).scatter_reduce_(0, indices, write, "amax")
        winner = self._latest[indices]  # which place writes this sample's label; -1: none
        old = self.selected[indices]
        self.selected[indices] = torch.where(winner >= 0, labels[winner.clamp_min(0)], old)
        moved = (confident & (winner == place)).long()
        self.counts.scatter_add_(0, torch.where(old >= 0, old, self.num_classes), -moved)
        self.counts.scatter_add_(0, labels, moved)
        largest = (self.counts if self.warmup else self.counts[:-1]).amax().clamp_min(1)
        self.beta.copy_(self.counts[:-1] / largest)


class FreeMatchPolicy(nn.Module):
    """Thresholds that follow the model's own confidence, globally and by class.

    With exponential averages tau of max p, p~ of p and h~ of the predicted classes, all from 1/K and updated first, a sample
    counts if max p >= tau * p~_c / max p~.

    Args:
        num_classes: K.
        momentum: of the averages.
    """

    tau: Tensor
    mean_posterior: Tensor
    mean_histogram: Tensor

    def __init__(self, num_classes: int, *, momentum: float = MOMENTUM) -> None:
        super().__init__()
        self.num_classes = check_positive_int("num_classes", num_classes)
        self.momentum = check_fraction("momentum", momentum)
        self.register_buffer("tau", torch.tensor(1.0 / num_classes))
        self.register_buffer("mean_posterior", torch.full((num_classes,), 1.0 / num_classes))
        self.register_buffer("mean_histogram", torch.full((num_classes,), 1.0 / num_classes))

    @torch.no_grad()
    def forward(
        self, posterior: Float[Tensor, "n K"], indices: Integer[Tensor, " n"], exclude: Bool[Tensor, " n"] | None = None
    ) -> Float[Tensor, " n"]:
        """Weight of each sample, 0 or 1; `indices` are not needed.

        Raises:
            ValueError: if shapes do not fit or the batch is empty.
        """
        posterior, keep = _prepare(posterior, indices, exclude, num_classes=self.num_classes)
        confidence, labels = posterior.max(-1)
        _average(self.tau, _mean(confidence, keep), keep, self.momentum)
        _average(self.mean_posterior, _mean(posterior, keep), keep, self.momentum)
        _average(self.mean_histogram, _mean(_one_hot(labels, posterior), keep), keep, self.momentum)
        return keep * (confidence >= self.thresholds(self.num_classes)[labels])

    def thresholds(self, num_classes: int) -> Float[Tensor, " {num_classes}"]:
        """The confidence from which a pseudo-label of each class counts, by the averages so far."""
        return self.tau * self.mean_posterior / self.mean_posterior.amax()

    def fairness_loss(self, strong_posterior: Float[Tensor, "n K"], weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        """Self-adaptive fairness on the strong views that count: sum_c norm(p~/h~)_c log norm(pbar/h)_c.

        Negative by design, and to be weighted lightly (0.001). pbar and h are mean and histogram of the strong views with
        positive weight. A class that no such view is given has no ratio and is left out; with no such view the loss is 0.

        Args:
            strong_posterior: the strong views' posterior, with its gradient.
            weight: what `forward` returned for these samples.

        Raises:
            ValueError: if shapes do not fit or the batch is empty.
        """
        strong_posterior, counted = _prepare(
            strong_posterior, weight, weight <= 0, num_classes=self.num_classes, name="weight"
        )
        mean = _mean(strong_posterior, counted)
        histogram = _mean(_one_hot(strong_posterior.argmax(-1), strong_posterior), counted)
        seen = histogram > 0
        safe = torch.where(seen, histogram, 1.0)
        # The gradient must not see log 0 either, hence the inner where.
        ratio = torch.where(seen, mean, 1.0) / safe
        log_ratio = torch.where(seen, ratio.log() - torch.where(seen, ratio, 0.0).sum().clamp_min(1e-30).log(), 0.0)
        # A class not predicted for very long has an average so small that the ratio would overflow.
        known = self.mean_histogram >= torch.finfo(self.mean_histogram.dtype).tiny
        target = torch.where(known, self.mean_posterior / self.mean_histogram, 0.0)
        return ((target / target.sum()) * log_ratio).sum()


class SoftMatchPolicy(nn.Module):
    """A weight instead of a cutoff: 1 above the mean confidence, falling as a Gaussian below it.

    With exponential averages of the mean mu (from 1/K) and the variance s2 (from 1) of max p, the weight is
    exp(-min(max p - mu, 0)^2 / (2 s2 / 4)). max p is that of the posterior aligned to uniform classes, p~ its running mean:
    for the weight only, the pseudo-label stays what the model said.

    Args:
        num_classes: K.
        momentum: of the averages.
    """

    mean: Tensor
    variance: Tensor
    mean_posterior: Tensor

    def __init__(self, num_classes: int, *, momentum: float = MOMENTUM) -> None:
        super().__init__()
        self.num_classes = check_positive_int("num_classes", num_classes)
        self.momentum = check_fraction("momentum", momentum)
        self.register_buffer("mean", torch.tensor(1.0 / num_classes))
        self.register_buffer("variance", torch.tensor(1.0))
        self.register_buffer("mean_posterior", torch.full((num_classes,), 1.0 / num_classes))

    @torch.no_grad()
    def forward(
        self, posterior: Float[Tensor, "n K"], indices: Integer[Tensor, " n"], exclude: Bool[Tensor, " n"] | None = None
    ) -> Float[Tensor, " n"]:
        """Weight of each sample, within 0 to 1; `indices` are not needed.

        Raises:
            ValueError: if shapes do not fit or the batch is empty.
        """
        posterior, keep = _prepare(posterior, indices, exclude, num_classes=self.num_classes)
        _average(self.mean_posterior, _mean(posterior, keep), keep, self.momentum)
        # Three numbers may reach 0: the average of a class never seen, the sum of a row that takes no part, the variance.
        tiny = torch.finfo(self.mean.dtype).tiny
        aligned = posterior / self.mean_posterior.clamp_min(tiny)
        confidence = (aligned / aligned.sum(-1, keepdim=True).clamp_min(tiny)).amax(-1)
        mean = _mean(confidence, keep)
        squares = ((confidence - mean).square() * keep).sum()
        _average(self.mean, mean, keep, self.momentum)
        _average(self.variance, squares / (keep.sum() - 1).clamp_min(1), keep, self.momentum)
        shortfall = (confidence - self.mean).clamp_max(0.0)
        return keep * torch.exp(-2.0 * shortfall.square() / self.variance.clamp_min(tiny))

    def thresholds(self, num_classes: int) -> Float[Tensor, " {num_classes}"]:
        """The (aligned) confidence from which a pseudo-label of each class counts in full: the same for all."""
        return self.mean.expand(num_classes)


POLICIES: dict[str, type[FixMatchPolicy | FlexMatchPolicy | FreeMatchPolicy | SoftMatchPolicy]] = {
    "fixmatch": FixMatchPolicy,
    "flexmatch": FlexMatchPolicy,
    "freematch": FreeMatchPolicy,
    "softmatch": SoftMatchPolicy,
}


def _prepare(
    posterior: Float[Tensor, "n K"],
    per_sample: Tensor,
    exclude: Tensor | None,
    *,
    num_classes: int | None = None,
    num_samples: int | None = None,
    name: str = "indices",
) -> tuple[Float[Tensor, "n K"], Float[Tensor, " n"]]:
    """Check the arguments of a policy; returns the posterior in float32 or better, and 1 for the samples that take part.

    A posterior that is not finite takes no part: one bad step must not spoil the running state.

    Raises:
        ValueError: naming the argument, what was got and what was expected.
    """
    K = "K" if num_classes is None else num_classes
    if posterior.ndim != 2 or posterior.shape[1] != (num_classes or posterior.shape[1]):
        raise ValueError(f"posterior: got shape {tuple(posterior.shape)}, expected (n, {K})")
    n = len(posterior)
    if n == 0 or posterior.shape[1] == 0:
        raise ValueError(
            f"posterior: got an empty batch {tuple(posterior.shape)}, expected at least one sample and class"
        )
    if not posterior.is_floating_point():
        raise ValueError(f"posterior: got dtype {posterior.dtype}, expected probabilities in floating point")
    if per_sample.shape != (n,):
        raise ValueError(f"{name}: got shape {tuple(per_sample.shape)}, expected ({n},), one for each posterior")
    if name == "indices" and (per_sample.is_floating_point() or per_sample.dtype == torch.bool):
        raise ValueError(f"indices: got dtype {per_sample.dtype}, expected places in the unlabelled pool, integers")
    if exclude is not None and (exclude.shape != (n,) or exclude.dtype != torch.bool):
        raise ValueError(f"exclude: got shape {tuple(exclude.shape)} and dtype {exclude.dtype}, expected ({n},) bool")
    if num_samples is not None and is_readable(per_sample):
        low, high = int(per_sample.min()), int(per_sample.max())
        if low < 0 or high >= num_samples:
            raise ValueError(
                f"indices: got {low} to {high}, expected 0 to {num_samples - 1}, places in the unlabelled pool"
            )
    if is_readable(posterior) and bool(
        (((posterior - 0.5).abs() > 0.5 + PROBABILITY_SLACK) & posterior.isfinite()).any()
    ):
        raise ValueError(
            f"posterior: got values from {posterior.min():.3g} to {posterior.max():.3g}, expected probabilities; "
            "take log_posterior(log_joint).exp()"
        )
    posterior = posterior.to(torch.promote_types(posterior.dtype, torch.float32))
    keep = posterior.isfinite().all(-1)
    posterior = torch.where(keep.unsqueeze(1), posterior, 0.0)
    return posterior, (keep if exclude is None else keep & ~exclude).to(posterior.dtype)


def _one_hot(labels: Tensor, posterior: Tensor) -> Tensor:
    return (labels.unsqueeze(1) == torch.arange(posterior.shape[1], device=posterior.device)).to(posterior.dtype)


def _mean(values: Tensor, keep: Tensor) -> Tensor:
    """The mean over the samples that take part; 0 if there are none."""
    # No matrix product: autocast would take it in half precision.
    return (values * keep.view(-1, *[1] * (values.ndim - 1))).sum(0) / keep.sum().clamp_min(1)


def _average(state: Tensor, new: Tensor, keep: Tensor, momentum: float) -> None:
    """Move an exponential average towards `new`, unless no sample takes part."""
    state.lerp_(new.to(state.dtype), (1.0 - momentum) * keep.any().to(state.dtype))
