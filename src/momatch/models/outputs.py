"""Run a classifier over any number of images or features."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from momatch.data.rows import Rows
from momatch.models.backbones import SideBySide
from momatch.models.classifier import Classifier
from momatch.numerics.checks import check_positive_int
from momatch.outliers.stages import thinned

#: Images that features are standardised over.
STANDARDIZED_OVER = 256
_CHUNK = 16


@dataclass(frozen=True)
class Outputs:
    """Outputs of a classifier for n samples, on the CPU, in float32 or better.

    Attributes:
        z: embeddings, (n, D).
        log_joint: log p(y=k, x), (n, K).
        stages: statistics of the network's stages, (n, S); None if they were not asked for.
    """

    z: Float[Tensor, "n D"]
    log_joint: Float[Tensor, "n K"]
    stages: Float[Tensor, "n S"] | None = None

    def __len__(self) -> int:
        return len(self.z)

    def select(self, positions: Int64[Tensor, " m"]) -> "Outputs":
        """The outputs of the samples at `positions`."""
        stages = None if self.stages is None else self.stages[positions]
        return Outputs(self.z[positions], self.log_joint[positions], stages)

    def append(self, other: "Outputs") -> "Outputs":
        """These outputs, followed by those of `other`, which must have stages if these have."""
        stages = None
        if self.stages is not None:
            assert other.stages is not None
            stages = torch.cat([self.stages, other.stages])
        return Outputs(torch.cat([self.z, other.z]), torch.cat([self.log_joint, other.log_joint]), stages)


def run_classifier(
    classifier: Classifier,
    rows: Rows | Tensor,
    *,
    stage_names: Sequence[str] | None = None,
    most_statistics: int | None = None,
    batch_size: int = 512,
) -> Outputs:
    """Embeddings and log joints of raw images or cached features, in evaluation mode, without gradient or autocast.

    The classifier stays on its device, and the training mode of each part is restored. Rows are read one batch at a time, so
    they may be memory-mapped.

    Args:
        classifier: the model; for images it needs a `preprocess`.
        rows: uint8 images (N, C, H, W), or features (N, V, F) of its backbone, of which the first view is used.
        stage_names: also return the statistics of these stages of the backbone; None for none. Those of features were
            stored with them.
        most_statistics: every k-th statistic is kept, so that there are at most so many; None for all.
        batch_size: rows per batch.

    Raises:
        ValueError: if there are no rows, they are neither raw pixels nor features, `batch_size` is below 1, or features have
            no stages.
    """
    check_positive_int("batch_size", batch_size)
    rows = Rows.of(rows).plain()
    if len(rows) == 0:
        raise ValueError(f"{rows.noun}: got none, expected at least one")
    device = next(classifier.parameters()).device
    parts: list[tuple[Tensor, ...]] = []
    # A caller's inference mode is switched off too: inference tensors cannot be used in training later.
    with _evaluation_mode(classifier), torch.inference_mode(False), torch.no_grad(), _without_autocast(device):
        for positions in torch.arange(len(rows)).split(batch_size):
            batch = rows.gather(positions).to(device)
            if stage_names is None:
                found: tuple[Tensor, ...] = (rows.embed(classifier, batch),)
            else:
                found = rows.inspect(classifier, batch, positions, stage_names)
            z, *stages = found
            if most_statistics is not None:
                # Contiguous, so that the others' memory is free.
                stages = [thinned(each, most_statistics).contiguous() for each in stages]
            parts.append(tuple(map(_on_cpu, (z, classifier.head(z), *stages))))
        return Outputs(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def standardize_backbone(classifier: Classifier, rows: Rows) -> None:
    """Standardise the features of several backbones over a sample of raw images; does nothing for one backbone."""
    backbone = classifier.backbone
    if not isinstance(backbone, SideBySide):
        return
    assert classifier.preprocess is not None, "the backbones have statistics of their own"
    sample = rows.even_share(STANDARDIZED_OVER)
    with _evaluation_mode(classifier):
        backbone.standardize(
            classifier.preprocess(sample.gather(positions)) for positions in torch.arange(len(sample)).split(_CHUNK)
        )


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", torch.promote_types(tensor.dtype, torch.float32))


@contextmanager
def _evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode, then restore the mode of each part, since some may be frozen."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def _without_autocast(device: torch.device) -> Iterator[None]:
    if not torch.amp.is_autocast_available(device.type):
        yield
        return
    with torch.autocast(device.type, enabled=False):
        yield
