"""The judge: a Gaussian model of what a network saw at several depths (docs/method.md, "The judge").

Each class has a mean, and all share one covariance, shrunk by Ledoit and Wolf's formula. Everything is in closed form, from
sums over batches, so memory does not depend on the number of samples. What the judge sees are the statistics of a network's
stages (`momatch.outliers.stages`), but any vectors will do.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor, nn

from momatch.numerics.checks import check_embeddings, check_labels, check_positive_int, is_readable
from momatch.numerics.precision import full_precision
from momatch.outliers.conformal import nan_outlies

#: Samples with their classes, in batches of any size. Iterated several times.
Batches = Iterable[tuple[Float[Tensor, "_ F"], Integer[Tensor, " _"]]]

#: A feature whose deviation is below so many rounding errors of its size, in the judge's dtype, counts as constant.
_CONSTANT = 4.0
#: A deviation of the distances below this fraction of their mean is rounding.
_SAME_DISTANCE = 1e-6
#: Largest value that can be fitted: sums of squares stay finite in float64, and the value itself in float32.
_LARGEST = 1e38
#: Least shrinkage, so that the covariance can be inverted in float64 whatever the samples.
_MIN_SHRINKAGE = 1e-6
#: Upper bound on the leverage of a sample: leave-one-out distances stay finite.
_MAX_LEVERAGE = 0.95


class Verdict(NamedTuple):
    """What a judge says of samples.

    Attributes:
        score: outlier score, higher for outliers.
        distance: Mahalanobis distance to the nearest class.
        log_density: log p(x).
    """

    score: Float[Tensor, " n"]
    distance: Float[Tensor, " n"]
    log_density: Float[Tensor, " n"]


class Judge(nn.Module):
    """Gaussian classes with a shared, shrunk covariance.

    For a sample x of the fit, with features divided by their deviation within classes: x | y = k is N(mu_k, Sigma), where
    Sigma = (1 - a) S + a (tr S / F) I is Ledoit and Wolf's estimate from the samples' deviations from their class means. The
    prior is the classes' share of the samples. A feature that is constant within classes is not divided, and has the variance
    of the shrinkage alone.

    The fit is in float64. Distances are in the judge's dtype, at least float32, also under autocast.

    Args:
        num_features: F.
        num_classes: K.
        stage_names: modules of the network whose statistics the features are; see `momatch.outliers.stages`.

    Attributes:
        count: number of samples it was fitted on; 0 before `fit`.
        shrinkage: a, from 0 to 1.

    Raises:
        ValueError: if a size is not a positive integer.

    Example:
        >>> judge = Judge(352, 10).fit([(x, labels)])
        >>> judge.log_density(x_new), judge.mahalanobis(x_new)
    """

    scale: Float[Tensor, " F"]
    shift: Float[Tensor, " F"]
    whitening: Float[Tensor, "F F"]
    centers: Float[Tensor, "K F"]
    log_prior: Float[Tensor, " K"]
    log_volume: Float[Tensor, ""]
    typical_distance: Float[Tensor, ""]
    distance_deviation: Float[Tensor, ""]
    count: Int64[Tensor, ""]
    shrinkage: Float[Tensor, ""]

    def __init__(self, num_features: int, num_classes: int, stage_names: Sequence[str] = ()) -> None:
        super().__init__()
        self.stage_names = tuple(stage_names)
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
            "typical_distance": torch.zeros(()),
            "distance_deviation": torch.ones(()),
            "count": torch.zeros((), dtype=torch.int64),
            "shrinkage": torch.zeros(()),
        }
        for name, value in values.items():
            self.register_buffer(name, value)

    @torch.no_grad()
    def fit(self, batches: Batches) -> "Judge":
        """Fit to samples, in closed form.

        A class without samples gets probability 0 and an infinite distance. Fewer samples than features are enough: the
        covariance is then shrunk more.

        Args:
            batches: pairs of features (n, F) and classes (n,), iterated three times: a list or a data loader, no generator.

        Raises:
            ValueError: if there are no samples, they are not the same in each pass, or shapes, classes or values are not as
                expected.
        """
        if isinstance(batches, Iterator):
            raise ValueError(
                f"batches: got a {type(batches).__name__}, which can be read once, expected to read it three times: pass a "
                "list or a data loader"
            )
        count = self.fit_classes(batches)
        self.count.fill_(0)  # until the fit is complete
        self._measure_distances(batches, count)
        self.count.fill_(int(count.sum()))
        return self

    @torch.no_grad()
    def fit_classes(self, batches: Batches) -> Float[Tensor, " K"]:
        """Fit what distances and densities need, as `fit` does, but not what `score` needs.

        Args:
            batches: as for `fit`, iterated twice.

        Returns:
            The number of samples of each class.

        Raises:
            ValueError: as `fit`.
        """
        count, means, scale = self._means(batches)
        n = int(count.sum())
        covariance, fourth = self._covariance(batches, means, scale, n)
        shrinkage = ledoit_wolf_shrinkage(covariance, fourth, n)
        eye = torch.eye(self.num_features, dtype=torch.float64)
        shrunk = (1.0 - shrinkage) * covariance + shrinkage * covariance.diagonal().mean() * eye
        # All samples equal their class means: unit variance is as good as any.
        factor = torch.linalg.cholesky(shrunk if bool(shrunk.diagonal().mean() > 0) else eye)
        # Rounded before the centers are computed: then rounding moves samples and centers alike.
        whitening = self._rounded(torch.linalg.solve_triangular(factor, eye, upper=False).T)
        shift = self._rounded((means * count.unsqueeze(1)).sum(0) / n)
        centers = ((means - shift) / scale) @ whitening
        centers[count == 0] = torch.inf
        values = {
            "shift": shift,
            "scale": scale,
            "whitening": whitening,
            "centers": centers,
            "log_prior": (count / n).log(),
            "log_volume": factor.diagonal().log().sum() + scale.log().sum(),
            "count": torch.tensor(n),
            "shrinkage": torch.tensor(shrinkage, dtype=torch.float64),
        }
        for name, value in values.items():
            getattr(self, name).copy_(value)
        return count

    def _means(self, batches: Batches) -> tuple[Tensor, Tensor, Tensor]:
        """Samples of each class (K,), their means (K, F), and the deviation of each feature within classes (F,)."""
        K, F = self.num_classes, self.num_features
        count, squares = torch.zeros(K).double(), torch.zeros(F).double()
        total, origin = torch.zeros(2, K, F).double()
        for x, labels in self._checked(batches):
            # Sums are taken from the first sample of each class, not from 0, so that a large mean does not cancel.
            for k in labels[count[labels] == 0].unique():
                origin[k] = x[labels == k][0]
            moved = x - origin[labels]
            count += torch.bincount(labels, minlength=K)
            total.index_add_(0, labels, moved)
            squares += moved.square().sum(0)
        if count.sum() == 0:
            raise ValueError("batches: got no samples, expected at least one")
        means = total / count.clamp_min(1.0).unsqueeze(1)
        variance = ((squares - (count.unsqueeze(1) * means.square()).sum(0)) / count.sum()).clamp_min(0.0)
        means += origin
        deviation, limits = self._rounded(variance.sqrt()), torch.finfo(self.scale.dtype)
        least = (_CONSTANT * limits.eps * means.abs().amax(0)).clamp_min(limits.tiny)
        return count, means, torch.where(deviation > least, deviation, 1.0)

    def _covariance(self, batches: Batches, means: Tensor, scale: Tensor, n: int) -> tuple[Float[Tensor, "F F"], float]:
        """Covariance of the scaled deviations from the class means, and the mean fourth power of their norm."""
        covariance, fourth, count = torch.zeros(self.num_features, self.num_features).double(), 0.0, 0
        for x, labels in self._checked(batches):
            deviation = (x - means[labels]) / scale
            covariance.addmm_(deviation.T, deviation)
            fourth += float(deviation.square().sum(1).square().sum())
            count += len(x)
        _check_passes(n, count)
        return covariance / n, fourth / n

    def _measure_distances(self, batches: Batches, count: Float[Tensor, " K"]) -> None:
        """Mean and deviation of the distances that samples have to their class, each left out of the fit.

        The only sample of a class is at distance 0 by definition, and is not counted.
        """
        n, shrinkage = int(count.sum()), float(self.shrinkage)
        seen, used, total, squares = 0, 0, 0.0, 0.0
        for x, labels in self._checked(batches):
            own = self._distances(x.to(self.scale.device)).cpu().double().gather(1, labels[:, None])[:, 0]
            class_count = count[labels]
            distance = self.leave_one_out(own, n, shrinkage=shrinkage, class_count=class_count)[class_count > 1]
            seen, used = seen + len(x), used + len(distance)
            total, squares = total + float(distance.sum()), squares + float(distance.square().sum())
        _check_passes(n, seen)
        mean = total / max(used, 1)
        deviation = max(squares / max(used, 1) - mean**2, 0.0) ** 0.5
        self.typical_distance.fill_(mean)
        # With one sample, or all at the same distance, the unit of distance stays.
        self.distance_deviation.fill_(deviation if deviation > _SAME_DISTANCE * max(mean, 1.0) else 1.0)

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

    def mahalanobis(self, x: Float[Tensor, "n F"]) -> Float[Tensor, "n K"]:
        """Distance to each class; infinite for a class without samples.

        For scoring, not for training: its gradient is not finite at a center, nor if a class has no samples.

        Raises:
            ValueError: if `x` is not (n, F), or `fit` was not called.
        """
        check_embeddings(x, self.num_features, name="x", batch_dims=1)
        self._check_fitted()
        return self._distances(x)

    def _distances(self, x: Float[Tensor, "n F"]) -> Float[Tensor, "n K"]:
        dtype, without_autocast = full_precision(x, self.scale)
        with without_autocast:
            white = ((x.to(dtype) - self.shift) / self.scale) @ self.whitening.to(dtype)  # (n, F)
            # One class at a time, in differences: the expanded square would cancel for samples near a center.
            squared = [(white - center).square().sum(1) for center in self.centers.unbind()]
            return torch.stack(squared, 1).sqrt()

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

    def verdict(self, x: Float[Tensor, "n F"], posterior: Float[Tensor, "n K"]) -> Verdict:
        """Score, distance to the nearest class and log p(x) of each sample.

        Raises:
            ValueError: as `mahalanobis` and `score`.
        """
        distance = self.mahalanobis(x)
        nearest = distance.amin(1)
        return Verdict(self.score(nearest, posterior), nearest, torch.logsumexp(self.log_joint(distance), 1))

    def score(self, distance: Float[Tensor, " n"], posterior: Float[Tensor, "n K"]) -> Float[Tensor, " n"]:
        """Outlier score: what is unusual at any depth, plus what the classifier is unsure of.

        The distance to the nearest class counts in deviations from what is usual, the posterior by its entropy in nats. A far
        outlier is unusual at some depth; a near one mostly falls between the classes.

        Args:
            distance: to the nearest class, from `mahalanobis`.
            posterior: p(y|x) of the classifier whose stages are judged.

        Returns:
            Higher for outliers; +inf where anything is NaN.

        Raises:
            ValueError: if the shapes are not (n,) and (n, K), or `fit` was not called.
        """
        self._check_fitted()
        K = self.num_classes
        # Not len(), which fixes the size of an exported batch.
        if (
            distance.ndim != 1
            or posterior.ndim != 2
            or distance.shape[0] != posterior.shape[0]
            or posterior.shape[1] != K
        ):
            raise ValueError(
                f"distance, posterior: got shapes {tuple(distance.shape)} and {tuple(posterior.shape)}, expected (n,) and "
                f"(n, {K}); the distance is that to the nearest class"
            )
        unusual = (distance - self.typical_distance) / self.distance_deviation
        unsure = torch.special.entr(posterior.to(unusual)).sum(1)
        score: Tensor = unusual + unsure
        return nan_outlies(score)

    def _checked(self, batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches in float64 on the CPU, without empty ones."""
        for x, labels in batches:
            if x.shape[:1] == (0,):
                continue
            check_embeddings(x, self.num_features, name="x", batch_dims=1)
            classes = labels.detach().cpu()
            check_labels(classes, len(x), self.num_classes, name="labels")
            exact = x.detach().to("cpu", torch.float64)
            if not bool(exact.isfinite().all()):
                bad = int((~exact.isfinite()).any(1).sum())
                raise ValueError(
                    f"x: got {bad} of {len(x)} samples with features that are not finite, expected none; the network has "
                    "diverged, or its input is damaged"
                )
            if (largest := float(exact.abs().max())) > _LARGEST:
                raise ValueError(
                    f"x: got features up to {largest:.3g}, expected at most {_LARGEST:g}, because their squares are summed; "
                    "the network has diverged, or its input is damaged"
                )
            yield exact, classes.long()

    def _check_fitted(self) -> None:
        if is_readable(self.count) and int(self.count) == 0:
            raise ValueError("judge: got no fit, expected fit(batches) to be called first")

    def _rounded(self, value: Tensor) -> Tensor:
        """A float64 value as the buffers hold it."""
        return value.to(self.scale.dtype).double()

    def extra_repr(self) -> str:
        """The sizes, for ``repr``."""
        return f"num_features={self.num_features}, num_classes={self.num_classes}"


def _check_passes(first: int, later: int) -> None:
    if later != first:
        raise ValueError(
            f"batches: got {first} samples in the first pass and {later} in a later one, expected the same in every pass: pass "
            "a list or a data loader"
        )


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
