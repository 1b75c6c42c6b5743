"""The loss of one batch (docs/training.md): supervised, pseudo-label, constraint and fairness terms, and metrics.

Losses are of the global batch: whatever mixes samples is gathered from all processes first.
"""

import copy
import math
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from momatch.config import LossSettings
from momatch.constraints import KLConstraint, MMDConstraint
from momatch.constraints.moments import MomentConstraint
from momatch.data.dataset import UNLABELED
from momatch.heads import Head, log_posterior
from momatch.outliers import OutlierDetector
from momatch.pseudo_labels import POLICIES, Policy
from momatch.training.processes import Processes

AnyConstraint = MomentConstraint | MMDConstraint | KLConstraint

#: The least probability that a model or a guide has in their mixture.
_DOUBT = 1e-8


@dataclass(frozen=True)
class Embeddings:
    """Embeddings of this process's part of the batch: labelled images, and both views of the unlabelled ones."""

    labeled: Float[Tensor, "b D"]
    weak: Float[Tensor, "u D"]
    strong: Float[Tensor, "u D"]


@dataclass(frozen=True)
class Guide:
    """Another opinion about the unlabelled samples, mixed into what the model says before it becomes a pseudo-label.

    Attributes:
        posterior: (u, K) class probabilities of this process's unlabelled samples.
        weight: how much it counts, 0 (not at all) to 1 (alone).
    """

    posterior: Float[Tensor, "u K"]
    weight: float

    def mix(self, log_posterior: Float[Tensor, "u K"]) -> Float[Tensor, "u K"]:
        """The posterior proportional to model^(1 - weight) guide^weight; neither can rule a class out for good."""
        guide = self.posterior.clamp_min(_DOUBT).log()
        return torch.softmax((1.0 - self.weight) * log_posterior.clamp_min(math.log(_DOUBT)) + self.weight * guide, -1)


@dataclass(frozen=True)
class Losses:
    """The loss of one batch: the total, its terms, and means over the unlabelled samples for the metrics.

    Attributes:
        total: the loss whose gradient is taken.
        parts: its terms by name, weighted, without gradient.
        means: metrics of the unlabelled part of the batch by name, without gradient.
    """

    total: Float[Tensor, ""]
    parts: dict[str, Float[Tensor, ""]] = field(default_factory=dict)
    means: dict[str, Float[Tensor, ""]] = field(default_factory=dict)


