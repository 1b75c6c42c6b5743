"""Base class of pseudo-label policies: weight of each unlabelled sample from its weak view's posterior (docs/method.md).

Running state is in buffers and is never read back to the host. Excluded samples (outliers) get weight 0 and do not affect the
state.
"""

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from momatch.numerics.checks import is_readable

CUTOFF = 0.95
MOMENTUM = 0.999
#: Tolerance for probabilities outside [0, 1] by rounding, including in half precision.
PROBABILITY_SLACK = 0.01


class Policy(nn.Module):
    """Base class of the policies: ``weight = policy(posterior, indices, exclude)``."""

    def forward(
        self, posterior: Float[Tensor, "n K"], indices: Integer[Tensor, " n"], exclude: Bool[Tensor, " n"] | None = None
    ) -> Float[Tensor, " n"]:
        """Weight of each sample, 0 to 1; also updates the running state.

        Args:
            posterior: p(y|x) of the weak views, (n, K).
            indices: of the samples in the unlabelled pool, (n,).
            exclude: True for samples to ignore; None for none.
        """
        raise TypeError(f"{type(self).__name__}: a policy must define forward(posterior, indices, exclude)")

    def forget_undrawn(self, is_drawn: Bool[Tensor, " N_u"]) -> None:
        """From now on samples are drawn from these alone; the others are to leave no trace in the state."""

    def thresholds(self, num_classes: int) -> Float[Tensor, " {num_classes}"]:
        """Minimum confidence of a pseudo-label, by class."""
        raise TypeError(f"{type(self).__name__}: a policy must define thresholds(num_classes)")


def prepare(
    posterior: Float[Tensor, "n K"],
    per_sample: Tensor,
    exclude: Tensor | None,
    *,
    num_classes: int | None = None,
    num_samples: int | None = None,
    name: str = "indices",
) -> tuple[Float[Tensor, "n K"], Float[Tensor, " n"]]:
    """Check a policy's arguments; returns the posterior in float32 or better, and a mask that is 1 for samples to use.

    Samples with a non-finite posterior are masked, so that a bad step cannot corrupt the running state.

    Raises:
        ValueError: naming the argument.
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
        raise ValueError(f"{name}: got shape {tuple(per_sample.shape)}, expected ({n},), one per sample")
    if name == "indices" and (per_sample.is_floating_point() or per_sample.dtype == torch.bool):
        raise ValueError(f"indices: got dtype {per_sample.dtype}, expected integer indices into the unlabelled pool")
    if exclude is not None and (exclude.shape != (n,) or exclude.dtype != torch.bool):
        raise ValueError(f"exclude: got shape {tuple(exclude.shape)} and dtype {exclude.dtype}, expected ({n},) bool")
    if num_samples is not None and is_readable(per_sample):
        low, high = int(per_sample.min()), int(per_sample.max())
        if low < 0 or high >= num_samples:
            raise ValueError(
                f"indices: got {low} to {high}, expected 0 to {num_samples - 1}, indices into the unlabelled pool"
            )
    if is_readable(posterior) and bool(
        (((posterior - 0.5).abs() > 0.5 + PROBABILITY_SLACK) & posterior.isfinite()).any()
    ):
        raise ValueError(
            f"posterior: got values from {posterior.min():.3g} to {posterior.max():.3g}, expected probabilities; "
            "pass log_posterior(log_joint).exp()"
        )
    posterior = posterior.to(torch.promote_types(posterior.dtype, torch.float32))
    keep = posterior.isfinite().all(-1)
    posterior = torch.where(keep.unsqueeze(1), posterior, 0.0)
    return posterior, (keep if exclude is None else keep & ~exclude).to(posterior.dtype)


def one_hot(labels: Tensor, posterior: Tensor) -> Tensor:
    """One-hot labels, (n, K), in the dtype of the posterior."""
    return (labels.unsqueeze(1) == torch.arange(posterior.shape[1], device=posterior.device)).to(posterior.dtype)


def masked_mean(values: Tensor, keep: Tensor) -> Tensor:
    """Mean over the samples with keep = 1; 0 if there are none."""
    # Not a matrix product, which autocast would run in half precision.
    return (values * keep.view(-1, *[1] * (values.ndim - 1))).sum(0) / keep.sum().clamp_min(1)


def move_average(state: Tensor, new: Tensor, keep: Tensor, momentum: float) -> None:
    """Update an exponential moving average with `new`, unless no sample is kept."""
    state.lerp_(new.to(state.dtype), (1.0 - momentum) * keep.any().to(state.dtype))
