"""Find near-duplicates: the same picture recompressed, brightened, blurred, noisy, shifted by a few pixels or mirrored.

Two stages, both exact (no hashing buckets that a small change can miss):

1. Candidates: each image is averaged to 8x8 gray, then made zero-mean and unit-length; the product of two such descriptors is
   their correlation. One matrix product per block compares all pairs. Smooth scenes such as sky look alike at this scale, so
   this stage alone gives far too many matches.
2. Confirmation: the fine detail of a candidate and its reference is correlated at the best shift of a few pixels. Detail is the
   image minus its local mean, divided by its local contrast, so that a single strong edge such as a horizon does not dominate.
   The detail of duplicates correlates; that of different pictures does not, even with the same layout.

The thresholds were chosen on CIFAR-10's test images, which contain duplicates: of 17,399 pairs with a similar layout (0.85),
all 34 above 0.55 show the same picture, and the best pair of different pictures has 0.52. Of pictures recompressed (JPEG 40),
noisy (8 gray levels), brightened, resized by 0.75 or cropped by 6 %, 99 % are above 0.62. Shifts by 3 % of the width are found,
by 6 % mostly not.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Complex64, Float32, Int64, UInt8
from torch import Tensor

from momatch.console.progress import CountProgress

#: Correlation of the 8x8 layouts that makes a pair a candidate; a shift by 3 of 96 pixels still reaches it.
LAYOUT_THRESHOLD = 0.8
#: Correlation of the fine detail that confirms a candidate.
DETAIL_THRESHOLD = 0.55
_LAYOUT = 8
_DETAIL = 32
_MAX_SHIFT = 2
_CANDIDATES = 16
#: Contrast in gray levels below which detail counts less: it is compression noise in flat regions.
_CONTRAST_FLOOR = 6.0
_BLOCK = 2048


def _gray(images: UInt8[Tensor, "n C H W"]) -> Float32[Tensor, "n 1 H W"]:
    return images.float().mean(dim=1, keepdim=True)


def layout_descriptors(images: UInt8[Tensor, "n C H W"]) -> Float32[Tensor, "n d"]:
    """Zero-mean, unit-length 8x8 gray layouts; zero for a uniform image."""
    cells = F.adaptive_avg_pool2d(_gray(images), _LAYOUT).flatten(1)
    return F.normalize(cells - cells.mean(dim=1, keepdim=True), dim=1)


def _detail(images: UInt8[Tensor, "n C H W"]) -> Float32[Tensor, "n s s"]:
    """Fine detail at up to 32 x 32 pixels: the image minus its 5x5 mean, divided by its 7x7 contrast."""
    small = F.adaptive_avg_pool2d(_gray(images), min(_DETAIL, *images.shape[2:]))
    detail = small - F.avg_pool2d(small, 5, stride=1, padding=2, count_include_pad=False)
    contrast = F.avg_pool2d(detail.square(), 7, stride=1, padding=3, count_include_pad=False).sqrt()
    return (detail / (contrast + _CONTRAST_FLOOR)).squeeze(1)


@dataclass(frozen=True)
class _References:
    """References: layouts, spectra of their detail, and the norm of the detail in each shifted window."""

    layouts: Float32[Tensor, "M d"]
    spectra: Complex64[Tensor, "M s r"]
    lengths: Float32[Tensor, "M w w"]

    @classmethod
    def of(cls, references: UInt8[Tensor, "M C H W"], *, mirror: bool) -> "_References":
        parts = []
        for start in range(0, len(references), _BLOCK):
            block = references[start : start + _BLOCK]
            block = block.flip(-1) if mirror else block
            detail = _detail(block)
            inner = detail.shape[-1] - 2 * _MAX_SHIFT
            squares = F.avg_pool2d(detail.square()[:, None], inner, stride=1).squeeze(1) * inner**2
            parts.append((layout_descriptors(block), torch.fft.rfft2(detail), squares.sqrt()))
        return cls(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _templates(images: UInt8[Tensor, "n C H W"]) -> Complex64[Tensor, "n s r"]:
    """Conjugate spectra of the unit-length inner detail of each image, to be shifted over a reference."""
    detail = _detail(images)
    side = detail.shape[-1]
    inner = detail[:, _MAX_SHIFT : side - _MAX_SHIFT, _MAX_SHIFT : side - _MAX_SHIFT]
    unit = F.normalize(inner.flatten(1), dim=1).view_as(inner)
    # Padded to the reference's size, so that the shifts do not wrap around.
    spectra: Tensor = torch.fft.rfft2(unit, s=(side, side))
    return spectra.conj()


def _correlate(
    templates: Complex64[Tensor, "n s r"], spectra: Complex64[Tensor, "n s r"], lengths: Float32[Tensor, "n w w"]
) -> Float32[Tensor, " n"]:
    """Correlation of each template with its reference at the best of the w x w shifts."""
    window, side = lengths.shape[-1], spectra.shape[-2]
    products: Tensor = torch.fft.irfft2(templates * spectra, s=(side, side))
    return (products[:, :window, :window] / lengths.clamp_min(1e-6)).flatten(1).amax(dim=1)


def find_near_duplicates(
    images: UInt8[Tensor, "N C H W"],
    references: UInt8[Tensor, "M C H W"],
    *,
    detail_threshold: float = DETAIL_THRESHOLD,
    progress: bool = False,
) -> tuple[Bool[Tensor, " N"], Int64[Tensor, " N"]]:
    """Which of `images` are near-duplicates of one of `references`, or of its mirror image.

    Args:
        images: read in blocks; may be memory-mapped.
        references: images to compare all `images` with.
        detail_threshold: see the module docstring; higher finds fewer.
        progress: show a progress bar.

    Returns:
        (N,) true for near-duplicates, and (N,) the best matching reference, -1 for none.
    """
    known = [_References.of(references, mirror=mirror) for mirror in (False, True)]
    match = torch.full((len(images),), -1, dtype=torch.int64)
    with CountProgress(len(images), label="near-duplicates", enabled=progress) as bar:
        for start in range(0, len(images), _BLOCK):
            block = images[start : start + _BLOCK]
            layouts, templates = layout_descriptors(block), _templates(block)
            best = torch.full((len(block),), detail_threshold)
            for side in known:
                _confirm(layouts, templates, side, best, match[start : start + len(block)])
            bar.add(len(block))
    return match >= 0, match


def _confirm(
    layouts: Float32[Tensor, "n d"],
    templates: Complex64[Tensor, "n s r"],
    known: _References,
    best: Float32[Tensor, " n"],
    match: Int64[Tensor, " n"],
) -> None:
    """Update `best` and `match` in place for each image that correlates with a candidate by at least `best`."""
    similarity = layouts @ known.layouts.T
    top = similarity.topk(min(_CANDIDATES, similarity.shape[1]), dim=1)
    rows, ranks = (top.values >= LAYOUT_THRESHOLD).nonzero(as_tuple=True)
    for start in range(0, len(rows), _BLOCK):
        row = rows[start : start + _BLOCK]
        reference = top.indices[row, ranks[start : start + _BLOCK]]
        score = _correlate(templates[row], known.spectra[reference], known.lengths[reference])
        passed = score >= best[row]
        # A loop, because an image may pass with several references; few pairs get here.
        for i, j, value in zip(*(part[passed].tolist() for part in (row, reference, score)), strict=True):
            if value >= best[i]:
                best[i], match[i] = value, j
