"""A trained classifier on disk: model.safetensors (weights) and model.json (what they belong to, checksums). No pickle."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from momatch._version import __version__
from momatch.backbones import Normalization
from momatch.classifier import Classifier
from momatch.heads import HEADS
from momatch.training.checkpoint import explain_write_errors
from momatch.training.durable import replace_files
from momatch.training.tensor_files import decode, encode

_KIND = "momatch model"
_WEIGHTS, _FACTS = "model.safetensors", "model.json"
_REFITTED = "refitted_head."
#: Backbones with a published variant.
_PUBLISHED = ("wrn-28-2", "wrn-37-2")


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What it takes to build a classifier, and where it comes from.

    Attributes:
        backbone: a name or ``package.module:factory``.
        backbone_variant: "default" or "published".
        head: a key of `momatch.heads.HEADS`.
        embedding_dim: as for `Classifier.build`; 0 for the backbone's own features.
        class_names: label k is ``class_names[k]``.
        in_channels: of the images.
        image_size: height and width.
        normalization: (mean, std) of the dataset's pixels scaled to 0-1, or None.
        dataset: that it was trained on.
        version: of momatch that trained it.
    """

    backbone: str
    backbone_variant: str = "default"
    head: str
    embedding_dim: int
    class_names: tuple[str, ...]
    in_channels: int
    image_size: tuple[int, int]
    normalization: Normalization | None
    dataset: str
    version: str = __version__

    def to_dict(self) -> dict[str, Any]:
        """All facts as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelFacts":
        """The facts that `to_dict` gave, also after a journey through JSON.

        Raises:
            ValueError: if a fact is missing, unknown or of the wrong type.
        """
        try:
            height, width = values["image_size"]
            statistics = values["normalization"]
            mean, std = ((), ()) if statistics is None else statistics
            facts = cls(
                **{
                    **values,
                    "class_names": tuple(str(name) for name in values["class_names"]),
                    "image_size": (int(height), int(width)),
                    "normalization": None if statistics is None else (_floats(mean), _floats(std)),
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"model facts: got {dict(values)}, expected those of a model ({error})") from error
        return facts


def build_classifier(facts: ModelFacts, **options: Any) -> Classifier:
    """The untrained classifier that `facts` describe: what training starts from and what loading fills.

    Args:
        facts: see `ModelFacts`.
        options: passed through to `Classifier.build`.

    Raises:
        ValueError: if it cannot be built; also if the backbone's module cannot be imported.
    """
    backbone_options = dict(options.pop("backbone_options", {}))
    if facts.backbone_variant != "default":
        if facts.backbone not in _PUBLISHED:
            raise ValueError(
                f"backbone_variant: got {facts.backbone_variant!r} with backbone {facts.backbone!r}, expected 'default'; "
                f"only {' and '.join(_PUBLISHED)} have another one"
            )
        backbone_options["variant"] = facts.backbone_variant
    try:
        return Classifier.build(
            facts.backbone,
            facts.head,
            num_classes=len(facts.class_names),
            embedding_dim=facts.embedding_dim,
            in_channels=facts.in_channels,
            image_size=facts.image_size,
            normalization=facts.normalization,
            backbone_options=backbone_options,
            **options,
        )
    except ImportError as error:
        raise ValueError(f"backbone {facts.backbone!r}: {error}") from error


def save_model(folder: Path, classifier: Classifier, facts: ModelFacts, refitted_head: nn.Module | None = None) -> None:
    """Save a classifier.

    Args:
        folder: the run's directory.
        classifier: with the weights to save, those of the EMA.
        facts: that it was built from.
        refitted_head: the mixture in closed form for outlier scores; one of `momatch.heads.HEADS`.

    Raises:
        ValueError: if the refitted head is of no known kind, or a part of the state is no tensor.
        OSError: if it cannot be written; a model that was there is then intact.
    """
    tensors = _state(classifier)
    content: dict[str, Any] = {"facts": facts.to_dict(), "refitted_head": None}
    if refitted_head is not None:
        content["refitted_head"] = _head_name(refitted_head)
        tensors |= {_REFITTED + name: value for name, value in _state(refitted_head).items()}
    weights, description = encode(_KIND, tensors, content)
    with explain_write_errors("the model", folder):
        replace_files({folder / _WEIGHTS: weights, folder / _FACTS: description})


def load_model(folder: Path) -> tuple[Classifier, ModelFacts, nn.Module | None]:
    """Load what `save_model` saved, on the CPU and in evaluation mode. Random numbers of the process are left as they were.

    Returns:
        The classifier, its facts and the refitted head or None.

    Raises:
        ValueError: if a file is missing, damaged, of another kind or version, or does not fit the network.
        OSError: if a file cannot be read.
    """
    folder = Path(folder)
    content, tensors = decode(_KIND, folder / _FACTS, folder / _WEIGHTS)
    facts = ModelFacts.from_dict(content["facts"])
    refitted = {key.removeprefix(_REFITTED): tensors.pop(key) for key in list(tensors) if key.startswith(_REFITTED)}
    with torch.random.fork_rng(devices=[]):
        # The weights are about to be replaced: the pretrained ones need not be there.
        backbone_options = {"pretrained": False} if facts.backbone == "efficientnet-lite0" else {}
        classifier = build_classifier(
            facts, backbone_options=backbone_options, head_options=_head_options(tensors, "head.")
        )
        _fill(classifier, tensors, folder / _WEIGHTS)
        head: nn.Module | None = None
        if content["refitted_head"] is not None:
            size = classifier.head.embedding_dim
            assert isinstance(size, int), "every head of HEADS has it"
            kind = HEADS[content["refitted_head"]]
            head = kind(size, len(facts.class_names), **_head_options(refitted, ""))
            _fill(head, refitted, folder / _WEIGHTS)
            head.eval()
    return classifier.eval(), facts, head


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _state(module: nn.Module) -> dict[str, Tensor]:
    state: dict[str, Any] = module.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name}: got a {type(value).__name__} in the state, expected tensors only")
    # torch.compile wraps a module; the saved names are those of the network itself.
    return {name.replace("_orig_mod.", ""): value for name, value in state.items()}


def _head_name(head: nn.Module) -> str:
    for name, kind in HEADS.items():
        if type(head) is kind:
            return name
    raise ValueError(f"refitted_head: got a {type(head).__name__}, expected one of {', '.join(HEADS)}")


def _head_options(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Any]:
    return {"learn_prior": True} if f"{prefix}prior_logits" in tensors else {}


def _fill(module: nn.Module, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Copy `tensors` into `module`, which takes their dtypes.

    Raises:
        ValueError: if names or shapes are not those of the module.
    """
    for name, own in module.state_dict(keep_vars=True).items():
        if name in tensors and own.dtype != tensors[name].dtype:
            own.data = own.data.to(tensors[name].dtype)
    try:
        module.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise ValueError(
            f"{source}: the weights are not those of the network that model.json describes; "
            f"has the code of the backbone changed? {error}"
        ) from error
