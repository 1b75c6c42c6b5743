"""All settings of a run. Does not import torch, so that ``momatch train --help`` answers at once."""

from momatch.config.settings import RUNTIME_KEYS, LossSettings, OptimizerSettings, TrainConfig

__all__ = ["RUNTIME_KEYS", "LossSettings", "OptimizerSettings", "TrainConfig"]
