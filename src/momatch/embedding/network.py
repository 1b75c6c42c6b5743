"""The backbone of an embedding, with saved weights, applied to all views of a batch of images."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float16, Float32, Int64, UInt8
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from momatch.augment import StrongAugment, WeakAugment
from momatch.augment.draws import draw_at
from momatch.data.feature_spec import FeatureSpec
from momatch.data.rows import Rows
from momatch.inference.predict.pipeline import default_workers, in_order
from momatch.models.backbones.side_by_side import SideBySide
from momatch.models.classifier import Classifier
from momatch.models.model_files import build_classifier
from momatch.models.outputs import standardize_backbone
from momatch.models.spec import ModelSpec
from momatch.outliers.stages import StageReader, find_stages
from momatch.storage.durable import replace_files

#: Images that a thread passes through the network at once: their activations stay in the cache, and are soon reused.
_AT_ONCE = 16


class Network:
    """Computes features of all views of raw images, and in the same pass the statistics of the plain view's stages.

    Args:
        classifier: provides backbone and preprocessing; runs on its device, in evaluation mode.
        spec: which views to make, and how many.

    Raises:
        ValueError: if the backbone fails on two images.
    """

    def __init__(self, classifier: Classifier, spec: FeatureSpec) -> None:
        self._classifier = classifier.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._device = next(iter([*classifier.backbone.parameters(), torch.empty(0)])).device
        flip = spec.flip == "yes"
        self._weak = WeakAugment(flip=flip)
        self._strong = StrongAugment(flip=flip, num_operations=spec.strong_operations, cutout=spec.cutout)
        self._spec = spec
        self.num_features: int = classifier.backbone.num_features  # type: ignore[assignment] # build_backbone sets it
        self._reader, self.num_statistics = self._try_out()

    @property
    def stage_names(self) -> tuple[str, ...]:
        """The backbone's stages; see `FeatureSpec`."""
        return self._reader.names

    def views(
        self, images: UInt8[Tensor, "n C H W"], keys: Int64[Tensor, " n"]
    ) -> tuple[Float16[np.ndarray, "n V F"], Float32[np.ndarray, "n S"]]:
        """Features of the plain, weak and strong views, and statistics of the plain view's stages.

        View j of each kind depends on (seed, step j, key of the image) only, not on the batch or the other images.

        Args:
            images: raw images.
            keys: (n,) a number for each image's content (`momatch.data.content.draw_keys`).

        Raises:
            ValueError: if features are not finite in float16, or statistics in float32.
        """
        return self._in_threads(images, keys)

    def plain(
        self, images: UInt8[Tensor, "n C H W"]
    ) -> tuple[Float16[np.ndarray, "n 1 F"], Float32[np.ndarray, "n S"]]:
        """Features of the plain view only, and statistics of its stages.

        Raises:
            ValueError: if features are not finite in float16, or statistics in float32.
        """
        return self._in_threads(images, None)

    def _in_threads(
        self, images: UInt8[Tensor, "n C H W"], keys: Int64[Tensor, " n"] | None
    ) -> tuple[Float16[np.ndarray, "n V F"], Float32[np.ndarray, "n S"]]:
        """Split the images among threads on a CPU: they do not wait for each other after every layer."""
        size = _AT_ONCE if self._device.type == "cpu" else len(images)
        parts = [slice(first, first + size) for first in range(0, len(images), size)]
        with self._reader.attached():
            found = list(
                in_order(
                    lambda part: self._of_part(images[part], None if keys is None else keys[part]),
                    parts,
                    default_workers(),
                )
            )
        features, stages = zip(*found, strict=True)
        return np.concatenate(features), np.concatenate(stages)

    def _of_part(
        self, images: UInt8[Tensor, "n C H W"], keys: Int64[Tensor, " n"] | None
    ) -> tuple[Float16[np.ndarray, "n V F"], Float32[np.ndarray, "n S"]]:
        n = len(images)
        # Repeats images of a small part: convolutions of few images are computed in another order, which changes last digits.
        places = torch.arange(max(n, _AT_ONCE)) % n
        images = images[places].to(self._device)
        others = []
        if keys is not None:
            weak = [self._view(self._weak, images, keys[places], j) for j in range(self._spec.weak_views)]
            strong = [self._view(self._strong, images, keys[places], j) for j in range(self._spec.strong_views)]
            others = [*weak, *strong]
        features, stages = self._computed(images, others)
        return features[:n], stages[:n]

    @torch.inference_mode()
    def _try_out(self) -> tuple[StageReader, int]:
        """Find the backbone's stages and count their statistics on two images; an unsuitable backbone fails here, early."""
        shape = (2, self._spec.in_channels, *self._spec.image_size)
        dtypes = {str(value.dtype) for value in self._classifier.backbone.parameters()} - {"torch.float32"}
        hint = f"; its weights are {', '.join(sorted(dtypes))} but images are float32: have its factory return .float()"
        # Noise, because a network that normalises each image may fail on black ones.
        noise = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        try:
            x = self._preprocessed(noise.to(self._device))
            backbone = self._classifier.backbone
            reader = StageReader(backbone, find_stages(backbone, x))
            features, stages = reader(x)
            features.to(torch.float16)
        except Exception as error:
            raise ValueError(
                f"backbone {self._spec.backbone!r}: got {type(error).__name__}: {error}, expected features for two images "
                f"of shape {shape[1:]}{hint if dtypes else ''}"
            ) from error
        return reader, stages.shape[1]

    def _view(
        self, view: WeakAugment | StrongAugment, images: UInt8[Tensor, "n C H W"], keys: Int64[Tensor, " n"], step: int
    ) -> UInt8[Tensor, "n C H W"]:
        draws = draw_at(keys.to(images.device), view.num_draws, seed=self._spec.seed, step=step, view=view.default_view)
        return view.apply(images, draws)

    @torch.inference_mode()
    def _computed(
        self, plain: UInt8[Tensor, "n C H W"], others: Sequence[UInt8[Tensor, "n C H W"]]
    ) -> tuple[Float16[np.ndarray, "n V F"], Float32[np.ndarray, "n S"]]:
        first, statistics = self._reader(self._preprocessed(plain))
        rest = [self._classifier.backbone(self._preprocessed(view)) for view in others]
        features = torch.stack([view.to(torch.float16) for view in (first, *rest)], 1).cpu()
        if not bool(features.isfinite().all()):
            raise ValueError(
                f"backbone {self._spec.backbone!r}: got features that are not finite in float16 (up to 65,504), expected "
                "finite ones; scale the network's output, for example with a final norm layer"
            )
        stages = statistics.to(torch.float32).cpu()
        if not bool(stages.isfinite().all()):
            raise ValueError(
                f"backbone {self._spec.backbone!r}: got statistics of its stages ({', '.join(self.stage_names) or 'features'}) "
                "that are not finite in float32, expected finite ones; scale the outputs of these layers, or name others in "
                "its attribute stage_names"
            )
        return features.numpy(), stages.numpy()

    def _preprocessed(self, images: UInt8[Tensor, "n C H W"]) -> Float[Tensor, "n C H W"]:
        assert self._classifier.preprocess is not None, "the spec has the dataset's statistics"
        x: Tensor = self._classifier.preprocess(images.contiguous(memory_format=torch.channels_last))
        return x


