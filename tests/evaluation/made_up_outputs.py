"""Outputs of a classifier that never was: classes that are Gaussian in what the network saw, and outliers far from them."""

import torch

from momatch.models.outputs import Outputs

#: Classes, and statistics of the stages.
K, F = 3, 6


def made(labels, *, F=F, seed=0, sure=True, dtype=torch.float32):
    """Outputs of samples of the given classes; class -2 is far from all of them in what the network saw.

    The classifier is sure of every sample, also of the outliers, which it takes for class 0.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.as_tensor(labels)
    means = 6 * torch.randn(K, F, generator=torch.Generator().manual_seed(99))
    stages = means[labels.clamp_min(0)] + torch.randn(len(labels), F, generator=generator)
    stages[labels == -2] += 40.0
    z = torch.randn(len(labels), 4, generator=generator)
    joint = 100.0 * torch.nn.functional.one_hot(labels.clamp_min(0), K) if sure else torch.zeros(len(labels), K)
    return Outputs(z, joint.float(), stages.to(dtype))


def split(per_class=8, pool=120, outliers=0):
    """Classes of labelled samples, then of the pool, which ends with the outliers; and the labels that are known."""
    truth = torch.cat([torch.arange(K * per_class) % K, torch.arange(pool - outliers) % K, torch.full((outliers,), -2)])
    known = truth.clone()
    known[K * per_class :] = -1
    return truth, known
