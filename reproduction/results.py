"""The results page: what the recorded sweeps say about the paper's claims, and all of their tables.

    python -m reproduction.results docs/results.md --records benchmarks/results/sweeps --curves benchmarks/results/pixels.json

The page is made from the records alone (and, for the constraint's own tensors, from benchmarks/results/moments-tensors.json;
with --curves also from the record of benchmarks/pixels.py): the same records give the same page, byte for byte. Where records
were made again, former.toml in their folder says what a verdict was before and what changed it:

    [[verdict]]
    claim = "1a"
    scale = "digits"
    was = "confirmed"
    because = "the averaged model no longer holds a part of its random beginning."
"""

import argparse
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from momatch.config import TrainConfig
from momatch.config.presets import PRESETS
from momatch.console.wording import plural
from momatch.storage.durable import replace_files
from momatch.sweep.record import Record, read_record
from momatch.sweep.statistics import t_quantile
from momatch.sweep.table_text import Entry, Line, Table, escape_markdown, markdown
from momatch.sweep.tables import markdown_page
from reproduction.claims import CLAIMS
from reproduction.learning_curves import Curves, curves_section, read_curves
from reproduction.paper import GRIDS, paper_grid
from reproduction.verdict import FEWEST_PAIRS, Claim, Verdict

#: The first line of the page: only a file that has it is replaced.
MARKER = "<!-- Made by python -m reproduction.results from the records of the sweeps: edit those, not this page. -->"

#: Scale -> its name on the page, where that of the preset does not tell two apart.
TITLES = {
    "cifar10-40-labels/features": "CIFAR-10 features, 40 labels",
    "cifar10-250-labels/features": "CIFAR-10 features, 250 labels",
    "cifar10-resnet50-40-labels/features": "CIFAR-10 features of ResNet-50, 40 labels",
}
_FROZEN = (
    "CIFAR-10 features: the backbone (efficientnet-lite0 at 160 pixels, or ResNet-50 at 96) is frozen, projection and head are "
    "trained by the paper's method alone. The weight of the constraint was chosen on other seeds, with efficientnet-lite0 and "
    "40 labels (docs/experiments.md)."
)

#: In the folder of the records: what verdicts were before these.
FORMER = "former.toml"
_FORMER_KEYS = ("claim", "scale", "was", "because")

