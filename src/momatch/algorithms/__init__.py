"""Algorithms of semi-supervised training. To add one, add a file here and an entry in `ALGORITHMS` (docs/algorithms.md)."""

from momatch.algorithms.algorithm import (
    Algorithm,
    Guess,
    Mixing,
    Output,
    Outputs,
    Sizes,
    Targets,
    Wants,
)
from momatch.algorithms.comatch import CoMatch
from momatch.algorithms.fixmatch import FixMatch
from momatch.algorithms.flexmatch import FlexMatch
from momatch.algorithms.freematch import FreeMatch
from momatch.algorithms.meanteacher import MeanTeacher
from momatch.algorithms.mixmatch import MixMatch
from momatch.algorithms.pseudolabel import PseudoLabel
from momatch.algorithms.remixmatch import ReMixMatch
from momatch.algorithms.simmatch import SimMatch
from momatch.algorithms.simmatchv2 import SimMatchV2
from momatch.algorithms.softmatch import SoftMatch
from momatch.algorithms.supervised import Supervised
from momatch.algorithms.uda import UDA

#: Name (as in `--algorithm`) -> algorithm.
ALGORITHMS: dict[str, type[Algorithm]] = {
    "supervised": Supervised,
    "pseudolabel": PseudoLabel,
    "meanteacher": MeanTeacher,
    "uda": UDA,
    "mixmatch": MixMatch,
    "remixmatch": ReMixMatch,
    "fixmatch": FixMatch,
    "flexmatch": FlexMatch,
    "freematch": FreeMatch,
    "softmatch": SoftMatch,
    "comatch": CoMatch,
    "simmatch": SimMatch,
    "simmatchv2": SimMatchV2,
}

__all__ = [
    "ALGORITHMS",
    "UDA",
    "Algorithm",
    "CoMatch",
    "FixMatch",
    "FlexMatch",
    "FreeMatch",
    "Guess",
    "MeanTeacher",
    "MixMatch",
    "Mixing",
    "Output",
    "Outputs",
    "PseudoLabel",
    "ReMixMatch",
    "SimMatch",
    "SimMatchV2",
    "Sizes",
    "SoftMatch",
    "Supervised",
    "Targets",
    "Wants",
]
