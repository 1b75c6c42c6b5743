"""The loss of a batch (docs/training.md): supervised, pseudo-label, constraint and fairness terms, and metrics.

With several processes it is the loss of the global batch: whatever mixes samples is gathered first.
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
from momatch.data.dataset import NO_CLASS, UNLABELED
from momatch.heads import Head, log_posterior
from momatch.outliers import OutlierDetector
from momatch.pseudo_labels import POLICIES, Policy
from momatch.training.processes import Processes

AnyConstraint = MomentConstraint | MMDConstraint | KLConstraint

#: Lower bound on probabilities when mixing model and guide.
_MIN_PROBABILITY = 1e-8
#: A sample with a lower P(inlier) has no say in the thresholds of the policy.
_LIKELY_OUTLIER = 0.5


@dataclass(frozen=True)
class Embeddings:
    """Embeddings of this process's part of the batch: labelled images, and both views of the unlabelled ones."""

    labeled: Float[Tensor, "b D"]
    weak: Float[Tensor, "u D"]
    strong: Float[Tensor, "u D"]


@dataclass(frozen=True)
class Guide:
    """Class probabilities from another source, mixed with the model's to make pseudo-labels.

    Attributes:
        posterior: (u, K) for this process's unlabelled samples.
        weight: 0 (model only) to 1 (guide only).
    """

    posterior: Float[Tensor, "u K"]
    weight: float

    def mix(self, log_posterior: Float[Tensor, "u K"]) -> Float[Tensor, "u K"]:
        """The posterior proportional to model^(1 - weight) guide^weight, with both bounded away from 0."""
        guide = self.posterior.clamp_min(_MIN_PROBABILITY).log()
        model = log_posterior.clamp_min(math.log(_MIN_PROBABILITY))
        return torch.softmax((1.0 - self.weight) * model + self.weight * guide, -1)


@dataclass(frozen=True)
class Losses:
    """The loss of one batch.

    Attributes:
        total: the loss to differentiate.
        parts: its weighted terms by name, without gradient.
        means: metrics of the unlabelled samples by name, without gradient.
    """

    total: Float[Tensor, ""]
    parts: dict[str, Float[Tensor, ""]] = field(default_factory=dict)
    means: dict[str, Float[Tensor, ""]] = field(default_factory=dict)


