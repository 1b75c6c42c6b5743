"""Heads with one Gaussian per class: `AAGMM`, and `KMeans` with every variance 1 (docs/method.md, "Heads")."""

import math
from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from momatch.heads.base import Head
from momatch.heads.gaussian import gaussian_log_joint, mahalanobis_distance, unit_gaussian_log_joint
from momatch.numerics.checks import check_embeddings, check_labels, check_positive_int, is_readable
from momatch.numerics.precision import full_precision

#: `refit` keeps each variance above this fraction of the pooled within-class variance.
VARIANCE_FLOOR = 1e-4
#: Beyond this, a variance or its inverse overflows float32.
MAX_LOG_VARIANCE = 85.0


class GaussianMixtureHead(Head):
    """Base class of `AAGMM` and `KMeans`: one Gaussian per class, class prior, distances, sampling.

    Args:
        embedding_dim: D, the size of the embeddings.
        num_classes: K, one cluster per class.
        learn_prior: learn the class prior p(y) instead of fixing it at 1/K.
        device: of the parameters.
        dtype: of the parameters.
    """

    has_centers = True
    density_name = "density"

    def __init__(
        self,
        embedding_dim: int,
        num_classes: int,
        *,
        learn_prior: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.embedding_dim = check_positive_int("embedding_dim", embedding_dim)
        self.num_classes = check_positive_int("num_classes", num_classes)
        self.centers = nn.Parameter(torch.empty(num_classes, embedding_dim, device=device, dtype=dtype))
        prior = torch.empty(num_classes, device=device, dtype=dtype)
        self.prior_logits = nn.Parameter(prior) if learn_prior else None

    def reset_parameters(self) -> None:
        """Reinitialise the parameters.

        Centers are N(0, 1/D), so that for embeddings of unit variance log joints differ by about 1 between classes, like the
        logits of ``nn.Linear``, for any D.
        """
        nn.init.normal_(self.centers, std=self.embedding_dim**-0.5)
        if self.prior_logits is not None:
            nn.init.zeros_(self.prior_logits)

    @property
    @abstractmethod
    def variances(self) -> Float[Tensor, "K D"]:
        """The clusters' variances, (K, D)."""

    @property
    def log_prior(self) -> Float[Tensor, " K"]:
        """log p(y), (K,); -log K unless the prior is learned."""
        if self.prior_logits is not None:
            return torch.log_softmax(self.prior_logits, dim=0)
        return self.centers.new_full((self.num_classes,), -math.log(self.num_classes))

    def mahalanobis(self, z: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch K"]:
        """Mahalanobis distance of each embedding to each center, (..., K).

        Raises:
            ValueError: if `z` does not end in `embedding_dim`.
        """
        check_embeddings(z, self.embedding_dim)
        dtype, without_autocast = full_precision(z, self.centers)
        with without_autocast:
            return mahalanobis_distance(z.to(dtype), self.centers.to(dtype), self.variances.to(dtype))

    def undecayed_parameters(self) -> list[nn.Parameter]:
        """All parameters: there is no reason to shrink centers and variances."""
        return list(self.parameters())

    @torch.no_grad()
    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "n D"]:
        """Draw `n` embeddings from the mixture.

        Raises:
            ValueError: if `n` is not an integer of at least 1.
        """
        check_positive_int("n", n)
        labels = torch.multinomial(self.log_prior.float().exp(), n, replacement=True, generator=generator)
        noise = torch.randn(
            n, self.embedding_dim, generator=generator, device=self.centers.device, dtype=self.centers.dtype
        )
        return self.centers[labels] + noise * self.variances[labels].sqrt()

    @torch.no_grad()
    def refit(self, z: Float[Tensor, "n D"], labels: Integer[Tensor, " n"]) -> None:
        """Set centers and variances to the mean and (biased) variance of each class, in closed form.

        A class without samples keeps its parameters, and one with a single sample gets the variance pooled over all classes.
        Variances are at least `VARIANCE_FLOOR` times the pooled one. A learned prior is set to the class frequencies.

        Raises:
            ValueError: if shapes do not match, the batch is empty, a label is out of range or `z` is not finite.
        """
        check_embeddings(z, self.embedding_dim, batch_dims=1)
        check_labels(labels, len(z), self.num_classes, name="labels")
        if is_readable(z) and not bool(z.isfinite().all()):
            raise ValueError("z: got non-finite embeddings, expected finite ones; remove diverged samples")
        labels, z = labels.long(), z.float() if z.device.type == "mps" else z.double()  # mps has no float64
        counts = z.new_zeros(self.num_classes).index_add(0, labels, z.new_ones(len(z)))  # (K,)
        sums = z.new_zeros(self.num_classes, self.embedding_dim).index_add(0, labels, z)
        means = sums / counts.clamp_min(1).unsqueeze(1)  # (K, D)
        squares = torch.zeros_like(means).index_add(0, labels, (z - means[labels]).square())
        seen = (counts > 0).unsqueeze(1)
        self.centers.copy_(torch.where(seen, means, self.centers))
        self._refit_variances(squares, counts.unsqueeze(1))
        if self.prior_logits is not None:
            # Add-one smoothing: an unseen class keeps a positive prior.
            self.prior_logits.copy_((counts + 1).log())

    def _refit_variances(self, squares: Float[Tensor, "K D"], counts: Float[Tensor, "K 1"]) -> None:
        """Set variances from the sums of squared deviations; does nothing if variances are fixed."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name, _ in self.named_parameters(recurse=False):
            value = state_dict.get(prefix + name)
            if not isinstance(value, Tensor) or value.is_meta:
                continue
            usable = value.isfinite()
            if name == "log_variances":  # the variance and its inverse must be finite too
                usable &= value.abs() < MAX_LOG_VARIANCE
            if not bool(usable.all()):
                bad = int((~usable).sum())
                raise ValueError(
                    f"{prefix}{name}: got {bad} of {value.numel()} values in the checkpoint that are not finite or out of "
                    "range for float32, expected none; training diverged before it was saved, so load an earlier checkpoint"
                )
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        prior = ", learn_prior=True" if self.prior_logits is not None else ""
        return f"embedding_dim={self.embedding_dim}, num_classes={self.num_classes}{prior}"


class AAGMM(GaussianMixtureHead):
    """Axis-aligned Gaussian mixture: log pi_k + sum_d [-1/2 log(2 pi var_kd) - (z_d - mu_kd)^2 / (2 var_kd)].

    The parameter is the log variance, so that variances stay positive. They start in U[0.9, 1.1]. See `GaussianMixtureHead`
    for the arguments.

    Example:
        >>> model.fc = AAGMM(512, 10)
        >>> loss = F.cross_entropy(model(images), labels)
    """

    def __init__(self, embedding_dim: int, num_classes: int, **options: Any) -> None:
        super().__init__(embedding_dim, num_classes, **options)
        self.log_variances = nn.Parameter(torch.empty_like(self.centers))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw centers from N(0, 1/D) and variances from U[0.9, 1.1]."""
        super().reset_parameters()
        with torch.no_grad():
            self.log_variances.uniform_(0.9, 1.1).log_()

    @property
    def variances(self) -> Float[Tensor, "K D"]:
        """The clusters' variances, (K, D)."""
        return self.log_variances.exp()

    def is_usable(self) -> Bool[Tensor, ""]:
        """Whether every variance and its inverse are finite in float32."""
        return (self.log_variances.abs() < MAX_LOG_VARIANCE).all()

    def forward(self, z: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch K"]:
        """The log joint log p(y=k, x), (..., K), in float32 or better.

        Raises:
            ValueError: if `z` does not end in `embedding_dim` or is not floating point.
        """
        check_embeddings(z, self.embedding_dim)
        dtype, without_autocast = full_precision(z, self.centers)
        with without_autocast:
            parameters = (self.centers, self.log_variances, self.log_prior)
            return gaussian_log_joint(z.to(dtype), *(parameter.to(dtype) for parameter in parameters))

    def _refit_variances(self, squares: Float[Tensor, "K D"], counts: Float[Tensor, "K 1"]) -> None:
        pooled = squares.sum(0) / counts.sum()  # (D,)
        own = torch.where(counts > 1, squares / counts.clamp_min(1), pooled)
        own = torch.maximum(own, VARIANCE_FLOOR * pooled)
        # Keep the old variance if nothing varies.
        known = (counts > 0) & (own > 0)
        self.log_variances.copy_(torch.where(known, own.log(), self.log_variances))


class KMeans(GaussianMixtureHead):
    """`AAGMM` with every variance fixed at 1; its posterior is a softmax of a linear map of z.

    See `GaussianMixtureHead` for the arguments.
    """

    def __init__(self, embedding_dim: int, num_classes: int, **options: Any) -> None:
        super().__init__(embedding_dim, num_classes, **options)
        self.reset_parameters()

    @property
    def variances(self) -> Float[Tensor, "K D"]:
        """The clusters' variances, (K, D): all 1."""
        return torch.ones_like(self.centers, requires_grad=False)

    def forward(self, z: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch K"]:
        """The log joint log p(y=k, x), (..., K), in float32 or better.

        Raises:
            ValueError: if `z` does not end in `embedding_dim` or is not floating point.
        """
        check_embeddings(z, self.embedding_dim)
        dtype, without_autocast = full_precision(z, self.centers)
        with without_autocast:
            return unit_gaussian_log_joint(z.to(dtype), self.centers.to(dtype), self.log_prior.to(dtype))
