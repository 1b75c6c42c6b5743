"""What every benchmark shares: interleaved timing, peak memory, and a recorded result that says where it came from."""

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from momatch.storage.machine import machine_facts
from momatch.sweep.statistics import Estimate, summary

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


def spread(values: Sequence[float], digits: int) -> str:
    """Mean ± standard deviation; empty for no values."""
    found = summary(values)
    if found is None:
        return ""
    return f"{found.mean:.{digits}f}" + ("" if found.std is None else f" ± {found.std:.{digits}f}")


def interval(found: Estimate, digits: int) -> str:
    """A difference with its 95 % interval, if it has one."""
    if found.low is None:
        return f"{found.mean:+.{digits}f}"
    return f"{found.mean:+.{digits}f} [{found.low:+.{digits}f}, {found.high:+.{digits}f}]"


def write_result(
    name: str, rows: Sequence[Mapping[str, object]], notes: str, *, details: object = None, **extra: object
) -> None:
    """Write results/NAME.json and results/NAME.md, and print the table.

    Args:
        name: of the files.
        rows: of the table.
        notes: what was done, in words; stands above the table.
        details: for the JSON file alone: what the rows were made of.
        extra: stands below the table.
    """
    RESULTS.mkdir(exist_ok=True)
    arguments = ["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]
    facts = machine_facts(arguments, packages=("pillow", "scikit-learn"), load_before=round(os.getloadavg()[0], 2))
    command = facts.pop("command")
    record = {"command": command, "environment": facts, "notes": notes, **extra, "rows": list(rows)}
    if details is not None:
        record["details"] = details
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    where = " · ".join(f"{key} {value}" for key, value in facts.items())
    text = f"# {name}\n\n{notes}\n\n{_table(rows)}\n\n`{command}`\n\n{where}\n"
    for key, value in extra.items():
        text += f"\n{key}: {value}\n"
    (RESULTS / f"{name}.md").write_text(text)
    print(text)


def medians(
    contenders: Mapping[str, Callable[[], object]], *, repeats: int = 15, warmup: int = 3, at_most: float = 20.0
) -> dict[str, float]:
    """Median seconds of each, taken in turns so that a busy moment hits all alike.

    Args:
        contenders: name -> what to time.
        repeats: rounds.
        warmup: untimed calls before.
        at_most: stop after this many seconds, but not before three rounds.
    """
    for call in contenders.values():
        for _ in range(warmup):
            call()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    begin = time.perf_counter()
    for round_ in range(repeats):
        if round_ >= 3 and time.perf_counter() - begin > at_most:
            break
        for name, call in contenders.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def kept(path: Path, measure: Callable[[], object]) -> Any:
    """What a file holds as JSON; if there is none, what `measure` gives, which is then kept there."""
    if not path.exists():
        path.write_text(json.dumps(measure()))
    return json.loads(path.read_text())


def recorded(path: Path | None, seeds: Sequence[int]) -> dict[str, list[Any]]:
    """The runs of an earlier record of the same seeds, by cell; without a path, nothing.

    Raises:
        SystemExit: if the record is of other seeds.
    """
    if path is None:
        return {}
    record = json.loads(path.read_text())
    if str(list(seeds)) not in record["notes"]:
        raise SystemExit(f"--rivals: got {path.name}, expected a record of seeds {list(seeds)}")
    return dict(record["details"])


def peak_megabytes(call: Callable[[], object]) -> float:
    """By how much `call` raises this process's resident memory at its peak (Linux)."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the present
    before = _status("VmRSS")
    call()
    return (_status("VmHWM") - before) / 1024


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {key}")


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(row.get(key, "")) for key in columns) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