class Objective(nn.Module):
    """All terms of the loss. Its state is that of the policy and the outlier detector.

    Args:
        policy: weights pseudo-labels; None for supervised training.
        constraint: makes clusters Gaussian; None for none.
        detector: excludes outliers from the pseudo-labels; None for none.
        inlier_probability: (N_u,) P(inlier) of each pool sample, the weight of its pseudo-label; None for 1. Updated in place
            by whoever judges the pool.
        constraint_weight: weight of the constraint.
        unlabeled_weight: weight of the pseudo-label loss.
        fairness_weight: weight of the policy's fairness loss, if it has one.
        trust_constraint: unlabelled samples count in the constraint by their `inlier_probability`.
        assign_labeled: assign labelled samples to clusters by "label" or "prediction".
        processes: for distributed training.
    """

    inlier_probability: Float[Tensor, " N_u"] | None

    def __init__(
        self,
        policy: Policy | None,
        constraint: AnyConstraint | None = None,
        detector: OutlierDetector | None = None,
        *,
        inlier_probability: Float[Tensor, " N_u"] | None = None,
        constraint_weight: float = 1.0,
        unlabeled_weight: float = 1.0,
        fairness_weight: float = 0.001,
        trust_constraint: bool = False,
        assign_labeled: Literal["label", "prediction"] = "label",
        processes: Processes | None = None,
    ) -> None:
        super().__init__()
        self.policy = policy
        self.constraint = constraint
        self.detector = detector
        self.register_buffer("inlier_probability", inlier_probability)
        self.constraint_weight = constraint_weight
        self.unlabeled_weight = unlabeled_weight
        self.fairness_weight = fairness_weight
        self.trust_constraint = trust_constraint
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
            labels: classes of the labelled samples.
            indices: of the unlabelled samples in the pool.
            truth: their true classes, -1 if unknown, -2 for outliers; used only for metrics.
            progress: fraction of the training that is done, 0 to 1.
            guide: mixed into the pseudo-labels; None for none.
        """
        labeled_log_joint = head(z.labeled)
        parts = {"supervised_loss": F.cross_entropy(labeled_log_joint, labels)}
        means: dict[str, Tensor] = {}
        predicted, trust = z.weak.new_empty(0, dtype=torch.int64), None
        if self.policy is not None:
            with torch.no_grad():
                weak_log_posterior = log_posterior(head(z.weak))
                posterior = weak_log_posterior.exp() if guide is None else guide.mix(weak_log_posterior)
            predicted = posterior.argmax(-1)
            trust = None if self.inlier_probability is None else self.inlier_probability[indices]
            is_outlier = self._find_outliers(z, progress) if trust is None else trust < _LIKELY_OUTLIER
            # Every process updates the policy with the global batch, so that its state is the same in all.
            gather = self.processes.gather
            exclude = None if is_outlier is None else gather(is_outlier)
            all_weights = self.policy(gather(posterior), gather(indices), exclude)
            weight = self.processes.own_part(all_weights)
            weight = weight if trust is None else weight * trust
            strong_log_joint = head(z.strong)
            sample_losses = F.cross_entropy(strong_log_joint, predicted, reduction="none")
            parts["unlabeled_loss"] = self.unlabeled_weight * (weight * sample_losses).mean()
            if self.policy.has_fairness_loss:
                strong_posterior = self.processes.gather_with_gradient(log_posterior(strong_log_joint).exp())
                parts["fairness_loss"] = self.fairness_weight * self.policy.fairness_loss(strong_posterior, all_weights)
            means = self._pseudo_label_metrics(weight, predicted, truth, is_outlier)
        if self.constraint is not None and head.has_centers:
            clusters = labels if self.assign_labeled == "label" else labeled_log_joint.detach().argmax(-1)
            if trust is not None and self.trust_constraint:
                predicted = trust.unsqueeze(1) * F.one_hot(predicted, head.num_classes).to(trust.dtype)
            parts["constraint_loss"] = self.constraint_weight * self._constraint(head, z, clusters, predicted)
        total = torch.stack(tuple(parts.values())).sum()
        return Losses(total, {name: value.detach() for name, value in parts.items()}, means)

    @torch.no_grad()
    def _find_outliers(self, z: Embeddings, progress: float) -> Bool[Tensor, " u"] | None:
        if self.detector is None:
            return None
        # Not `fit`, which rejects a diverged batch; the step will skip it.
        self.detector.threshold_scores = self.detector.score(self.processes.gather(z.labeled))
        return self.detector.is_outlier(z.weak.detach(), progress=progress)

    def _constraint(self, head: Head, z: Embeddings, labeled_clusters: Tensor, predicted: Tensor) -> Float[Tensor, ""]:
        """The sum of one term per view, because weak and strong views have different distributions."""
        assert self.constraint is not None
        gather, gather_z = self.processes.gather, self.processes.gather_with_gradient
        views = [(gather_z(z.labeled), gather(labeled_clusters))]
        if self.policy is not None:
            clusters = gather(predicted)
            # With forward="split" the weak view has no gradient.
            views += [(gather_z(view), clusters) for view in (z.weak, z.strong) if view.requires_grad]
        variances = None
        if self.constraint.whiten:
            # The constraint rejects variances of 0 or infinity; a step that has them will be skipped.
            limits = torch.finfo(head.variances.dtype)
            variances = head.variances.clamp(limits.tiny, limits.max)
        terms = [self.constraint(embeddings, head.centers, clusters, variances) for embeddings, clusters in views]
        return torch.stack(terms).sum()

    @torch.no_grad()
    def _pseudo_label_metrics(
        self, weight: Tensor, predicted: Tensor, truth: Tensor, is_outlier: Tensor | None
    ) -> dict[str, Float[Tensor, ""]]:
        """Means over this process's part of the batch; the step averages them over the processes."""
        known = weight * (truth != UNLABELED)
        found = torch.zeros_like(truth, dtype=torch.bool) if is_outlier is None else is_outlier
        is_true = truth == NO_CLASS
        return {
            "utilisation": weight.mean(),
            "known_weight": known.mean(),
            "correct_weight": (known * (predicted == truth)).mean(),
            "outlier_share": found.to(weight.dtype).mean(),
            "true_outliers": is_true.to(weight.dtype).mean(),
            "found_outliers": (found & is_true).to(weight.dtype).mean(),
            "outlier_weight": (weight * is_true).mean(),
        }


def build_objective(
    settings: LossSettings, head: Head, pool_size: int, processes: Processes | None = None
) -> Objective:
    """Build the loss from settings.

    Args:
        settings: resolved by `LossSettings.for_head`.
        head: the head to train. It also scores outliers, unless `outlier_refit_interval` asks for a refitted copy.
        pool_size: N_u, size of the unlabelled pool.
        processes: for distributed training.
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
        inlier_probability=torch.ones(pool_size) if policy is not None and settings.outliers == "auto" else None,
        constraint_weight=settings.moment_weight,
        unlabeled_weight=settings.unlabeled_weight,
        fairness_weight=settings.fairness_weight,
        trust_constraint=settings.moment_inliers,
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
    if settings.outliers == "auto":  # soft weights instead
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
