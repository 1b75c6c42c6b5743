"""Batched weak and strong augmentation on the images' device, equal to Pillow's operations and reproducible from (seed, step).

`views` is the interface; `operations` chooses, `tables`, `blends` and `geometry` compute, `draws` makes the random numbers and
`normalize` turns the result into the network's input. Why it is written by hand: docs/decisions/0002-augmentation.md.
"""

from momatch.augment.normalize import Normalize, channel_statistics
from momatch.augment.operations import OPERATIONS
from momatch.augment.views import StrongAugment, WeakAugment

__all__ = ["OPERATIONS", "Normalize", "StrongAugment", "WeakAugment", "channel_statistics"]
