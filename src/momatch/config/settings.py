"""Every setting of a training run, in five groups: data, model, loss, optimiser, run.

`TrainConfig` is all of them in one flat place: config key = flag of ``momatch train`` = field. What needs only a part takes the
group: ``build_objective(settings: LossSettings, ...)``. Each group checks its own values; what two groups must agree on is
checked by a method of the one that depends on the other.

Plain Python: ``momatch train --help`` reads this file and must not wait for torch.
"""

import difflib
import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from momatch.config.presets import preset_settings

Head = Literal["aagmm", "kmeans", "linear"]
Constraint = Literal["moments", "mmd", "kl"]
Policy = Literal["flexmatch", "fixmatch", "freematch", "softmatch", "supervised"]
Outliers = Literal["none", "percentile", "annealed", "chi2"]
Score = Literal["auto", "nearest", "assigned", "farthest", "density"]
Optimizer = Literal["sgd", "adamw"]
Schedule = Literal["cosine", "constant"]
Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["float32", "bfloat16", "float16"]

#: Settings that change where and how a run is carried out, but not its result; `resume` may come with other ones.
RUNTIME_KEYS = frozenset(
    {
        "data_dir",
        "run_dir",
        "resume",
        "overwrite",
        "device",
        "checkpoint_interval",
        "keep_checkpoints",
        "tracker",
        "progress",
        "preset_name",
    }
)

_Loss = TypeVar("_Loss", bound="LossSettings")
_Optimizer = TypeVar("_Optimizer", bound="OptimizerSettings")

#: Larger counts overflow somewhere on their way to the device.
MAX_COUNT = 2**31 - 1
#: Larger batches do not fit in any memory.
MAX_BATCH = 2**20
#: Larger rates and weights are mistakes; products of three of them are still finite in float32.
MAX_NUMBER = 1e6


def _within(default: float | int | None, low: float | int, high: float | int) -> Any:
    """A setting from `low` to `high`."""
    return field(default=default, metadata={"low": low, "high": high, "expected": f"{low} to {high}"})


def _at_least(default: float | int | None, low: int, high: float | int = MAX_COUNT) -> Any:
    """A setting of at least `low`; `high` is a limit of what can be computed."""
    return field(default=default, metadata={"low": low, "high": high, "expected": f"at least {low}"})


