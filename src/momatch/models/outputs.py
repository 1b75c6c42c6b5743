"""Run a classifier over any number of images or features."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from momatch.data.rows import Rows
from momatch.models.classifier import Classifier
from momatch.numerics.checks import check_positive_int


@dataclass(frozen=True)
class Outputs:
    """Outputs of a classifier for n samples, on the CPU, in float32 or better.

    Attributes:
        z: embeddings, (n, D).
        log_joint: log p(y=k, x), (n, K).
    """

    z: Float[Tensor, "n D"]
    log_joint: Float[Tensor, "n K"]

    def __len__(self) -> int:
        return len(self.z)

    def select(self, positions: Int64[Tensor, " m"]) -> "Outputs":
        """The outputs of the samples at `positions`."""
        return Outputs(self.z[positions], self.log_joint[positions])


def run_classifier(classifier: Classifier, rows: Rows | Tensor, *, batch_size: int = 512) -> Outputs:
    """Embeddings and log joints of raw images or cached features, in evaluation mode, without gradient or autocast.

    The classifier stays on its device, and the training mode of each part is restored. Rows are read one batch at a time, so
    they may be memory-mapped.

    Args:
        classifier: the model; for images it needs a `preprocess`.
        rows: uint8 images (N, C, H, W), or features (N, V, F) of its backbone, of which the first view is used.
        batch_size: rows per batch.

    Raises:
        ValueError: if there are no rows, they are neither raw pixels nor features, or `batch_size` is below 1.
    """
    check_positive_int("batch_size", batch_size)
    rows = Rows.of(rows).plain()
    if len(rows) == 0:
        raise ValueError(f"{rows.noun}: got none, expected at least one")
    device = next(classifier.parameters()).device
    parts: list[tuple[Tensor, Tensor]] = []
    # A caller's inference mode is switched off too: inference tensors cannot be used in training later.
    with _evaluation_mode(classifier), torch.inference_mode(False), torch.no_grad(), _without_autocast(device):
        for batch in rows.chunks(batch_size):
            z = rows.embed(classifier, batch.to(device))
            parts.append((_on_cpu(z), _on_cpu(classifier.head(z))))
        z, log_joint = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return Outputs(z, log_joint)


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
