"""Every setting of a training run, in five groups: data, model, loss, optimiser, run.

`TrainConfig` holds all of them, flat: config key = flag of ``momatch train`` = field. Code that needs only one group takes that
group: ``build_objective(settings: LossSettings, ...)``. Each group checks its own values; a constraint between two groups is
checked by a method of the group that depends on the other.

The groups' docstrings are the text of ``momatch train --help``. This file does not import torch, so that help answers at once.
"""

import difflib
import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import InitVar, asdict, dataclass, fields, replace
from pathlib import Path, PurePath
from typing import Any, Literal, TypeVar

from momatch.config.algorithms import (
    OPTIONS,
    OWN_SETTINGS,
    check_algorithm,
    check_options,
    is_custom,
    protocol_settings,
    renamed,
)
from momatch.config.checks import (
    MAX_BATCH,
    MAX_NUMBER,
    MAX_SIDE,
    at_least,
    check_range,
    check_type,
    positive,
    refuse_if,
    within,
)
from momatch.config.presets import preset_settings

Head = Literal["aagmm", "kmeans", "linear"]
#: Heads that have no centers, so no constraint, distances or refit (`Head.has_centers`).
WITHOUT_CENTERS = frozenset({"linear"})
Constraint = Literal["moments", "mmd", "kl"]
Outliers = Literal["none", "percentile", "annealed", "chi2", "auto"]
Score = Literal["auto", "nearest", "assigned", "farthest", "density"]
Optimizer = Literal["sgd", "adamw"]
Schedule = Literal["cosine", "constant"]
Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["float32", "bfloat16", "float16"]

#: Datasets that momatch loads by name (`momatch.data.catalog.KNOWN`). Their labels are all known, and a few are shown.
BUILT_IN = frozenset({"digits", "mnist", "fashion-mnist", "kmnist", "cifar10", "cifar100", "svhn", "stl10"})
#: Those in which a mirrored or turned image may show another class, or none: a turned 6 is a 9.
UPRIGHT = frozenset({"digits", "mnist", "kmnist", "svhn"})
#: Default of `labels_per_class` for them; 0 means all, for a user's own data.
SHOWN_LABELS = 4

