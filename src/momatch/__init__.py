"""momatch: classification with very few labels that knows when it does not know.

Names are imported on first use, so that ``import momatch`` (and the command line) starts without loading torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from momatch._version import __version__ as __version__

if TYPE_CHECKING:
    from momatch.algorithms import Algorithm as Algorithm
    from momatch.algorithms import Targets as Targets
    from momatch.algorithms import Wants as Wants
    from momatch.augment import StrongAugment as StrongAugment
    from momatch.augment import WeakAugment as WeakAugment
    from momatch.config import TrainConfig as TrainConfig
    from momatch.constraints import KLConstraint as KLConstraint
    from momatch.constraints import MMDConstraint as MMDConstraint
    from momatch.constraints import MomentConstraint as MomentConstraint
    from momatch.data.batches import BatchStream as BatchStream
    from momatch.data.contaminate import contaminate as contaminate
    from momatch.data.contaminate import hold_out_classes as hold_out_classes
    from momatch.data.dataset import Dataset as Dataset
    from momatch.data.dataset import Examples as Examples
    from momatch.data.dataset import Split as Split
    from momatch.data.load import load_dataset as load_dataset
    from momatch.data.sources.torch_dataset import from_torch_dataset as from_torch_dataset
    from momatch.data.splits import split_as_labeled as split_as_labeled
    from momatch.data.splits import split_by_files as split_by_files
    from momatch.data.splits import split_by_rows as split_by_rows
    from momatch.data.splits import split_by_seed as split_by_seed
    from momatch.estimator import MoMatchClassifier as MoMatchClassifier
    from momatch.estimator import NetworkOptions as NetworkOptions
    from momatch.heads import AAGMM as AAGMM
    from momatch.heads import KMeans as KMeans
    from momatch.heads import Linear as Linear
    from momatch.heads import log_density as log_density
    from momatch.heads import log_posterior as log_posterior
    from momatch.inference.evaluate import evaluate_run as evaluate_run
    from momatch.inference.export import export_model as export_model
    from momatch.models.backbones import build_backbone as build_backbone
    from momatch.models.classifier import Classifier as Classifier
    from momatch.models.normalize import Normalize as Normalize
    from momatch.models.saved_model import SavedModel as SavedModel
    from momatch.outliers import Judge as Judge
    from momatch.outliers import OutlierDetector as OutlierDetector
    from momatch.outliers import StageJudge as StageJudge
    from momatch.outliers import benjamini_hochberg as benjamini_hochberg
    from momatch.pseudo_labels import FixMatchPolicy as FixMatchPolicy
    from momatch.pseudo_labels import FlexMatchPolicy as FlexMatchPolicy
    from momatch.pseudo_labels import FreeMatchPolicy as FreeMatchPolicy
    from momatch.pseudo_labels import SoftMatchPolicy as SoftMatchPolicy
    from momatch.report import report_run as report_run
    from momatch.suggestions import Suggestions as Suggestions
    from momatch.suggestions import suggest as suggest
    from momatch.training.fit import fit as fit
    from momatch.training.run import Run as Run

#: Public name -> the module that defines it. Type checkers read the block above; a test keeps the two in sync.
_HOME = {
    "Algorithm": "algorithms",
    "Targets": "algorithms",
    "Wants": "algorithms",
    "StrongAugment": "augment",
    "WeakAugment": "augment",
    "build_backbone": "models.backbones",
    "Classifier": "models.classifier",
    "TrainConfig": "config",
    "KLConstraint": "constraints",
    "MMDConstraint": "constraints",
    "BatchStream": "data.batches",
    "contaminate": "data.contaminate",
    "hold_out_classes": "data.contaminate",
    "Dataset": "data.dataset",
    "Split": "data.dataset",
    "load_dataset": "data.load",
    "Examples": "data.dataset",
    "split_as_labeled": "data.splits",
    "split_by_files": "data.splits",
    "split_by_rows": "data.splits",
    "split_by_seed": "data.splits",
    "from_torch_dataset": "data.sources.torch_dataset",
    "MoMatchClassifier": "estimator",
    "NetworkOptions": "estimator",
    "export_model": "inference.export",
    "AAGMM": "heads",
    "KMeans": "heads",
    "Linear": "heads",
    "log_density": "heads",
    "log_posterior": "heads",
    "MomentConstraint": "constraints",
    "Normalize": "models.normalize",
    "Judge": "outliers",
    "OutlierDetector": "outliers",
    "StageJudge": "outliers",
    "benjamini_hochberg": "outliers",
    "FixMatchPolicy": "pseudo_labels",
    "FlexMatchPolicy": "pseudo_labels",
    "FreeMatchPolicy": "pseudo_labels",
    "SoftMatchPolicy": "pseudo_labels",
    "report_run": "report",
    "Suggestions": "suggestions",
    "suggest": "suggestions",
    "evaluate_run": "inference.evaluate",
    "fit": "training.fit",
    "Run": "training.run",
    "SavedModel": "models.saved_model",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'momatch' has no attribute {name!r}")
    value = getattr(import_module(f"momatch.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
