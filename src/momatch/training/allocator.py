"""Memory: keep that of one training step for the next, and say what to do where there is not enough.

glibc hands large blocks back to the system when they are freed. A training step on the CPU frees all its activations and
asks for the same ones again at once, and the system clears every page of them anew: for a Wide ResNet up to a third of the
time of a step. Two settings of the allocator end that. They are known as environment variables (MALLOC_MMAP_MAX_,
MALLOC_TRIM_THRESHOLD_), which work only if they are there before Python starts.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Parameters of mallopt(3): their numbers are part of glibc's binary interface.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4

_SETTINGS = (
    # No block gets a mapping of its own, which would go back to the system with the block.
    (_M_MMAP_MAX, 0),
    # The heap never shrinks. glibc reads the int as a size, so -1 is the largest; INT_MAX would trim above 2 GB.
    (_M_TRIM_THRESHOLD, -1),
    # The heap grows by this much at a time: address space only, a page counts when it is touched.
    (_M_TOP_PAD, 64 << 20),
)


def keep_large_blocks() -> bool:
    """Tell the C allocator of this process to keep freed blocks of any size for the next step.

    It holds for the rest of the process, whose memory then stays at its peak; blocks that were allocated earlier still go
    back as before. Calling it again changes nothing.

    Returns:
        Whether it was done: True with glibc; False on other systems and C libraries, where nothing is changed.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    # musl has neither; other allocators that are loaded before glibc may bring a mallopt without these parameters.
    if not (hasattr(libc, "gnu_get_libc_version") and hasattr(libc, "mallopt")):
        return False
    return all(libc.mallopt(parameter, value) == 1 for parameter, value in _SETTINGS)


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Turn torch's errors about memory that cannot be had into a sentence that names the settings to change.

    Raises:
        ValueError: in place of torch's error.
    """
    try:
        yield
    except RuntimeError as error:
        # Only accelerators have a class of error for it.
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise ValueError(
            f"out of memory: {str(error).splitlines()[0]}; reduce unlabeled_batch_size, labeled_batch_size, image_size or "
            "embedding_dim, or split the batches with accumulate"
        ) from error