def _positive(default: float) -> Any:
    """A setting above 0."""
    return field(default=default, metadata={"low": math.ulp(0.0), "high": MAX_NUMBER, "expected": "a positive number"})


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """What the groups share: every value is checked when the settings are made."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            check_type(setting.name, value, setting.type)
            if setting.metadata and value is not None:
                _check_range(setting.name, value, setting.metadata)
        self._check()

    def _check(self) -> None:
        """Refuse settings that contradict each other; the message opens with the key that is to be changed."""


@dataclass(frozen=True, kw_only=True)
class DataSettings(_Settings):
    """What is trained on: the dataset, which labels are shown, and the views of an image.

    Attributes:
        dataset: a known name (see `momatch data`), an image folder, a .csv/.parquet manifest, an .npz of images, or the
            features that `momatch embed` made of images.
        data_dir: where known datasets lie and are downloaded to ($MOMATCH_DATA).
        image_size: side to which images are brought. By default files need one size, known datasets and arrays keep theirs, and
            the digits are enlarged from 8 to 16: in 8 pixels turning and shearing leave little of a digit.
        test_fraction: hold out this fraction of each class for testing, where the dataset has no test images.
        labels_per_class: labels shown of each class, drawn by the seed; 0 shows every label that there is.
        labeled_in_pool: whether the labelled images are part of the unlabelled pool as well.
        held_out_classes: classes to leave out of training, as names or numbers separated by commas; evaluation measures how
            well their test images are detected as outliers.
        held_out_in_pool: whether the held-out classes' images stay in the unlabelled pool, as outliers.
        calibration_fraction: share of the unlabelled pool that is kept out of training, so that prediction can give outlier
            p-values. By default the test images serve (without their labels), and a tenth of the pool where there are none.
        flip: mirror images at random; "auto": not where mirroring changes the class (digits, mnist, kmnist, svhn).
        strong_operations: random changes that a strong view makes to an image.
        cutout: largest side of the square that a strong view blanks, as a fraction of the image's; 0 for none.
    """

    dataset: str = "digits"
    data_dir: str | None = None
    image_size: int | None = _at_least(None, 1)
    test_fraction: float = _within(0.0, 0, 1)
    labels_per_class: int = _at_least(4, 0)
    labeled_in_pool: bool = True
    held_out_classes: str = ""
    held_out_in_pool: bool = False
    calibration_fraction: float | None = _within(None, 0, 0.9)
    flip: Literal["auto", "yes", "no"] = "auto"
    strong_operations: int = _at_least(3, 0)
    cutout: float = _within(0.5, 0, 1)

    def _check(self) -> None:
        super()._check()
        _refuse_if(
            self.held_out_in_pool and not self.held_out_classes,
            "held_out_in_pool: got True without held_out_classes, expected some classes to hold out",
        )


@dataclass(frozen=True, kw_only=True)
class ModelSettings(_Settings):
    """The network and its last layer.

    Attributes:
        backbone: a known network or package.module:factory of your own.
        backbone_variant: "published" repeats USB's Wide ResNet exactly.
        head: the last layer.
        embedding_dim: size of the embedding; 0 takes the backbone's own features.
        refit: fit the mixture in closed form at the end, for the outlier scores of evaluation and prediction.
    """

    backbone: str = "cnn-tiny"
    backbone_variant: Literal["default", "published"] = "default"
    head: Head = "aagmm"
    embedding_dim: int = _at_least(8, 0)
    refit: bool = True

    def _check(self) -> None:
        super()._check()
        _refuse_if(
            self.backbone_variant == "published" and not self.backbone.startswith("wrn-"),
            f"backbone_variant: got 'published' with backbone {self.backbone!r}, expected one of the Wide ResNets (wrn-...)",
        )


@dataclass(frozen=True, kw_only=True)
class LossSettings(_Settings):
    """The loss: the constraint, the pseudo-labels, and which samples are kept out of them as outliers.

    Attributes:
        constraint: what makes clusters Gaussian.
        moment_order: moments constrained, 1 to 4, each with all lower ones; 0 for no constraint. By default 1, and 0 for the
            linear head, which has no centers.
        moment_weight: weight of the constraint in the loss.
        moment_whiten: constrain to the head's own variances instead of unit variance.
        moment_variant: "published" repeats the paper's code (orders 1 and 2).
        moment_assignment: clusters of labelled samples by "label" or, as the published code, by "prediction".
        policy: how pseudo-labels are weighted; "supervised" uses the labelled images alone.
        cutoff: confidence from which a pseudo-label counts (fixmatch, flexmatch).
        graph_neighbors: on cached features (momatch embed): nearest neighbours in the graph over which labels are spread; the
            spread labels guide the first pseudo-labels. 0 for no graph.
        unlabeled_weight: weight of the pseudo-label loss.
        fairness_weight: weight of freematch's fairness loss.
        outliers: threshold by which outliers are kept out of the pseudo-labels.
        outlier_score: what the threshold is applied to; "auto": nearest, and density (energy) for the linear head.
        outlier_percentile: of the labelled scores (percentile; annealed: where it starts, it ends at 100).
        outlier_quantile: of the chi-square distribution (chi2).
        outlier_refit_interval: steps between closed-form refits of the mixture that scores outliers; 0: the head as trained.
    """

    constraint: Constraint = "moments"
    moment_order: int | None = _within(None, 0, 4)
    moment_weight: float = _at_least(1.0, 0, MAX_NUMBER)
    moment_whiten: bool = False
    moment_variant: Literal["paper", "published"] = "paper"
    moment_assignment: Literal["label", "prediction"] = "label"
    policy: Policy = "flexmatch"
    cutoff: float = _within(0.95, 0, 1)
    graph_neighbors: int = _at_least(0, 0)
    unlabeled_weight: float = _at_least(1.0, 0, MAX_NUMBER)
    fairness_weight: float = _at_least(0.001, 0, MAX_NUMBER)
    outliers: Outliers = "none"
    outlier_score: Score = "auto"
    outlier_percentile: float = _within(90.0, 0, 100)
    outlier_quantile: float = _within(0.99, 0, 1)
    outlier_refit_interval: int = _at_least(0, 0)

    def _check(self) -> None:
        super()._check()
        _refuse_if(
            self.moment_variant == "published"
            and ((self.moment_order or 1) > 2 or self.constraint != "moments" or self.moment_whiten),
            f"moment_variant: got 'published' with order {self.moment_order}, constraint {self.constraint!r}, moment_whiten "
            f"{self.moment_whiten}; expected order 1 or 2 of the constraint 'moments' without whitening",
        )
        _refuse_if(
            self.outliers == "chi2" and self.outlier_score not in ("auto", "nearest", "assigned"),
            f"outliers: got 'chi2' with score {self.outlier_score!r}, expected the score 'nearest' or 'assigned': only that "
            "distance follows the chi-square law",
        )

    def check_head(self, head: Head) -> None:
        """Refuse a loss that needs centers where the head has none.

        Raises:
            ValueError: naming the setting, what was got and what was expected.
        """
        if head != "linear":
            return
        _refuse_if(
            bool(self.moment_order),
            f"moment_order: got {self.moment_order} with head 'linear', expected 0: it has no centers to constrain",
        )
        _refuse_if(
            self.constraint != "moments",
            f"constraint: got {self.constraint!r} with head 'linear', expected a head with centers",
        )
        _refuse_if(
            self.outliers == "chi2",
            "outliers: got 'chi2' with head 'linear', expected a head with centers: only distances to centers follow the "
            "chi-square law",
        )
        _refuse_if(
            self.outliers != "none" and self.outlier_score not in ("auto", "density"),
            f"outlier_score: got {self.outlier_score!r} with head 'linear', expected 'density': it has no centers",
        )
        _refuse_if(
            self.outlier_refit_interval > 0,
            f"outlier_refit_interval: got {self.outlier_refit_interval} with head 'linear', expected 0: it has no mixture",
        )

    def for_head(self: _Loss, head: Head) -> _Loss:
        """The same settings with the defaults filled in that depend on the head.

        Raises:
            ValueError: as `check_head`.
        """
        self.check_head(head)
        order = self.moment_order if self.moment_order is not None else int(head != "linear")
        score: Score = self.outlier_score
        if score == "auto":
            score = "density" if head == "linear" else "nearest"
        return replace(self, moment_order=order, outlier_score=score)


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings(_Settings):
    """Steps, batches, optimiser, learning rate and averaging of the weights.

    Attributes:
        steps: optimiser steps.
        labeled_batch_size: labelled images a step.
        unlabeled_batch_size: unlabelled images a step, each seen in a weak and in a strong view.
        accumulate: number of parts that a batch is split into to save memory; gradients add up.
        forward: "joint": one pass over all views. "split": the weak view without gradient, faster but another algorithm.
        optimizer: sgd (Nesterov) or adamw.
        lr: learning rate.
        head_lr_factor: the head's learning rate is this many times `lr`.
        momentum: of sgd.
        weight_decay: not applied to biases, norm layers, centers and variances.
        clip_norm: largest gradient norm; 0 for no clipping.
        schedule: "cosine": lr cos(7 pi s / 16 S).
        warmup_steps: steps over which the learning rate rises to `lr`.
        ema_decay: of the averaged model that is evaluated and saved; it grows to this value over the first steps,
            min(ema_decay, (1 + s) / (10 + s)).
    """

    steps: int = _at_least(1200, 1)
    labeled_batch_size: int = _at_least(32, 1, MAX_BATCH)
    unlabeled_batch_size: int = _at_least(96, 0, MAX_BATCH)
    accumulate: int = _at_least(1, 1, MAX_BATCH)
    forward: Literal["joint", "split"] = "joint"
    optimizer: Optimizer = "sgd"
    lr: float = _positive(0.1)
    head_lr_factor: float = _positive(1.0)
    momentum: float = _within(0.9, 0, 1)
    weight_decay: float = _at_least(1e-3, 0, MAX_NUMBER)
    clip_norm: float = _at_least(5.0, 0, MAX_NUMBER)
    schedule: Schedule = "cosine"
    warmup_steps: int = _at_least(0, 0)
    ema_decay: float = _within(0.997, 0, 1)

    def _check(self) -> None:
        super()._check()
        _refuse_if(self.ema_decay == 1.0, "ema_decay: got 1.0, expected less: the averaged model would never move")
        _refuse_if(self.momentum == 1.0, "momentum: got 1.0, expected less: old gradients would never fade")

    def check_policy(self, policy: Policy) -> None:
        """Refuse batches without unlabelled samples where the policy needs some.

        Raises:
            ValueError: naming the setting, what was got and what was expected.
        """
        _refuse_if(
            policy != "supervised" and self.unlabeled_batch_size == 0,
            f"unlabeled_batch_size: got 0 with policy {policy!r}, expected at least 1; or take policy 'supervised'",
        )

    def for_policy(self: _Optimizer, policy: Policy) -> _Optimizer:
        """The same settings with no unlabelled batch where the policy uses none.

        Raises:
            ValueError: as `check_policy`.
        """
        self.check_policy(policy)
        return replace(self, unlabeled_batch_size=0) if policy == "supervised" else self


@dataclass(frozen=True, kw_only=True)
class RunSettings(_Settings):
    """How the run is carried out and recorded, and where.

    Attributes:
        seed: of everything: labelled set, initial weights, batches, views.
        device: "auto" takes cuda, then mps, then cpu.
        precision: of the network under autocast; head and constraint stay in float32.
        channels_last: memory layout of the network.
        compile: compile the network with torch.compile.
        max_skipped_steps: skipped steps in a row (loss or gradient not finite) after which the run stops.
        eval_interval: steps between evaluations on the test images; 0 for one at the end.
        log_interval: steps between lines of metrics.jsonl.
        checkpoint_interval: steps between checkpoints; 0 for one at the end.
        keep_checkpoints: how many of the newest checkpoints stay on disk.
        tracker: where else metrics go.
        progress: show progress while training.
        run_dir: directory of the run; by default runs/ and a name made of the settings.
        resume: continue the run in `run_dir`, which must exist; "auto" starts it if it does not, so that one command serves to
            start and to restart.
        overwrite: delete the run in `run_dir` and start again.
    """

    seed: int = _within(0, 0, 2**63 - 1)
    device: Device = "auto"
    precision: Precision = "float32"
    channels_last: bool = True
    compile: bool = False
    max_skipped_steps: int = _at_least(50, 1)
    eval_interval: int = _at_least(200, 0)
    log_interval: int = _at_least(50, 1)
    checkpoint_interval: int = _at_least(200, 0)
    keep_checkpoints: int = _at_least(2, 1)
    tracker: Literal["none", "tensorboard"] = "none"
    progress: bool = True
    run_dir: str | None = None
    resume: bool | Literal["auto"] = False
    overwrite: bool = False

    def _check(self) -> None:
        super()._check()
        _refuse_if(
            bool(self.resume) and self.overwrite,
            "resume and overwrite: got both, expected one of them: overwriting deletes the run that resume continues",
        )


#: The groups by the name of their section in the help, in the order of the fields.
GROUPS: dict[str, type[_Settings]] = {
    "data": DataSettings,
    "model": ModelSettings,
    "loss": LossSettings,
    "optimiser": OptimizerSettings,
    "run": RunSettings,
}


# The bases stand in reverse: a dataclass takes the fields of its last base first.
@dataclass(frozen=True, kw_only=True)
class TrainConfig(RunSettings, OptimizerSettings, LossSettings, ModelSettings, DataSettings):
    """All settings of one training run, flat. The defaults train on scikit-learn's digits in well under a minute.

    The fields are those of `DataSettings`, `ModelSettings`, `LossSettings`, `OptimizerSettings` and `RunSettings`.

    Attributes:
        preset_name: the preset that the settings started from; set by `TrainConfig.preset` and --preset.
    """

    preset_name: str | None = None

    def _check(self) -> None:
        super()._check()
        self.check_head(self.head)
        self.check_policy(self.policy)

    @classmethod
    def preset(cls, name: str, **settings: Any) -> "TrainConfig":
        """The settings of a preset (see ``momatch train --help``), with `settings` on top.

        Raises:
            ValueError: if there is no such preset, or as `from_dict`.
        """
        return cls.from_dict({**preset_settings(name), **settings})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str = "config") -> "TrainConfig":
        """The defaults with `values` in their place.

        Raises:
            ValueError: if a key is unknown (with a suggestion), or a value has the wrong type or is out of range.
        """
        return cls().updated(values, source=source)

    def updated(self, values: Mapping[str, Any], *, source: str = "config") -> "TrainConfig":
        """This config with `values` in place of its own.

        Raises:
            ValueError: as `from_dict`.
        """
        known = {field.name: field for field in fields(self)}
        for key in values:
            if key not in known:
                close = difflib.get_close_matches(str(key).replace("-", "_"), known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
                raise ValueError(f"{source}: got the unknown key {key!r}; {hint}")
        # JSON and TOML write 1.0 as 1.
        exact: dict[str, Any] = {
            key: float(value) if known[key].type is float and type(value) is int else value
            for key, value in values.items()
        }
        return replace(self, **exact)

    def resolved(self) -> "TrainConfig":
        """The same settings with every default that depends on other settings filled in."""
        config = self.for_head(self.head).for_policy(self.policy)
        size = 16 if self.image_size is None and self.dataset == "digits" else self.image_size
        run_dir = self.run_dir if self.run_dir is not None else str(PurePath("runs", config._run_name(self)))
        return replace(config, image_size=size, run_dir=run_dir)

    def _run_name(self, given: "TrainConfig") -> str:
        """The name of a run with these settings, resolved from those that were given."""
        width = f"{self.embedding_dim}d" if self.embedding_dim else "wide"
        words = [
            *(PurePath(self.dataset).stem or "data", self.labels_per_class, self.head, width),
            *(f"order{self.moment_order}", self.policy, f"seed{self.seed}"),
        ]
        return "-".join(map(str, words)) + given._fingerprint()

    def _fingerprint(self) -> str:
        """A few letters that differ where settings differ that the name of a run does not spell out; none for the defaults."""
        named = {"dataset", "labels_per_class", "head", "embedding_dim", "moment_order", "policy", "seed"}
        others = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in RUNTIME_KEYS | named and getattr(self, field.name) != field.default
        }
        if self.dataset != PurePath(self.dataset).stem:
            # A path, of which the name of the run has the last part alone: site1/photos, site2/photos and photos.csv.
            others["dataset"] = str(Path(self.dataset).expanduser().resolve())
        return "-" + hashlib.sha256(repr(sorted(others.items())).encode()).hexdigest()[:6] if others else ""

    def first_difference(self, other: "TrainConfig") -> str | None:
        """The first setting by which two resolved configs would give another result; None if they are the same run."""
        names = (field.name for field in fields(self) if field.name not in RUNTIME_KEYS)
        return next((name for name in names if getattr(self, name) != getattr(other, name)), None)

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain values."""
        return asdict(self)


