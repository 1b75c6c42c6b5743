"""A trained classifier on disk, without pickle: model.safetensors (weights), model.json (spec, checksums), README.md (card)."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from momatch.heads import HEADS, Head
from momatch.models.backbones.custom import check_trusted
from momatch.models.card import model_card
from momatch.models.classifier import Classifier
from momatch.models.saved_model import OutlierCalibration, SavedModel
from momatch.models.scorer import OUTLIER_SCORES
from momatch.models.spec import ModelSpec
from momatch.outliers import Judge, StageReader
from momatch.storage.checkpoint import explain_write_errors
from momatch.storage.durable import finite, may_replace, read_object, replace_files
from momatch.storage.machine import versions
from momatch.storage.run_config import holds_run
from momatch.storage.run_directory import CARD
from momatch.storage.tensor_files import decode, encode, read_verified

_KIND = "momatch model"
_WEIGHTS, _DESCRIPTION = "model.safetensors", "model.json"
_BACKBONE = "backbone."
_REFITTED = "refitted_head."
_CALIBRATION = "calibration_scores"
_JUDGE = "judge."
#: More statistics than any network has: the judge's memory grows with the square of their number.
_MAX_STATISTICS = 1 << 14


def build_classifier(
    spec: ModelSpec,
    *,
    trust_code: bool | str = False,
    source: object = "the configuration",
    state: Mapping[str, Tensor] | None = None,
    **options: Any,
) -> Classifier:
    """The untrained classifier that `spec` describes, for training or for loading weights into.

    Args:
        spec: see `ModelSpec`.
        trust_code: allow importing a backbone of the form ``package.module:factory``. A spec usually comes from a file, and
            a file must not run code unless the user allows it.
        source: where the spec comes from, for error messages.
        state: the backbone's weights, which the caller will load: pretrained ones are not, and a backbone that is its weights,
            such as an ONNX graph, is built from them.
        options: passed to `Classifier.build`.

    Raises:
        UntrustedCodeError: if the backbone has to be imported and `trust_code` is not set.
        ValueError: if the classifier cannot be built, or the backbone's module cannot be imported.
    """
    check_trusted(spec.backbone, source, trust_code=trust_code)
    backbone_options = dict(options.pop("backbone_options", {}))
    if state is not None:
        backbone_options["state"] = state
    if spec.backbone_variant != "default":
        backbone_options["variant"] = spec.backbone_variant
    try:
        return Classifier.build(
            spec.backbone,
            spec.head,
            num_classes=len(spec.class_names),
            embedding_dim=spec.embedding_dim,
            in_channels=spec.in_channels,
            image_size=spec.image_size,
            normalization=spec.normalization,
            backbone_options=backbone_options,
            **options,
        )
    except ImportError as error:
        raise ValueError(f"backbone {spec.backbone!r}: {error}") from error


def save_model(
    folder: str | Path,
    classifier: Classifier,
    spec: ModelSpec,
    refitted_head: Head | None = None,
    calibration: OutlierCalibration | None = None,
    *,
    judge: Judge | None = None,
    temperature: float = 1.0,
    settings: Mapping[str, Any] | None = None,
    result: Mapping[str, Any] | None = None,
    card_entries: Mapping[str, Any] | None = None,
) -> None:
    """Save a classifier with its card.

    Args:
        folder: an existing directory.
        classifier: the (EMA) model to save.
        spec: what it was built from.
        refitted_head: the mixture refitted in closed form; one of `momatch.heads.HEADS`.
        calibration: outlier scores of held-out inliers, for p-values.
        judge: of the backbone's stages, for outlier scores.
        temperature: of the posteriors.
        settings: training settings.
        result: training result, as in result.json.
        card_entries: front matter of the card. A README.md that momatch did not write, or that was edited, is kept.

    Raises:
        ValueError: if the refitted head is not one of `momatch.heads.HEADS`, or the state contains a non-tensor.
        OSError: if writing fails; an existing model is then intact.
    """
    folder = Path(folder)
    tensors = _state(classifier)
    content: dict[str, Any] = {"facts": spec.to_dict(), "refitted_head": None, "judge": None, "calibration": None}
    if refitted_head is not None:
        content["refitted_head"] = _head_name(refitted_head)
        tensors |= {_REFITTED + name: value for name, value in _state(refitted_head).items()}
    if judge is not None:
        content["judge"] = {
            "stage_names": list(judge.stage_names),
            "num_features": judge.num_features,
            "judges_answers": judge.answers is not None,
        }
        tensors |= {_JUDGE + name: value for name, value in _state(judge).items()}
    if calibration is not None:
        content["calibration"] = {"score": calibration.score, "source": calibration.source}
        tensors[_CALIBRATION] = calibration.scores
    result = finite(result)
    content |= {"temperature": temperature, "settings": settings, "figures": result, "versions": versions()}
    weights, description = encode(_KIND, tensors, content)
    files = {folder / _WEIGHTS: weights, folder / _DESCRIPTION: description}
    if may_replace(folder / CARD):
        saved = SavedModel(classifier, spec, refitted_head, judge, calibration, settings, result, temperature)
        files[folder / CARD] = model_card(saved, card_entries or {}).encode(errors="backslashreplace")
    with explain_write_errors("saving the model", folder):
        replace_files(files)


def save_folder(folder: Path, model: SavedModel, *, card_entries: Mapping[str, Any] | None = None) -> None:
    """Save a model in a folder that holds neither a run nor another library's model.

    Args:
        folder: created if missing.
        model: the model to save.
        card_entries: as for `save_model`.

    Raises:
        ValueError: if the folder holds a run or another library's files of the same names; or as `save_model`.
        OSError: if writing fails; an existing model is then intact.
    """
    check_model_folder(folder)
    with explain_write_errors("creating the folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    save_model(
        folder,
        model.classifier,
        model.spec,
        model.refitted_head,
        model.calibration,
        judge=model.judge,
        temperature=model.temperature,
        settings=model.settings,
        result=model.result,
        card_entries=card_entries,
    )


def check_model_folder(folder: Path) -> bool:
    """Whether `folder`, in which a model will be saved, already holds a momatch model.

    Raises:
        ValueError: if it is a file, or its contents must not be replaced.
        OSError: if it cannot be read.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: got a file, expected a folder or nothing")
    if holds_run(folder):
        raise ValueError(f"{folder}: got a run directory, expected another folder for the model")
    there = [name for name in (_WEIGHTS, _DESCRIPTION) if (folder / name).exists()]
    if there and (read_object(folder / _DESCRIPTION) or {}).get("format") != _KIND:
        raise ValueError(f"{folder}: got a {there[0]} that is not a momatch model, expected another folder")
    return bool(there)


