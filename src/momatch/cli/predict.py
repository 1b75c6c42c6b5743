"""``momatch predict``: label new images and flag outliers."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from momatch.console.signals import Interrupted
from momatch.console.warned import say_warning, warnings_said

if TYPE_CHECKING:
    from momatch.inference.predict.stream import Summary
    from momatch.models.saved_model import SavedModel

_ALPHA = 0.05


@dataclass(frozen=True)
class Arguments:
    """Label images with a trained classifier and flag outliers.

    Writes one row per image: label, confidence, log density, Mahalanobis distance, outlier p-value, flag.

    Attributes:
        run: directory of a finished run, or a model folder.
        paths: image files, folders, quoted patterns ('photos/**/*.jpg'), .csv or .parquet tables with a path column, .npz
            files, or names of known datasets (for their test images).
        out: output file: .csv, .jsonl or .parquet (default: CSV to standard output).
        overwrite: replace an existing output file.
        alpha: flag images with a p-value of at most this; bounds the false-positive rate: the share of ordinary images that are
            flagged (default: 0.05).
        fdr: flag by Benjamini-Hochberg over all images instead; bounds the false-discovery rate: the share of flagged images
            that are ordinary.
        posterior: add a column per class with its posterior probability.
        batch_size: images per batch.
        workers: threads that decode and predict (default: one per core).
        device: e.g. cpu or cuda; auto picks the fastest available.
        data_dir: directory of the known datasets ($MOMATCH_DATA).
        trust_code: allow importing the model's custom backbone (package.module:factory), which runs that module's code.
        progress: show a progress line.
    """

    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]]
    paths: tyro.conf.Positional[
        Annotated[tuple[str, ...], tyro.conf.arg(metavar="PATH [PATH ...]", help_behavior_hint="")]
    ]
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    overwrite: bool = False
    alpha: Annotated[float | None, tyro.conf.arg(metavar="RATE", help_behavior_hint="")] = None
    fdr: Annotated[float | None, tyro.conf.arg(metavar="RATE", help_behavior_hint="")] = None
    posterior: bool = False
    batch_size: Annotated[int, tyro.conf.arg(metavar="INT")] = 64
    workers: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None
    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    data_dir: Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = None
    trust_code: tyro.conf.FlagCreatePairsOff[bool] = False
    progress: bool = True


def main(argv: Sequence[str]) -> int:
    """Run ``momatch predict``; returns the exit code: 1 if no image could be read."""
    arguments = tyro.cli(Arguments, prog="momatch predict", args=list(argv))
    _check(arguments)
    from momatch.training.allocator import keep_large_blocks

    # Before any thread starts.
    keep_large_blocks()
    from momatch.inference.predict.inputs import find_sources
    from momatch.inference.predict.output import check_out
    from momatch.inference.predict.stream import Settings, predict_to_file
    from momatch.training.run import load_trained

    # Check everything before the work.
    if arguments.out is not None:
        check_out(arguments.out, overwrite=arguments.overwrite, inputs=arguments.paths)
    model = load_trained(arguments.run, trust_code=arguments.trust_code)
    with warnings_said("predict"):
        sources = find_sources(arguments.paths, arguments.data_dir)
    for message in _warnings(model, arguments):
        say_warning("predict", message)
    settings = Settings(
        alpha=_ALPHA if arguments.alpha is None else arguments.alpha,
        fdr=arguments.fdr,
        posterior=arguments.posterior,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        device=arguments.device,
        progress=arguments.progress,
    )
    with _stopped_by_signals(arguments.out):
        summary = predict_to_file(model, sources, arguments.out, settings)
    print(in_words(summary, settings.alpha, settings.fdr, arguments.out), file=sys.stderr)
    return 0 if summary.images else 1


def in_words(summary: "Summary", alpha: float, fdr: float | None, out: Path | None) -> str:
    """The summary line."""
    parts = [f"{summary.images:,} images"]
    if summary.flagged is not None:
        rule = f"p <= {alpha:g}, --alpha" if fdr is None else f"false discovery rate {fdr:g}, --fdr"
        parts.append(f"{summary.flagged:,} flagged ({rule})")
    if summary.unreadable:
        parts.append(f"{summary.unreadable:,} unreadable (see column error)")
    rate = (
        f"{summary.images_per_second:,.0f}" if summary.images_per_second >= 10 else f"{summary.images_per_second:.2g}"
    )
    parts.append(f"{summary.seconds:.1f} s, {rate} images/s")
    return "; ".join(parts) + (f"; {out}" if out is not None else "")


def _check(arguments: Arguments) -> None:
    if arguments.alpha is not None and arguments.fdr is not None:
        raise ValueError(
            "got both --alpha and --fdr, expected one of them: --alpha bounds the share of ordinary images that are flagged, "
            "--fdr the share of flagged images that are ordinary"
        )
    for name in ("alpha", "fdr"):
        level: float | None = getattr(arguments, name)
        if level is not None and not 0.0 < level < 1.0:
            raise ValueError(f"--{name}: got {level}, expected a number between 0 and 1")
    for name in ("batch_size", "workers"):
        count: int | None = getattr(arguments, name)
        if count is not None and count < 1:
            raise ValueError(f"--{name.replace('_', '-')}: got {count}, expected at least 1")


def _warnings(model: "SavedModel", arguments: Arguments) -> Iterator[str]:
    if model.calibration is None:
        yield (
            "the model has no calibration, so p_value and flagged stay empty; train it again with images held out for "
            "calibration (--calibration-fraction)"
        )
        return
    m = model.calibration.scores.numel()
    name, level = ("--fdr", arguments.fdr) if arguments.fdr is not None else ("--alpha", arguments.alpha or _ALPHA)
    if level * (m + 1) < 1:
        needed = math.ceil(1 / level) - 1
        yield (
            f"nothing can be flagged at {name} {level:g}: with {m} calibration images the smallest p-value is "
            f"{1 / (m + 1):.3g}; at least {needed} are needed"
        )


@contextmanager
def _stopped_by_signals(out: Path | None) -> Iterator[None]:
    """Report what happened to the output when a signal stops the command."""
    message = "interrupted; not all rows were written" if out is None else f"interrupted; {out} was not written"
    try:
        yield
    except Interrupted as error:
        raise Interrupted(message, error.signal_number) from error
