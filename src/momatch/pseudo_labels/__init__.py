"""Pseudo-label policies. To add one, add a file here and an entry in `POLICIES`."""

from momatch.pseudo_labels.fixmatch import FixMatchPolicy
from momatch.pseudo_labels.flexmatch import FlexMatchPolicy
from momatch.pseudo_labels.freematch import FreeMatchPolicy
from momatch.pseudo_labels.policy import Policy
from momatch.pseudo_labels.softmatch import SoftMatchPolicy

#: Name (as in `--policy`) -> policy.
POLICIES: dict[str, type[Policy]] = {
    "fixmatch": FixMatchPolicy,
    "flexmatch": FlexMatchPolicy,
    "freematch": FreeMatchPolicy,
    "softmatch": SoftMatchPolicy,
}

__all__ = ["POLICIES", "FixMatchPolicy", "FlexMatchPolicy", "FreeMatchPolicy", "Policy", "SoftMatchPolicy"]