class Objective(nn.Module):
    """All terms of the loss. Its state is that of the policy and of the outlier detector.

    Args:
        policy: weights pseudo-labels; None for supervised training.
        constraint: makes clusters Gaussian; None for none.
        detector: finds outliers among the weak views, by a head of its own or by the trained one; None for none.
        constraint_weight: of the constraint in the loss.
        unlabeled_weight: of the pseudo-label loss.
        fairness_weight: of the policy's fairness loss, where it has one.
        assign_labeled: clusters of labelled samples by "label" or "prediction".
        processes: the other processes.
    """

    def __init__(
        self,
        policy: Policy | None,
        constraint: AnyConstraint | None = None,
        detector: OutlierDetector | None = None,
        *,
        constraint_weight: float = 1.0,
        unlabeled_weight: float = 1.0,
        fairness_weight: float = 0.001,
        assign_labeled: Literal["label", "prediction"] = "label",
        processes: Processes | None = None,
    ) -> None:
        super().__init__()
        self.policy = policy
        self.constraint = constraint
        self.detector = detector
        self.constraint_weight = constraint_weight
        self.unlabeled_weight = unlabeled_weight
        self.fairness_weight = fairness_weight
        self.assign_labeled = assign_labeled
        self.processes = processes if processes is not None else Processes()

    def forward(
        self,
        head: Head,
        z: Embeddings,
        labels: Integer[Tensor, " b"],
        indices: Integer[Tensor, " u"],
        truth: Integer[Tensor, " u"],
        *,
        progress: float,
        guide: Guide | None = None,
    ) -> Losses:
        """The loss of a batch.

        Args:
            head: the trained head.
            z: embeddings of this process's part.
            labels: of the labelled images.
            indices: places of the unlabelled images in the pool.
            truth: their true classes where known, -1 where not, -2 for images of no class; read by the metrics alone.
            progress: how much of the training is done, 0 to 1.
            guide: another opinion about the unlabelled samples; None for the model's alone.
        """
        labeled_log_joint = head(z.labeled)
        parts = {"supervised_loss": F.cross_entropy(labeled_log_joint, labels)}
        means: dict[str, Tensor] = {}
        predicted = z.weak.new_empty(0, dtype=torch.int64)
        if self.policy is not None:
            with torch.no_grad():
                says = log_posterior(head(z.weak))
                posterior = says.exp() if guide is None else guide.mix(says)
            predicted = posterior.argmax(-1)
            exclude = self._outliers(z, progress)
            # The policy's memory is one: every process shows it the whole batch.
            gather = self.processes.gather
            all_excluded = None if exclude is None else gather(exclude)
            all_weights = self.policy(gather(posterior), gather(indices), all_excluded)
            weight = self.processes.own_part(all_weights)
            strong_log_joint = head(z.strong)
            errors = F.cross_entropy(strong_log_joint, predicted, reduction="none")
            parts["unlabeled_loss"] = self.unlabeled_weight * (weight * errors).mean()
            if self.policy.has_fairness_loss:
                strong = self.processes.gather_with_gradient(log_posterior(strong_log_joint).exp())
                parts["fairness_loss"] = self.fairness_weight * self.policy.fairness_loss(strong, all_weights)
            means = self._means(weight, predicted, truth, exclude)
        if self.constraint is not None and head.has_centers:
            clusters = labels if self.assign_labeled == "label" else labeled_log_joint.detach().argmax(-1)
            parts["constraint_loss"] = self.constraint_weight * self._constraint(head, z, clusters, predicted)
        total = torch.stack(tuple(parts.values())).sum()
        return Losses(total, {name: value.detach() for name, value in parts.items()}, means)

    @torch.no_grad()
    def _outliers(self, z: Embeddings, progress: float) -> Bool[Tensor, " u"] | None:
        if self.detector is None:
            return None
        # Not `fit`: that refuses a diverged batch, which the step skips by itself.
        self.detector.threshold_scores = self.detector.score(self.processes.gather(z.labeled))
        return self.detector.is_outlier(z.weak.detach(), progress=progress)

    def _constraint(self, head: Head, z: Embeddings, labeled_clusters: Tensor, predicted: Tensor) -> Float[Tensor, ""]:
        """The sum of one term a view: weak and strong views of a cluster are not the same distribution."""
        assert self.constraint is not None
        gather, gather_z = self.processes.gather, self.processes.gather_with_gradient
        views = [(gather_z(z.labeled), gather(labeled_clusters))]
        if self.policy is not None:
            clusters = gather(predicted)
            # A weak view without gradient ("split") cannot be moved.
            views += [(gather_z(view), clusters) for view in (z.weak, z.strong) if view.requires_grad]
        variances = None
        if self.constraint.whiten:
            # A diverged head may have variances of 0 or infinity, which the constraint refuses; the step is skipped by itself.
            limits = torch.finfo(head.variances.dtype)
            variances = head.variances.clamp(limits.tiny, limits.max)
        terms = [self.constraint(embeddings, head.centers, clusters, variances) for embeddings, clusters in views]
        return torch.stack(terms).sum()

    @torch.no_grad()
    def _means(
        self, weight: Tensor, predicted: Tensor, truth: Tensor, exclude: Tensor | None
    ) -> dict[str, Float[Tensor, ""]]:
        """Means over this process's part; averaged over the processes they are those of the global batch."""
        known = weight * (truth != UNLABELED)
        return {
            "utilisation": weight.mean(),
            "known_weight": known.mean(),
            "correct_weight": (known * (predicted == truth)).mean(),
            "outlier_share": weight.new_zeros(()) if exclude is None else exclude.to(weight.dtype).mean(),
        }


def build_objective(
    settings: LossSettings, head: Head, pool_size: int, processes: Processes | None = None
) -> Objective:
    """The loss as the settings say.

    Args:
        settings: completed by `LossSettings.for_head`.
        head: the head that trains. Outliers are scored by it, or by a copy of it where that is to be refitted.
        pool_size: N_u, samples of the unlabelled pool.
        processes: the other processes.
    """
    policy = None
    if settings.policy != "supervised":
        policy = POLICIES[settings.policy].build(
            num_classes=head.num_classes, num_samples=pool_size, cutoff=settings.cutoff
        )
    return Objective(
        policy,
        _build_constraint(settings),
        None if policy is None else _build_detector(settings, head),
        constraint_weight=settings.moment_weight,
        unlabeled_weight=settings.unlabeled_weight,
        fairness_weight=settings.fairness_weight,
        assign_labeled=settings.moment_assignment,
        processes=processes,
    )


def _build_constraint(settings: LossSettings) -> AnyConstraint | None:
    if not settings.moment_order:
        return None
    if settings.constraint == "mmd":
        return MMDConstraint(whiten=settings.moment_whiten)
    if settings.constraint == "kl":
        return KLConstraint(whiten=settings.moment_whiten)
    return MomentConstraint(settings.moment_order, whiten=settings.moment_whiten, variant=settings.moment_variant)


def _build_detector(settings: LossSettings, head: Head) -> OutlierDetector | None:
    if settings.outliers == "none":
        return None
    assert settings.outlier_score != "auto", "LossSettings.for_head has filled it in"
    outlier_head = copy.deepcopy(head).requires_grad_(False) if settings.outlier_refit_interval else head
    return OutlierDetector(
        outlier_head,
        score=settings.outlier_score,
        threshold=settings.outliers,
        percentile=settings.outlier_percentile,
        quantile=settings.outlier_quantile,
    )
