"""What every pseudo-label policy is: how much each unlabelled sample counts, from the weak view's posterior (docs/method.md).

Running state lives in buffers, so ``.to()`` and checkpoints just work; nothing is read back to the host. Excluded samples
(outliers) get weight 0 and leave no trace in the state.
"""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from momatch.numerics.checks import is_readable

CUTOFF = 0.95
MOMENTUM = 0.999
#: How far rounding may take a probability out of 0 to 1, half precision included.
PROBABILITY_SLACK = 0.01


class Policy(nn.Module):
    """Base class of the policies: ``weight = policy(posterior, indices, exclude)``.

    Attributes:
        has_fairness_loss: whether `fairness_loss` adds a term to the loss.
    """

    has_fairness_loss: ClassVar[bool] = False

    @classmethod
    def build(cls, *, num_classes: int, num_samples: int, cutoff: float) -> "Policy":
        """The policy of a training run; each takes what it needs of these.

        Args:
            num_classes: K.
            num_samples: N_u, the size of the unlabelled pool.
            cutoff: the confidence from which a pseudo-label counts.
        """
        raise TypeError(f"{cls.__name__}: a policy defines build(num_classes, num_samples, cutoff)")

    def forward(
        self, posterior: Float[Tensor, "n K"], indices: Integer[Tensor, " n"], exclude: Bool[Tensor, " n"] | None = None
    ) -> Float[Tensor, " n"]:
        """The weight of each sample, 0 to 1; running state takes the batch in.

        Args:
            posterior: p(y|x) of the weak views, (n, K).
            indices: their places in the unlabelled pool, (n,).
            exclude: True for samples that take no part; None for none.
        """
        raise TypeError(f"{type(self).__name__}: a policy defines forward(posterior, indices, exclude)")

    def thresholds(self, num_classes: int) -> Float[Tensor, " {num_classes}"]:
        """The confidence from which a pseudo-label of each class counts."""
        raise TypeError(f"{type(self).__name__}: a policy defines thresholds(num_classes)")

    def fairness_loss(self, strong_posterior: Float[Tensor, "n K"], weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
        """A term that keeps the predicted classes balanced, where `has_fairness_loss`.

        Args:
            strong_posterior: p(y|x) of the strong views, (n, K), with its gradient.
            weight: what `forward` returned for these samples.
        """
        raise TypeError(f"{type(self).__name__}: the policy has no fairness loss")


def prepare(
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


def one_hot(labels: Tensor, posterior: Tensor) -> Tensor:
    """(n, K) in the dtype of the posterior."""
    return (labels.unsqueeze(1) == torch.arange(posterior.shape[1], device=posterior.device)).to(posterior.dtype)


def masked_mean(values: Tensor, keep: Tensor) -> Tensor:
    """The mean over the samples that take part; 0 if there are none."""
    # No matrix product: autocast would take it in half precision.
    return (values * keep.view(-1, *[1] * (values.ndim - 1))).sum(0) / keep.sum().clamp_min(1)


def move_average(state: Tensor, new: Tensor, keep: Tensor, momentum: float) -> None:
    """Move an exponential average towards `new`, unless no sample takes part."""
    state.lerp_(new.to(state.dtype), (1.0 - momentum) * keep.any().to(state.dtype))
