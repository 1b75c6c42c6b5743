"""The plain files of a run directory as far as they can be read, and a sentence for each that cannot.

`momatch.training.run.Run` refuses a run of which a file is damaged; a report has to make do with the others.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from momatch.config import TrainConfig
from momatch.models.backbones.custom import UntrustedCodeError
from momatch.report.findings import Missing
from momatch.storage.checkpoint import FOLDER
from momatch.storage.durable import parse_json, read_object
from momatch.storage.run_config import read_config

METRICS, RESULT, LOG = "metrics.jsonl", "result.json", "run.log"

T = TypeVar("T")


@dataclass(frozen=True)
class RunFiles:
    """What could be read.

    Attributes:
        config: config.json.
        result: result.json; None if it is not there or damaged.
        metrics: the whole lines of metrics.jsonl.
        problems: what could not be read, one sentence each.
    """

    config: TrainConfig | Missing
    result: dict[str, Any] | None
    metrics: list[dict[str, Any]]
    problems: tuple[str, ...]


def attempt(compute: Callable[[], T]) -> T | Missing:
    """What `compute` returns, or why it could not.

    Every error is caught but `UntrustedCodeError`: damaged files, and backbones of the user's own, raise what they like, and
    a report is what one turns to when something is wrong.
    """
    try:
        return compute()
    except UntrustedCodeError:
        raise
    except (ValueError, OSError) as error:
        return Missing(sentence(str(error) or type(error).__name__))
    except Exception as error:
        return Missing(sentence(f"{type(error).__name__}: {error}"))


def sentence(text: str) -> str:
    """`text` on one line, with a full stop."""
    line = " ".join(text.split())
    return line if line.endswith((".", "!", "?")) else f"{line}."


def read_run(directory: Path) -> RunFiles:
    """Read settings, metrics and result of the run in `directory`, which exists. Nothing on disk is changed."""
    entries = attempt(lambda: sorted(path.name for path in directory.iterdir()))
    if isinstance(entries, Missing) or not entries:
        reason = entries.reason if isinstance(entries, Missing) else f"{directory}: the directory is empty."
        reason += " Give the directory of a run, as momatch train names it."
        return RunFiles(Missing(reason), None, [], (reason,))
    problems = []
    config = attempt(lambda: read_config(directory))
    if isinstance(config, Missing):
        problems.append(f"The settings cannot be read: {config.reason}")
    lines, remarks = _read_metrics(directory / METRICS)
    problems += remarks
    result = attempt(lambda: read_object(directory / RESULT))
    if isinstance(result, Missing):
        problems.append(f"The result cannot be read: {result.reason}{written_again(directory)}")
        return RunFiles(config, None, lines, tuple(problems))
    if result is None and not isinstance(config, Missing):
        problems.append(_how_far(directory, config, lines))
        problems += _last_words(directory / LOG)
    elif result is not None:
        problems += _too_short(directory / METRICS, config, lines)
    return RunFiles(config, result, lines, tuple(problems))


def written_again(directory: Path) -> str:
    """How to have model and result written again, where there is a checkpoint to write them from."""
    if not (directory / FOLDER).is_dir():
        return ""
    return f" To have it written again from the last checkpoint, delete {directory / RESULT} and {_resume(directory)}"


def _resume(directory: Path) -> str:
    return f"go on with: momatch train --resume --run-dir {shlex.quote(str(directory))}"


def _read_metrics(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The whole lines, and which are damaged; a last one without newline is being written or was cut off by a kill."""
    try:
        *whole, _ = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [sentence(f"The metrics cannot be read: {error}")]
    parsed = [_parse(line) for line in whole]
    damaged = [str(number) for number, line in enumerate(parsed, start=1) if line is None]
    lines = [line for line in parsed if line is not None]
    if not damaged:
        return lines, []
    shown = ", ".join(damaged[:5]) + (", ..." if len(damaged) > 5 else "")
    return lines, [
        f"{path}: {len(damaged)} of {len(parsed)} lines are damaged and left out (line {shown}); delete them to be rid of "
        "this sentence."
    ]


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        value = parse_json(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and type(value.get("step")) is int else None


def _how_far(directory: Path, config: TrainConfig, lines: list[dict[str, Any]]) -> str:
    done = max((line["step"] for line in lines), default=0)
    return (
        f"The run has not finished: its metrics reach step {done:,} of {config.steps:,}. Unless a process is still at work on "
        f"it, {_resume(directory)}"
    )


def _too_short(path: Path, config: TrainConfig | Missing, lines: list[dict[str, Any]]) -> list[str]:
    """Whether metrics of a finished run are missing; the last step always has a line."""
    if not lines:
        return [f"{path}: there are no metrics, so there are no training curves."]
    last = max(line["step"] for line in lines)
    if isinstance(config, Missing) or last >= config.steps:
        return []
    return [f"{path}: the metrics end at step {last:,} of {config.steps:,}, although the run has finished."]


def _last_words(path: Path) -> list[str]:
    """Why the run stopped, if its log says so."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    _, mark, reason = lines[-1].partition(" stopped: ") if lines else ("", "", "")
    return [sentence(f"{path.name} ends with: {reason}")] if mark else []
