"""The judge: a Gaussian model of what a network saw at several depths, and of what it answered (docs/method.md, "The judge").

What the judge sees are the statistics of a network's stages (`momatch.outliers.stages`), but any vectors will do.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from momatch.outliers.answers import Answers, answers_of
from momatch.outliers.conformal import nan_outlies
from momatch.outliers.gaussians import ClassGaussians, Pair, RunningMoments, check_passes, fit_together, is_empty

#: Samples with their classes, in batches of any size; of a judge of answers with the classifier's posterior as well. Iterated
#: several times.
Batches = Iterable[Sequence[Tensor]]

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
        # None is no module: then strict loading refuses the state of a judge of answers.
        self.answers = Answers(self.num_classes) if judges_answers else None

    def __setstate__(self, state: dict[str, Any]) -> None:
        nn.Module.__setstate__(self, state)
        # Pickles of older versions count the answer's entropy.
        if "answers" not in self._modules:
            self.answers = None

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
        views, answers = _Views(self, batches), self.answers
        count, *_ = fit_together([self] if answers is None else [self, answers.of_class], views)
        self.count.fill_(0)  # until the fit is complete
        if answers is not None:
            answers.set_middle()
        self._measure(views, count)
        self.count.fill_(int(count.sum()))
        return self

    def _measure(self, views: "_Views", count: Float[Tensor, " K"]) -> None:
        """Mean and deviation of distances and answers over the samples of the fit, each left out of it.

        The only sample of a class is at distance 0 by definition, and is not counted.
        """
        distances, relative, seen, answers = RunningMoments(), RunningMoments(), 0, self.answers
        for of_stages, *of_answers in views:
            x, labels = self.checked(of_stages)
            is_counted, own = count[labels] > 1, labels[:, None]
            distances.add(self.distances_left_out((x, labels), count).gather(1, own)[is_counted, 0])
            seen += len(x)
            if answers is not None:
                relative.add(answers.left_out(answers.of_class.checked(of_answers[0]), count)[is_counted])
        check_passes(int(count.sum()), seen)
        self.typical_distance.fill_(distances.mean)
        # With one sample, or all at the same distance, the unit of distance stays.
        self.distance_deviation.fill_(distances.deviation)
        if answers is not None:
            answers.typical.fill_(relative.mean)
            answers.deviation.fill_(max(relative.deviation, 1.0))

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
        answers = self.answers
        of_answer = torch.special.entr(posterior).sum(1) if answers is None else _ANSWER_WEIGHT * answers(posterior)
        score: Tensor = unusual + of_answer
        return nan_outlies(score)


class _Views:
    """Batches as the judge's models see them, without empty ones. Each iteration is a pass over them."""

    def __init__(self, judge: Judge, batches: Batches) -> None:
        self._judge, self._batches = judge, batches

    def __iter__(self) -> Iterator[list[Pair]]:
        for batch in self._batches:
            if not is_empty(batch[0]):
                yield self._views(*batch)

    def _views(self, x: Tensor, labels: Tensor, *posterior: Tensor) -> list[Pair]:
        expected = 0 if self._judge.answers is None else 1
        if len(posterior) != expected:
            raise ValueError(
                f"batches: got {2 + len(posterior)} tensors in a batch, expected features and classes"
                + (", and posteriors, which judges_answers asks for" if expected else " alone: judges_answers is off")
            )
        return [(x, labels), *(answers_of(part, labels, self._judge.num_classes) for part in posterior)]
