"""Every setting of a run. Plain Python: ``momatch train --help`` reads it and must not wait for torch."""

from momatch.config.settings import RUNTIME_KEYS, LossSettings, OptimizerSettings, TrainConfig

__all__ = ["RUNTIME_KEYS", "LossSettings", "OptimizerSettings", "TrainConfig"]
