"""Fit the judge of outliers to a classifier's outputs: the labelled samples, and those with a confident prediction."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from momatch.evaluation.evaluate import confident_samples
from momatch.heads import log_density, log_posterior
from momatch.models.outputs import Outputs
from momatch.outliers import Judge
from momatch.outliers.contamination import inlier_probability

#: Samples per batch of the fit, which is in float64.
_BATCH = 1024


def fit_judge(
    outputs: Outputs, labels: Int64[Tensor, " n"], *, cutoff: float, stage_names: Sequence[str] = ()
) -> Judge:
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
    positions, classes = confident_samples(outputs, labels, cutoff=cutoff)
    judge = Judge(outputs.stages.shape[1], outputs.log_joint.shape[1], stage_names).to(outputs.stages.dtype)
    pairs = zip(positions.split(_BATCH), classes.split(_BATCH), strict=True)
    return judge.fit([(outputs.stages[rows], of) for rows, of in pairs])


@torch.no_grad()
def judge_scores(judge: Judge, outputs: Outputs) -> dict[str, Float[Tensor, " n"]]:
    """Outlier scores of a judge, as `momatch.evaluation.evaluate.outlier_scores` are those of a head.

    Returns:
        "judge": the score behind p-values. "nearest": Mahalanobis distance to the nearest class. "density": -log p(x).
    """
    assert outputs.stages is not None
    posterior = log_posterior(outputs.log_joint.to(judge.scale)).exp()
    batches = outputs.stages.to(judge.scale).split(_BATCH)
    distance = torch.cat([judge.mahalanobis(batch) for batch in batches])
    nearest = distance.amin(1)
    scores = {
        "judge": judge.score(nearest, posterior),
        "nearest": nearest,
        "density": -log_density(judge.log_joint(distance)),
    }
    return {
        name: score.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf) for name, score in scores.items()
    }


def judge_pool(
    outputs: Outputs, labels: Int64[Tensor, " n"], *, cutoff: float, rounds: int = 3
) -> tuple[Float[Tensor, " n"], float]:
    """P(inlier) of unlabelled samples."""
    is_labeled = labels >= 0
    keep = torch.ones(int((~is_labeled).sum()), dtype=torch.bool)
    posterior, predicted = log_posterior(outputs.log_joint.double()).exp().max(1)
    classes = torch.where(is_labeled, labels, predicted)
    probability, share = keep.double(), 0.0
    for _ in range(rounds):
        trusted = is_labeled | (posterior >= cutoff)
        trusted[~is_labeled] &= keep
        rows = trusted.nonzero().flatten()
        judge = Judge(outputs.stages.shape[1], outputs.log_joint.shape[1]).fit(
            [(outputs.stages[r], classes[r]) for r in rows.split(_BATCH)]
        )
        distance = torch.cat([judge.mahalanobis(b) for b in outputs.stages.split(_BATCH)]).double()
        own = distance.gather(1, classes[:, None])[:, 0]
        nearest = distance.amin(1)
        loo = Judge.leave_one_out(own, len(rows))
        score = torch.where(trusted, loo, nearest)
        probability, share = inlier_probability(score[~is_labeled], score[is_labeled])
        keep = probability >= 0.5
    return probability, share
