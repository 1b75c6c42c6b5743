"""The loss of a batch (docs/training.md): the algorithm's terms, the constraint, and metrics.

With several processes it is the loss of the global batch: algorithm and constraint are given gathered tensors.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from momatch.algorithms import Algorithm, Guess, Mixing, Output, Outputs, Sizes, Targets
from momatch.config import LossSettings
from momatch.constraints import KLConstraint, MMDConstraint
from momatch.constraints.moments import MomentConstraint
from momatch.data.dataset import NO_CLASS, UNLABELED
from momatch.heads import Head, log_posterior
from momatch.outliers import OutlierDetector
from momatch.training.algorithm import build_algorithm
from momatch.training.processes import Processes

AnyConstraint = MomentConstraint | MMDConstraint | KLConstraint

#: Lower bound on probabilities when mixing model and guide.
_MIN_PROBABILITY = 1e-8
#: A sample with a lower P(inlier) has no say in the state of the algorithm.
_LIKELY_OUTLIER = 0.5


@dataclass(frozen=True)
class Embeddings:
    """What one or two passes through the network made of this process's part of the batch; None for what did not pass.

    Attributes:
        labeled: of the labelled samples.
        weak: of the first weak view of the unlabelled ones.
        strong: of their first strong view.
        others: further views by name: "weak_1", "strong_1", "mixed_labeled", "rotated", ...
        features: the backbone's, by name of the view; only if the algorithm wants them.
    """

    labeled: Float[Tensor, "b D"] | None = None
    weak: Float[Tensor, "u D"] | None = None
    strong: Float[Tensor, "u D"] | None = None
    others: Mapping[str, Float[Tensor, "_ D"]] = field(default_factory=dict)
    features: Mapping[str, Float[Tensor, "_ F"]] = field(default_factory=dict)

    @classmethod
    def of(cls, views: Mapping[str, Tensor], features: Mapping[str, Tensor] | None = None) -> "Embeddings":
        """From embeddings by name."""
        common = {name: views[name] for name in ("labeled", "weak", "strong") if name in views}
        others = {name: z for name, z in views.items() if name not in common}
        return cls(**common, others=others, features=features or {})

    @classmethod
    def joined(cls, parts: Sequence["Embeddings"]) -> "Embeddings":
        """Of several passes, each of other views."""
        views = {name: z for part in parts for name, z in part.items()}
        return cls.of(views, {name: value for part in parts for name, value in part.features.items()})

    def items(self) -> Iterator[tuple[str, Float[Tensor, "_ D"]]]:
        """Names and embeddings of all views."""
        common = {"labeled": self.labeled, "weak": self.weak, "strong": self.strong}
        yield from ((name, z) for name, z in common.items() if z is not None)
        yield from self.others.items()

    def __getitem__(self, name: str) -> Float[Tensor, "_ D"]:
        return dict(self.items())[name]


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


@dataclass(frozen=True)
class PseudoLabeled:
    """The pseudo-labels of a batch.

    Attributes:
        targets: of the global batch.
        predicted: (u,) classes of this process's part.
        is_outlier: (u,) outliers in this process's part; None if they are not looked for.
        trust: (u,) P(inlier) of this process's part; None for 1.
    """

    targets: Targets
    predicted: Integer[Tensor, " u"]
    is_outlier: Bool[Tensor, " u"] | None = None
    trust: Float[Tensor, " u"] | None = None


@dataclass(frozen=True)
class BatchFacts:
    """What is known about this process's part of a batch besides its images.

    Attributes:
        labels: (b,) of the labelled samples.
        indices: (u,) of the unlabelled samples in the pool.
        truth: (u,) their true classes, -1 if unknown, -2 for outliers; used only for metrics.
        progress: fraction of the training that is done, 0 to 1.
        guide: mixed into the pseudo-labels; None for none.
        labeled_indices: (b,) of the labelled samples in the labelled set; None for 0, 1, ...
        turns: (u,) quarter turns of the view "rotated".
    """

    labels: Integer[Tensor, " b"]
    indices: Integer[Tensor, " u"]
    truth: Integer[Tensor, " u"]
    progress: float
    guide: Guide | None = None
    labeled_indices: Integer[Tensor, " b"] | None = None
    turns: Integer[Tensor, " u"] | None = None


class Objective(nn.Module):
    """All terms of the loss. Its state is that of the algorithm and the outlier detector.

    Args:
        algorithm: makes pseudo-labels and the terms of the loss.
        constraint: makes clusters Gaussian; None for none.
        detector: excludes outliers from the pseudo-labels; None for none.
        inlier_probability: (N_u,) P(inlier) of each pool sample, the weight of its pseudo-label; None for 1. Updated in place
            by whoever judges the pool.
        constraint_weight: weight of the constraint.
        trust_constraint: unlabelled samples count in the constraint by their `inlier_probability`.
        assign_labeled: assign labelled samples to clusters by "label" or "prediction".
        processes: for distributed training.
    """

    inlier_probability: Float[Tensor, " N_u"] | None

    def __init__(
        self,
        algorithm: Algorithm,
        constraint: AnyConstraint | None = None,
        detector: OutlierDetector | None = None,
        *,
        inlier_probability: Float[Tensor, " N_u"] | None = None,
        constraint_weight: float = 1.0,
        trust_constraint: bool = False,
        assign_labeled: Literal["label", "prediction"] = "label",
        processes: Processes | None = None,
    ) -> None:
        super().__init__()
        self.algorithm = algorithm
        self.constraint = constraint
        self.detector = detector
        self.register_buffer("inlier_probability", inlier_probability)
        self.constraint_weight = constraint_weight
        self.trust_constraint = trust_constraint
        self.assign_labeled = assign_labeled
        self.processes = processes if processes is not None else Processes()

    @property
    def has_pseudo_labels(self) -> bool:
        """Whether the algorithm uses the unlabelled samples."""
        return bool(self.algorithm.wants.guessed)

    @torch.no_grad()
    def label(self, head: Head, z: Embeddings, facts: BatchFacts) -> PseudoLabeled:
        """Make the pseudo-labels of a batch, and update the state of algorithm and detector.

        Args:
            head: whose posteriors they come from.
            z: of the guessed views; of the labelled samples as well if outliers are looked for, or features are wanted.
            facts: of the batch.
        """
        log_posteriors = [log_posterior(head(z[name])) for name in self.algorithm.wants.guessed]
        guess_log_posterior = log_posteriors[0]
        if len(log_posteriors) > 1:
            guess_log_posterior = torch.stack(log_posteriors).exp().mean(0).log()
        guide = facts.guide
        posterior = guess_log_posterior.exp() if guide is None else guide.mix(guess_log_posterior)
        trust = None if self.inlier_probability is None else self.inlier_probability[facts.indices]
        is_outlier = self._find_outliers(z, facts.progress) if trust is None else trust < _LIKELY_OUTLIER
        # Every process updates the state with the global batch, so that it is the same in all.
        gather = self.processes.gather
        features = {name: gather(value) for name, value in z.features.items()}
        guess = Guess(
            gather(posterior),
            gather(facts.indices),
            gather(facts.labels),
            gather(_labeled_indices(facts)),
            facts.progress,
            exclude=None if is_outlier is None else gather(is_outlier),
            trust=None if trust is None else gather(trust),
            features=features.get(self.algorithm.wants.guessed[0]),
            labeled_features=features.get("labeled"),
        )
        targets = self.algorithm.label(guess)
        return PseudoLabeled(targets, self.processes.own_part(targets.classes), is_outlier, trust)

    def mix(self, pseudo: PseudoLabeled, facts: BatchFacts, seed: int) -> Mixing:
        """Which samples of the global batch to mix, and their targets."""
        with torch.no_grad():
            return self.algorithm.mix(self.processes.gather(facts.labels), pseudo.targets, seed)

    def forward(
        self,
        head: Head,
        z: Embeddings,
        facts: BatchFacts,
        pseudo: PseudoLabeled | None = None,
        mixing: Mixing | None = None,
    ) -> Losses:
        """The loss, and an update of the state unless `label` has been called before.

        Args:
            head: maps embeddings to the log joint.
            z: the embeddings; with gradient where there is to be one.
            facts: of the batch.
            pseudo: the result of `label`; None to call it.
            mixing: the result of `mix`; None if nothing was mixed.
        """
        algorithm, processes = self.algorithm, self.processes
        wants = algorithm.wants
        # What pseudo-labels come from alone needs no gradient, and `label` computes it.
        unused = wants.guessed if wants.guess == "trained" and wants.splits else ()
        log_joints = {name: head(embeddings) for name, embeddings in z.items() if name not in unused}
        if pseudo is None and self.has_pseudo_labels:
            pseudo = self.label(head, z, facts)
        gathered = {name: processes.gather_with_gradient(value) for name, value in log_joints.items()}
        features = {name: processes.gather_with_gradient(value) for name, value in z.features.items()}
        outputs = Outputs(
            {name: Output(value, features.get(name)) for name, value in gathered.items()},
            processes.gather(facts.labels),
            facts.progress,
            turns=None if facts.turns is None else processes.gather(facts.turns),
            mixing=mixing,
        )
        parts = {"supervised_loss": algorithm.supervised_loss(outputs)}
        means: dict[str, Tensor] = {}
        if pseudo is not None:
            parts |= self._checked(algorithm.losses(outputs, pseudo.targets))
            means = self._pseudo_label_metrics(pseudo, facts.truth)
        if self.constraint is not None and head.has_centers:
            clusters = dict(self._clusters(z, log_joints, facts, pseudo, mixing))
            parts["constraint_loss"] = self.constraint_weight * self._constraint(head, z, clusters)
        total = torch.stack(tuple(parts.values())).sum()
        return Losses(total, {name: value.detach() for name, value in parts.items()}, means)

    def _checked(self, terms: dict[str, Tensor]) -> dict[str, Tensor]:
        """The terms of the algorithm's loss; one that it does not announce would be trained and never be seen in the log."""
        if unknown := terms.keys() - {*self.algorithm.terms}:
            raise ValueError(
                f"{type(self.algorithm).__name__}: losses returned {', '.join(sorted(unknown))}, expected only "
                f"{', '.join(self.algorithm.terms)}; name every term in `terms`"
            )
        for name, value in terms.items():
            if value.ndim:
                raise ValueError(
                    f"{type(self.algorithm).__name__}: the term {name} has shape {tuple(value.shape)}, expected a scalar: take "
                    "the mean over the batch"
                )
        return terms

    @torch.no_grad()
    def _find_outliers(self, z: Embeddings, progress: float) -> Bool[Tensor, " u"] | None:
        if self.detector is None:
            return None
        # Not `fit`, which rejects a diverged batch; the step will skip it.
        self.detector.threshold_scores = self.detector.score(self.processes.gather(z["labeled"]))
        return self.detector.is_outlier(z[self.algorithm.wants.guessed[0]].detach(), progress=progress)

    def _clusters(
        self,
        z: Embeddings,
        log_joints: Mapping[str, Tensor],
        facts: BatchFacts,
        pseudo: PseudoLabeled | None,
        mixing: Mixing | None,
    ) -> Iterator[tuple[str, Tensor]]:
        """Name of each view in the constraint, with the clusters of the global batch: classes (n,) or weights (n, K)."""
        gather, wants = self.processes.gather, self.algorithm.wants
        if z.labeled is not None:
            by_label = self.assign_labeled == "label"
            yield "labeled", gather(facts.labels if by_label else log_joints["labeled"].detach().argmax(-1))
        if pseudo is None:
            return
        predicted: Tensor = pseudo.predicted
        if pseudo.trust is not None and self.trust_constraint:
            num_classes = log_joints[next(iter(log_joints))].shape[-1]
            one_hot = F.one_hot(predicted, num_classes).to(pseudo.trust.dtype)
            predicted = pseudo.trust.unsqueeze(1) * one_hot
        predicted = gather(predicted)
        # With forward="split" the weak view has no gradient.
        yield from ((name, predicted) for name in wants.trained if z[name].requires_grad)
        # What is mixed of two classes counts in both.
        trust = pseudo.targets.keep.unsqueeze(1) if self.trust_constraint else 1.0
        for name, target in ({} if mixing is None else mixing.targets).items():
            yield f"mixed_{name}", target if name == "labeled" else target * trust

    def _constraint(self, head: Head, z: Embeddings, clusters: Mapping[str, Tensor]) -> Float[Tensor, ""]:
        """The sum of one term per view, because weak and strong views have different distributions."""
        assert self.constraint is not None
        gather_z = self.processes.gather_with_gradient
        variances = None
        if self.constraint.whiten:
            # The constraint rejects variances of 0 or infinity; a step that has them will be skipped.
            limits = torch.finfo(head.variances.dtype)
            variances = head.variances.clamp(limits.tiny, limits.max)
        terms = [
            self.constraint(gather_z(z[name]), head.centers, assigned, variances) for name, assigned in clusters.items()
        ]
        return torch.stack(terms).sum()

    @torch.no_grad()
    def _pseudo_label_metrics(
        self, pseudo: PseudoLabeled, truth: Integer[Tensor, " u"]
    ) -> dict[str, Float[Tensor, ""]]:
        """Means over this process's part of the batch; the step averages them over the processes."""
        weight = self.processes.own_part(pseudo.targets.weight)
        known = weight * (truth != UNLABELED)
        found = torch.zeros_like(truth, dtype=torch.bool) if pseudo.is_outlier is None else pseudo.is_outlier
        is_true = truth == NO_CLASS
        return {
            "utilisation": weight.mean(),
            "known_weight": known.mean(),
            "correct_weight": (known * (pseudo.predicted == truth)).mean(),
            "outlier_share": found.to(weight.dtype).mean(),
            "true_outliers": is_true.to(weight.dtype).mean(),
            "found_outliers": (found & is_true).to(weight.dtype).mean(),
            "outlier_weight": (weight * is_true).mean(),
        }


