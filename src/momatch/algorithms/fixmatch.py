"""FixMatch (Sohn et al., 2020)."""

from momatch.algorithms.algorithm import Sizes
from momatch.algorithms.weighted import WeightedPseudoLabels
from momatch.pseudo_labels import FixMatchPolicy


class FixMatch(WeightedPseudoLabels):
    """Pseudo-labels of one fixed confidence.

    Args:
        sizes: not used.
        cutoff: minimum confidence.
        unlabeled_weight: weight of the loss.
    """

    def __init__(self, sizes: Sizes, *, cutoff: float, unlabeled_weight: float) -> None:
        super().__init__(FixMatchPolicy(cutoff=cutoff), unlabeled_weight=unlabeled_weight)
