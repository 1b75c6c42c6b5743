"""Calibration errors beside that of a single draw of labels: that of chance alone, and that of all draws together."""

import numpy as np
import torch

from momatch.evaluation.metrics import calibration

DRAWS = 20


def chance_error(log_posterior, bins=15):
    """Mean calibration error in percent of a perfectly calibrated model with these posteriors and as many test samples."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(log_posterior.exp(), DRAWS, replacement=True, generator=generator)
    return 100 * sum(calibration(log_posterior, classes, bins=bins).error for classes in drawn.T) / DRAWS


def reliability(found):
    """Of each bin of a `calibration`: its share of the samples, and confidence and accuracy times that share."""
    share = found.count.double() / found.count.sum()
    rows = torch.stack([share, share * found.confidence, share * found.accuracy], 1).tolist()
    return [[round(value, 5) for value in row] for row in rows]


def joint_error(of_draws):
    """Calibration error in percent of all draws together, each of the same weight, from their `reliability`."""
    _, confidence, accuracy = np.mean(of_draws, axis=0).T
    return 100 * float(np.abs(confidence - accuracy).sum())
