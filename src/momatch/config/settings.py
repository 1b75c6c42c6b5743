"""Every setting of a training run, in one flat place: config key = flag of ``momatch train`` = field of `TrainConfig`.

Plain Python: ``momatch train --help`` reads this file and must not wait for torch.
"""

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import PurePath
from typing import Any, Literal

from momatch.config.checks import check_settings, check_type
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


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The settings of one training run. The defaults train on scikit-learn's digits in well under a minute.

    Attributes:
        dataset: a known name (see `momatch data`), an image folder, a .csv/.parquet manifest, an .npz of images, or the
            features that `momatch embed` made of images.
        data_dir: where known datasets lie and are downloaded to ($MOMATCH_DATA).
        image_size: side to which images are brought. By default files need one size, known datasets and arrays keep theirs, and
            the digits are enlarged from 8 to 16: in 8 pixels turning and shearing leave little of a digit.
        test_fraction: hold out this fraction of each class for testing, where the dataset has no test images.
        labels_per_class: labels shown of each class, drawn by the seed; 0 shows every label that there is.
        labeled_in_pool: whether the labelled images are part of the unlabelled pool as well.
        held_out_classes: classes to take out, as names or numbers with commas between them: the run does not know them, and
            evaluation tells their test images from those of the known classes.
        held_out_in_pool: whether the held-out classes' images stay in the unlabelled pool, as outliers.
        flip: mirror images at random; "auto": not where mirroring changes the class (digits, mnist, kmnist, svhn).
        strong_operations: random changes that a strong view makes to an image.
        cutout: largest side of the square that a strong view blanks, as a fraction of the image's; 0 for none.
        backbone: a known network or package.module:factory of your own.
        backbone_variant: "published" repeats USB's Wide ResNet exactly.
        head: the last layer.
        embedding_dim: size of the embedding; 0 takes the backbone's own features.
        constraint: what makes clusters Gaussian.
        moment_order: moments constrained, 1 to 4, each with all lower ones; 0 for no constraint. By default 1, and 0 for the
            linear head, which has no centers.
        moment_weight: weight of the constraint in the loss.
        moment_whiten: constrain to the head's own variances instead of unit variance.
        moment_variant: "published" repeats the paper's code (orders 1 and 2).
        moment_assignment: clusters of labelled samples by "label" or, as the published code, by "prediction".
        policy: how pseudo-labels are weighed; "supervised" uses the labelled images alone.
        cutoff: confidence from which a pseudo-label counts (fixmatch, flexmatch).
        graph_neighbors: on cached features (momatch embed): neighbours of each image in a graph over which labels spread; what
            comes of it guides the first pseudo-labels. 0 for none.
        unlabeled_weight: weight of the pseudo-label loss.
        fairness_weight: weight of freematch's fairness loss.
        outliers: threshold by which outliers are kept out of the pseudo-labels.
        outlier_score: what the threshold is applied to; "auto": nearest, and density (energy) for the linear head.
        outlier_percentile: of the labelled scores (percentile; annealed: where it starts, it ends at 100).
        outlier_quantile: of the chi-square distribution (chi2).
        outlier_refit_interval: steps between closed-form refits of the mixture that judges outliers; 0: the head as trained.
        calibration_fraction: share of the unlabelled pool that is kept out of training, so that prediction can give outlier
            p-values. By default the test images serve (without their labels), and a tenth of the pool where there are none.
        refit: fit the mixture in closed form at the end, for the outlier scores of evaluation and prediction.
        steps: optimiser steps.
        labeled_batch_size: labelled images a step.
        unlabeled_batch_size: unlabelled images a step, each seen in a weak and in a strong view.
        accumulate: parts that a batch is taken through the network in; gradients add up.
        forward: "joint": one pass over all views. "split": the weak view without gradient, faster but another algorithm.
        optimizer: sgd (Nesterov) or adamw.
        lr: learning rate.
        head_lr_factor: the head's learning rate is this many times `lr`.
        momentum: of sgd.
        weight_decay: not applied to biases, norm layers, centers and variances.
        clip_norm: largest gradient norm; 0 for no clipping.
        schedule: "cosine": lr cos(7 pi s / 16 S).
        warmup_steps: steps over which the learning rate rises to `lr`.
        ema_decay: of the averaged model that is evaluated and saved.
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
        resume: go on with the run in `run_dir`.
        overwrite: delete the run in `run_dir` and begin anew.
        preset_name: the preset that the settings started from; set by `TrainConfig.preset` and --preset.
    """

    dataset: str = "digits"
    data_dir: str | None = None
    image_size: int | None = None
    test_fraction: float = 0.0
    labels_per_class: int = 4
    labeled_in_pool: bool = True
    held_out_classes: str = ""
    held_out_in_pool: bool = False
    flip: Literal["auto", "yes", "no"] = "auto"
    strong_operations: int = 3
    cutout: float = 0.5

    backbone: str = "cnn-tiny"
    backbone_variant: Literal["default", "published"] = "default"
    head: Head = "aagmm"
    embedding_dim: int = 8

    constraint: Constraint = "moments"
    moment_order: int | None = None
    moment_weight: float = 1.0
    moment_whiten: bool = False
    moment_variant: Literal["paper", "published"] = "paper"
    moment_assignment: Literal["label", "prediction"] = "label"

    policy: Policy = "flexmatch"
    cutoff: float = 0.95
    graph_neighbors: int = 0
    unlabeled_weight: float = 1.0
    fairness_weight: float = 0.001

    outliers: Outliers = "none"
    outlier_score: Score = "auto"
    outlier_percentile: float = 90.0
    outlier_quantile: float = 0.99
    outlier_refit_interval: int = 0
    calibration_fraction: float | None = None
    refit: bool = True

    steps: int = 1200
    labeled_batch_size: int = 32
    unlabeled_batch_size: int = 96
    accumulate: int = 1
    forward: Literal["joint", "split"] = "joint"

    optimizer: Optimizer = "sgd"
    lr: float = 0.1
    head_lr_factor: float = 1.0
    momentum: float = 0.9
    weight_decay: float = 1e-3
    clip_norm: float = 5.0
    schedule: Schedule = "cosine"
    warmup_steps: int = 0
    ema_decay: float = 0.997

    seed: int = 0
    device: Device = "auto"
    precision: Precision = "float32"
    channels_last: bool = True
    compile: bool = False
    max_skipped_steps: int = 50

    eval_interval: int = 200
    log_interval: int = 50
    checkpoint_interval: int = 200
    keep_checkpoints: int = 2
    tracker: Literal["none", "tensorboard"] = "none"
    progress: bool = True

    run_dir: str | None = None
    resume: bool = False
    overwrite: bool = False
    preset_name: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            check_type(field.name, getattr(self, field.name), field.type)
        check_settings({field.name: getattr(self, field.name) for field in fields(self)})

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
        order = self.moment_order if self.moment_order is not None else int(self.head != "linear")
        pool = 0 if self.policy == "supervised" else self.unlabeled_batch_size
        width = f"{self.embedding_dim}d" if self.embedding_dim else "wide"
        source = PurePath(self.dataset).stem or "data"
        name = f"{source}-{self.labels_per_class}-{self.head}-{width}-order{order}-{self.policy}-seed{self.seed}"
        name += self._fingerprint()
        size = 16 if self.image_size is None and self.dataset == "digits" else self.image_size
        run_dir = self.run_dir if self.run_dir is not None else str(PurePath("runs", name))
        score: Score = self.outlier_score
        if score == "auto":
            score = "density" if self.head == "linear" else "nearest"
        filled: dict[str, Any] = {
            "moment_order": order,
            "unlabeled_batch_size": pool,
            "image_size": size,
            "outlier_score": score,
        }
        return replace(self, **filled, run_dir=run_dir)

    def _fingerprint(self) -> str:
        """A few letters that tell the settings apart which the name of a run does not spell out; none for the defaults."""
        named = {"dataset", "labels_per_class", "head", "embedding_dim", "moment_order", "policy", "seed"}
        others = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in RUNTIME_KEYS | named and getattr(self, field.name) != field.default
        }
        return "-" + hashlib.sha256(repr(sorted(others.items())).encode()).hexdigest()[:6] if others else ""

    def first_difference(self, other: "TrainConfig") -> str | None:
        """The first setting by which two resolved configs would give another result; None if they are the same run."""
        names = (field.name for field in fields(self) if field.name not in RUNTIME_KEYS)
        return next((name for name in names if getattr(self, name) != getattr(other, name)), None)

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain values."""
        return asdict(self)
