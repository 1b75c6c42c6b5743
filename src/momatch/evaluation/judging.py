"""Fit the judge of outliers to a classifier's outputs, and weigh a pool by it (docs/method.md, "The judge").

A pool may hold outliers, which a classifier labels with confidence. So they are looked for first, by a judge that is fitted to
the labelled samples alone and that no outlier has touched. The judge that is kept is fitted to the labelled samples and to
those of the pool that are confidently predicted and look like inliers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from momatch.evaluation.evaluate import confident_samples
from momatch.heads import log_density, log_posterior
from momatch.models.outputs import Outputs
from momatch.outliers import Judge
from momatch.outliers.contamination import inlier_probability

#: Least P(inlier) of an unlabelled sample that the judge is fitted to, in a pool with few outliers and in one with many.
#: A few outliers in the fit are enough to make others of their kind look ordinary; but a judge of the most ordinary samples
#: alone is a little worse.
_TRUSTED, _STRICTLY_TRUSTED = 0.5, 0.95
#: Estimated share of outliers from which a pool has many.
MANY_OUTLIERS = 0.18
#: The judge of the labelled samples sees at most so many statistics.
_MOST_STATISTICS = 400
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
    unlabeled = p_inlier[labels.cpu() < 0]
    has_many = len(unlabeled) > 0 and float(1.0 - unlabeled.mean()) >= MANY_OUTLIERS
    trusted = p_inlier[positions] >= (_STRICTLY_TRUSTED if has_many else _TRUSTED)
    return _fitted(outputs, positions[trusted], classes[trusted], stage_names)


def judge_pool(outputs: Outputs, labels: Int64[Tensor, " n"]) -> Float[Tensor, " n"]:
    """P(inlier) of each sample, from a judge of the labelled samples; 1 for these.

    Without two labelled samples of a class there is no telling how far samples of a class may be apart: then all are 1.

    Args:
        outputs: of all samples, with stages.
        labels: true classes, -1 for unlabelled.
    """
    assert outputs.stages is not None
    labels = labels.cpu()
    probability = torch.ones(len(labels), dtype=torch.float64)
    labeled, pool = (labels >= 0).nonzero().flatten(), (labels < 0).nonzero().flatten()
    counts = torch.bincount(labels[labeled], minlength=1)
    if len(pool) == 0 or int(counts.max()) < 2:
        return probability
    outputs = replace(outputs, stages=_thinned(outputs.stages))
    judge = _fitted(outputs, labeled, labels[labeled])
    nearest = _distances(judge, outputs.select(pool)).amin(1).double()
    classes = labels[labeled]
    own = _distances(judge, outputs.select(labeled)).gather(1, classes[:, None])[:, 0].double()
    left_out = Judge.leave_one_out(
        own, len(labeled), shrinkage=float(judge.shrinkage), class_count=counts[classes].double()
    )
    probability[pool] = inlier_probability(nearest.log(), left_out[counts[classes] > 1].log())
    return probability


def _thinned(stages: Float[Tensor, "n S"]) -> Float[Tensor, "n s"]:
    """Every k-th statistic: more than `_MOST_STATISTICS` take long, and few labelled samples do not need them."""
    return stages[:, :: -(-stages.shape[1] // _MOST_STATISTICS)]


@torch.no_grad()
def judge_scores(judge: Judge, outputs: Outputs) -> dict[str, Float[Tensor, " n"]]:
    """Outlier scores of a judge, as `momatch.evaluation.evaluate.outlier_scores` are those of a head.

    Returns:
        "judge": the score behind p-values. "nearest": Mahalanobis distance to the nearest class. "density": -log p(x).
    """
    posterior = log_posterior(outputs.log_joint.to(judge.scale)).exp()
    distance = _distances(judge, outputs)
    nearest = distance.amin(1)
    density = log_density(judge.log_joint(distance))
    scores = {"judge": judge.score(nearest, posterior), "nearest": nearest, "density": -density}
    return {
        name: score.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf) for name, score in scores.items()
    }


def _fitted(
    outputs: Outputs, rows: Int64[Tensor, " m"], classes: Int64[Tensor, " m"], stage_names: Sequence[str] = ()
) -> Judge:
    assert outputs.stages is not None
    judge = Judge(outputs.stages.shape[1], outputs.log_joint.shape[1], stage_names).to(outputs.stages.dtype)
    pairs = zip(rows.split(_BATCH), classes.split(_BATCH), strict=True)
    return judge.fit([(outputs.stages[some], of_some) for some, of_some in pairs])


@torch.no_grad()
def _distances(judge: Judge, outputs: Outputs) -> Float[Tensor, "n K"]:
    if len(outputs) == 0:
        return judge.scale.new_empty(0, judge.num_classes)
    return torch.cat([judge.mahalanobis(batch) for batch in _batches(judge, outputs)])


def _batches(judge: Judge, outputs: Outputs) -> Iterator[Float[Tensor, "b S"]]:
    assert outputs.stages is not None
    for batch in outputs.stages.split(_BATCH):
        yield batch.to(judge.scale)