#: Settings that affect where and how a run executes but not its result, so a resumed run may change them.
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


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """Base class of the groups: checks every value on construction."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            check_type(setting.name, value, setting.type)
            if setting.metadata and value is not None:
                check_range(setting.name, value, setting.metadata)
        self._check()

    def _check(self) -> None:
        """Reject settings that contradict each other. The message must start with the key to change."""


@dataclass(frozen=True, kw_only=True)
class DataSettings(_Settings):
    """The dataset, which of its labels to use, and augmentation.

    Attributes:
        dataset: name of a built-in dataset (see `momatch data`), image folder, .csv/.parquet manifest, .npz file of images, or
            features file written by `momatch embed`.
        data_dir: directory of the built-in datasets; missing ones are downloaded to it. Default: $MOMATCH_DATA, or a cache
            directory.
        image_size: resize images to this height and width. Default: the size that a pretrained backbone was trained at. For
            others images keep their size, files of mixed sizes get that of the backbone's benchmarks, and digits are enlarged
            from 8 to 16 pixels, so that rotating and shearing leave them legible.
        test_fraction: if the dataset has no test images, hold out this fraction of each class for testing.
        labels: features files only: where to read labels, if not in the folder or manifest that was embedded: a manifest, whose
            images are matched by file name; a folder; or "stored" for the labels in the features file.
        labels_per_class: number of labelled images per class, chosen by the seed; 0 uses all labels. Default: 4 for built-in
            datasets and their features, all for your own data.
        labeled_in_pool: also put the labelled images in the unlabelled pool.
        held_out_classes: classes to leave out of training, as comma-separated names or numbers. Evaluation then measures how
            well their test images are detected as outliers.
        held_out_in_pool: keep images of the held-out classes in the unlabelled pool, as outliers.
        calibration_fraction: fraction of the unlabelled pool to keep out of training for calibrating outlier p-values. By
            default p-values are calibrated on the test images (without labels), or on a tenth of the pool if there are none.
        flip: mirror images at random. "auto" does so unless mirroring changes the class (digits, mnist, kmnist, svhn).
        strong_operations: number of random operations in a strong augmentation.
        cutout: maximum side of the square that strong augmentation blanks out, as a fraction of the image side; 0 disables it.
    """

    dataset: str = "digits"
    data_dir: str | None = None
    image_size: int | None = at_least(None, 1, MAX_SIDE)
    test_fraction: float = within(0.0, 0, 1)
    labels: str | None = None
    labels_per_class: int | None = at_least(None, 0)
    labeled_in_pool: bool = True
    held_out_classes: str = ""
    held_out_in_pool: bool = False
    calibration_fraction: float | None = within(None, 0, 0.9)
    flip: Literal["auto", "yes", "no"] = "auto"
    strong_operations: int = at_least(3, 0, 100)
    cutout: float = within(0.5, 0, 1)

    def _check(self) -> None:
        super()._check()
        refuse_if(
            self.held_out_in_pool and not self.held_out_classes,
            "held_out_in_pool: got True without held_out_classes, expected classes to hold out; set held_out_classes",
        )


@dataclass(frozen=True, kw_only=True)
class ModelSettings(_Settings):
    """The network and its last layer.

    Attributes:
        backbone: name of a built-in network; timm:NAME, torchvision:NAME, hf:REPO (transformers) or onnx:FILE; your own as
            package.module:factory; or several with commas between them, whose features are put side by side.
        backbone_variant: "published" reproduces the Wide ResNet of the USB benchmark exactly.
        weights: file with the backbone's pretrained weights (.safetensors, or a state dict), for machines without a hub.
        untrained: start from random weights where the backbone would have pretrained ones.
        head: last layer. "aagmm": one Gaussian per class with learned variances; "kmeans": the same with unit variances;
            "linear": softmax regression.
        embedding_dim: size of the embedding; 0 uses the backbone's features directly.
        refit: after training, refit the Gaussians of the head in closed form, for --judge head.
        judge: what scores outliers after training. "stages": a Gaussian model of what the network saw at several depths;
            "head": the Gaussians of the head, as in the paper.
    """

    backbone: str = "cnn-tiny"
    backbone_variant: Literal["default", "published"] = "default"
    weights: str | None = None
    untrained: bool = False
    head: Head = "aagmm"
    embedding_dim: int = at_least(8, 0)
    refit: bool = True
    judge: Literal["stages", "head"] = "stages"

    def _check(self) -> None:
        super()._check()
        refuse_if(
            self.backbone_variant == "published" and not self.backbone.startswith("wrn-"),
            f"backbone_variant: got 'published' with backbone {self.backbone!r}, expected a Wide ResNet (wrn-...)",
        )
        refuse_if(
            self.weights is not None and self.untrained,
            "weights and untrained: got both, expected at most one: random weights, or those of a file",
        )


@dataclass(frozen=True, kw_only=True)
class LossSettings(_Settings):
    """The loss: constraint, pseudo-labels, and outlier filtering.

    Attributes:
        constraint: loss that makes each class's embeddings Gaussian: matching moments, maximum mean discrepancy or KL
            divergence.
        moment_order: highest moment to constrain, 1 to 4, including all lower ones; 0 disables the constraint, also mmd and kl.
            Default: 1, or 0 for the linear head, which has no centers.
        moment_weight: weight of the constraint in the loss.
        moment_whiten: constrain embeddings to the head's learned variances instead of unit variance.
        moment_variant: "paper" follows the formulas of the paper; "published" reproduces its code (orders 1 and 2 only).
        moment_assignment: group labelled samples by their "label", or by the model's "prediction" as the published code does.
        moment_inliers: with --outliers auto, unlabelled samples count in the constraint by their P(inlier).
        algorithm: how the unlabelled images are used: supervised (not at all), pseudolabel, meanteacher, uda, mixmatch,
            remixmatch, fixmatch, flexmatch, freematch, softmatch, comatch, simmatch, simmatchv2, or your own as
            package.module:Name. Settings below that only some have default to the published values.
        cutoff: minimum confidence for a pseudo-label to count (not meanteacher, mixmatch, remixmatch, freematch, softmatch),
            and for an image of the pool to count when the judge of outliers is fitted.
        graph_neighbors: features files only: guide pseudo-labels by linear models, forests and labels spread over a graph with
            this many nearest neighbours, as far as hidden labels confirm them; 0 disables it.
        unlabeled_weight: weight of the pseudo-label loss. Default: 1; 50 for meanteacher, 75 for mixmatch, 1.5 for remixmatch.
        ramp_up: fraction of the training over which that weight rises from 0 (pseudolabel, meanteacher, mixmatch, remixmatch).
        temperature: sharpen pseudo-labels by this temperature (uda, mixmatch, remixmatch).
        signal_annealing: leave out labelled images whose class's probability exceeds a threshold that rises in this way (uda).
        mix_alpha: parameter of the Beta distribution that mixing shares are drawn from; 0 mixes nothing (mixmatch, remixmatch).
        anchor_weight: weight of the loss of the strong view that is not mixed (remixmatch).
        rotation_weight: weight of telling rotations apart; 0 rotates nothing (remixmatch). Default: 0.5; 0 where a turned image
            may show another class (digits, mnist, kmnist, svhn).
        smoothing: share of an image's own posterior in its pseudo-label; the rest is its neighbours' (comatch, simmatch,
            simmatchv2, which needs more than 0).
        memory_size: number of images in the memory of embeddings (comatch, simmatchv2).
        alignment_steps: align the mean posterior of this many steps to equal class frequencies (comatch, simmatch).
        contrast_dim: size of the embeddings whose similarities are compared (comatch, simmatch, simmatchv2).
        contrast_temperature: temperature of these similarities.
        contrast_cutoff: minimum agreement of two pseudo-labels for their images to count as similar (comatch).
        contrast_weight: weight of the loss of similarities (comatch, simmatch, simmatchv2).
        fairness_weight: weight of freematch's fairness loss.
        outliers: what to do about outliers in the pool. "auto" weights each pseudo-label by P(inlier), from comparing the pool
            with the labelled images, and leaves out likely outliers. The others are thresholds above which a sample gets no
            pseudo-label: a percentile of the labelled samples' scores (fixed, or rising during training if "annealed") or a
            chi-square quantile.
        outlier_score: score compared with the threshold: Mahalanobis distance to the nearest center, to the predicted class's
            or to the farthest, or negative log density. "auto": nearest; density (energy) for the linear head.
        outlier_percentile: percentile for --outliers percentile; the starting percentile for annealed, which ends at 100.
        outlier_quantile: quantile for --outliers chi2.
        outlier_refit_interval: steps between closed-form refits of the Gaussians that score outliers during training; 0 scores
            with the head being trained.
    """

    constraint: Constraint = "moments"
    moment_order: int | None = within(None, 0, 4)
    moment_weight: float = at_least(1.0, 0, MAX_NUMBER)
    moment_whiten: bool = False
    moment_variant: Literal["paper", "published"] = "paper"
    moment_assignment: Literal["label", "prediction"] = "label"
    moment_inliers: bool = False
    algorithm: str = "flexmatch"
    cutoff: float = within(0.95, 0, 1)
    graph_neighbors: int = at_least(0, 0)
    unlabeled_weight: float | None = at_least(None, 0, MAX_NUMBER)
    ramp_up: float | None = within(None, 0, 1)
    temperature: float | None = within(None, 0.01, 100)
    signal_annealing: Literal["none", "linear", "log", "exp"] = "none"
    mix_alpha: float | None = at_least(None, 0, MAX_NUMBER)
    anchor_weight: float | None = at_least(None, 0, MAX_NUMBER)
    rotation_weight: float | None = at_least(None, 0, MAX_NUMBER)
    smoothing: float | None = within(None, 0, 1)
    memory_size: int | None = at_least(None, 1)
    alignment_steps: int | None = at_least(None, 1, MAX_BATCH)
    contrast_dim: int | None = at_least(None, 1, MAX_BATCH)
    contrast_temperature: float | None = within(None, 0.01, 100)
    contrast_cutoff: float | None = within(None, 0, 1)
    contrast_weight: float | None = at_least(None, 0, MAX_NUMBER)
    fairness_weight: float = at_least(0.001, 0, MAX_NUMBER)
    outliers: Outliers = "none"
    outlier_score: Score = "auto"
    outlier_percentile: float = within(90.0, 0, 100)
    outlier_quantile: float = within(0.99, 0, 1)
    outlier_refit_interval: int = at_least(0, 0)
    policy: InitVar[str | None] = None

    def __post_init__(self, policy: str | None) -> None:
        if policy is not None:
            refuse_if(
                self.algorithm not in (policy, type(self).algorithm),
                f"algorithm: got {self.algorithm!r} and policy {policy!r}, which is its former name; expected algorithm alone",
            )
            warnings.warn("the setting policy is now called algorithm", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "algorithm", policy)
        super().__post_init__()

    def _check(self) -> None:
        super()._check()
        check_algorithm(self.algorithm)
        weight, fairness = self.unlabeled_weight, self.fairness_weight
        check_options(self.algorithm, self._own_settings())
        refuse_if(
            self.algorithm == "supervised" and weight not in (None, 1.0),
            f"unlabeled_weight: got {weight} with algorithm 'supervised', expected it not to be set: nothing is unlabelled",
        )
        refuse_if(
            fairness != type(self).fairness_weight and self.algorithm != "freematch" and not is_custom(self.algorithm),
            f"fairness_weight: got {fairness} with algorithm {self.algorithm!r}, expected it not to be set: it is a setting of "
            "freematch",
        )
        refuse_if(
            self.moment_variant == "published"
            and ((self.moment_order or 1) > 2 or self.constraint != "moments" or self.moment_whiten),
            f"moment_variant: got 'published' with order {self.moment_order}, constraint {self.constraint!r}, moment_whiten "
            f"{self.moment_whiten}; expected order 1 or 2 and constraint 'moments' without whitening",
        )
        refuse_if(
            self.moment_inliers and self.outliers != "auto",
            f"moment_inliers: got True with outliers {self.outliers!r}, expected 'auto': only that has P(inlier)",
        )
        refuse_if(
            self.outliers == "chi2" and self.outlier_score not in ("auto", "nearest", "assigned"),
            f"outliers: got 'chi2' with outlier_score {self.outlier_score!r}, expected 'nearest' or 'assigned': only those "
            "distances follow a chi-square distribution",
        )

    def check_head(self, head: Head) -> None:
        """Reject a loss that needs centers if `head` has none.

        Raises:
            ValueError: naming the setting.
        """
        if head not in WITHOUT_CENTERS:
            return
        refuse_if(
            bool(self.moment_order),
            f"moment_order: got {self.moment_order} with head {head!r}, expected 0: it has no centers",
        )
        refuse_if(
            self.constraint != "moments",
            f"constraint: got {self.constraint!r} with head {head!r}, expected a head with centers",
        )
        refuse_if(
            self.outliers == "chi2",
            f"outliers: got 'chi2' with head {head!r}, expected a head with centers",
        )
        refuse_if(
            self.outliers not in ("none", "auto") and self.outlier_score not in ("auto", "density"),
            f"outlier_score: got {self.outlier_score!r} with head {head!r}, expected 'density': it has no centers",
        )
        refuse_if(
            self.outlier_refit_interval > 0,
            f"outlier_refit_interval: got {self.outlier_refit_interval} with head {head!r}, expected 0: it has no "
            "Gaussians to refit",
        )

    def for_head(self: _Loss, head: Head) -> _Loss:
        """These settings with the defaults that depend on the head and the algorithm filled in.

        Raises:
            ValueError: as `check_head`.
        """
        self.check_head(head)
        order = self.moment_order if self.moment_order is not None else int(head not in WITHOUT_CENTERS)
        score: Score = self.outlier_score
        if score == "auto":
            score = "density" if head in WITHOUT_CENTERS else "nearest"
        own = OPTIONS.get(self.algorithm, {})
        given = {key: value for key, value in self._own_settings().items() if value is not None}
        weight = self.unlabeled_weight if self.unlabeled_weight is not None else own.get("unlabeled_weight", 1.0)
        filled = {**own, **given, "unlabeled_weight": weight}
        return replace(self, moment_order=order, outlier_score=score, **filled)

    def _own_settings(self) -> dict[str, Any]:
        """The settings that only some algorithms have."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name in OWN_SETTINGS}


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings(_Settings):
    """Steps, batches, optimiser, learning rate and weight averaging.

    Attributes:
        steps: number of optimiser steps.
        labeled_batch_size: labelled images per step.
        unlabeled_batch_size: unlabelled images per step; each is used in a weak and a strong view.
        accumulate: split each batch into this many parts and accumulate their gradients, to save memory.
        forward: "joint" runs all views through the network in one pass. "split" computes the weak views without gradient, which
            is faster but changes the algorithm.
        optimizer: sgd (with Nesterov momentum) or adamw.
        lr: learning rate.
        head_lr_factor: multiply the learning rate by this for the head.
        momentum: momentum of sgd.
        weight_decay: weight decay, not applied to biases, norm layers, centers and variances.
        clip_norm: clip the gradient to this norm; 0 disables clipping.
        schedule: learning rate over time. "cosine": lr * cos(7/16 pi s/S) at step s of S.
        warmup_steps: increase the learning rate linearly over this many steps at the start.
        ema_decay: decay of the weight average (EMA) that is evaluated and saved. Early in training it is smaller,
            (1 + s) / (10 + s) at step s.
    """

    steps: int = at_least(1200, 1)
    labeled_batch_size: int = at_least(32, 1, MAX_BATCH)
    unlabeled_batch_size: int = at_least(96, 0, MAX_BATCH)
    accumulate: int = at_least(1, 1, MAX_BATCH)
    forward: Literal["joint", "split"] = "joint"
    optimizer: Optimizer = "sgd"
    lr: float = positive(0.1)
    head_lr_factor: float = positive(1.0)
    momentum: float = within(0.9, 0, 1)
    weight_decay: float = at_least(1e-3, 0, MAX_NUMBER)
    clip_norm: float = at_least(5.0, 0, MAX_NUMBER)
    schedule: Schedule = "cosine"
    warmup_steps: int = at_least(0, 0)
    ema_decay: float = within(0.997, 0, 1)

    def _check(self) -> None:
        super()._check()
        refuse_if(
            self.ema_decay == 1.0, "ema_decay: got 1.0, expected less than 1: the averaged model would never change"
        )
        refuse_if(self.momentum == 1.0, "momentum: got 1.0, expected less than 1: old gradients would never decay")

    def check_algorithm(self, algorithm: str) -> None:
        """Reject an empty unlabelled batch if the algorithm needs one.

        Raises:
            ValueError: naming the setting.
        """
        refuse_if(
            algorithm != "supervised" and self.unlabeled_batch_size == 0,
            f"unlabeled_batch_size: got 0 with algorithm {algorithm!r}, expected at least 1; or use algorithm 'supervised'",
        )

    def for_algorithm(self: _Optimizer, algorithm: str) -> _Optimizer:
        """These settings, with no unlabelled batch if the algorithm is "supervised".

        Raises:
            ValueError: as `check_algorithm`.
        """
        self.check_algorithm(algorithm)
        return replace(self, unlabeled_batch_size=0) if algorithm == "supervised" else self


