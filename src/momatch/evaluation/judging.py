"""Fit the judge of outliers to a classifier's outputs, and score by it (docs/method.md, "The judge").

A pool may hold outliers, which a classifier labels with confidence. So the judge is first fitted to the labelled samples and
the pool's most ordinary ones (`inspect_pool`). If the first look at the pool and this judge's distances both show outliers, it
is fitted again to the confidently predicted samples that look like inliers; if not, to all that are confidently predicted. Of a
pool that is too small for such distances, the first look at it decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from momatch.evaluation.evaluate import confident_samples
from momatch.evaluation.pool_judging import LIKELY_OUTLIER, InspectedPool, inspect_pool
from momatch.heads import log_posterior
from momatch.models.outputs import Outputs
from momatch.outliers import Judge
from momatch.outliers.conformal import nan_outlies
from momatch.outliers.contamination import TwoGaussians, inlier_component

#: Least P(inlier) of an unlabelled sample that the judge is fitted to if the pool has outliers: a few in the fit are enough to
#: make others of their kind look ordinary.
_TRUSTED = 0.95
#: How often the judge is fitted again to what the one before took for inliers.
_TURNS = 2
#: Least share of the pool's ordinary samples that are confidently predicted: a judge of fewer does not know the pool.
_LEAST_KNOWN = 0.25
#: Most that log distances may gain from being in the fit, in deviations. Where a fit has far fewer samples than statistics it
#: is more, and those outside would pass for outliers; with 700 photographs in the fit it is 0.1.
_MOST_GAINED = 0.5
#: How many times the odds of being an inlier count for calibration: inliers have longer tails than a Gaussian, and without them
#: there would be more false positives than promised.
_BENEFIT = 2.0
#: Standard deviations of a Gaussian in a median absolute deviation.
_DEVIATIONS = 1.4826
#: Samples per batch of the fit, which is in float64.
_BATCH = 1024


@dataclass(frozen=True)
class JudgedPool:
    """The judge, and what it says of the samples that it was fitted to.

    Attributes:
        judge: the judge.
        p_inlier: (n,) P(inlier) of each sample; 1 for labelled ones, and for all if there is no evidence of outliers. Damaged
            samples of the pool have 0. If the classifier is too unsure of the pool, or it is too small for the judge, it is
            that of `inspect_pool`.
        components: inliers and outliers in the pool's log distances; None if they show no evidence of outliers.
    """

    judge: Judge
    p_inlier: Float[Tensor, " n"]
    components: TwoGaussians | None


def fit_judge(
    outputs: Outputs, labels: Int64[Tensor, " n"], *, cutoff: float, stage_names: Sequence[str] = ()
) -> JudgedPool:
    """A judge of the stages that the outputs hold.

    Args:
        outputs: of all samples, with stages.
        labels: true classes, -1 for unlabelled.
        cutoff: lowest posterior of a pseudo-label that is trusted.
        stage_names: of the stages.

    Raises:
        ValueError: if the labels do not match the outputs, there are none to trust, or a statistic is not finite.
    """
    assert outputs.stages is not None
    confident = _Confident(outputs, *confident_samples(outputs, labels, cutoff=cutoff), stage_names)
    is_pool, inspected = labels.cpu() < 0, inspect_pool(outputs, labels)
    if inspected.is_ordinary.all():
        return JudgedPool(confident.fit(inspected.is_ordinary), inspected.p_inlier, None)
    if not confident.know(inspected.is_ordinary & is_pool) or confident.gained(inspected.is_ordinary) > _MOST_GAINED:
        is_likely = inspected.p_inlier < LIKELY_OUTLIER
        trusted = inspected.p_inlier >= (_TRUSTED if is_likely.any() else 0.0)
        return JudgedPool(confident.fit(trusted), inspected.p_inlier, None)
    usable = ~is_pool | outputs.stages.isfinite().all(1).cpu()
    # What the judge alone sees may be chance: of a clean pool of digits it took up to half for outliers.
    if bool((inspected.p_inlier[usable] < LIKELY_OUTLIER).any()):
        found = _tell_outliers(confident, inspected, labels.cpu())
        if found is not None:
            return found
    return JudgedPool(confident.fit(usable), usable.double(), None)


def _tell_outliers(confident: "_Confident", inspected: InspectedPool, labels: Int64[Tensor, " n"]) -> JudgedPool | None:
    """The judge of a pool with outliers; None if it has no evidence of any.

    What one look does not trust, a later one does not either: the few outliers that a fit lets in bring others of their kind,
    more with each turn.
    """
    found, trusted, is_pool = None, inspected.is_ordinary, labels < 0
    allowed = inspected.p_inlier >= LIKELY_OUTLIER
    for _ in range(_TURNS + 1):
        judge = confident.fit(trusted)
        distance = confident.log_distance(judge, trusted)
        components = inlier_component(distance[is_pool], distance[~is_pool], labels[~is_pool])
        if components is None:
            return None
        p_inlier = torch.where(is_pool, components.lower(distance), 1.0)
        allowed &= p_inlier >= _TRUSTED
        found, trusted = JudgedPool(judge, p_inlier, components), allowed
    return found


@torch.no_grad()
def judge_scores(judge: Judge, outputs: Outputs) -> dict[str, Float[Tensor, " n"]]:
    """Outlier scores of a judge, as `momatch.evaluation.evaluate.outlier_scores` are those of a head.

    Returns:
        "judge": the score behind p-values. "nearest": Mahalanobis distance to the nearest class. "density": -log p(x).
    """
    assert outputs.stages is not None
    if len(outputs) == 0:
        return dict.fromkeys(("judge", "nearest", "density"), judge.scale.new_empty(0))
    posterior = _posterior(outputs.log_joint, judge)
    batches = zip(outputs.stages.split(_BATCH), posterior.split(_BATCH), strict=True)
    verdicts = [judge.verdict(stages.to(judge.scale), of_batch) for stages, of_batch in batches]
    score, nearest, density = (torch.cat(parts) for parts in zip(*verdicts, strict=True))
    scores = {"judge": score, "nearest": nearest, "density": -density}
    return {name: nan_outlies(score) for name, score in scores.items()}


def likely_inliers(judged: JudgedPool, outputs: Outputs) -> Int64[Tensor, " k"]:
    """Of samples held out from a pool for calibration: each in proportion to its own P(inlier), of which the odds are doubled.

    Outliers among them would raise every p-value, and hide the outliers to come. The scores of those that are kept are
    distributed as if each sample counted by that probability, by systematic sampling in the order of the scores; so the bound
    on false positives holds as far as P(inlier) is right. If there is no evidence of outliers in the pool, all are kept;
    also if none looks like an inlier: then what was found in the pool does not hold for them.

    Args:
        judged: the judge, fitted to the rest of the pool; the components that it found there tell outliers among these samples.
        outputs: of these samples.
    """
    scores = judge_scores(judged.judge, outputs)
    order = scores["judge"].argsort(stable=True)
    if judged.components is None:
        return order.sort().values
    p_inlier = judged.components.lower(scores["nearest"].log())
    p_inlier = _BENEFIT * p_inlier / (1.0 + (_BENEFIT - 1.0) * p_inlier)
    count = (p_inlier[order].cumsum(0) + 0.5).floor()
    kept = order[count.diff(prepend=count.new_zeros(1)) > 0]
    return (kept if len(kept) else order).sort().values


def _posterior(log_joint: Float[Tensor, "n K"], judge: Judge) -> Float[Tensor, "n K"]:
    """In the judge's dtype."""
    return log_posterior(log_joint.to(judge.scale)).exp()


