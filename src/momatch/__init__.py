"""momatch: classification with very few labels that knows when it does not know.

Names are imported on first use, so that ``import momatch`` (and with it the command line) does not pay for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from momatch._version import __version__ as __version__

if TYPE_CHECKING:
    from momatch.constraints import KLConstraint as KLConstraint
    from momatch.constraints import MMDConstraint as MMDConstraint
    from momatch.heads import AAGMM as AAGMM
    from momatch.heads import KMeans as KMeans
    from momatch.heads import Linear as Linear
    from momatch.heads import log_density as log_density
    from momatch.heads import log_posterior as log_posterior
    from momatch.moments import MomentConstraint as MomentConstraint
    from momatch.outliers import OutlierDetector as OutlierDetector
    from momatch.outliers import benjamini_hochberg as benjamini_hochberg
    from momatch.pseudo_labels import FixMatchPolicy as FixMatchPolicy
    from momatch.pseudo_labels import FlexMatchPolicy as FlexMatchPolicy
    from momatch.pseudo_labels import FreeMatchPolicy as FreeMatchPolicy
    from momatch.pseudo_labels import SoftMatchPolicy as SoftMatchPolicy

#: Public name -> the module that defines it. The type checker reads the block above; a test keeps the two equal.
_HOME = {
    "AAGMM": "heads",
    "KMeans": "heads",
    "Linear": "heads",
    "log_density": "heads",
    "log_posterior": "heads",
    "MomentConstraint": "moments",
    "KLConstraint": "constraints",
    "MMDConstraint": "constraints",
    "OutlierDetector": "outliers",
    "benjamini_hochberg": "outliers",
    "FixMatchPolicy": "pseudo_labels",
    "FlexMatchPolicy": "pseudo_labels",
    "FreeMatchPolicy": "pseudo_labels",
    "SoftMatchPolicy": "pseudo_labels",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'momatch' has no attribute {name!r}")
    value = getattr(import_module(f"momatch.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
