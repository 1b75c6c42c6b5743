"""Memory: reuse freed memory across training steps, and explain out-of-memory errors.

glibc returns large freed blocks to the system. A training step on the CPU frees all its activations and immediately allocates
them again, and the system zeroes every page each time: up to a third of the step time for a Wide ResNet. Allocator settings
prevent that. Their environment variables (MALLOC_MMAP_MAX_, MALLOC_TRIM_THRESHOLD_) must be set before Python starts, so they
are set through mallopt(3) instead.

Threads other than the first get heaps of their own, which those settings do not keep from shrinking: prediction in threads
spent more than half of its CPU time on zeroing pages. With one heap for all threads it does not. That has to be set before
numpy and torch start threads, because a heap that exists is used again.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Parameters of mallopt(3), part of glibc's ABI.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8

_SETTINGS = (
    # No block gets its own mapping, which would be returned to the system when freed.
    (_M_MMAP_MAX, 0),
    # The heap never shrinks. glibc reads the int as a size, so -1 is the largest; INT_MAX would trim above 2 GB.
    (_M_TRIM_THRESHOLD, -1),
    # The heap grows by this much at a time. This only reserves address space; untouched pages use no memory.
    (_M_TOP_PAD, 64 << 20),
    # One heap for all threads; what large blocks wait for each other is nothing beside what they compute.
    (_M_ARENA_MAX, 1),
)


def keep_large_blocks() -> bool:
    """Make the C allocator keep freed blocks of any size for reuse; call it before numpy and torch start threads.

    This applies to the rest of the process, whose memory usage then stays at its peak. Calling it again has no effect.

    Returns:
        True with glibc; False on other systems and C libraries, where it does nothing.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    # musl has neither; an allocator preloaded before glibc may have a mallopt without these parameters.
    if not (hasattr(libc, "gnu_get_libc_version") and hasattr(libc, "mallopt")):
        return False
    return all(libc.mallopt(parameter, value) == 1 for parameter, value in _SETTINGS)


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Replace torch's out-of-memory errors by a message that names the settings to change.

    Raises:
        ValueError: in place of torch's error.
    """
    # Imported here: `keep_large_blocks` comes before torch.
    import torch

    try:
        yield
    except RuntimeError as error:
        # There is no dedicated exception on the CPU.
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise ValueError(
            f"out of memory: {str(error).splitlines()[0]}; reduce unlabeled_batch_size, labeled_batch_size, image_size or "
            "embedding_dim, or memory_size of an algorithm that has a memory, or split the batches with accumulate"
        ) from error