def load_model(folder: str | Path, *, trust_code: bool | str = False) -> SavedModel:
    """Load a model saved by `save_model`, on the CPU and in evaluation mode. The global random state is not changed.

    Args:
        folder: the model folder.
        trust_code: allow importing the backbone's module if model.json names one (``package.module:factory``).

    Raises:
        UntrustedCodeError: if model.json names a module and `trust_code` is not set.
        ValueError: if a file is missing, damaged, of another kind or version, or does not match the network.
        OSError: if a file cannot be read.
    """
    folder = Path(folder)
    content, data = read_verified(_KIND, folder / _DESCRIPTION, folder / _WEIGHTS)
    tensors = decode(data)
    spec = ModelSpec.from_dict(content.get("facts"))
    calibration = _calibration(content.get("calibration"), tensors.pop(_CALIBRATION, None))
    refitted, judged = _taken(tensors, _REFITTED), _taken(tensors, _JUDGE)
    with torch.random.fork_rng(devices=[]):
        classifier = build_classifier(
            spec,
            trust_code=trust_code,
            source=folder / _DESCRIPTION,
            state={key.removeprefix(_BACKBONE): value for key, value in tensors.items() if key.startswith(_BACKBONE)},
            head_options=_head_options(tensors, "head."),
        )
        head = _build_head(content.get("refitted_head"), classifier, refitted)
    misfit = (
        f"{folder / _WEIGHTS}: the weights do not match the network that model.json describes; has the backbone's code "
        "changed?"
    )
    fill(classifier, tensors, misfit)
    if head is not None:
        fill(head, refitted, misfit)
        head.eval()
    judge = _build_judge(content.get("judge"), len(spec.class_names))
    if judge is not None:
        fill(judge, judged, misfit)
        StageReader(classifier.backbone, judge.stage_names)
    elif calibration is not None and calibration.score == "judge":
        raise ValueError(
            f"{folder / _DESCRIPTION}: calibration: got the score 'judge' of a model without a judge, expected both; the model "
            "is damaged"
        )
    settings, result = _object(content, "settings"), _object(content, "figures")
    temperature = _temperature(content.get("temperature", 1.0))
    return SavedModel(classifier.eval(), spec, head, judge, calibration, settings, result, temperature)


