"""pytorch-ood's detectors on features and logits that are there already, with the settings that the library has by default.

It is no dependency of momatch:

    pip install --no-deps pytorch-ood==0.4.0

Its package imports its datasets and models, which need torchvision; the detectors do not. So that torchvision is not needed,
the package's own `__init__` is passed over and `pytorch_ood.detector` is imported as it stands: not a line of a detector is
replaced.
"""

import importlib.util
import logging
import sys
import types

import torch

VERSION = "0.4.0"


def detectors():
    """The module `pytorch_ood.detector`."""
    if "pytorch_ood" not in sys.modules:
        spec = importlib.util.find_spec("pytorch_ood")
        if spec is None:
            raise SystemExit(f"pytorch-ood is not installed: pip install --no-deps pytorch-ood=={VERSION}")
        package = types.ModuleType("pytorch_ood")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["pytorch_ood"] = package
    logging.getLogger("pytorch_ood").setLevel(logging.ERROR)
    return importlib.import_module("pytorch_ood.detector")


def on_logits():
    """Name -> a detector of logits."""
    ood = detectors()
    names = ("MaxSoftmax", "MaxLogit", "EnergyBased", "Entropy", "GEN", "KLMatching", "OpenMax")
    return {name: getattr(ood, name)(None) for name in names}


def on_features():
    """Name -> a detector of features alone."""
    ood = detectors()
    return {
        "Mahalanobis": ood.Mahalanobis(None),
        "RMD": ood.RMD(None),
        "GMM": ood.GMM(None),
        "KNN (k = 50)": ood.KNN(None),
        "KNN (k = 50, not normalised)": ood.KNN(None, normalize=False),
    }


def on_features_and_head(head):
    """Name -> a detector of features that also asks the linear layer behind them (`torch.nn.Linear`)."""
    ood = detectors()
    half = head.in_features // 2
    return {
        f"ViM (d = {half})": ood.ViM(None, d=half, w=head.weight, b=head.bias),
        "SHE": ood.SHE(None, head),
        "NNGuide": ood.NNGuide(None, head),
        "fDBD": ood.fDBD(None, head),
        "NCI": ood.NCI(None, head),
        "PNML": ood.PNML(None, head),
    }


def on_activations(head):
    """Name -> a detector that shapes what comes out of a ReLU, before the linear layer behind it: features of at least 0."""
    ood = detectors()

    def behind(maps):
        return head(maps.flatten(1))

    return {
        "DICE (p = 0.9)": ood.DICE(None, w=head.weight, b=head.bias, p=0.9),
        "ReAct": ood.ReAct(None, behind),
        "ASH": ood.ASH(None, behind),
        "SCALE": ood.SCALE(None, behind),
        "VRA": ood.VRA(None, behind),
        "LTS": ood.LTS(None, head),
    }


@torch.no_grad()
def scores(detector, known, labels, batches):
    """Fit a detector on known samples where it has something to fit; then the outlier scores of each of the batches.

    Args:
        detector: of logits, features or feature maps.
        known: (n, size) what it takes, of samples of known classes.
        labels: (n,) their classes.
        batches: name -> (m, size).
    """
    kind = next(kind for kind in ("logits", "features", "feature_maps") if hasattr(detector, f"predict_{kind}"))
    if kind == "feature_maps":
        # What the pooling leaves is a map of one pixel.
        known, batches = known[..., None, None], {name: values[..., None, None] for name, values in batches.items()}
    if detector.requires_fit:
        getattr(detector, f"fit_{kind}")(known, labels)
    return {name: getattr(detector, f"predict_{kind}")(values).detach().double() for name, values in batches.items()}
