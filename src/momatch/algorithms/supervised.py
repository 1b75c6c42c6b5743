"""Supervised training: the labelled samples alone."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from momatch.algorithms.algorithm import Algorithm, Outputs, Sizes, Targets, Wants


class Supervised(Algorithm):
    """No view of the unlabelled samples, no pseudo-labels.

    Args:
        sizes: not used.
    """

    wants = Wants(trained=(), guessed=())
    terms: ClassVar[tuple[str, ...]] = ()

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()

    def losses(self, outputs: Outputs, pseudo: Targets) -> dict[str, Float[Tensor, ""]]:
        """No terms."""
        return {}
