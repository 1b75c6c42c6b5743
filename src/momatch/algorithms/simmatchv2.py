"""SimMatchV2 (Zheng et al., 2023): samples are nodes of a graph, and views agree on nodes and edges (docs/algorithms.md)."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from momatch.algorithms.algorithm import Algorithm, Guess, Outputs, Sizes, Targets, Wants
from momatch.algorithms.alignment import SMALLEST_SHARE, RecentAlignment
from momatch.algorithms.memory import RecentMemory, log_similarity, similarity
from momatch.algorithms.projector import Projector
from momatch.algorithms.targets import soft_cross_entropy


class SimMatchV2(Algorithm):
    """Four consistencies of a weak and a strong view: each may be seen as a node (its posterior) or by its edges to the memory.

    Args:
        sizes: K and the size of the features.
        cutoff: minimum confidence of a pseudo-label.
        smoothing: share of the node's own posterior in what its edges say.
        memory_size: number of nodes in the memory.
        alignment_steps: number of batches whose mean posterior is aligned.
        contrast_dim: size of the embeddings.
        contrast_temperature: of edges.
        unlabeled_weight: weight of the node-node and edge-node consistencies.
        contrast_weight: weight of the edge-edge and node-edge consistencies.
    """

    wants = Wants(features=True)
    terms: ClassVar[tuple[str, ...]] = ("unlabeled_loss", "edge_node_loss", "contrast_loss", "node_edge_loss")

    def __init__(
        self,
        sizes: Sizes,
        *,
        cutoff: float,
        smoothing: float,
        memory_size: int,
        alignment_steps: int,
        contrast_dim: int,
        contrast_temperature: float,
        unlabeled_weight: float,
        contrast_weight: float,
    ) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.smoothing = smoothing
        self.contrast_temperature = contrast_temperature
        self.unlabeled_weight = unlabeled_weight
        self.contrast_weight = contrast_weight
        self.projector = Projector(sizes.num_features, contrast_dim)
        self.alignment = RecentAlignment(sizes.num_classes, length=alignment_steps)
        self.memory = RecentMemory(memory_size, contrast_dim, sizes.num_classes)

    def label(self, guess: Guess) -> Targets:
        """The aligned posterior; what the edges make of it; then the memory takes up the batch."""
        assert guess.features is not None
        assert guess.labeled_features is not None
        weak, labeled = self.projector(guess.features), self.projector(guess.labeled_features)
        node = self.alignment(guess.posterior, guess.keep)
        embeddings, posteriors, seen = self.memory.read()
        posteriors = posteriors.to(node.dtype)
        edges = similarity(weak, embeddings, seen, self.contrast_temperature)  # (u, M)
        passed = torch.where(seen.any(), self.smoothing * node + (1.0 - self.smoothing) * (edges @ posteriors), node)
        self.memory.take_up(weak, labeled, node, guess)
        notes = {"passed": passed, "edges": edges, "embeddings": embeddings, "posteriors": posteriors, "seen": seen}
        return Targets(node, guess.keep * (node.amax(-1) >= self.cutoff), guess.keep, notes)

    def losses(self, outputs: Outputs, pseudo: Targets) -> dict[str, Float[Tensor, ""]]:
        """Node-node, edge-node, edge-edge and node-edge; the last two need something in the memory."""
        features, notes = outputs["strong"].features, pseudo.notes
        assert features is not None
        log_joint = outputs["strong"].log_joint
        log_edges = log_similarity(
            self.projector(features), notes["embeddings"], notes["seen"], self.contrast_temperature
        )
        # The memory may not know a class at all.
        by_edges = (log_edges.exp() * notes["seen"]) @ notes["posteriors"] + SMALLEST_SHARE
        node_edge = -(pseudo.target * (by_edges / by_edges.sum(-1, keepdim=True)).log()).sum(-1)
        edge_edge = -(notes["edges"] * log_edges).sum(-1)
        passed = notes["passed"]
        passed_weight = pseudo.keep * (passed.amax(-1) >= self.cutoff)
        is_filled = notes["seen"].any()
        return {
            "unlabeled_loss": self.unlabeled_weight
            * (pseudo.weight * soft_cross_entropy(log_joint, pseudo.target)).mean(),
            "edge_node_loss": self.unlabeled_weight * (passed_weight * soft_cross_entropy(log_joint, passed)).mean(),
            "contrast_loss": self.contrast_weight * (pseudo.keep * edge_edge * is_filled).mean(),
            "node_edge_loss": self.contrast_weight * (pseudo.weight * node_edge * is_filled).mean(),
        }

    def thresholds(self, num_classes: int) -> Float[Tensor, " {num_classes}"] | None:
        """The cutoff."""
        return torch.full((num_classes,), self.cutoff)
