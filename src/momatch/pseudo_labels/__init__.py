"""Pseudo-label policies: how much each pseudo-label counts. Algorithms (`momatch.algorithms`) are built on them."""

from momatch.pseudo_labels.fixmatch import FixMatchPolicy
from momatch.pseudo_labels.flexmatch import FlexMatchPolicy
from momatch.pseudo_labels.freematch import FreeMatchPolicy
from momatch.pseudo_labels.policy import Policy
from momatch.pseudo_labels.softmatch import SoftMatchPolicy

__all__ = ["FixMatchPolicy", "FlexMatchPolicy", "FreeMatchPolicy", "Policy", "SoftMatchPolicy"]
