"""SimMatchV2 (Zheng et al., 2023): samples are nodes of a graph, and views agree on nodes and edges (docs/algorithms.md)."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from momatch.algorithms.algorithm import Algorithm, Guess, Outputs, Sizes, Targets, Wants
from momatch.algorithms.alignment import SMALLEST_SHARE, MovingAlignment
from momatch.algorithms.memory import LabeledMemory, RecentMemory, log_similarity, similarity
from momatch.algorithms.projector import AveragedProjector, Projector
from momatch.algorithms.propagation import propagate
from momatch.algorithms.targets import soft_cross_entropy

#: Labelled neighbours over which labels are propagated.
NEIGHBORS = 128
#: Momentum of the mean posterior that is aligned.
ALIGNMENT_MOMENTUM = 0.9


class SimMatchV2(Algorithm):
    """A strong view agrees with a weak one, as the teacher sees it, in four ways: each is a node (its posterior) or its edges.

    Args:
        sizes: K, the number of labelled samples and the size of the features.
        cutoff: minimum confidence of the aligned posterior.
        smoothing: share of a node's own posterior when labels are propagated; above 0.
        memory_size: number of unlabelled nodes in the memory.
        contrast_dim: size of the embeddings.
        contrast_temperature: of edges.
        unlabeled_weight: weight of the node-node consistency, whose target is propagated by edges (edge-node).
        contrast_weight: weight of the edge-edge and of the node-edge consistency.

    Raises:
        ValueError: if `smoothing` is 0.
    """

    wants = Wants(trained=("strong",), guess="teacher", features=True)
    terms: ClassVar[tuple[str, ...]] = ("unlabeled_loss", "contrast_loss", "node_edge_loss")

    def __init__(
        self,
        sizes: Sizes,
        *,
        cutoff: float,
        smoothing: float,
        memory_size: int,
        contrast_dim: int,
        contrast_temperature: float,
        unlabeled_weight: float,
        contrast_weight: float,
    ) -> None:
        super().__init__()
        if smoothing == 0:
            raise ValueError(
                "smoothing: got 0 with algorithm 'simmatchv2', expected more than 0: labels that are propagated without end "
                "no longer depend on the image; 0.9 is the published value"
            )
        self.cutoff = cutoff
        self.smoothing = smoothing
        self.contrast_temperature = contrast_temperature
        self.unlabeled_weight = unlabeled_weight
        self.contrast_weight = contrast_weight
        self.projector = Projector(sizes.num_features, contrast_dim, normalize=True)
        self.teacher = AveragedProjector(self.projector)
        self.alignment = MovingAlignment(sizes.num_classes, momentum=ALIGNMENT_MOMENTUM)
        self.memory = RecentMemory(memory_size, contrast_dim, sizes.num_classes)
        self.labeled_memory = LabeledMemory(sizes.num_labeled, contrast_dim, momentum=0.0)

    def label(self, guess: Guess) -> Targets:
        """The aligned posterior, propagated over labelled neighbours; then both memories take up the batch."""
        assert guess.features is not None
        assert guess.labeled_features is not None
        weak, labeled = (self.teacher(self.projector, x) for x in (guess.features, guess.labeled_features))
        node = self.alignment(guess.posterior, guess.keep)
        target = propagate(
            node,
            weak.to(node.dtype),
            *self.labeled_memory.read(),
            neighbors=NEIGHBORS,
            temperature=self.contrast_temperature,
            smoothing=self.smoothing,
        )
        embeddings, posteriors, seen = self.memory.read()
        edges = similarity(weak, embeddings, seen, self.contrast_temperature)  # (u, M)
        self.memory.write(weak, node, guess.keep > 0)
        self.labeled_memory.write(labeled, guess.labels, guess.labeled_indices)
        notes = {
            "node": node,
            "edges": edges,
            "embeddings": embeddings,
            "posteriors": posteriors.to(node.dtype),
            "seen": seen,
        }
        return Targets(target, guess.keep * (node.amax(-1) >= self.cutoff), guess.keep, notes)

    def follow(self, share: Float[Tensor, ""]) -> None:
        """The teacher's projector is averaged as its network is."""
        self.teacher.follow(self.projector, share)

    def losses(self, outputs: Outputs, pseudo: Targets) -> dict[str, Float[Tensor, ""]]:
        """Node-node with propagated targets, edge-edge and node-edge; the last two need something in the memory."""
        features, notes = outputs["strong"].features, pseudo.notes
        assert features is not None
        log_edges = log_similarity(
            self.projector(features), notes["embeddings"], notes["seen"], self.contrast_temperature
        )
        edge_edge = -(notes["edges"] * log_edges).sum(-1)
        # The memory may not know a class at all.
        by_edges = (log_edges.exp() * notes["seen"]) @ notes["posteriors"] + SMALLEST_SHARE
        node_edge = -(notes["node"] * (by_edges / by_edges.sum(-1, keepdim=True)).log()).sum(-1)
        weight = pseudo.keep * notes["seen"].any()
        node_node = soft_cross_entropy(outputs["strong"].log_joint, pseudo.target)
        return {
            "unlabeled_loss": self.unlabeled_weight * (pseudo.weight * node_node).mean(),
            "contrast_loss": self.contrast_weight * (weight * edge_edge).mean(),
            "node_edge_loss": self.contrast_weight * (weight * node_edge).mean(),
        }

    def thresholds(self, num_classes: int) -> Float[Tensor, " {num_classes}"] | None:
        """The cutoff."""
        return torch.full((num_classes,), self.cutoff)