@dataclass(frozen=True, kw_only=True)
class RunSettings(_Settings):
    """Seed, device, precision, logging, checkpoints and the run directory.

    Attributes:
        seed: random seed for the labelled set, initial weights, batches and augmentation.
        device: "auto" uses cuda if available, else mps, else cpu.
        precision: precision of the network (autocast); head and constraint always use float32.
        channels_last: use the channels-last memory layout.
        compile: compile the network with torch.compile.
        max_skipped_steps: stop after this many consecutive skipped steps; steps with a non-finite loss or gradient are skipped.
        eval_interval: steps between evaluations on the test images; 0 evaluates only at the end.
        log_interval: steps between lines in metrics.jsonl.
        checkpoint_interval: steps between checkpoints; 0 saves only at the start and the end.
        keep_checkpoints: number of most recent checkpoints to keep.
        tracker: also log metrics to this tracker.
        progress: show a progress display.
        run_dir: directory to write the run to. Default: runs/ plus a name made from the settings.
        resume: resume the run in --run-dir. "auto" resumes it if it exists and starts it otherwise, so the same command works
            for both.
        overwrite: delete the run in --run-dir and start over.
    """

    seed: int = within(0, 0, 2**63 - 1)
    device: Device = "auto"
    precision: Precision = "float32"
    channels_last: bool = True
    compile: bool = False
    max_skipped_steps: int = at_least(50, 1)
    eval_interval: int = at_least(200, 0)
    log_interval: int = at_least(50, 1)
    checkpoint_interval: int = at_least(200, 0)
    keep_checkpoints: int = at_least(2, 1)
    tracker: Literal["none", "tensorboard"] = "none"
    progress: bool = True
    run_dir: str | None = None
    resume: bool | Literal["auto"] = False
    overwrite: bool = False

    def _check(self) -> None:
        super()._check()
        refuse_if(
            bool(self.resume) and self.overwrite,
            "resume and overwrite: got both, expected at most one: overwrite would delete the run to resume",
        )


