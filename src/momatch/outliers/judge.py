"""The judge: a Gaussian model of what a network saw at several depths (docs/method.md, "The judge").

Each class has a mean, and all share one covariance, shrunk by Ledoit and Wolf's formula. Everything is in closed form, from
sums over batches, so memory does not depend on the number of samples. What the judge sees are the statistics of a network's
stages (`momatch.outliers.stages`), but any vectors will do.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from momatch.numerics.checks import check_embeddings, check_labels, check_positive_int, is_readable

#: Samples with their classes. Iterated several times.
Batches = Iterable[tuple[Float[Tensor, "n F"], Int64[Tensor, " n"]]]

#: A feature whose deviation is below this fraction of its size counts as constant.
_CONSTANT = 1e-6
#: Least shrinkage, so that the covariance can be inverted in float64 whatever the samples.
_MIN_SHRINKAGE = 1e-6
#: Upper bound on the leverage of a sample: leave-one-out distances stay finite.
_MAX_LEVERAGE = 0.95


class Judge(nn.Module):
    """Gaussian classes with a shared, shrunk covariance.

    For a sample x of the fit, with features divided by their deviation within classes: x | y = k is N(mu_k, Sigma), where
    Sigma = (1 - a) S + a (tr S / F) I is Ledoit and Wolf's estimate from the samples' deviations from their class means. The
    prior is the classes' share of the samples.

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
        count, means, scale = self._means(batches)
        n = int(count.sum())
        covariance, fourth = self._covariance(batches, means, scale)
        shrinkage = ledoit_wolf_shrinkage(covariance, fourth, n)
        eye = torch.eye(self.num_features, dtype=torch.float64)
        shrunk = (1.0 - shrinkage) * covariance + shrinkage * covariance.diagonal().mean() * eye
        # All samples equal their class means: unit variance is as good as any.
        factor = torch.linalg.cholesky(shrunk if bool(shrunk.diagonal().mean() > 0) else eye)
        whitening = torch.linalg.solve_triangular(factor, eye, upper=False).T
        shift = (means * count.unsqueeze(1)).sum(0) / n
        centers = ((means - shift) / scale) @ whitening
        centers[count == 0] = torch.inf
        values = {
            "shift": shift,
            "scale": scale,
            "whitening": whitening,
            "centers": centers,
            "log_prior": torch.where(count > 0, count / n, 0.0).log(),
            "log_volume": factor.diagonal().log().sum() + scale.log().sum(),
            "count": torch.tensor(n),
            "shrinkage": torch.tensor(shrinkage, dtype=torch.float64),
        }
        for name, value in values.items():
            getattr(self, name).copy_(value)
        self._measure_distances(batches, n)
        return self

    def _means(self, batches: Batches) -> tuple[Tensor, Tensor, Tensor]:
        """Samples of each class (K,), their means (K, F), and the deviation of each feature within classes (F,)."""
        K, F = self.num_classes, self.num_features
        count, total, squares = torch.zeros(K).double(), torch.zeros(K, F).double(), torch.zeros(F).double()
        origin = None
        for x, labels in self._checked(batches):
            # Squares are taken from a sample, not from 0, so that a large mean does not cancel.
            origin = x[0] if origin is None else origin
            count += torch.bincount(labels, minlength=K)
            total.index_add_(0, labels, x - origin)
            squares += (x - origin).square().sum(0)
        if origin is None:
            raise ValueError("batches: got no samples, expected at least one")
        means = total / count.clamp_min(1.0).unsqueeze(1)
        variance = ((squares - (count.unsqueeze(1) * means.square()).sum(0)) / count.sum()).clamp_min(0.0)
        means += origin
        deviation = variance.sqrt()
        return count, means, torch.where(deviation > _CONSTANT * means.abs().amax(0), deviation, 1.0)

    def _covariance(self, batches: Batches, means: Tensor, scale: Tensor) -> tuple[Float[Tensor, "F F"], float]:
        """Covariance of the scaled deviations from the class means, and the mean fourth power of their norm."""
        covariance, fourth, n = torch.zeros(self.num_features, self.num_features).double(), 0.0, 0
        for x, labels in self._checked(batches):
            deviation = (x - means[labels]) / scale
            covariance.addmm_(deviation.T, deviation)
            fourth += float(deviation.square().sum(1).square().sum())
            n += len(x)
        if n == 0:
            raise ValueError(
                "batches: got samples in the first pass only, expected the same in every pass: pass a list or a data loader, "
                "not a generator"
            )
        return covariance / n, fourth / n

    def _measure_distances(self, batches: Batches, n: int) -> None:
        """Mean and deviation of the distances that samples have to their class, each left out of the fit."""
        count, total, squares = 0, 0.0, 0.0
        for x, labels in self._checked(batches):
            distance = self.leave_one_out(
                self.mahalanobis(x.to(self.scale)).gather(1, labels.to(self.scale.device)[:, None])[:, 0].double(), n
            )
            count, total, squares = (
                count + len(x),
                total + float(distance.sum()),
                squares + float(distance.square().sum()),
            )
        mean = total / count
        deviation = max(squares / count - mean**2, 0.0) ** 0.5
        self.typical_distance.fill_(mean)
        # With one sample, or all at the same distance, the unit of distance stays.
        self.distance_deviation.fill_(deviation if deviation > _CONSTANT * max(mean, 1.0) else 1.0)

    @staticmethod
    def leave_one_out(distance: Float[Tensor, " n"], count: int) -> Float[Tensor, " n"]:
        """Distance of samples of the fit to their class, as if each had been left out of the covariance.

        By the matrix determinant lemma, d'^2 = d^2 (n - 1) / n / (1 - d^2 / n) for a covariance that is not shrunk.

        Args:
            distance: Mahalanobis distance of a sample that was fitted to its own class.
            count: n, the number of samples in the fit.
        """
        squared = distance.square()
        return (squared * (max(count - 1, 1) / count) / (1.0 - (squared / count).clamp_max(_MAX_LEVERAGE))).sqrt()

    def mahalanobis(self, x: Float[Tensor, "n F"]) -> Float[Tensor, "n K"]:
        """Distance to each class; infinite for a class without samples.

        Raises:
            ValueError: if `x` is not (n, F), or `fit` was not called.
        """
        check_embeddings(x, self.num_features, name="x", batch_dims=1)
        if is_readable(self.count) and int(self.count) == 0:
            raise ValueError("judge: got no fit, expected fit(batches) to be called first")
        white = ((x - self.shift) / self.scale) @ self.whitening  # (n, F)
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

    def score(self, distance: Float[Tensor, " n"], posterior: Float[Tensor, "n K"]) -> Float[Tensor, " n"]:
        """Outlier score: what is unusual at any depth, plus what the classifier is unsure of.

        The distance to the nearest class counts in deviations from what is usual, the posterior by its entropy in nats. A far
        outlier is unusual at some depth; a near one mostly falls between the classes.

        Args:
            distance: to the nearest class, from `mahalanobis`.
            posterior: p(y|x) of the classifier whose stages are judged.

        Returns:
            Higher for outliers; +inf where anything is NaN.
        """
        unusual = (distance - self.typical_distance) / self.distance_deviation
        unsure = torch.special.entr(posterior).sum(1)
        score: Tensor = unusual + unsure.to(unusual)
        return score.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)

    def _checked(self, batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches in float64 on the CPU, without empty ones."""
        for x, labels in batches:
            if len(x) == 0:
                continue
            check_embeddings(x, self.num_features, name="x", batch_dims=1)
            check_labels(labels, len(x), self.num_classes, name="labels")
            exact = x.detach().to("cpu", torch.float64)
            if not bool(exact.isfinite().all()):
                bad = int((~exact.isfinite()).any(1).sum())
                raise ValueError(
                    f"x: got {bad} of {len(x)} samples with features that are not finite, expected none; the network has "
                    "diverged, or its input is damaged"
                )
            yield exact, labels.detach().cpu()

    def extra_repr(self) -> str:
        """The sizes, for ``repr``."""
        return f"num_features={self.num_features}, num_classes={self.num_classes}"


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
