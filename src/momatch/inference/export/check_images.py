"""Images to compare a graph and a model on: made up, and of a run's own dataset where that is at hand."""

import warnings

import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

from momatch.data.rows import PixelRows
from momatch.models.spec import ModelFacts
from momatch.training.data import load_run_data
from momatch.training.run import Run

#: So many of each kind.
COUNT = 48


def made_up_images(facts: ModelFacts, *, seed: int = 0) -> UInt8[Tensor, "n C H W"]:
    """Smooth shapes with shades as photographs have them, plain noise, and images of one colour from black to white."""
    generator = torch.Generator().manual_seed(seed)
    shape = (COUNT, facts.in_channels, *facts.image_size)
    coarse = torch.rand(COUNT, facts.in_channels, 4, 4, generator=generator)
    smooth = F.interpolate(coarse, size=facts.image_size, mode="bicubic", align_corners=False)
    # From faint to glaring.
    contrast = torch.linspace(0.2, 2.0, COUNT)[:, None, None, None]
    smooth = 0.5 + contrast * (smooth - 0.5) + 0.02 * torch.randn(shape, generator=generator)
    noise = torch.rand(shape, generator=generator)
    flat = torch.linspace(0, 1, 5)[:, None, None, None].expand(5, *shape[1:])
    # The first is compared alone: let it be an ordinary one.
    return (torch.cat([smooth, flat, noise]) * 255).round().clamp(0, 255).to(torch.uint8)


def own_images(run: Run) -> UInt8[Tensor, "n C H W"] | None:
    """Some images of the run's dataset, test images if there are any; None where it is not at hand. Nothing is downloaded."""
    facts = run.facts
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the data, which training has said
            dataset = load_run_data(run.directory, progress=False, download=False)
        some = PixelRows([(dataset.test or dataset.train).images]).even_share(COUNT)
        return torch.cat(list(some.for_model((facts.in_channels, *facts.image_size)).chunks()))
    except (ValueError, OSError, ImportError):
        return None
