"""``momatch train``: train a classifier, write its report, print a summary."""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from momatch.cli.train_flags import Flags, parse_flags
from momatch.config import TrainConfig
from momatch.config.layers import Layer, combine_resumed, merged, preset_layer, read_config_file
from momatch.console.signals import speaks
from momatch.console.warned import warnings_said_at_once
from momatch.console.wording import format_duration, percentages
from momatch.storage.data_record import DATA, read_data_record
from momatch.storage.run_config import is_run
from momatch.storage.run_directory import OUTLIERS
from momatch.training.resolve import FEATURES_PRESET, resolve_layers


def main(argv: Sequence[str]) -> int:
    """Run ``momatch train``; returns the exit code."""
    try:
        flags = parse_flags(argv)
    except SystemExit as error:
        if error.code == 2 and (word := _stray_word(argv)) is not None:
            print(f"momatch train: did you mean --dataset {shlex.quote(word)}?", file=sys.stderr)
        raise
    config = resolve(flags)
    if speaks():
        for note in _notes(flags, config):
            print(note, file=sys.stderr)
    if flags.print_config:
        if speaks():
            print(json.dumps(config.to_dict(), indent=2))
        return 0
    from momatch.training.fit import fit

    with warnings_said_at_once("train"):
        run = fit(config, trust_code=flags.trusts)
    # With several processes, only the first prints and writes.
    if not speaks():
        return 0
    from momatch.report import report_run

    # Before anything is printed: a closed pipe (head) ends the command.
    try:
        report, trouble = report_run(run), None
    except (ValueError, OSError) as error:
        # The run itself is complete.
        report, trouble = None, error
    # Runs of momatch 0.1 have no record.
    directory = Path(str(config.run_dir))
    notes = read_data_record(directory).notes if (directory / DATA).exists() else ()
    _print_outcome(config, run.result or {}, report, trouble, notes)
    return 0


def _print_outcome(
    config: TrainConfig,
    result: Mapping[str, Any],
    report: str | Path | None,
    trouble: Exception | None,
    notes: Sequence[str],
) -> None:
    """Print the summary, and where the report and the model are."""
    from momatch.models.backbones.custom import imports_code

    for line in summary(config, result, notes):
        print(line)
    if (outliers := outlier_line(config, result)) is not None:
        print(outliers)
    if report is not None:
        print(f"report: {report}")
    print(f"model:  {config.run_dir}")
    if result.get("test_accuracy") is not None:
        trust = " --trust-code" if imports_code(config.backbone) else ""
        print(f"\nNext: momatch evaluate {shlex.quote(str(config.run_dir))}{trust}")
    if trouble is not None:
        again = f"momatch report {shlex.quote(str(config.run_dir))} --out FILE"
        print(
            f"momatch train: warning: the run is finished, but the report failed: {trouble}; retry with: {again}",
            file=sys.stderr,
        )


def _stray_word(argv: Sequence[str]) -> str | None:
    """The first positional argument: other commands take their dataset that way, this one does not."""
    switches = {f"--{field.name.replace('_', '-')}" for field in fields(TrainConfig) if field.type is bool}
    switches |= {flag.replace("--", "--no-", 1) for flag in switches} | {"--print-config", "--trust-code"}
    for before, word in zip(["", *argv], argv, strict=False):
        takes_value = before.startswith("-") and "=" not in before and before not in switches
        if not word.startswith("-") and not takes_value:
            return word
    return None


def resolve(flags: Flags) -> TrainConfig:
    """The resolved settings of the run.

    Raises:
        ValueError: if a setting is unknown, of the wrong type or out of range, or differs from the run to resume.
    """
    layers = _layers(flags)
    config = resolve_layers(layers)
    if not config.resume:
        return config
    assert config.run_dir is not None, "combine resolves it"
    if config.resume == "auto" and not is_run(Path(config.run_dir)):
        return config
    if not Path(config.run_dir).is_dir():
        raise ValueError(
            f"{config.run_dir}: no run to resume; pass --resume auto to start one here, or the --run-dir of an existing run"
        )
    from momatch.training.run import Run

    return combine_resumed(layers, config, Run.load(config.run_dir).config)


def _notes(flags: Flags, config: TrainConfig) -> Iterator[str]:
    """What the user should know about how the settings were read."""
    layers = _layers(flags)
    yield from (layer.note for layer in layers if layer.note is not None)
    named = config.resume is True or "preset_name" in merged(layers)
    if config.preset_name == FEATURES_PRESET and not named:
        yield f"{config.dataset} contains features: using the preset 'features' (choose another with --preset)"


