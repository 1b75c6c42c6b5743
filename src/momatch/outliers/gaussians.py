"""Gaussian classes with one shared, shrunk covariance (docs/method.md, "The judge").

Everything is in closed form, from sums over batches, so memory does not depend on the number of samples. Several models can be
fitted in the same passes over the data.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor, nn

from momatch.numerics.checks import check_embeddings, check_labels, check_positive_int, is_readable
from momatch.numerics.precision import full_precision

#: Samples with their classes.
Pair = tuple[Float[Tensor, "_ F"], Integer[Tensor, " _"]]

#: A feature whose deviation is below so many rounding errors of its size, in the model's dtype, counts as constant.
_CONSTANT = 4.0
#: Largest value that can be fitted: sums of squares stay finite in float64, and the value itself in float32.
_LARGEST = 1e38
#: Least shrinkage, so that the covariance can be inverted in float64 whatever the samples.
_MIN_SHRINKAGE = 1e-6
#: A deviation below this fraction of the mean is rounding.
_SAME = 1e-6
#: Upper bound on the leverage of a sample: leave-one-out distances stay finite.
_MAX_LEVERAGE = 0.95


class ClassGaussians(nn.Module):
    """Gaussian classes with a shared covariance, shrunk by Ledoit and Wolf's formula.

    For a sample x of the fit, with features divided by their deviation within classes: x | y = k is N(mu_k, Sigma), where
    Sigma = (1 - a) S + a (tr S / F) I is Ledoit and Wolf's estimate from the samples' deviations from their class means. The
    prior is the classes' share of the samples. A feature that is constant within classes is not divided, and has the variance
    of the shrinkage alone.

    The fit is in float64. Distances are in the model's dtype, at least float32, also under autocast.

    Args:
        num_features: F.
        num_classes: K.
        noise: None, or for features of one unit the deviation of the noise that they have besides: they are not divided, and
            its variance is added to Sigma, so that smaller differences do not count.
        name: of the features, in errors.

    Attributes:
        count: number of samples it was fitted on; 0 before the fit.
        shrinkage: a, from 0 to 1.

    Raises:
        ValueError: if a size is not a positive integer.
    """

    scale: Float[Tensor, " F"]
    shift: Float[Tensor, " F"]
    whitening: Float[Tensor, "F F"]
    centers: Float[Tensor, "K F"]
    log_prior: Float[Tensor, " K"]
    log_volume: Float[Tensor, ""]
    count: Int64[Tensor, ""]
    shrinkage: Float[Tensor, ""]

    def __init__(self, num_features: int, num_classes: int, *, noise: float | None = None, name: str = "x") -> None:
        super().__init__()
        self.noise, self.name = noise, name
        self.num_features = check_positive_int("num_features", num_features)
        self.num_classes = check_positive_int("num_classes", num_classes)
        F, K = self.num_features, self.num_classes
        values = {
            "shift": torch.zeros(F),
            "scale": torch.ones(F),
            "whitening": torch.eye(F),
            "centers": torch.zeros(K, F),
            "log_prior": torch.zeros(K),
            "log_volume": torch.zeros(()),
            "count": torch.zeros((), dtype=torch.int64),
            "shrinkage": torch.zeros(()),
        }
        for buffer, value in values.items():
            self.register_buffer(buffer, value)

    @torch.no_grad()
    def fit(self, batches: Iterable[Any]) -> "ClassGaussians":
        """Fit to samples, in closed form.

        A class without samples gets probability 0 and an infinite distance. Fewer samples than features are enough: the
        covariance is then shrunk more.

        Args:
            batches: pairs of features (n, F) and classes (n,), iterated twice.

        Raises:
            ValueError: if there are no samples, they are not the same in each pass, or shapes, classes or values are not as
                expected.
        """
        fit_together([self], _Pairs(batches))
        return self

    def mahalanobis(self, x: Float[Tensor, "n F"]) -> Float[Tensor, "n K"]:
        """Distance to each class; infinite for a class without samples.

        For scoring, not for training: its gradient is not finite at a center, nor if a class has no samples.

        Raises:
            ValueError: if `x` is not (n, F), or there was no fit.
        """
        check_embeddings(x, self.num_features, name="x", batch_dims=1)
        self._check_fitted()
        return self.distances(x)

    def distances(self, x: Float[Tensor, "n F"]) -> Float[Tensor, "n K"]:
        """`mahalanobis` without its checks."""
        return self.to_centers(self.whitened(x))

    def whitened(self, x: Float[Tensor, "n F"]) -> Float[Tensor, "n F"]:
        """The samples in coordinates in which Sigma is the identity."""
        dtype, without_autocast = full_precision(x, self.scale)
        with without_autocast:
            white: Tensor = ((x.to(dtype) - self.shift) / self.scale) @ self.whitening.to(dtype)
            return white

    def to_centers(self, white: Float[Tensor, "n F"]) -> Float[Tensor, "n K"]:
        """Distances of whitened samples to the class means."""
        # One class at a time, in differences: the expanded square would cancel for samples near a center.
        return torch.stack([(white - center).square().sum(1) for center in self.centers.unbind()], 1).sqrt()

    def forward(self, x: Float[Tensor, "n F"]) -> Float[Tensor, "n K"]:
        """The log joint log p(y=k, x).

        Raises:
            ValueError: as `mahalanobis`.
        """
        return self.log_joint(self.mahalanobis(x))

    def log_joint(self, distance: Float[Tensor, "n K"]) -> Float[Tensor, "n K"]:
        """The log joint, from the distances to all classes."""
        constant = 0.5 * self.num_features * math.log(2.0 * math.pi) + self.log_volume
        return self.log_prior - constant - 0.5 * distance.square()

    def log_density(self, x: Float[Tensor, "n F"]) -> Float[Tensor, " n"]:
        """log p(x).

        Raises:
            ValueError: as `mahalanobis`.
        """
        return torch.logsumexp(self(x), 1)

    @staticmethod
    def leave_one_out(
        distance: Float[Tensor, " n"],
        count: int,
        *,
        shrinkage: float = 0.0,
        class_count: Float[Tensor, " n"] | None = None,
    ) -> Float[Tensor, " n"]:
        """Distance of samples of the fit to their class, as if each had been left out.

        By the matrix determinant lemma, d'^2 = d^2 f^2 (n - 1) / n / (1 - f (1 - a) d^2 / n). With f = 1, the sample is left
        out of the covariance; with f = n_k / (n_k - 1), out of the mean of its class as well. Exact for a = 0. A shrunk
        covariance is taken to be shrunk as before, which is off by some percent if there are fewer samples than features.

        Args:
            distance: Mahalanobis distance of a sample that was fitted to its own class.
            count: n, the number of samples in the fit.
            shrinkage: a, that of the fit.
            class_count: n_k, the samples in the class of each; None for f = 1. One that is alone in its class keeps f = 1.
        """
        squared = distance.square()
        factor = torch.ones_like(squared) if class_count is None else class_count / (class_count - 1.0).clamp_min(1.0)
        leverage = (factor * (1.0 - shrinkage) * squared / count).clamp_max(_MAX_LEVERAGE)
        return (factor.square() * squared * (max(count - 1, 1) / count) / (1.0 - leverage)).sqrt()

    def distances_left_out(self, pair: Pair, class_count: Float[Tensor, " K"]) -> Float[Tensor, "n K"]:
        """Distances of samples of the fit, that to their own class as if each had been left out; in float64 on the CPU.

        Args:
            pair: `checked` samples.
            class_count: samples of each class in the fit.
        """
        x, labels = pair
        distance = self.distances(x.to(self.scale.device)).cpu().double()
        own, count = labels[:, None], class_count[labels]
        left_out = self.leave_one_out(
            distance.gather(1, own)[:, 0], int(class_count.sum()), shrinkage=float(self.shrinkage), class_count=count
        )
        return distance.scatter(1, own, left_out[:, None])

    def checked(self, pair: Pair) -> Pair:
        """Samples in float64 on the CPU, and their classes.

        Raises:
            ValueError: if shapes, classes or values are not as expected.
        """
        x, labels = pair
        check_embeddings(x, self.num_features, name=self.name, batch_dims=1)
        classes = labels.detach().cpu()
        check_labels(classes, len(x), self.num_classes, name="labels")
        exact = x.detach().to("cpu", torch.float64)
        if not bool(exact.isfinite().all()):
            bad = int((~exact.isfinite()).any(1).sum())
            raise ValueError(
                f"{self.name}: got {bad} of {len(x)} samples with features that are not finite, expected none; the network has "
                "diverged, or its input is damaged"
            )
        if (largest := float(exact.abs().max())) > _LARGEST:
            raise ValueError(
                f"{self.name}: got features up to {largest:.3g}, expected at most {_LARGEST:g}, because their squares are "
                "summed; the network has diverged, or its input is damaged"
            )
        return exact, classes.long()

    def _set_fit(self, means: "_Means", spread: "_Spread") -> None:
        """Take over what two passes have found."""
        n, eye = spread.count, torch.eye(self.num_features, dtype=torch.float64)
        covariance = spread.total / n
        shrinkage = ledoit_wolf_shrinkage(covariance, spread.fourth / n, n)
        shrunk = (1.0 - shrinkage) * covariance + shrinkage * covariance.diagonal().mean() * eye
        shrunk += (self.noise or 0.0) ** 2 * eye
        # All samples equal their class means: unit variance is as good as any.
        factor = torch.linalg.cholesky(shrunk if bool(shrunk.diagonal().mean() > 0) else eye)
        # Rounded before the centers are computed: then rounding moves samples and centers alike.
        whitening = self._rounded(torch.linalg.solve_triangular(factor, eye, upper=False).T)
        shift = self._rounded((spread.means * means.count.unsqueeze(1)).sum(0) / n)
        centers = ((spread.means - shift) / spread.scale) @ whitening
        centers[means.count == 0] = torch.inf
        values = {
            "shift": shift,
            "scale": spread.scale,
            "whitening": whitening,
            "centers": centers,
            "log_prior": (means.count / n).log(),
            "log_volume": factor.diagonal().log().sum() + spread.scale.log().sum(),
            "count": torch.tensor(n),
            "shrinkage": torch.tensor(shrinkage, dtype=torch.float64),
        }
        for name, value in values.items():
            getattr(self, name).copy_(value)

    def deviations(self, variance: Float[Tensor, " F"], means: Float[Tensor, "K F"]) -> Float[Tensor, " F"]:
        """What features are divided by; 1 for those that are constant within classes, or of one unit."""
        if self.noise is not None:
            return torch.ones_like(variance)
        deviation, limits = self._rounded(variance.sqrt()), torch.finfo(self.scale.dtype)
        least = (_CONSTANT * limits.eps * means.abs().amax(0)).clamp_min(limits.tiny)
        return torch.where(deviation > least, deviation, 1.0)

    def _check_fitted(self) -> None:
        if is_readable(self.count) and int(self.count) == 0:
            raise ValueError("judge: got no fit, expected fit(batches) to be called first")

    def _rounded(self, value: Tensor) -> Tensor:
        """A float64 value as the buffers hold it."""
        return value.to(self.scale.dtype).double()

    def extra_repr(self) -> str:
        """The sizes, for ``repr``."""
        return f"num_features={self.num_features}, num_classes={self.num_classes}"


@torch.no_grad()
def fit_together(models: Sequence[ClassGaussians], batches: Iterable[Sequence[Pair]]) -> list[Float[Tensor, " _"]]:
    """Fit several models in two passes over the same samples.

    Args:
        models: to fit.
        batches: for each batch that is not empty, the samples as each model sees them, with the classes that it is to tell
            apart.

    Returns:
        The number of samples of each class, for each model.

    Raises:
        ValueError: as `ClassGaussians.fit`.
    """
    means = [_Means(model) for model in models]
    for batch in batches:
        for part, model, pair in zip(means, models, batch, strict=True):
            part.add(*model.checked(pair))
    if any(part.count.sum() == 0 for part in means):
        raise ValueError("batches: got no samples, expected at least one")
    spreads = [_Spread(*part.found(model)) for part, model in zip(means, models, strict=True)]
    for batch in batches:
        for spread, model, pair in zip(spreads, models, batch, strict=True):
            spread.add(*model.checked(pair))
    for model, part, spread in zip(models, means, spreads, strict=True):
        check_passes(int(part.count.sum()), spread.count)
        model._set_fit(part, spread)
    return [part.count for part in means]


def check_passes(first: int, later: int) -> None:
    """Check that two passes have seen as many samples.

    Raises:
        ValueError: if they have not.
    """
    if later != first:
        raise ValueError(
            f"batches: got {first} samples in the first pass and {later} in a later one, expected the same in every pass: pass "
            "a list or a data loader"
        )


class _Means:
    """First pass: samples of each class (K,), their sums and those of their squares."""

    def __init__(self, model: ClassGaussians) -> None:
        K, F = model.num_classes, model.num_features
        self.count = torch.zeros(K).double()
        self._squares = torch.zeros(F).double()
        self._total, self._origin = torch.zeros(2, K, F).double()

    def add(self, x: Float[Tensor, "n F"], labels: Int64[Tensor, " n"]) -> None:
        # Sums are taken from the first sample of each class, not from 0, so that a large mean does not cancel.
        for k in labels[self.count[labels] == 0].unique():
            self._origin[k] = x[labels == k][0]
        moved = x - self._origin[labels]
        self.count += torch.bincount(labels, minlength=len(self.count))
        self._total.index_add_(0, labels, moved)
        self._squares += moved.square().sum(0)

    def found(self, model: ClassGaussians) -> tuple[Float[Tensor, "K F"], Float[Tensor, " F"]]:
        """The class means, and what the model divides features by."""
        means = self._total / self.count.clamp_min(1.0).unsqueeze(1)
        squares = self._squares - (self.count.unsqueeze(1) * means.square()).sum(0)
        means += self._origin
        return means, model.deviations((squares / self.count.sum()).clamp_min(0.0), means)


class _Spread:
    """Second pass: the scaled deviations from the class means, as the sum of their squares and of the fourth power of norms."""

    def __init__(self, means: Float[Tensor, "K F"], scale: Float[Tensor, " F"]) -> None:
        self.means, self.scale = means, scale
        self.total = torch.zeros(len(scale), len(scale)).double()
        self.fourth, self.count = 0.0, 0

    def add(self, x: Float[Tensor, "n F"], labels: Int64[Tensor, " n"]) -> None:
        deviation = (x - self.means[labels]) / self.scale
        self.total.addmm_(deviation.T, deviation)
        self.fourth += float(deviation.square().sum(1).square().sum())
        self.count += len(x)


class _Pairs:
    """The samples of a single model, as `fit_together` takes them."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[Pair]]:
        return ([(x, labels)] for x, labels in self._batches if not is_empty(x))