#: Section title in the help -> group, in the order of the fields.
GROUPS: dict[str, type[_Settings]] = {
    "data": DataSettings,
    "model": ModelSettings,
    "loss": LossSettings,
    "optimiser": OptimizerSettings,
    "run": RunSettings,
}


# Bases in reverse order: a dataclass collects fields from its last base first.
@dataclass(frozen=True, kw_only=True)
class TrainConfig(RunSettings, OptimizerSettings, LossSettings, ModelSettings, DataSettings):
    """All settings of a training run. The defaults train on scikit-learn's digits in well under a minute.

    Fields: those of `DataSettings`, `ModelSettings`, `LossSettings`, `OptimizerSettings` and `RunSettings`.

    Attributes:
        preset_name: name of the preset these settings are based on; set by `TrainConfig.preset` and --preset.
    """

    preset_name: str | None = None

    def _check(self) -> None:
        super()._check()
        self.check_head(self.head)
        self.check_algorithm(self.algorithm)

    @classmethod
    def preset(cls, name: str, **settings: Any) -> "TrainConfig":
        """A preset (listed in ``momatch train --help``), overridden by `settings`.

        Raises:
            ValueError: if the preset is unknown, or as `from_dict`.
        """
        settings = renamed(settings)
        return cls.from_dict(
            {**preset_settings(name), **protocol_settings(name, settings.get("algorithm")), **settings}
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str = "config") -> "TrainConfig":
        """The defaults, overridden by `values`.

        Raises:
            ValueError: if a key is unknown (with a suggestion), or a value has the wrong type or is out of range.
        """
        return cls().updated(values, source=source)

    def updated(self, values: Mapping[str, Any], *, source: str = "config") -> "TrainConfig":
        """This config, overridden by `values`.

        Raises:
            ValueError: as `from_dict`.
        """
        values = renamed(values, source)
        known = {field.name: field for field in fields(self)}
        for key in values:
            if key not in known:
                close = difflib.get_close_matches(str(key).replace("-", "_"), known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
                raise ValueError(f"{source}: got the unknown key {key!r}; {hint}")
        # JSON and TOML may have 1 for 1.0.
        exact: dict[str, Any] = {
            key: float(value) if known[key].type in (float, float | None) and type(value) is int else value
            for key, value in values.items()
        }
        return replace(self, **exact)

    def resolved(self) -> "TrainConfig":
        """These settings with all defaults that depend on other settings filled in."""
        loss = self
        if self.algorithm == "remixmatch" and self.rotation_weight is None and self.dataset in UPRIGHT:
            loss = replace(self, rotation_weight=0.0)
        config = loss.for_head(self.head).for_algorithm(self.algorithm)
        shown = self.labels_per_class
        if shown is None:
            shown = default_labels(self.dataset)
        size = 16 if self.image_size is None and self.dataset == "digits" else self.image_size
        config = replace(config, labels_per_class=shown, image_size=size)
        run_dir = self.run_dir if self.run_dir is not None else str(PurePath("runs", config._run_name(self)))
        return replace(config, run_dir=run_dir)

    def _run_name(self, given: "TrainConfig") -> str:
        """Run name for these resolved settings; `given` are the settings before they were resolved."""
        width = f"{self.embedding_dim}d" if self.embedding_dim else "wide"
        words = [
            *(PurePath(self.dataset).stem or "data", self.labels_per_class, self.head, width),
            *(f"order{self.moment_order}", self.algorithm.rpartition(":")[2], f"seed{self.seed}"),
        ]
        return "-".join(map(str, words)) + given._fingerprint()

    def _fingerprint(self) -> str:
        """Short hash of the non-default settings that the run name does not spell out; empty if there are none."""
        named = {"dataset", "labels_per_class", "head", "embedding_dim", "moment_order", "algorithm", "seed"}
        others = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in RUNTIME_KEYS | named and getattr(self, field.name) != field.default
        }
        if self.dataset != PurePath(self.dataset).stem:
            # The run name has only the stem of a path: site1/photos, site2/photos and photos.csv share it.
            others["dataset"] = str(Path(self.dataset).expanduser().resolve())
        if is_custom(self.algorithm):
            others["algorithm"] = self.algorithm
        return "-" + hashlib.sha256(repr(sorted(others.items())).encode()).hexdigest()[:6] if others else ""

    def first_difference(self, other: "TrainConfig") -> str | None:
        """Name of the first setting that affects the result and differs from `other`; None if none does. Both are resolved."""
        names = (field.name for field in fields(self) if field.name not in RUNTIME_KEYS)
        return next((name for name in names if getattr(self, name) != getattr(other, name)), None)

    def to_dict(self) -> dict[str, Any]:
        """All settings as a dict of plain values."""
        return asdict(self)


def default_labels(dataset: str) -> int:
    """Default of `labels_per_class`, for a dataset or the features of it."""
    return SHOWN_LABELS if dataset in BUILT_IN else 0
