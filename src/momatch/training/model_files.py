"""A trained classifier on disk: model.safetensors (weights) and model.json (what they belong to, checksums). No pickle."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from momatch._version import __version__
from momatch.backbones import Normalization
from momatch.classifier import Classifier
from momatch.data.arrays import Images, images_for
from momatch.heads import AAGMM, HEADS, KMeans, Linear
from momatch.outliers import Score
from momatch.outputs import run_classifier
from momatch.scoring import Scorer, Scores
from momatch.training.checkpoint import explain_write_errors
from momatch.training.durable import replace_files
from momatch.training.tensor_files import decode, encode, read_verified

_KIND = "momatch model"
_WEIGHTS, _FACTS = "model.safetensors", "model.json"
_REFITTED = "refitted_head."
_CALIBRATION = "calibration_scores"


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What it takes to build a classifier, and where it comes from.

    Attributes:
        backbone: a name or ``package.module:factory``.
        backbone_variant: "default", or what the Wide ResNets take as their `variant`.
        head: a key of `momatch.heads.HEADS`.
        embedding_dim: as for `Classifier.build`; 0 for the backbone's own features.
        class_names: label k is ``class_names[k]``.
        in_channels: of the images.
        image_size: height and width.
        normalization: (mean, std) of the dataset's pixels scaled to 0-1, or None.
        dataset: that it was trained on.
        created_by: the program and its version.
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
    created_by: str = f"momatch {__version__}"

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


@dataclass(frozen=True)
class Calibration:
    """Outlier scores of held-out inliers, among which p-values are ranked.

    Attributes:
        scores: (m,) in ascending order.
        score: what they are, see `momatch.OutlierDetector`.
        source: in words, which images they are of.
    """

    scores: Float[Tensor, " m"]
    score: Score
    source: str


@dataclass(frozen=True)
class SavedModel:
    """A trained classifier with all that prediction needs.

    Attributes:
        classifier: on the CPU, in evaluation mode.
        facts: what it was built from.
        refitted_head: the mixture in closed form for outlier scores; None where there is none.
        calibration: for p-values; None where nothing was held out.
    """

    classifier: Classifier
    facts: ModelFacts
    refitted_head: nn.Module | None = None
    calibration: Calibration | None = None

    @cached_property
    def scorer(self) -> Scorer:
        """Says of embeddings what a prediction says."""
        head, judge, calibration = self.classifier.head, self.refitted_head, self.calibration
        assert isinstance(head, AAGMM | KMeans | Linear), "Classifier.build takes it from HEADS"
        assert judge is None or isinstance(judge, AAGMM | KMeans | Linear), "load_model takes it from HEADS"
        if calibration is None:
            return Scorer(head, judge)
        return Scorer(head, judge, score=calibration.score, calibration_scores=calibration.scores)

    def predict(self, images: Images, *, batch_size: int = 512) -> Scores:
        """Label, posterior, log density, distance and outlier p-value of raw images.

        Args:
            images: uint8 tensor or array, Pillow images, or paths of image files, gray or RGB, of any size: see
                `momatch.data.arrays.images_for`, which brings them to the model's.
            batch_size: images a pass.

        Raises:
            ValueError: if there are no images, they are not raw pixels, or a file cannot be read.
        """
        fitted = images_for(images, (self.facts.in_channels, *self.facts.image_size))
        scores: Scores = self.scorer(run_classifier(self.classifier, fitted, batch_size=batch_size).z)
        return scores


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


def save_model(
    folder: str | Path,
    classifier: Classifier,
    facts: ModelFacts,
    refitted_head: nn.Module | None = None,
    calibration: Calibration | None = None,
) -> None:
    """Save a classifier.

    Args:
        folder: the run's directory.
        classifier: with the weights to save, those of the EMA.
        facts: that it was built from.
        refitted_head: the mixture in closed form for outlier scores; one of `momatch.heads.HEADS`.
        calibration: outlier scores of held-out inliers, for p-values.

    Raises:
        ValueError: if the refitted head is of no known kind, or a part of the state is no tensor.
        OSError: if it cannot be written; a model that was there is then intact.
    """
    folder = Path(folder)
    tensors = _state(classifier)
    content: dict[str, Any] = {"facts": facts.to_dict(), "refitted_head": None, "calibration": None}
    if refitted_head is not None:
        content["refitted_head"] = _head_name(refitted_head)
        tensors |= {_REFITTED + name: value for name, value in _state(refitted_head).items()}
    if calibration is not None:
        content["calibration"] = {"score": calibration.score, "source": calibration.source}
        tensors[_CALIBRATION] = calibration.scores
    weights, description = encode(_KIND, tensors, content)
    with explain_write_errors("saving the model", folder):
        replace_files({folder / _WEIGHTS: weights, folder / _FACTS: description})


def load_model(folder: str | Path) -> SavedModel:
    """Load what `save_model` saved, on the CPU and in evaluation mode. Random numbers of the process are left as they were.

    Raises:
        ValueError: if a file is missing, damaged, of another kind or version, or does not fit the network.
        OSError: if a file cannot be read.
    """
    folder = Path(folder)
    content, data = read_verified(_KIND, folder / _FACTS, folder / _WEIGHTS)
    tensors = decode(data)
    facts = ModelFacts.from_dict(content["facts"])
    calibration = _calibration(content.get("calibration"), tensors.pop(_CALIBRATION, None))
    refitted = {key.removeprefix(_REFITTED): tensors.pop(key) for key in list(tensors) if key.startswith(_REFITTED)}
    with torch.random.fork_rng(devices=[]):
        # The weights are about to be replaced: the pretrained ones need not be there.
        options = {"pretrained": False} if facts.backbone == "efficientnet-lite0" else {}
        classifier = build_classifier(facts, backbone_options=options, head_options=_head_options(tensors, "head."))
        head = _build_head(content["refitted_head"], classifier, refitted)
    _fill(classifier, tensors, folder / _WEIGHTS)
    if head is not None:
        _fill(head, refitted, folder / _WEIGHTS)
        head.eval()
    return SavedModel(classifier.eval(), facts, head, calibration)


def _calibration(content: Mapping[str, Any] | None, scores: Tensor | None) -> Calibration | None:
    """The calibration of a model; models of older versions have none."""
    if content is None or scores is None:
        return None
    score: Any = content.get("score")
    if score not in get_args(Score):
        raise ValueError(f"calibration: got the score {score!r}, expected one of {', '.join(get_args(Score))}")
    return Calibration(scores, score, str(content.get("source", "")))


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _state(module: nn.Module) -> dict[str, Tensor]:
    state: dict[str, Any] = module.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name}: got a {type(value).__name__} in the state, expected tensors only")
    return state


def _head_name(head: nn.Module) -> str:
    for name, kind in HEADS.items():
        if type(head) is kind:
            return name
    raise ValueError(f"refitted_head: got a {type(head).__name__}, expected one of {', '.join(HEADS)}")


def _head_options(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Any]:
    return {"learn_prior": True} if f"{prefix}prior_logits" in tensors else {}


def _build_head(name: str | None, classifier: Classifier, tensors: Mapping[str, Tensor]) -> nn.Module | None:
    if name is None:
        return None
    if name not in HEADS:
        raise ValueError(f"refitted_head: got {name!r}, expected one of {', '.join(HEADS)}")
    last = classifier.head
    assert isinstance(last, AAGMM | KMeans | Linear), "Classifier.build takes it from HEADS"
    return HEADS[name](last.embedding_dim, last.num_classes, **_head_options(tensors, ""))


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
        first = " ".join(line.strip() for line in str(error).splitlines()[1:2])
        raise ValueError(
            f"{source}: the weights are not those of the network that model.json describes; "
            f"has the code of the backbone changed? {first}"
        ) from error
