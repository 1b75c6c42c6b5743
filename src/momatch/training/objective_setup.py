"""From a config to the loss: policy, constraint and outlier detector."""

import copy

from momatch.config import TrainConfig
from momatch.constraints import KLConstraint, MMDConstraint
from momatch.constraints.moments import MomentConstraint
from momatch.heads import Head
from momatch.outliers import OutlierDetector
from momatch.pseudo_labels import POLICIES, FixMatchPolicy, FlexMatchPolicy
from momatch.training.objective import AnyConstraint, AnyPolicy, Objective
from momatch.training.processes import Processes


def build_objective(config: TrainConfig, head: Head, pool_size: int, processes: Processes | None = None) -> Objective:
    """The loss as the resolved config says; outliers are judged by a copy of the head if it is to be refitted."""
    detector = None
    if config.outliers != "none" and config.policy != "supervised":
        assert config.outlier_score != "auto", "resolved"
        judge = copy.deepcopy(head).requires_grad_(False) if config.outlier_refit_interval else head
        detector = OutlierDetector(
            judge,
            score=config.outlier_score,
            threshold=config.outliers,
            percentile=config.outlier_percentile,
            quantile=config.outlier_quantile,
        )
    return Objective(
        _policy(config, head.num_classes, pool_size),
        _constraint(config),
        detector,
        constraint_weight=config.moment_weight,
        unlabeled_weight=config.unlabeled_weight,
        fairness_weight=config.fairness_weight,
        assign_labeled=config.moment_assignment,
        processes=processes,
    )


def _policy(config: TrainConfig, num_classes: int, pool_size: int) -> AnyPolicy | None:
    if config.policy == "supervised":
        return None
    if config.policy == "fixmatch":
        return FixMatchPolicy(cutoff=config.cutoff)
    if config.policy == "flexmatch":
        return FlexMatchPolicy(num_classes, pool_size, cutoff=config.cutoff)
    policy = POLICIES[config.policy]
    assert not issubclass(policy, FixMatchPolicy | FlexMatchPolicy)
    return policy(num_classes)


def _constraint(config: TrainConfig) -> AnyConstraint | None:
    if not config.moment_order:
        return None
    if config.constraint == "mmd":
        return MMDConstraint(whiten=config.moment_whiten)
    if config.constraint == "kl":
        return KLConstraint(whiten=config.moment_whiten)
    return MomentConstraint(config.moment_order, whiten=config.moment_whiten, variant=config.moment_variant)
