"""A small training setting shared by the tests: random images, a network without batch norm unless asked for.

Views of an image are predicted differently, several classes occur, and some samples fall below the cutoff, so that no part of
the step can be left out without a trace; test_objective.py holds it to that.
"""

from dataclasses import replace

import torch
from torch import nn

from momatch.config import TrainConfig
from momatch.data.batches import Batch
from momatch.heads import HEADS, Linear
from momatch.models.classifier import Classifier
from momatch.models.normalize import Normalize
from momatch.training.processes import Processes
from momatch.training.setup import build_step
from momatch.training.step import TrainStep

# A small pool: FlexMatch's cutoffs are 0 until it has selected much of it.
K, D, POOL, SIZE = 3, 4, 12, 8

CONFIG = TrainConfig(
    dataset="cifar10",  # whose images may be turned
    embedding_dim=D,
    labeled_batch_size=4,
    unlabeled_batch_size=8,
    steps=10,
    cutoff=0.6,
    moment_order=2,
    outliers="none",
    device="cpu",
).resolved()

#: P(inlier) of the pool with outliers="auto": of some samples nothing is left, and some have no say but weigh something.
INLIER = torch.tensor([1.0, 0.0, 0.3, 0.5, 0.9, 0.75, 0.49, 1.0, 1.0, 0.6, 0.2, 0.95])

#: The policies' averages after much training. From where they start, at 1/K, every sample would count.
LATE_AVERAGES: dict[str, dict[str, float | tuple[float, ...]]] = {
    "freematch": {"tau": 0.7, "mean_posterior": (0.45, 0.2, 0.35), "mean_histogram": (0.3, 0.3, 0.4)},
    "softmatch": {"mean": 0.7, "variance": 0.05, "mean_posterior": (0.45, 0.2, 0.35)},
}


def small_classifier(head: str = "aagmm", *, batch_norm: bool = False, device: str = "cpu") -> Classifier:
    """A convolution and a linear layer."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(6) if batch_norm else nn.Identity()
    backbone = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=not batch_norm), norm, nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )
    last, projection = HEADS[head](D, K), nn.Linear(24, D)
    # Of random images an untrained network makes nearly the same point, and centers close to each other hold it for all theirs.
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        projection.weight *= 8.0
        (last.weight if isinstance(last, Linear) else last.centers).normal_(generator=generator)
    return Classifier(backbone, last, projection, preprocess=Normalize((0.5,), (0.25,))).to(device)


def small_step(
    config: TrainConfig = CONFIG,
    *,
    batch_norm: bool = False,
    device: str = "cpu",
    processes: Processes | None = None,
    dtype: torch.dtype = torch.float32,
) -> TrainStep:
    """A step that trains the small classifier."""
    classifier = small_classifier(config.head, batch_norm=batch_norm, device=device).to(dtype)
    truth = (torch.arange(POOL) % K).to(device)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # of the algorithm's own parameters
    step = build_step(config, classifier, truth, processes)
    torch.set_default_dtype(default)
    for name, value in LATE_AVERAGES.get(config.algorithm, {}).items():
        getattr(step.objective.algorithm.policy, name).copy_(torch.tensor(value))
    return step


def small_batch(step: int = 0, *, device: str = "cpu", b: int = 4, u: int = 8) -> Batch:
    """A batch of random bytes."""
    generator = torch.Generator().manual_seed(step)

    def images(n: int) -> torch.Tensor:
        return torch.randint(0, 256, (n, 1, SIZE, SIZE), dtype=torch.uint8, generator=generator).to(device)

    return Batch(
        step=step,
        labeled=images(b),
        labels=(torch.arange(b) % K).to(device),
        labeled_indices=torch.arange(b).to(device),
        unlabeled=images(u),
        unlabeled_indices=torch.randperm(POOL, generator=generator)[:u].to(device),
    )


def with_settings(**settings: object) -> TrainConfig:
    """The small config with other settings."""
    # Each algorithm has a weight of its own.
    own = {"unlabeled_weight": None} if "algorithm" in settings else {}
    return replace(CONFIG, **{**own, **settings}).resolved()
