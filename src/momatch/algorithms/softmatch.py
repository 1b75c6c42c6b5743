"""SoftMatch (Chen et al., 2023)."""

from momatch.algorithms.algorithm import Sizes
from momatch.algorithms.weighted import WeightedPseudoLabels
from momatch.pseudo_labels import SoftMatchPolicy


class SoftMatch(WeightedPseudoLabels):
    """Every pseudo-label counts, the less the farther its confidence falls below the mean.

    Args:
        sizes: K.
        unlabeled_weight: weight of the loss.
    """

    def __init__(self, sizes: Sizes, *, unlabeled_weight: float) -> None:
        super().__init__(SoftMatchPolicy(sizes.num_classes), unlabeled_weight=unlabeled_weight)