#: (number of a claim, scale) -> what its verdict was before, and what changed it.
Former = Mapping[tuple[str, str], tuple[str, str]]
#: Scale (the folder of its records) -> name of a grid -> its record.
Records = Mapping[str, Mapping[str, Record]]
#: Scale, with what was changed about its preset, and the verdict by its records.
_Verdicts = Sequence[tuple[str, Verdict]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m reproduction.results", description=__doc__.partition("\n")[0])
    parser.add_argument("page", type=Path, help="the Markdown file to write")
    parser.add_argument(
        "--records", type=Path, default=Path("sweeps"), help="the --out of the sweeps (default: sweeps)"
    )
    parser.add_argument("--curves", type=Path, help="a record of benchmarks/pixels.py, to show its learning curves")
    options = parser.parse_args(arguments)
    try:
        print(write_results(options.records, options.page, options.curves))
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    return 0


def write_results(folder: Path, path: Path, curves: Path | None = None) -> Path:
    """Write the page about all records in a folder of sweeps.

    Args:
        folder: with PRESET/GRID.json, or NAME/PRESET/GRID.json.
        path: of the page; its folder is created as needed.
        curves: a record of benchmarks/pixels.py, to show its learning curves.

    Returns:
        `path`.

    Raises:
        ValueError: if there is no record, one is damaged or in the wrong place, or `path` is a file other than such a page.
        OSError: if a file cannot be read or written.
    """
    if path.is_dir():
        raise ValueError(f"{path}: got a directory, expected a file for the results")
    if path.exists() and MARKER.encode() not in path.read_bytes()[:1000]:
        raise ValueError(f"{path}: got a file that is not a results page, and will not replace it; choose another name")
    records = read_records(folder)
    shown = read_curves(curves) if curves is not None else None
    page = results_page(records, read_former(folder, records), shown)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_files({path: page.encode()})
    return path


def read_records(folder: Path) -> Records:
    """All records in a folder of sweeps: known presets first, and in each the paper's grids first.

    Raises:
        ValueError: if there is none, or one is damaged, in the wrong place or not of the paper's grid of its name.
        OSError: if one cannot be read.
    """
    records: dict[str, dict[str, Record]] = {}
    # Sweeps of one preset with other settings have a --out of their own, NAME.
    paths = [*folder.glob("*/*.json"), *folder.glob("*/*/*.json")]
    for path in sorted(paths, key=lambda path: (_rank(path.stem, GRIDS), path.stem)):
        record = read_record(path)
        if (record.preset, record.grid) != (path.parent.name, path.stem):
            raise ValueError(
                f"{path}: got the record of preset {record.preset!r} and grid {record.grid!r}, expected that of "
                f"{path.parent.name!r} and {path.stem!r}; move it back to where the sweep wrote it"
            )
        if record.grid in GRIDS:
            _check_cells(path, record)
        records.setdefault(path.parent.relative_to(folder).as_posix(), {})[record.grid] = record
    if not records:
        raise ValueError(f"{folder}: got no record of a sweep, expected PRESET/GRID.json; run momatch sweep first")
    return {scale: records[scale] for scale in sorted(records, key=_order)}


def read_former(folder: Path, records: Records) -> Former:
    """What verdicts were before these records; nothing without a file.

    Raises:
        ValueError: if the file is damaged or names a claim or scale that there is not.
        OSError: if it cannot be read.
    """
    path = folder / FORMER
    if not path.exists():
        return {}
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("verdict", [])
    except ValueError as error:
        raise ValueError(f"{path}: {error}; correct it, or remove it to say nothing of former verdicts") from error
    numbers = [claim.number for claim in CLAIMS]
    former = {}
    for entry in entries if isinstance(entries, list) else [entries]:
        if (
            not isinstance(entry, dict)
            or sorted(entry) != sorted(_FORMER_KEYS)
            or not all(map(_is_text, entry.values()))
        ):
            raise ValueError(f"{path}: got {entry!r}, expected a [[verdict]] with the texts {', '.join(_FORMER_KEYS)}")
        for key, known in (("claim", numbers), ("scale", [*records])):
            if entry[key] not in known:
                raise ValueError(f"{path}: got the {key} {entry[key]!r}, expected one of {', '.join(known)}")
        former[entry["claim"], entry["scale"]] = (entry["was"], entry["because"])
    return former


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _order(scale: str) -> tuple[int, int, str]:
    preset = scale.rpartition("/")[2]
    return _rank(preset, tuple(PRESETS)), _rank(scale, tuple(TITLES)), scale


def _check_cells(path: Path, record: Record) -> None:
    """Refuse the record of another grid that has the name of one of the paper's."""
    cells = {(cell.row, cell.column): cell.settings for cell in paper_grid(record.grid).cells}
    for outcome in record.outcomes:
        expected = cells.get((outcome.row, outcome.column))
        if expected is None:
            raise ValueError(
                f"{path}: got the cell {outcome.row}, {outcome.column}, which the paper's grid {record.grid!r} does not have; "
                "give your own grid another name"
            )
        for key, value in expected.items():
            got = outcome.settings.get(key, getattr(TrainConfig, key))
            if got != value:
                raise ValueError(
                    f"{path}: got {outcome.row}, {outcome.column} with {key} = {got!r}, expected {value!r} as in the paper's "
                    f"grid {record.grid!r}; give your own grid another name"
                )


def _rank(name: str, known: tuple[str, ...]) -> int:
    return known.index(name) if name in known else len(known)


def results_page(records: Records, former: Former = MappingProxyType({}), curves: Curves | None = None) -> str:
    """The page as Markdown."""
    verdicts = [
        [(_with_overrides(scale, grids.get(claim.grid)), claim.verdict(grids)) for scale, grids in records.items()]
        for claim in CLAIMS
    ]
    judged = list(zip(CLAIMS, verdicts, strict=True))
    blocks = [
        MARKER,
        "# Results",
        _opening(records),
        "## The claims",
        markdown(_summary(judged, [*records])).rstrip("\n"),
    ]
    changes = _changes(judged, [*records], former)
    blocks += ["## Changed verdicts", changes] if changes else []
    blocks += ["## The evidence", *(block for claim, by_scale in judged for block in _evidence(claim, by_scale))]
    blocks += [curves_section(curves)] if curves is not None else []
    blocks += ["## How to read the numbers", _reading()]
    for scale, grids in records.items():
        paper = [(paper_grid(name), record) for name, record in grids.items() if name in GRIDS]
        if paper:
            blocks.append(f"## Tables of {escape_markdown(_title(scale))}")
        blocks += [markdown_page(grid, record, level=3).rstrip("\n") for grid, record in paper]
    own = [f"{scale}/{name}.md" for scale, grids in records.items() for name in grids if name not in GRIDS]
    if own:
        listed = ", ".join(f"`{name}`" for name in own)
        blocks += ["## Other grids", f"Their tables are next to their records: {listed}."]
    return "\n\n".join(blocks) + "\n"


def _opening(records: Records) -> str:
    runs = {
        (scale, outcome.run): outcome
        for scale, grids in records.items()
        for record in grids.values()
        for outcome in record.outcomes
    }
    failed = sum(outcome.error is not None for outcome in runs.values())
    return (
        f"What {len(runs):,} training runs at {plural(len(records), 'scale')} say about the claims of the paper; "
        f"{failed or 'none'} failed. The paper trained Wide ResNets for 2^20 steps on GPUs; these runs are as small "
        "as each table states. A claim that is "
        "confirmed here is confirmed at that scale, and one that is not may still hold at the paper's. The page is generated "
        "from the records by `python -m reproduction.results`."
    )


def _summary(judged: Sequence[tuple[Claim, _Verdicts]], scales: Sequence[str]) -> Table:
    lines = []
    for claim, verdicts in judged:
        states = (Entry(verdict.state, is_strong=verdict.state == "confirmed") for _, verdict in verdicts)
        lines.append(Line(f"{claim.number}. {claim.statement}", tuple(states)))
    notes = ["The numbers behind each verdict, and what was changed about a preset, are below."]
    notes += [_FROZEN] if any(scale in TITLES for scale in scales) else []
    return Table("Each claim, at each scale", tuple(notes), "claim", tuple(map(_title, scales)), tuple(lines))


def _changes(judged: Sequence[tuple[Claim, _Verdicts]], scales: Sequence[str], former: Former) -> str:
    """A line for each verdict that was another one before."""
    lines = []
    for claim, verdicts in judged:
        for scale, (_, verdict) in zip(scales, verdicts, strict=True):
            was, because = former.get((claim.number, scale), (verdict.state, ""))
            if was != verdict.state:
                words = f"{claim.number}, {_title(scale)}: {verdict.state}, was {was}: {because}"
                lines.append(f"- {escape_markdown(words)}")
    return "\n".join(lines)


def _title(scale: str) -> str:
    return TITLES.get(scale, scale)


def _with_overrides(scale: str, record: Record | None) -> str:
    changes = [f"{key} = {value}" for key, value in (record.overrides if record is not None else {}).items()]
    return _title(scale) + (" with " if changes else "") + ", ".join(changes)


def _evidence(claim: Claim, verdicts: _Verdicts) -> Iterator[str]:
    yield f"### {claim.number}. {escape_markdown(claim.statement)}"
    yield f"The paper: {escape_markdown(claim.paper)}\n\nConfirmed if: {escape_markdown(claim.rule)}"
    for name, verdict in verdicts:
        title = f"**{escape_markdown(name)}: {verdict.state}.**"
        if not verdict.evidence:
            yield f"{title} {escape_markdown(verdict.summary)}."
        else:
            yield "\n".join([title, "", *(f"- {escape_markdown(sentence)}" for sentence in verdict.evidence)])


def _reading() -> str:
    half = {n: t_quantile(n) / n**0.5 for n in (3, 5)}
    return "\n".join(
        f"- {line}"
        for line in (
            "Every mean has its number of runs in parentheses. ± is the standard deviation over seeds, not the standard error.",
            "Differences are paired: runs with the same seed share the labelled images and, as far as their settings allow, "
            "the initial weights, batches and views. Brackets hold the 95 % t interval of the mean difference.",
            f"Few seeds show only large differences: the interval extends {half[3]:.2f} standard deviations of the differences "
            f"to either side for 3 pairs and {half[5]:.2f} for 5. An effect that is not shown may still exist. Fewer than "
            f"{FEWEST_PAIRS} pairs decide nothing.",
            "Intervals are about other seeds, not other test images: all seeds share the test images. With 500 of them and an "
            "accuracy of 97 %, that choice alone has a standard error of 0.8 points; with 10,000 and 85 %, 0.4 points.",
            "The rules are fixed in the code (`reproduction/claims.py`) and the same for all presets.",
            "A failed run is no evidence: a claim that rests on a cell with a failed run is not confirmed by the others.",
            "The commit below a table is that of the command that last added to its record; runs may be older.",
            "The other intervals in the tables are not corrected for their number: of twenty true differences of zero, one is "
            "bold by chance on average.",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