def _layers(flags: Flags) -> list[Layer]:
    """The sources of settings, lowest priority first: preset, config file, flags."""
    values = {} if flags.config is None else read_config_file(flags.config)
    of_file = values.pop("preset", None)
    preset = of_file if flags.preset is None else flags.preset
    layers = [] if preset is None else [preset_layer(str(preset))]
    return [*layers, Layer(values, str(flags.config)), Layer(flags.settings)]


def summary(config: TrainConfig, result: Mapping[str, Any], notes: Sequence[str] = ()) -> Iterator[str]:
    """The lines of the summary: what was trained, notes about the data, then the metrics."""
    yield ""
    yield from _settings(config)
    yield from notes
    yield ""
    rows = [
        ("test accuracy (EMA model, last step)", _percent(result.get("test_accuracy"))),
        ("best test accuracy (oracle: chosen on the test set)", _percent(result.get("best_test_accuracy"))),
        ("pseudo-labels used", _percent(result.get("utilisation"))),
        ("pseudo-labels correct, of those used", _percent(result.get("pseudo_label_accuracy"))),
        ("pool left out of training as likely outliers", _percent(result.get("left_out_share"))),
        ("compactness (mean distance to the assigned center)", _number(result.get("compactness"), ".3g")),
        ("training time", None if result.get("seconds") is None else format_duration(float(result["seconds"]))),
        ("images per second", _number(result.get("images_per_second"), ",.0f")),
        ("peak memory", _number(result.get("peak_memory_mb"), ",.0f", " MB")),
    ]
    if result.get("skipped_steps"):
        rows.append(("steps skipped (non-finite loss or gradient)", _number(result["skipped_steps"], ",")))
    shown = [(name, value) for name, value in rows if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        yield f"{name:{width}}  {value:>9}"
    if result.get("evidence"):
        yield f"guided by {percentages(result['evidence'])}"
    if result.get("test_accuracy") is None:
        yield f"no test accuracy: {result.get('test_accuracy_note')}"
    yield ""


def outlier_line(config: TrainConfig, result: Mapping[str, Any]) -> str | None:
    """How many images of the pool look like outliers, and where they are listed; None if none does."""
    found, judged = result.get("likely_outliers"), result.get("judged_images")
    if not found:
        return None
    # Labelled images in the pool are not judged.
    rest = result.get("unlabeled_images", 0) - config.labeled_in_pool * result.get("labeled_images", 0)
    sampled = judged is not None and judged < rest
    images = f"of {judged:,} images from the pool" if sampled else f"image{'s' * (found != 1)} of the pool"
    looks = "look like outliers" if found != 1 else "looks like an outlier"
    share = _percent(result.get("estimated_outlier_share"))
    return f"{found:,} {images} {looks}: {Path(str(config.run_dir)) / OUTLIERS} (estimated share: {share})"


def _settings(config: TrainConfig) -> Iterator[str]:
    labels = f"{config.labels_per_class} labels per class" if config.labels_per_class else "all labels"
    held_out = f", classes {config.held_out_classes} held out" if config.held_out_classes else ""
    in_pool = " (their images stay in the unlabelled pool)" if config.held_out_in_pool else ""
    yield f"{config.dataset}: {labels}{held_out}{in_pool}, seed {config.seed}"
    embedding = f"{config.embedding_dim}-dimensional embeddings" if config.embedding_dim else "the backbone's features"
    constraints = {"moments": f"moments up to order {config.moment_order}", "mmd": "MMD", "kl": "KL divergence"}
    constraint = f"constraint: {constraints[config.constraint]}" if config.moment_order else "no constraint"
    yield f"{config.backbone} backbone, {config.head} head on {embedding}, {constraint}"
    pool = f" + {config.unlabeled_batch_size} unlabelled" if config.unlabeled_batch_size else ""
    thresholds = {"none": "", "auto": ", pool weighted by P(inlier)"}
    outliers = thresholds.get(config.outliers, f", outlier threshold: {config.outliers}")
    yield f"{config.algorithm}{outliers}, {config.steps:,} steps of {config.labeled_batch_size} labelled{pool} images"


def _percent(value: float | int | None) -> str | None:
    return None if value is None else f"{100 * value:.2f} %"


def _number(value: float | int | None, form: str, unit: str = "") -> str | None:
    return None if value is None else f"{value:{form}}{unit}"
