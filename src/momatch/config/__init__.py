"""Every setting of a run. Plain Python: ``momatch train --help`` reads it and must not wait for torch."""

from momatch.config.settings import RUNTIME_KEYS, TrainConfig

__all__ = ["RUNTIME_KEYS", "TrainConfig"]
