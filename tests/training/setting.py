"""A small training setting shared by the tests: random images, a network without batch norm unless asked for."""

from dataclasses import replace

import torch
from torch import nn

from momatch.classifier import Classifier
from momatch.config import TrainConfig
from momatch.data.batches import Batch
from momatch.heads import HEADS
from momatch.normalize import Normalize
from momatch.training.processes import Processes
from momatch.training.setup import build_step
from momatch.training.step import TrainStep

K, D, POOL, SIZE = 3, 4, 24, 8

CONFIG = TrainConfig(
    embedding_dim=D, labeled_batch_size=4, unlabeled_batch_size=8, steps=10, cutoff=0.4, moment_order=2, device="cpu"
).resolved()


def small_classifier(head: str = "aagmm", *, batch_norm: bool = False, device: str = "cpu") -> Classifier:
    """A convolution and a linear layer; double precision would hide what float32 does."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(6) if batch_norm else nn.Identity()
    backbone = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=not batch_norm), norm, nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )
    classifier = Classifier(backbone, HEADS[head](D, K), nn.Linear(24, D), preprocess=Normalize((0.5,), (0.25,)))
    return classifier.to(device)


def small_step(
    config: TrainConfig = CONFIG, *, batch_norm: bool = False, device: str = "cpu", processes: Processes | None = None
) -> TrainStep:
    """A step that trains the small classifier."""
    classifier = small_classifier(config.head, batch_norm=batch_norm, device=device)
    truth = (torch.arange(POOL) % K).to(device)
    return build_step(config, classifier, truth, processes)


def small_batch(step: int = 0, *, device: str = "cpu", b: int = 4, u: int = 8) -> Batch:
    """A batch of random bytes."""
    generator = torch.Generator().manual_seed(step)

    def images(n: int) -> torch.Tensor:
        return torch.randint(0, 256, (n, 1, SIZE, SIZE), dtype=torch.uint8, generator=generator).to(device)

    return Batch(
        step=step,
        labeled_images=images(b),
        labels=(torch.arange(b) % K).to(device),
        labeled_indices=torch.arange(b).to(device),
        unlabeled_images=images(u),
        unlabeled_indices=torch.randperm(POOL, generator=generator)[:u].to(device),
    )


def with_settings(**settings: object) -> TrainConfig:
    """The small config with other settings."""
    return replace(CONFIG, **settings).resolved()
