"""The judge: a Gaussian model of what a network saw at several depths, and of what it answered (docs/method.md, "The judge").

What the judge sees are the statistics of a network's stages (`momatch.outliers.stages`), but any vectors will do.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from momatch.outliers.answers import Answers
from momatch.outliers.conformal import nan_outlies
from momatch.outliers.gaussians import ClassGaussians, Pair, RunningMoments, check_passes, fit_together

#: Samples with their classes, in batches of any size; of a judge of answers with the classifier's posterior as well. Iterated
#: several times.
Batches = Iterable[tuple[Any, ...]]

#: What a deviation of the answer counts, beside one of the distance.
_ANSWER_WEIGHT = 0.25


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


class Judge(ClassGaussians):
    """Gaussian classes of what a network saw, and how unusual distances to them and its answers are.

    Args:
        num_features: F.
        num_classes: K.
        stage_names: modules of the network whose statistics the features are; see `momatch.outliers.stages`.
        judges_answers: batches have the classifier's posterior as well, and the score counts how unusual it is. Without, the
            score counts its entropy.

    Attributes:
        count: number of samples it was fitted on; 0 before `fit`.
        shrinkage: of the covariance, from 0 to 1.
        answers: the model of the posteriors; None if there is none.

    Raises:
        ValueError: if a size is not a positive integer.

    Example:
        >>> judge = Judge(352, 10).fit([(x, labels)])
        >>> judge.log_density(x_new), judge.mahalanobis(x_new)
    """

    typical_distance: Float[Tensor, ""]
    distance_deviation: Float[Tensor, ""]
    answers: Answers | None

    def __init__(
        self, num_features: int, num_classes: int, stage_names: Sequence[str] = (), *, judges_answers: bool = False
    ) -> None:
        super().__init__(num_features, num_classes)
        self.stage_names = tuple(stage_names)
        self.register_buffer("typical_distance", torch.zeros(()))
        self.register_buffer("distance_deviation", torch.ones(()))
        self.register_module("answers", Answers(self.num_classes) if judges_answers else None)

    @torch.no_grad()
    def fit(self, batches: Batches) -> "Judge":
        """Fit to samples, in closed form.

        A class without samples gets probability 0 and an infinite distance. Fewer samples than features are enough: the
        covariance is then shrunk more.

        Args:
            batches: pairs of features (n, F) and classes (n,), with `judges_answers` followed by posteriors (n, K). Iterated
                three times: a list or a data loader, no generator.

        Raises:
            ValueError: if there are no samples, they are not the same in each pass, or shapes, classes or values are not as
                expected.
        """
        if isinstance(batches, Iterator):
            raise ValueError(
                f"batches: got a {type(batches).__name__}, which can be read once, expected to read it three times: pass a "
                "list or a data loader"
            )
        views = _Views(self, batches)
        models = [self] if self.answers is None else [self, *self.answers.models]
        counts = fit_together(models, views)
        self.count.fill_(0)  # until the fit is complete
        n = int(counts[0].sum())
        self._measure(views, counts, n)
        self.count.fill_(n)
        return self

    def _measure(self, views: "_Views", counts: Sequence[Float[Tensor, " _"]], n: int) -> None:
        """Mean and deviation of distances and answers over the samples of the fit, each left out of it.

        The only sample of a class is at distance 0 by definition, and is not counted.
        """
        distances, answers, seen = RunningMoments(), RunningMoments(), 0
        for of_stages, *of_answers in views:
            x, labels = self.checked(of_stages)
            distance, is_alone = self.left_out((x, labels), counts[0]), counts[0][labels] <= 1
            distances.add(distance[~is_alone])
            seen += len(x)
            if self.answers is not None:
                answers.add(self.answers.left_out(of_answers, counts[1:])[~is_alone])
        check_passes(n, seen)
        self.typical_distance.fill_(distances.mean)
        # With one sample, or all at the same distance, the unit of distance stays.
        self.distance_deviation.fill_(distances.deviation)
        if self.answers is not None:
            self.answers.typical.fill_(answers.mean)
            self.answers.deviation.fill_(answers.deviation)

    def verdict(self, x: Float[Tensor, "n F"], posterior: Float[Tensor, "n K"]) -> Verdict:
        """Score, distance to the nearest class and log p(x) of each sample.

        Raises:
            ValueError: as `mahalanobis` and `score`.
        """
        distance = self.mahalanobis(x)
        nearest = distance.amin(1)
        return Verdict(self.score(nearest, posterior), nearest, torch.logsumexp(self.log_joint(distance), 1))

    def score(self, distance: Float[Tensor, " n"], posterior: Float[Tensor, "n K"]) -> Float[Tensor, " n"]:
        """Outlier score: what is unusual at any depth, plus what is unusual of the answer.

        The distance to the nearest class counts in deviations from what is usual, and so does, by a quarter, how unusual the
        answer is (`Answers`); without a model of the answers, their entropy in nats. A far outlier is unusual at some depth; a
        near one mostly falls between the classes.

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
        posterior = posterior.to(unusual)
        of_answer = self.answers
        unsure = torch.special.entr(posterior).sum(1) if of_answer is None else _ANSWER_WEIGHT * of_answer(posterior)
        score: Tensor = unusual + unsure
        return nan_outlies(score)


class _Views:
    """Batches as the judge's models see them, without empty ones. Each iteration is a pass over them."""

    def __init__(self, judge: Judge, batches: Batches) -> None:
        self._judge, self._batches = judge, batches

    def __iter__(self) -> Iterator[list[Pair]]:
        for x, labels, *posterior in self._batches:
            if x.shape[:1] == (0,):
                continue
            yield [(x, labels), *self._answers(x, labels, posterior)]

    def _answers(self, x: Tensor, labels: Tensor, posterior: Sequence[Tensor]) -> Sequence[Pair]:
        answers, K = self._judge.answers, self._judge.num_classes
        shapes = [tuple(part.shape) for part in posterior]
        expected = [] if answers is None else [(len(x), K)]
        if shapes != expected:
            raise ValueError(
                f"posterior: got {shapes[0] if shapes else 'none'}, expected "
                + (f"shape {expected[0]} after features and classes" if expected else "none: judges_answers is off")
            )
        return () if answers is None else answers.pairs(posterior[0], labels)
