"""FlexMatch (Zhang et al., 2021)."""

from momatch.algorithms.algorithm import Sizes
from momatch.algorithms.weighted import WeightedPseudoLabels
from momatch.pseudo_labels import FlexMatchPolicy


class FlexMatch(WeightedPseudoLabels):
    """A confidence per class, lower for classes that are learned less well.

    Args:
        sizes: K and the size of the pool.
        cutoff: confidence of the class that is learned best.
        unlabeled_weight: weight of the loss.
    """

    def __init__(self, sizes: Sizes, *, cutoff: float, unlabeled_weight: float) -> None:
        policy = FlexMatchPolicy(sizes.num_classes, sizes.num_samples, cutoff=cutoff)
        super().__init__(policy, unlabeled_weight=unlabeled_weight)
