"""Losses that make every cluster of embeddings Gaussian. `MomentConstraint` is the paper's."""

from momatch.constraints.kl import KLConstraint
from momatch.constraints.mmd import MMDConstraint
from momatch.constraints.moments import MomentConstraint

__all__ = ["KLConstraint", "MMDConstraint", "MomentConstraint"]
