"""P(inlier) of each sample of a pool that may hold outliers (docs/method.md, "Outliers in the pool").

The labelled samples are divided into parts. For each part, a judge of the other labelled samples ranks the pool; judges of the
most ordinary samples, of which there are many, then rank it better. The part has had no say in this, so its scores are those of
new inliers, and what the pool has above them is outliers.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from momatch.models.outputs import Outputs
from momatch.outliers.contamination import two_gaussians
from momatch.outliers.gaussians import ClassGaussians
from momatch.outliers.stages import thinned

#: The labelled samples are left out in so many parts, if a class has as many.
_PARTS = 4
#: Share of the pool that the second ranking is fitted to, the most ordinary samples; and how often it is made.
_CORE, _TURNS = 0.3, 2
#: A sample with a lower P(inlier) is more likely an outlier than not.
LIKELY_OUTLIER = 0.5
#: Share of the pool that counts as ordinary, if it is not likely outliers.
_ORDINARY = 0.5
#: Fewer labelled samples, and fewer of the pool, are no evidence of outliers: they may all happen to be ordinary ones, or were
#: chosen to be, as `momatch suggest` chooses the most typical.
_FEW_LABELED, _SMALL_POOL = 20, 100
#: Samples that are judged at once.
_BATCH = 512
#: These judges see at most so many statistics and samples of the pool.
MOST_STATISTICS, _MOST_SAMPLES = 400, 5000


class InspectedPool(NamedTuple):
    """What the labelled samples say of a pool.

    Attributes:
        p_inlier: (n,) P(inlier) of each sample; 1 for labelled ones.
        is_ordinary: (n,) labelled samples, and the more ordinary half of the pool, less its likely outliers.
    """

    p_inlier: Float[Tensor, " n"]
    is_ordinary: Bool[Tensor, " n"]


def judge_pool(outputs: Outputs, labels: Int64[Tensor, " n"]) -> Float[Tensor, " n"]:
    """P(inlier) of each sample, as `inspect_pool` finds it."""
    return inspect_pool(outputs, labels).p_inlier


@torch.no_grad()
def inspect_pool(outputs: Outputs, labels: Int64[Tensor, " n"]) -> InspectedPool:
    """P(inlier) of each sample, and which samples are ordinary.

    Without two labelled samples of a class there is no telling how far samples of a class may be apart: then all are 1, and
    ordinary. All are 1 as well if there are fewer than 20 labelled samples and fewer than 100 others.

    Args:
        outputs: of all samples, with stages.
        labels: true classes, -1 for unlabelled.
    """
    assert outputs.stages is not None
    labels = labels.cpu()
    probability = torch.ones(len(labels), dtype=torch.float64)
    is_pool = labels < 0
    is_ordinary = torch.ones_like(is_pool)
    classes = labels[~is_pool]
    if not is_pool.any() or int(torch.bincount(classes, minlength=1).max()) < 2:
        return InspectedPool(probability, is_ordinary)
    ranking = rank_pool(outputs, labels)
    by_labeled = two_gaussians(ranking.by_labeled)
    by_core = two_gaussians(ranking.by_core, ranking.left_out)
    is_small = len(classes) < _FEW_LABELED and int(is_pool.sum()) < _SMALL_POOL
    if by_labeled is not None and by_core is not None and not is_small:
        # What is seen in one ranking alone may be chance.
        found = replace(by_core, gain=0.5 * (by_core.gain + by_labeled.gain))
        probability[is_pool] = 1.0 - found.evidence(ranking.left_out) * (1.0 - found.lower(ranking.by_core))
    probability[is_pool & ~outputs.stages.isfinite().all(1).cpu()] = 0.0
    is_ordinary[is_pool] = _lowest(ranking.by_core, _ORDINARY)
    return InspectedPool(probability, is_ordinary & (probability >= LIKELY_OUTLIER))


@dataclass(frozen=True)
class _Labeled:
    """Statistics of samples, and their classes."""

    stages: Float[Tensor, "m S"]
    classes: Int64[Tensor, " m"]
    num_classes: int

    def select(self, mask: Bool[Tensor, " m"]) -> "_Labeled":
        return _Labeled(self.stages[mask], self.classes[mask], self.num_classes)

    def append(self, stages: Float[Tensor, "n S"], classes: Int64[Tensor, " n"]) -> "_Labeled":
        return _Labeled(torch.cat([self.stages, stages]), torch.cat([self.classes, classes]), self.num_classes)

    def judge(self) -> ClassGaussians:
        fresh = ClassGaussians(self.stages.shape[1], self.num_classes).to(self.stages.dtype)
        return fresh.fit([(self.stages, self.classes)])


@dataclass(frozen=True)
class Ranking:
    """Log distances to the nearest class, as means over the parts, less the pool's median.

    Attributes:
        by_labeled: (n,) of the pool, by judges of labelled samples.
        by_core: (n,) of the pool, by judges of labelled samples and the pool's most ordinary ones.
        left_out: (m,) of the labelled samples, by the latter; each by judges that it had no part in.
    """

    by_labeled: Float[Tensor, " n"]
    by_core: Float[Tensor, " n"]
    left_out: Float[Tensor, " m"]


def rank_pool(outputs: Outputs, labels: Int64[Tensor, " n"]) -> Ranking:
    """Rank the unlabelled samples, those with label -1, by how far they are from the labelled ones."""
    assert outputs.stages is not None
    is_pool = labels.cpu() < 0
    # Every k-th statistic: many take long, and few labelled samples do not need them. Nor double precision, ten times as long.
    stages = thinned(outputs.stages, MOST_STATISTICS).cpu().float()
    labeled = _Labeled(stages[~is_pool], labels.cpu()[~is_pool], outputs.log_joint.shape[1])
    pool = stages[is_pool]
    by_labeled, by_core, left_out = [], [], []
    for is_out in _parts(labeled.classes):
        rest, part = labeled.select(~is_out), labeled.stages[is_out]
        scores, nearest = _scores(rest.judge(), pool)
        by_labeled.append(scores - _median(scores))
        for _ in range(_TURNS):
            core = _Core(rest, pool, nearest, scores)
            scores = core.pool_scores()
        median = _median(scores)
        by_core.append(scores - median)
        left_out.append(core.new_scores(part) - median)
    return Ranking(torch.stack(by_labeled).mean(0), torch.stack(by_core).mean(0), torch.cat(left_out))


def _parts(classes: Int64[Tensor, " m"]) -> list[Bool[Tensor, " m"]]:
    """Which samples are left out in each part; never all of a class."""
    counts = torch.bincount(classes)
    rank = torch.zeros_like(classes)
    for k in counts.nonzero().flatten():
        rank[classes == k] = torch.arange(int(counts[k]))
    parts = min(_PARTS, int(counts.max()))
    return [(counts[classes] > 1) & (rank % parts == part) for part in range(parts)]


class _Core:
    """Two judges, of labelled samples and of half of the pool's core each.

    Args:
        labeled: the labelled samples.
        pool: the pool.
        nearest: class of each of its samples.
        scores: of each; the lowest are its core.
    """

    def __init__(
        self,
        labeled: _Labeled,
        pool: Float[Tensor, "n S"],
        nearest: Int64[Tensor, " n"],
        scores: Float[Tensor, " n"],
    ) -> None:
        step = max(1, -(-len(pool) // _MOST_SAMPLES))
        is_core = _lowest(scores, _CORE)
        # By rank: both halves hold as many outliers, whatever the order of the pool.
        position = scores.argsort(stable=True).argsort()
        # In which fit each sample may be; -1 for none.
        self._half = torch.where(position % step == 0, (position // step) % 2, -1)
        self._judges = []
        for which in (0, 1):
            used = is_core & (self._half == which)
            self._judges.append(labeled.append(pool[used], nearest[used]).judge())
        self._by_judge = [_scores(judge, pool)[0] for judge in self._judges]
        # Of few samples two judges differ by chance in all their distances, so each half is compared with its own median.
        self._medians = [_median(by[self._half != which]) for which, by in enumerate(self._by_judge)]

    def pool_scores(self) -> Float[Tensor, " n"]:
        """Of each sample of the pool, by the judge that has not seen it, or by both."""
        first, second = (by - median for by, median in zip(self._by_judge, self._medians, strict=True))
        return torch.where(self._half == 0, second, torch.where(self._half == 1, first, 0.5 * (first + second)))

    def new_scores(self, stages: Float[Tensor, "p S"]) -> Float[Tensor, " p"]:
        """Of samples that are not in the pool, by both."""
        pairs = zip(self._judges, self._medians, strict=True)
        return torch.stack([_scores(judge, stages)[0] - median for judge, median in pairs]).mean(0)


def _scores(judge: ClassGaussians, stages: Float[Tensor, "n S"]) -> tuple[Float[Tensor, " n"], Int64[Tensor, " n"]]:
    """Log distance to the nearest class, infinite for what is not finite; and that class."""
    if len(stages) == 0:
        return torch.zeros(0).double(), torch.zeros(0).long()
    parts = [judge.mahalanobis(batch).nan_to_num(nan=torch.inf).min(1) for batch in stages.split(_BATCH)]
    distance, nearest = (torch.cat(values) for values in zip(*parts, strict=True))
    return distance.double().log(), nearest


def _lowest(scores: Float[Tensor, " n"], share: float) -> Bool[Tensor, " n"]:
    """The given share of lowest scores."""
    return (scores <= scores.kthvalue(max(1, round(share * len(scores)))).values) & scores.isfinite()


def _median(scores: Float[Tensor, " n"]) -> float:
    finite = scores[scores.isfinite()]
    return float(finite.median()) if len(finite) else 0.0
