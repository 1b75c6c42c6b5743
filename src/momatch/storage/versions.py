"""What a run or a model was made with."""

import platform

import numpy as np
import torch

from momatch._version import __version__


def versions() -> dict[str, str]:
    """The versions of what decides about numbers."""
    return {
        "momatch": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
