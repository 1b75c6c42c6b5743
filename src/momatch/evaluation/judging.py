"""Fit the judge of outliers to a classifier's outputs, and score by it (docs/method.md, "The judge").

A pool may hold outliers, which a classifier labels with confidence, so they are looked for first (`judge_pool`). The judge is
fitted to the labelled samples and to those of the pool that are confidently predicted and look like inliers.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from momatch.evaluation.evaluate import confident_samples
from momatch.evaluation.pool_judging import has_outliers, judge_pool
from momatch.heads import log_posterior
from momatch.models.outputs import Outputs
from momatch.outliers import Judge
from momatch.outliers.contamination import two_gaussians

#: Least P(inlier) of an unlabelled sample that the judge is fitted to if the pool has outliers: a few in the fit are enough to
#: make others of their kind look ordinary.
_TRUSTED = 0.95
#: Samples for calibration are outliers at most so many times as often as others of the pool.
_MOST_TIMES = 1.5
#: Samples per batch of the fit, which is in float64.
_BATCH = 1024


def fit_judge(
    outputs: Outputs,
    labels: Int64[Tensor, " n"],
    *,
    cutoff: float,
    stage_names: Sequence[str] = (),
    p_inlier: Float[Tensor, " n"] | None = None,
) -> Judge:
    """A judge of the stages that the outputs hold.

    Args:
        outputs: of all samples, with stages.
        labels: true classes, -1 for unlabelled.
        cutoff: lowest posterior of a pseudo-label that is trusted.
        stage_names: of the stages.
        p_inlier: result of `judge_pool` for the same samples; None to compute it.

    Raises:
        ValueError: if the labels do not match the outputs, there are none to trust, or a statistic is not finite.
    """
    positions, classes = confident_samples(outputs, labels, cutoff=cutoff)
    p_inlier = judge_pool(outputs, labels) if p_inlier is None else p_inlier
    trusted = p_inlier[positions] >= (_TRUSTED if has_outliers(p_inlier) else 0.0)
    return _fitted(outputs, positions[trusted], classes[trusted], stage_names)


@torch.no_grad()
def judge_scores(judge: Judge, outputs: Outputs) -> dict[str, Float[Tensor, " n"]]:
    """Outlier scores of a judge, as `momatch.evaluation.evaluate.outlier_scores` are those of a head.

    Returns:
        "judge": the score behind p-values. "nearest": Mahalanobis distance to the nearest class. "density": -log p(x).
    """
    assert outputs.stages is not None
    if len(outputs) == 0:
        return dict.fromkeys(("judge", "nearest", "density"), judge.scale.new_empty(0))
    posterior = log_posterior(outputs.log_joint.to(judge.scale)).exp()
    batches = zip(outputs.stages.split(_BATCH), posterior.split(_BATCH), strict=True)
    verdicts = [judge.verdict(stages.to(judge.scale), of_batch) for stages, of_batch in batches]
    score, nearest, density = (torch.cat(parts) for parts in zip(*verdicts, strict=True))
    scores = {"judge": score, "nearest": nearest, "density": -density}
    return {
        name: score.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf) for name, score in scores.items()
    }


def likely_inliers(judge: Judge, outputs: Outputs, p_inlier: Float[Tensor, " m"]) -> Int64[Tensor, " k"]:
    """Of samples held out from a pool for calibration: each in proportion to its own P(inlier).

    Outliers among them would raise every p-value, and hide the outliers to come. The scores of those that are kept are
    distributed as if each sample counted by its P(inlier), by systematic sampling in the order of the scores; so the bound on
    false positives holds as far as P(inlier) is right. If the pool has no likely outliers, all are kept.

    Args:
        judge: fitted to the pool, but not to these samples; so it tells outliers among them better than `judge_pool` did.
        outputs: of these samples.
        p_inlier: result of `judge_pool` for the pool that they are from; its outliers are a bound on theirs.
    """
    scores = judge_scores(judge, outputs)
    order = scores["judge"].argsort(stable=True)
    distance = scores["nearest"].log()
    found = two_gaussians(distance) if has_outliers(p_inlier) else None
    if found is None:
        return order.sort().values
    p_outlier = 1.0 - found.lower(distance)
    most = _MOST_TIMES * float((1.0 - p_inlier).mean())
    p_outlier *= min(1.0, most / max(float(p_outlier.mean()), most))
    count = ((1.0 - p_outlier)[order].cumsum(0) + 0.5).floor()
    return order[count.diff(prepend=count.new_zeros(1)) > 0].sort().values


def _fitted(
    outputs: Outputs, rows: Int64[Tensor, " m"], classes: Int64[Tensor, " m"], stage_names: Sequence[str] = ()
) -> Judge:
    assert outputs.stages is not None
    judge = Judge(outputs.stages.shape[1], outputs.log_joint.shape[1], stage_names).to(outputs.stages.dtype)
    pairs = zip(rows.split(_BATCH), classes.split(_BATCH), strict=True)
    return judge.fit([(outputs.stages[some], of_some) for some, of_some in pairs])
