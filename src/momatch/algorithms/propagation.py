"""Label propagation over the small graph of a sample and its nearest labelled neighbours (Zhou et al., 2003)."""

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from momatch.algorithms.targets import one_hot


def propagate(
    own: Float[Tensor, "u K"],
    embeddings: Float[Tensor, "u P"],
    memory: Float[Tensor, "M P"],
    labels: Integer[Tensor, " M"],
    seen: Bool[Tensor, " M"],
    *,
    neighbors: int,
    temperature: float,
    smoothing: float,
) -> Float[Tensor, "u K"]:
    """Row 0 of s (I - (1 - s) A)^-1 Y of each sample's graph; its own posterior if nothing has been written yet.

    Nodes are the sample and its nearest labelled neighbours. A is the softmax of their similarities, each node's own left out,
    and Y their class probabilities. Rows of the result sum to 1.

    Args:
        own: class probabilities of the samples.
        embeddings: of the samples, of length 1.
        memory: embeddings of the labelled samples, of length 1.
        labels: of the labelled samples.
        seen: which of them have been written.
        neighbors: number of neighbours; of fewer labelled samples, all.
        temperature: of the similarities.
        smoothing: s, share of a node's own probabilities, above 0.
    """
    memory, any_seen = memory.to(embeddings.dtype), seen.any()
    products = (embeddings @ memory.T).masked_fill(~seen, -torch.inf)
    nearest = products.topk(min(neighbors, len(memory)), -1, sorted=False).indices  # (u, n)
    nodes = torch.cat([embeddings.unsqueeze(1), memory[nearest]], 1)  # (u, 1 + n, P)
    known = torch.cat([seen.new_ones(len(own), 1), seen[nearest]], 1)  # (u, 1 + n)
    itself = torch.eye(nodes.shape[1], dtype=torch.bool, device=own.device)
    # With nothing written no edge would be left; the result is not used then.
    is_edge = (known.unsqueeze(1) & ~itself) | ~any_seen
    similar = (nodes @ nodes.mT / temperature).masked_fill(~is_edge, -torch.inf).softmax(-1)
    system = itself.to(own.dtype) - (1.0 - smoothing) * similar.to(own.dtype)
    first = itself[:1].to(own.dtype).expand(len(own), -1)
    # Only row 0 of the inverse is needed. Not `solve`, which reads its error flag back to the host.
    share = smoothing * torch.linalg.solve_ex(system.mT, first.unsqueeze(-1)).result.squeeze(-1)  # (u, 1 + n)
    spread = torch.cat([own.unsqueeze(1), one_hot(labels, own)[nearest]], 1)  # (u, 1 + n, K)
    return torch.where(any_seen, (share.unsqueeze(-1) * spread).sum(1), own)
