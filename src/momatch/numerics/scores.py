"""Outlier scores: higher is more outlying, and what is no number is most outlying of all."""

import torch
from jaxtyping import Float
from torch import Tensor


def nan_outlies(scores: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The scores with +inf for NaN; infinite ones stay."""
    return scores.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
