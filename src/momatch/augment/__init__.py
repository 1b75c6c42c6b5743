"""Batched weak and strong augmentation on the images' device: same results as Pillow, reproducible from (seed, step).

`views` is the interface; `cached` draws from saved features; `operations` selects the operations; `levels`, `blends` and
`geometry` compute them (`host` does most of it on the CPU); `draws` makes the random numbers. Why it is hand-written:
docs/decisions/0002-augmentation.md.
"""

from momatch.augment.cached import CachedView
from momatch.augment.operations import OPERATIONS
from momatch.augment.views import StrongAugment, View, WeakAugment

__all__ = ["OPERATIONS", "CachedView", "StrongAugment", "View", "WeakAugment"]
