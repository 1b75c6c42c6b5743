"""The discriminative baseline head."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from momatch.heads.base import Head
from momatch.numerics.checks import check_embeddings, check_positive_int
from momatch.numerics.precision import full_precision


class Linear(Head, nn.Linear):
    """The discriminative baseline: its logits are an unnormalised log joint.

    Args:
        embedding_dim: D, the size of the embeddings.
        num_classes: K.
        device: of the parameters.
        dtype: of the parameters.
    """

    def __init__(
        self,
        embedding_dim: int,
        num_classes: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_positive_int("embedding_dim", embedding_dim)
        check_positive_int("num_classes", num_classes)
        super().__init__(embedding_dim, num_classes, device=device, dtype=dtype)
        self.embedding_dim = embedding_dim
        self.num_classes = num_classes

    def reset_parameters(self) -> None:
        """Xavier-normal weights and zero biases, as in the benchmark protocol."""
        nn.init.xavier_normal_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, z: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch K"]:
        """The logits, (..., K), in float32 or better.

        Raises:
            ValueError: if `z` does not end in `embedding_dim` or is not floating point.
        """
        check_embeddings(z, self.embedding_dim)
        dtype, without_autocast = full_precision(z, self.weight)
        with without_autocast:
            return F.linear(z.to(dtype), self.weight.to(dtype), self.bias.to(dtype))