def _taken(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Remove the tensors with this prefix, and return them without it."""
    return {key.removeprefix(prefix): tensors.pop(key) for key in list(tensors) if key.startswith(prefix)}


def _object(content: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """An optional entry: models of older versions lack it."""
    value = content.get(key)
    return value if isinstance(value, dict) else None


def _temperature(content: object) -> float:
    """The temperature; models of older versions have none."""
    if isinstance(content, bool) or not isinstance(content, int | float) or not 0.0 < content < math.inf:
        raise ValueError(f"temperature: got {content!r}, expected a number above 0; the model is damaged")
    return float(content)


def _calibration(content: object, scores: Tensor | None) -> OutlierCalibration | None:
    """The calibration; models of older versions have none."""
    if not isinstance(content, Mapping) or scores is None:
        return None
    score: Any = content.get("score")
    if score not in OUTLIER_SCORES:
        raise ValueError(f"calibration: got the score {score!r}, expected one of {', '.join(OUTLIER_SCORES)}")
    return OutlierCalibration(scores, score, str(content.get("source", "")))


def _state(module: nn.Module) -> dict[str, Tensor]:
    state: dict[str, Any] = module.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name}: got a {type(value).__name__} in the state, expected tensors only")
    return state


def _head_name(head: Head) -> str:
    for name, kind in HEADS.items():
        if type(head) is kind:
            return name
    raise ValueError(f"refitted_head: got a {type(head).__name__}, expected one of {', '.join(HEADS)}")


def _head_options(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Any]:
    return {"learn_prior": True} if f"{prefix}prior_logits" in tensors else {}


def _build_head(name: object, classifier: Classifier, tensors: Mapping[str, Tensor]) -> Head | None:
    if name is None:
        return None
    if not isinstance(name, str) or name not in HEADS:
        raise ValueError(f"refitted_head: got {name!r}, expected one of {', '.join(HEADS)}")
    last = classifier.head
    return HEADS[name](last.embedding_dim, last.num_classes, **_head_options(tensors, ""))


def _build_judge(content: object, num_classes: int) -> Judge | None:
    """The judge to fill; models of older versions have none."""
    if content is None:
        return None
    facts = content if isinstance(content, Mapping) else {}
    names, features = facts.get("stage_names"), facts.get("num_features")
    if not isinstance(names, list) or not isinstance(features, int) or not 1 <= features <= _MAX_STATISTICS:
        raise ValueError(f"judge: got {content!r}, expected stage_names and num_features")
    # Judges of older versions count the answer's entropy.
    judges_answers = facts.get("judges_answers") is True
    return Judge(features, num_classes, [str(name) for name in names], judges_answers=judges_answers)


def fill(module: nn.Module, tensors: Mapping[str, Tensor], misfit: str) -> None:
    """Load `tensors` into `module`, which takes on their dtypes.

    Args:
        module: to fill.
        tensors: by name in its state dict.
        misfit: message of the error.

    Raises:
        ValueError: if names or shapes do not match the module.
    """
    for name, own in module.state_dict(keep_vars=True).items():
        if name in tensors and own.dtype != tensors[name].dtype:
            own.data = own.data.to(tensors[name].dtype)
    try:
        module.load_state_dict(dict(tensors))
    except RuntimeError as error:
        first = " ".join(line.strip() for line in str(error).splitlines()[1:2])
        raise ValueError(f"{misfit} {first}") from error