def is_empty(x: Tensor) -> bool:
    """Whether there is no sample; not so for what is no batch at all, which is an error to be named."""
    return x.shape[:1] == (0,)


class RunningMoments:
    """Mean and deviation of numbers that come in parts."""

    def __init__(self) -> None:
        self._count, self._total, self._squares = 0, 0.0, 0.0

    def add(self, values: Float[Tensor, " n"]) -> None:
        """Take more numbers, in float64."""
        self._count += len(values)
        self._total += float(values.sum())
        self._squares += float(values.square().sum())

    @property
    def mean(self) -> float:
        """The mean; 0 of no numbers."""
        return self._total / max(self._count, 1)

    @property
    def deviation(self) -> float:
        """The deviation; 1 if all are the same but for rounding."""
        mean = self.mean
        deviation = math.sqrt(max(self._squares / max(self._count, 1) - mean**2, 0.0))
        return deviation if deviation > _SAME * max(abs(mean), 1.0) else 1.0


def ledoit_wolf_shrinkage(covariance: Float[Tensor, "F F"], fourth: float, n: int) -> float:
    """Ledoit and Wolf's optimal shrinkage of a covariance towards a multiple of the identity, from 0 to 1.

    Args:
        covariance: S, of n samples with mean 0, float64.
        fourth: mean over the samples of the fourth power of their norm.
        n: number of samples.
    """
    F = len(covariance)
    squares = float(covariance.square().sum())
    mean = float(covariance.diagonal().mean())
    delta = (squares - F * mean**2) / F
    beta = min((fourth - squares) / (n * F), delta)
    return max(beta / delta, _MIN_SHRINKAGE) if beta > 0 else _MIN_SHRINKAGE
