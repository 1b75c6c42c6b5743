"""The calibration error that chance alone gives: that of classes drawn from the posteriors themselves."""

import torch

from momatch.evaluation.metrics import calibration

DRAWS = 20


def chance_error(log_posterior, bins=15):
    """Mean calibration error in percent of a perfectly calibrated model with these posteriors and as many test samples."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(log_posterior.exp(), DRAWS, replacement=True, generator=generator)
    return 100 * sum(calibration(log_posterior, classes, bins=bins).error for classes in drawn.T) / DRAWS