@dataclass(frozen=True)
class _Confident:
    """The samples that a judge may be fitted to.

    Attributes:
        outputs: of all samples.
        positions: those that are labelled or confidently predicted.
        classes: of these.
        stage_names: of the stages.
    """

    outputs: Outputs
    positions: Int64[Tensor, " m"]
    classes: Int64[Tensor, " m"]
    stage_names: Sequence[str]

    def know(self, ordinary: Bool[Tensor, " n"]) -> bool:
        """Whether enough of the ordinary samples are among them."""
        return int(ordinary[self.positions].sum()) >= _LEAST_KNOWN * int(ordinary.sum())

    def gained(self, trusted: Bool[Tensor, " n"]) -> float:
        """How much smaller log distances are for being in the fit: of every other one that is trusted, against the rest.

        In robust deviations of the rest, because outliers may be among them.
        """
        used = self.positions[trusted[self.positions]]
        half, other = torch.zeros_like(trusted), torch.zeros_like(trusted)
        half[used[::2]], other[used[1::2]] = True, True
        distance = self.log_distance(self.fit(half), half)
        inside, outside = distance[half], distance[other]
        deviation = _DEVIATIONS * (outside - outside.median()).abs().median()
        return float((outside.median() - inside.median()) / deviation)

    def fit(self, trusted: Bool[Tensor, " n"]) -> Judge:
        """A judge of those that are trusted."""
        stages = self.outputs.stages
        assert stages is not None
        used = trusted[self.positions]
        K = self.outputs.log_joint.shape[1]
        judge = Judge(stages.shape[1], K, self.stage_names, judges_answers=True).to(stages.dtype)
        pairs = zip(self.positions[used].split(_BATCH), self.classes[used].split(_BATCH), strict=True)
        return judge.fit(
            [(stages[some], of_some, _posterior(self.outputs.log_joint[some], judge)) for some, of_some in pairs]
        )

    def log_distance(self, judge: Judge, trusted: Bool[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Log distance of each sample to the nearest class, of those in the judge's fit as if each had been left out."""
        stages = self.outputs.stages
        assert stages is not None
        parts = [judge.mahalanobis(batch.to(judge.scale)).min(1) for batch in stages.split(_BATCH)]
        distance, nearest = (torch.cat(values).cpu() for values in zip(*parts, strict=True))
        used = trusted[self.positions]
        class_count = torch.bincount(self.classes[used], minlength=judge.num_classes).double()
        left_out = judge.leave_one_out(
            distance.double(), int(used.sum()), shrinkage=float(judge.shrinkage), class_count=class_count[nearest]
        )
        in_fit = torch.zeros_like(trusted)
        in_fit[self.positions[used]] = True
        return torch.where(in_fit, left_out, distance.double()).nan_to_num(nan=torch.inf).log()