def _labeled_indices(facts: BatchFacts) -> Integer[Tensor, " b"]:
    if facts.labeled_indices is not None:
        return facts.labeled_indices
    return torch.arange(len(facts.labels), device=facts.labels.device)


def build_objective(
    settings: LossSettings,
    head: Head,
    pool_size: int,
    processes: Processes | None = None,
    *,
    num_labeled: int | None = None,
    num_features: int | None = None,
    teacher: Head | None = None,
    trust_code: bool | str = False,
) -> Objective:
    """Build the loss from settings.

    Args:
        settings: resolved by `LossSettings.for_head`.
        head: the head to train. Whichever head makes the pseudo-labels also scores outliers, unless `outlier_refit_interval`
            asks for a refitted copy.
        pool_size: N_u, size of the unlabelled pool.
        processes: for distributed training.
        num_labeled: size of the labelled set; None if it is at most that of the pool.
        num_features: size of the backbone's features; None if they are the embeddings.
        teacher: the averaged model's head; None for `head` itself.
        trust_code: allow importing an algorithm of the user's own.

    Raises:
        UntrustedCodeError: if the algorithm must be imported and `trust_code` is not set.
        ValueError: if the algorithm cannot be built.
    """
    sizes = Sizes(
        num_classes=head.num_classes,
        num_samples=pool_size,
        num_labeled=pool_size if num_labeled is None else num_labeled,
        num_features=head.embedding_dim if num_features is None else num_features,
    )
    algorithm = build_algorithm(settings, sizes, trust_code=trust_code)
    is_used = bool(algorithm.wants.guessed)
    labeler = teacher if teacher is not None and algorithm.wants.guess == "teacher" else head
    return Objective(
        algorithm,
        _build_constraint(settings),
        _build_detector(settings, labeler) if is_used else None,
        inlier_probability=torch.ones(pool_size) if is_used and settings.outliers == "auto" else None,
        constraint_weight=settings.moment_weight,
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