def build_network(
    model: ModelSpec,
    spec: FeatureSpec,
    weights: Path,
    device: torch.device,
    *,
    sample: Rows,
    backbone_options: Mapping[str, object] | None = None,
) -> Network:
    """Build the network of an embedding. Weights are read from `weights` if the file exists, else saved there.

    The caller's random state is preserved.

    Args:
        model: to build the backbone from.
        spec: of the features file.
        weights: file of the weights.
        device: where the network runs.
        sample: images that the features of several backbones are standardised over.
        backbone_options: see `momatch.models.backbones.build_backbone`.

    Raises:
        ValueError: if the backbone cannot be built, fails on images, has state other than tensors, or does not match `weights`.
        OSError: if the weights cannot be written or read.

    Warns:
        UserWarning: if the saved weights differ from those the backbone starts with now.
    """
    misfit = (
        f"{weights}: the weights of the unfinished embedding no longer fit backbone {spec.backbone!r}; "
        f"delete {weights.parent} to start over"
    )
    try:
        saved = load(weights.read_bytes()) if weights.exists() else None
    except SafetensorError as error:
        raise ValueError(misfit) from error

    def build() -> Classifier:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(spec.seed)
            # The user named the backbone on the command line, no file did.
            built = build_classifier(model, trust_code=True, backbone_options=backbone_options or {})
        if saved is None:
            standardize_backbone(built, sample)
        elif isinstance(built.backbone, SideBySide):
            built.backbone.standardize_as(saved)
        return built

    classifier = build()
    if saved is None:
        content = _content(classifier, spec)
        network = Network(classifier.to(device), spec)
        replace_files({weights: content})
        return network
    fresh = _content(classifier, spec)
    try:
        classifier.backbone.load_state_dict(saved)
    except RuntimeError as error:
        raise ValueError(misfit) from error
    # Do not warn about a backbone whose initial weights are random despite the seed: nobody changed it.
    if fresh != _content(classifier, spec) and fresh == _content(build(), spec):
        warnings.warn(
            f"backbone {spec.backbone!r}: its weights have changed since the embedding was started; resuming with the original "
            f"weights; to start over with the new ones, stop this and delete {weights.parent}",
            stacklevel=2,
        )
    return Network(classifier.to(device), spec)


def _content(classifier: Classifier, spec: FeatureSpec) -> bytes:
    """The backbone's weights and buffers, serialised."""
    state = classifier.backbone.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"backbone {spec.backbone!r}: got {name} of type {type(value).__name__} in its state")
    return save({name: value.contiguous().clone() for name, value in state.items()})
