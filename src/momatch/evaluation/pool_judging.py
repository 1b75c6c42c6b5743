"""P(inlier) of each sample of a pool that may hold outliers (docs/method.md, "Outliers in the pool").

The labelled samples are divided into parts. For each part, a judge of the other labelled samples ranks the pool; judges of the
most ordinary samples, of which there are many, then rank it better. The part has had no say in this, so its scores are those of
new inliers, and what the pool has above them is outliers.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from momatch.models.outputs import Outputs
from momatch.outliers import Judge
from momatch.outliers.contamination import two_gaussians

#: The labelled samples are left out in so many parts, if a class has as many.
_PARTS = 4
#: Share of the pool that the second ranking is fitted to, the most ordinary samples; and how often it is made.
_CORE, _TURNS = 0.3, 2
#: These judges see at most so many statistics and samples of the pool.
_MOST_STATISTICS, _MOST_SAMPLES = 400, 5000


@torch.no_grad()
def judge_pool(outputs: Outputs, labels: Int64[Tensor, " n"]) -> Float[Tensor, " n"]:
    """P(inlier) of each sample; 1 for labelled ones.

    Without two labelled samples of a class there is no telling how far samples of a class may be apart: then all are 1.

    Args:
        outputs: of all samples, with stages.
        labels: true classes, -1 for unlabelled.
    """
    assert outputs.stages is not None
    labels = labels.cpu()
    probability = torch.ones(len(labels), dtype=torch.float64)
    is_pool = labels < 0
    classes = labels[~is_pool]
    if not is_pool.any() or int(torch.bincount(classes, minlength=1).max()) < 2:
        return probability
    # Every k-th statistic: many take long, and few labelled samples do not need them.
    stages = outputs.stages[:, :: -(-outputs.stages.shape[1] // _MOST_STATISTICS)].cpu()
    ranking = _rank(stages[~is_pool], classes, stages[is_pool], outputs.log_joint.shape[1])
    by_labeled = two_gaussians(ranking.by_labeled)
    by_core = two_gaussians(ranking.by_core, ranking.left_out)
    if by_labeled is not None and by_core is not None:
        # What is seen in one ranking alone may be chance.
        found = replace(by_core, gain=0.5 * (by_core.gain + by_labeled.gain))
        probability[is_pool] = 1.0 - found.evidence(ranking.left_out) * (1.0 - found.lower(ranking.by_core))
    return probability


@dataclass(frozen=True)
class _Ranking:
    """Log distances to the nearest class, as means over the parts, less the pool's median.

    Attributes:
        by_labeled: (n,) of the pool, by judges of labelled samples.
        by_core: (n,) of the pool, by judges of labelled samples and the pool's most ordinary ones.
        left_out: (m,) of the labelled samples, by the latter; each by judges that it had no part in.
    """

    by_labeled: Float[Tensor, " n"]
    by_core: Float[Tensor, " n"]
    left_out: Float[Tensor, " m"]


def _rank(
    labeled: Float[Tensor, "m S"], classes: Int64[Tensor, " m"], pool: Float[Tensor, "n S"], num_classes: int
) -> _Ranking:
    by_labeled, by_core, left_out = [], [], []
    for is_out in _parts(classes):
        rest, rest_classes = labeled[~is_out], classes[~is_out]
        nearest = _Judged.by(_fitted(rest, rest_classes, num_classes), pool)
        by_labeled.append(nearest.score - nearest.score.median())
        of_pool, of_part = _judged_by_core(rest, rest_classes, pool, nearest, labeled[is_out], num_classes)
        median = of_pool.median()
        by_core.append(of_pool - median)
        left_out.append(of_part - median)
    return _Ranking(torch.stack(by_labeled).mean(0), torch.stack(by_core).mean(0), torch.cat(left_out))


def _parts(classes: Int64[Tensor, " m"]) -> list[Bool[Tensor, " m"]]:
    """Which samples are left out in each part; never all of a class."""
    counts = torch.bincount(classes)
    rank = torch.zeros_like(classes)
    for k in counts.nonzero().flatten():
        rank[classes == k] = torch.arange(int(counts[k]))
    parts = min(_PARTS, int(counts.max()))
    return [(counts[classes] > 1) & (rank % parts == part) for part in range(parts)]


@dataclass(frozen=True)
class _Judged:
    """Log distance to the nearest class, and that class."""

    score: Float[Tensor, " n"]
    nearest: Int64[Tensor, " n"]

    @staticmethod
    def by(judge: Judge, stages: Float[Tensor, "n S"]) -> "_Judged":
        distance, nearest = judge.mahalanobis(stages.to(judge.scale)).min(1)
        return _Judged(distance.double().log(), nearest)


def _judged_by_core(
    labeled: Float[Tensor, "m S"],
    classes: Int64[Tensor, " m"],
    pool: Float[Tensor, "n S"],
    judged: _Judged,
    part: Float[Tensor, "p S"],
    num_classes: int,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " p"]]:
    """Scores of the pool and of the part, by two judges of labelled samples and of half of the pool's core each.

    A sample of the pool is judged by the one that has not seen it.
    """
    step = max(1, -(-len(pool) // _MOST_SAMPLES))
    position = torch.arange(len(pool))
    half = torch.where(position % step == 0, (position // step) % 2, -1)  # -1: in neither fit
    scores, of_part = judged.score, torch.zeros(0).double()
    for _ in range(_TURNS):
        core = scores <= scores.kthvalue(max(1, round(_CORE * len(scores)))).values
        judges = []
        for which in (0, 1):
            used = core & (half == which)
            stages, targets = torch.cat([labeled, pool[used]]), torch.cat([classes, judged.nearest[used]])
            judges.append(_fitted(stages, targets, num_classes))
        first, second = (_Judged.by(judge, pool).score for judge in judges)
        scores = torch.where(half == 0, second, torch.where(half == 1, first, 0.5 * (first + second)))
        of_part = torch.stack([_Judged.by(judge, part).score for judge in judges]).mean(0)
    return scores, of_part


def _fitted(stages: Float[Tensor, "m S"], classes: Int64[Tensor, " m"], num_classes: int) -> Judge:
    return Judge(stages.shape[1], num_classes).to(stages.dtype).fit([(stages, classes)])
