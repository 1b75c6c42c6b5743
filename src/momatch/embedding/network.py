"""The backbone of an embedding, with its weights kept, and what it makes of a batch of images in all views."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float16, Int64, UInt8
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from momatch.augment import StrongAugment, WeakAugment
from momatch.augment.draws import draw
from momatch.data.feature_spec import FeatureSpec
from momatch.models.classifier import Classifier
from momatch.models.model_files import build_classifier
from momatch.models.spec import ModelSpec
from momatch.storage.durable import replace_files


class Network:
    """From raw images to features of all their views.

    Args:
        classifier: its backbone and preprocessing are used; on its device, in evaluation mode.
        spec: how many views, and which.
    """

    def __init__(self, classifier: Classifier, spec: FeatureSpec) -> None:
        self._classifier = classifier.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._device = next(iter([*classifier.backbone.parameters(), torch.empty(0)])).device
        flip = spec.flip == "yes"
        self._weak = WeakAugment(flip=flip)
        self._strong = StrongAugment(flip=flip, num_operations=spec.strong_operations, cutout=spec.cutout)
        self._spec = spec
        self.num_features: int = classifier.backbone.num_features  # type: ignore[assignment] # build_backbone sets it

    def views(self, images: UInt8[Tensor, "n C H W"], rows: Int64[Tensor, " n"]) -> Float16[np.ndarray, "n V F"]:
        """Features of the plain, the weak and the strong views.

        View j of its kind is that of (seed, step j, position = row in the dataset), whatever the batch and the limit.

        Args:
            images: raw.
            rows: (n,) their rows in the dataset, ascending.

        Raises:
            ValueError: if features are not finite in float16.
        """
        images = images.to(self._device)
        weak = [self._view(self._weak, images, rows, j) for j in range(self._spec.weak_views)]
        strong = [self._view(self._strong, images, rows, j) for j in range(self._spec.strong_views)]
        return self._features([images, *weak, *strong])

    def plain(self, images: UInt8[Tensor, "n C H W"]) -> Float16[np.ndarray, "n 1 F"]:
        """Features of the images as they are.

        Raises:
            ValueError: as `views`.
        """
        return self._features([images.to(self._device)])

    def try_out(self) -> None:
        """Pass two black images, so that a backbone that cannot take what it will be given is known before the work.

        Raises:
            ValueError: if it fails.
        """
        shape = (2, self._spec.in_channels, *self._spec.image_size)
        dtypes = {str(value.dtype) for value in self._classifier.backbone.parameters()} - {"torch.float32"}
        hint = f"; its weights are {', '.join(sorted(dtypes))}, images come in float32: let its factory return .float()"
        try:
            self._raw_features(torch.zeros(shape, dtype=torch.uint8, device=self._device))
        except Exception as error:
            raise ValueError(
                f"backbone {self._spec.backbone!r}: got {type(error).__name__}: {error}, expected features of two images of "
                f"shape {shape[1:]}{hint if dtypes else ''}"
            ) from error

    def _view(
        self, view: WeakAugment | StrongAugment, images: UInt8[Tensor, "n C H W"], rows: Int64[Tensor, " n"], step: int
    ) -> UInt8[Tensor, "n C H W"]:
        first, last = int(rows[0]), int(rows[-1])
        draws = draw(
            last - first + 1,
            view.num_draws,
            seed=self._spec.seed,
            step=step,
            view=view.default_view,
            offset=first,
            device=images.device,
        )
        return view.apply(images, draws[(rows - first).to(images.device)])

    def _features(self, views: Sequence[UInt8[Tensor, "n C H W"]]) -> Float16[np.ndarray, "n V F"]:
        features = torch.stack([self._raw_features(view) for view in views], 1).cpu()
        if not bool(features.isfinite().all()):
            raise ValueError(
                f"backbone {self._spec.backbone!r}: got features that are not finite in float16 (up to 65,504), expected "
                "finite ones; scale what the network returns, with a norm layer at its end for example"
            )
        return features.numpy()

    @torch.inference_mode()
    def _raw_features(self, images: UInt8[Tensor, "n C H W"]) -> Float16[Tensor, "n F"]:
        assert self._classifier.preprocess is not None, "the spec have the dataset's statistics"
        x = self._classifier.preprocess(images.contiguous(memory_format=torch.channels_last))
        features: Tensor = self._classifier.backbone(x)
        return features.to(torch.float16)


def build_network(model: ModelSpec, spec: FeatureSpec, weights: Path, device: torch.device) -> Network:
    """The network of an embedding; its weights are in `weights` if the embedding was begun before, else they are put there.

    The random state of the caller is left as it was.

    Raises:
        ValueError: if the backbone cannot be built or does not take images, its state holds anything but tensors, or it does
            not fit the weights.
        OSError: if the weights cannot be written or read.

    Warns:
        UserWarning: if the weights in `weights` are others than the backbone starts with now.
    """
    classifier = _build(model, spec)
    if not weights.exists():
        content = _content(classifier, spec)
        network = Network(classifier.to(device), spec)
        network.try_out()
        replace_files({weights: content})
        return network
    fresh = _content(classifier, spec)
    try:
        classifier.backbone.load_state_dict(load(weights.read_bytes()))
    except (RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"{weights}: the weights that the embedding was begun with do not fit backbone {spec.backbone!r} any more; "
            f"delete {weights.parent} to begin anew"
        ) from error
    # A backbone that starts from other weights each time, whatever the seed, has not been changed by anyone.
    if fresh != _content(classifier, spec) and fresh == _content(_build(model, spec), spec):
        warnings.warn(
            f"backbone {spec.backbone!r} has other weights now than when the embedding was begun: going on with the weights "
            f"it was begun with; delete {weights.parent} while it is stopped to begin anew with those of now",
            stacklevel=2,
        )
    return Network(classifier.to(device), spec)


def _build(model: ModelSpec, spec: FeatureSpec) -> Classifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        # Whoever embeds names the backbone; no file does.
        return build_classifier(model, trust_code=True)


def _content(classifier: Classifier, spec: FeatureSpec) -> bytes:
    """The backbone's weights and buffers as they are stored."""
    state = classifier.backbone.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"backbone {spec.backbone!r}: got {name} of type {type(value).__name__} in its state")
    return save({name: value.contiguous().clone() for name, value in state.items()})