def check_type(name: str, value: object, expected: Any) -> None:
    """Refuse a value that is not of its field's type.

    Args:
        name: of the field.
        value: that it was given.
        expected: its annotation: a type, a Literal or a union of them.

    Raises:
        ValueError: with a suggestion where a name is misspelt.
    """
    options = get_args(expected) if get_origin(expected) in (UnionType, Union) else (expected,)
    types = [option for option in options if get_origin(option) is not Literal]
    # bool is an int to Python, but not to a reader.
    if type(value) in types or (float in types and type(value) is int):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name}: got {value}, expected a finite number")
        return
    literal = [choice for option in options if get_origin(option) is Literal for choice in get_args(option)]
    if isinstance(value, str) and value in literal:
        return
    if literal:
        choices = [*((False, True) if bool in types else ()), *literal]
        close = difflib.get_close_matches(str(value), map(str, literal), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(map(repr, choices))}{hint}")
    names = " or ".join("None" if option is NoneType else option.__name__ for option in types)
    raise ValueError(f"{name}: got {value!r} of type {type(value).__name__}, expected {names}")


def _check_range(name: str, value: float | int, bounds: Mapping[str, Any]) -> None:
    low, high, expected = bounds["low"], bounds["high"], bounds["expected"]
    if not low <= value <= high:
        is_limit = value > high and " to " not in expected
        raise ValueError(f"{name}: got {value}, expected {f'at most {high:,.15g}' if is_limit else expected}")


def _refuse_if(is_wrong: bool, message: str) -> None:
    if is_wrong:
        raise ValueError(message)
