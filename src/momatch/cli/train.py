"""``momatch train``: train a classifier, say in words what came of it."""

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
from momatch.console.durations import format_duration
from momatch.console.signals import speaks
from momatch.storage.run_config import is_run
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
    named = config.resume or "preset_name" in merged(_layers(flags))
    if speaks() and config.preset_name == FEATURES_PRESET and not named:
        print(
            f"{config.dataset} holds features: settings of the preset 'features' (--preset names others)",
            file=sys.stderr,
        )
    if flags.print_config:
        if speaks():
            print(json.dumps(config.to_dict(), indent=2))
        return 0
    from momatch.training.fit import fit

    run = fit(config, trust_code=flags.trusts_backbone)
    # Of several processes, the first one speaks and writes.
    if not speaks():
        return 0
    from momatch.report import report_run

    # Before anything is printed: a reader that has seen enough (head) ends the command.
    try:
        report, trouble = report_run(run), None
    except (ValueError, OSError) as error:
        # The run itself is finished and whole.
        report, trouble = None, error
    result = run.result or {}
    for line in summary(config, result):
        print(line)
    if report is not None:
        print(f"report: {report}")
    print(f"model:  {config.run_dir}")
    if result.get("test_accuracy") is not None:
        trust = " --trust-code" if ":" in config.backbone else ""
        print(f"\nNext: momatch evaluate {shlex.quote(str(config.run_dir))}{trust}")
    if trouble is not None:
        again = f"momatch report {shlex.quote(str(config.run_dir))} --out FILE"
        print(f"momatch train: warning: the run is finished, but has no report: {trouble}; {again}", file=sys.stderr)
    return 0


def _stray_word(argv: Sequence[str]) -> str | None:
    """The first word that is neither a flag nor a flag's value: other commands take their dataset like that."""
    switches = {f"--{field.name.replace('_', '-')}" for field in fields(TrainConfig) if field.type is bool}
    switches |= {flag.replace("--", "--no-", 1) for flag in switches} | {"--print-config", "--trust-code"}
    for before, word in zip(["", *argv], argv, strict=False):
        takes_value = before.startswith("-") and "=" not in before and before not in switches
        if not word.startswith("-") and not takes_value:
            return word
    return None


def resolve(flags: Flags) -> TrainConfig:
    """The settings that the run will have.

    Raises:
        ValueError: if a setting is unknown, of the wrong type or out of range, or not that of the run to be resumed.
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
            f"{config.run_dir}: there is no run to resume; pass --resume auto to start one here, or the --run-dir of a run"
        )
    from momatch.training.run import Run

    return combine_resumed(layers, config, Run.load(config.run_dir).config)


def _layers(flags: Flags) -> list[Layer]:
    """Where settings come from, the weakest first: preset, config file, flags."""
    values = {} if flags.config is None else read_config_file(flags.config)
    of_file = values.pop("preset", None)
    preset = of_file if flags.preset is None else flags.preset
    layers = [] if preset is None else [preset_layer(str(preset))]
    return [*layers, Layer(values, str(flags.config)), Layer(flags.settings)]


def summary(config: TrainConfig, result: Mapping[str, Any]) -> Iterator[str]:
    """The lines that say what was trained and what came of it."""
    yield ""
    yield from _settings(config)
    yield ""
    rows = [
        ("test accuracy (averaged model, last step)", _percent(result.get("test_accuracy"))),
        ("best of all evaluations (an oracle: chosen by the test labels)", _percent(result.get("best_test_accuracy"))),
        ("pseudo-labels used", _percent(result.get("utilisation"))),
        ("pseudo-labels right, of those used", _percent(result.get("pseudo_label_accuracy"))),
        ("compactness (mean distance to the assigned center)", _number(result.get("compactness"), ".3g")),
        ("time", None if result.get("seconds") is None else format_duration(float(result["seconds"]))),
        ("images a second", _number(result.get("images_per_second"), ",.0f")),
        ("peak memory", _number(result.get("peak_memory_mb"), ",.0f", " MB")),
    ]
    if result.get("skipped_steps"):
        rows.append(("steps skipped (loss or gradient not finite)", _number(result["skipped_steps"], ",")))
    shown = [(name, value) for name, value in rows if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        yield f"{name:{width}}  {value:>9}"
    if result.get("test_accuracy") is None:
        yield f"no test accuracy: {result.get('test_accuracy_note')}"
    yield ""


def _settings(config: TrainConfig) -> Iterator[str]:
    labels = f"{config.labels_per_class} labels a class" if config.labels_per_class else "all labels"
    held_out = f", classes {config.held_out_classes} held out" if config.held_out_classes else ""
    in_pool = " (their images stay in the pool)" if config.held_out_in_pool else ""
    yield f"{config.dataset}: {labels}{held_out}{in_pool}, seed {config.seed}"
    width = f"{config.embedding_dim} dimensions" if config.embedding_dim else "the network's own features"
    constraints = {"moments": f"moments up to order {config.moment_order}", "mmd": "MMD", "kl": "KL divergence"}
    constraint = f"constrained by {constraints[config.constraint]}" if config.moment_order else "not constrained"
    yield f"{config.backbone} network, {config.head} head on {width}, {constraint}"
    pool = f" + {config.unlabeled_batch_size} unlabelled" if config.unlabeled_batch_size else ""
    outliers = f", outliers kept out by {config.outliers}" if config.outliers != "none" else ""
    yield f"{config.policy}{outliers}, {config.steps:,} steps of {config.labeled_batch_size} labelled{pool} images"


def _percent(value: float | int | None) -> str | None:
    return None if value is None else f"{100 * value:.2f} %"


def _number(value: float | int | None, form: str, unit: str = "") -> str | None:
    return None if value is None else f"{value:{form}}{unit}"
