"""Batched weak and strong augmentation on the images' device, equal to Pillow's operations and reproducible from (seed, step).

`views` is the interface; `cached` draws from views that a backbone has seen before; `operations` chooses, `levels`, `blends`
and `geometry` compute (on the CPU mostly `host`), `draws` makes the random numbers. Why it is written by hand:
docs/decisions/0002-augmentation.md.
"""

from momatch.augment.cached import CachedView
from momatch.augment.operations import OPERATIONS
from momatch.augment.views import StrongAugment, View, WeakAugment

__all__ = ["OPERATIONS", "CachedView", "StrongAugment", "View", "WeakAugment"]
