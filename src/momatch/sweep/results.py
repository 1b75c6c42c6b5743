"""The results page: what recorded sweeps say about the paper's claims, and all of their tables.

The same records give the same page, byte for byte: nothing on it comes from anywhere else.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from momatch.config.presets import PRESETS
from momatch.storage.durable import replace_files
from momatch.sweep.claims import CLAIMS
from momatch.sweep.grid import SHIPPED, load_grid
from momatch.sweep.record import Record, read_record
from momatch.sweep.statistics import t_quantile
from momatch.sweep.table_text import Entry, Line, Table, escape_markdown, markdown
from momatch.sweep.tables import markdown_page
from momatch.sweep.verdict import FEWEST_PAIRS, Claim, Verdict

#: The first line of the page: only a file that has it is replaced.
MARKER = "<!-- made by momatch sweep --results from the records of sweeps; edit those, not this page -->"

#: Preset -> name of a grid -> its record.
Records = Mapping[str, Mapping[str, Record]]
#: Preset, with what was changed about it, and the verdict by its records.
_Verdicts = Sequence[tuple[str, Verdict]]


def write_results(out_dir: Path, path: Path) -> Path:
    """Write the page about all records in `out_dir`.

    Args:
        out_dir: the folder of sweeps, with PRESET/GRID.json.
        path: of the page; its folder is made as needed.

    Returns:
        `path`.

    Raises:
        ValueError: if there is no record, one is damaged or not where it belongs, or `path` is another file than such a page.
        OSError: if a file cannot be read or written.
    """
    check_page(path)
    page = results_page(read_records(out_dir))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_files({path: page.encode()})
    return path


def check_page(path: Path) -> None:
    """Refuse a place that no page of results may be written to.

    Raises:
        ValueError: if it is a directory, or another file than such a page.
        OSError: if it cannot be read.
    """
    if path.is_dir():
        raise ValueError(f"{path}: got a directory, expected a file for the results")
    if path.exists() and MARKER.encode() not in path.read_bytes()[:1000]:
        raise ValueError(
            f"{path}: got a file that is no page of results, which is left alone; name another or move it away"
        )


def read_records(out_dir: Path) -> Records:
    """All records in a folder of sweeps: known presets first, each with the shipped grids first.

    Raises:
        ValueError: if there is none, one is damaged, or lies where that of another preset or grid belongs.
        OSError: if one cannot be read.
    """
    found = find_records(out_dir)
    if not found:
        raise ValueError(f"{out_dir}: got no record of a sweep, expected PRESET/GRID.json; run momatch sweep first")
    presets = sorted(found, key=lambda name: (_place(name, list(PRESETS)), name))
    return {
        preset: dict(sorted(found[preset].items(), key=lambda item: (_place(item[0], SHIPPED), item[0])))
        for preset in presets
    }


def find_records(out_dir: Path) -> dict[str, dict[str, Record]]:
    """Preset -> grid -> record, of all records in a folder of sweeps; there may be none.

    Raises:
        ValueError: if one is damaged, or lies where that of another preset or grid belongs.
        OSError: if one cannot be read.
    """
    found: dict[str, dict[str, Record]] = {}
    for path in sorted(out_dir.glob("*/*.json")):
        record = read_record(path)
        if (record.preset, record.grid) != (path.parent.name, path.stem):
            raise ValueError(
                f"{path}: got the record of preset {record.preset!r} and grid {record.grid!r}, expected that of "
                f"{path.parent.name!r} and {path.stem!r}; move it back to where the sweep wrote it"
            )
        found.setdefault(record.preset, {})[record.grid] = record
    return found


def _place(name: str, known: list[str] | tuple[str, ...]) -> int:
    return known.index(name) if name in known else len(known)


def results_page(records: Records) -> str:
    """The page as Markdown."""
    verdicts = [
        [(_named(preset, grids.get(claim.grid)), claim.verdict(grids)) for preset, grids in records.items()]
        for claim in CLAIMS
    ]
    judged = list(zip(CLAIMS, verdicts, strict=True))
    blocks = [MARKER, "# Results", _opening(records), "## The claims", markdown(_summary(judged)).rstrip("\n")]
    blocks += ["## The evidence", *(block for claim, by_preset in judged for block in _evidence(claim, by_preset))]
    blocks += ["## How to read the numbers", _reading()]
    for preset, grids in records.items():
        shipped = [(load_grid(name), record) for name, record in grids.items() if name in SHIPPED]
        if shipped:
            blocks.append(f"## Tables of {escape_markdown(preset)}")
        blocks += [markdown_page(grid, record, level=3).rstrip("\n") for grid, record in shipped]
    own = [f"{preset}/{name}.md" for preset, grids in records.items() for name in grids if name not in SHIPPED]
    if own:
        listed = ", ".join(f"`{name}`" for name in own)
        blocks += ["## Other grids", f"Their tables lie beside their records: {listed}."]
    return "\n\n".join(blocks) + "\n"


def _opening(records: Records) -> str:
    runs = [outcome for grids in records.values() for record in grids.values() for outcome in record.outcomes]
    names = {
        (preset, outcome.run) for preset, grids in records.items() for r in grids.values() for outcome in r.outcomes
    }
    failed = sum(outcome.error is not None for outcome in runs)
    ending = f"; {failed} failed" if failed else "; none failed"
    presets = f"{len(records)} {'preset' if len(records) == 1 else 'presets'}"
    return (
        f"What {len(names):,} training runs of {presets} say about the claims of the paper{ending}. The paper trained Wide "
        "ResNets for 2^20 steps on GPUs; these runs are of the scale that each table states. So a claim that is confirmed here "
        "is confirmed at that scale, and one that is not may still hold at the paper's. The page is made from the records by "
        "`momatch sweep --results`."
    )


def _summary(judged: Sequence[tuple[Claim, _Verdicts]]) -> Table:
    lines = []
    for claim, verdicts in judged:
        for name, verdict in verdicts:
            state = Entry(verdict.state, is_strong=verdict.state == "confirmed")
            lines.append(Line(f"{claim.number}. {claim.statement}", (Entry(name), state, Entry(verdict.summary))))
    return Table("Each claim by preset", (), "claim", ("preset", "verdict", "evidence in one line"), tuple(lines))


def _named(preset: str, record: Record | None) -> str:
    """The preset, and what the command line changed about it."""
    overrides = record.overrides if record is not None else {}
    return preset + (" with " if overrides else "") + ", ".join(f"{key} = {value}" for key, value in overrides.items())


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
            "Every mean has its number of runs in brackets. ± is the standard deviation over seeds, not an error of the mean.",
            "Differences are paired: runs of one seed share the labelled images, and as far as their settings allow the "
            "initial weights, the batches and the views. Brackets hold the 95 % t interval of the mean difference.",
            f"Few seeds see large differences only: the interval is {half[3]:.2f} standard deviations of the differences "
            f"either side for 3 pairs and {half[5]:.2f} for 5. What is not shown may still be there. Fewer than {FEWEST_PAIRS} "
            "pairs decide nothing.",
            "Intervals speak of other seeds, not of other test images: all seeds are tested on the same ones. Of 500 test "
            "images at 97 % accuracy the choice alone has a standard error of 0.8 points, of 10,000 at 85 % one of 0.4.",
            "The rules of the claims stand in the code and are the same for all presets.",
            "A run that failed is no evidence: a claim that rests on cells with such runs is not confirmed by the others.",
            "The commit under a table is that of the command that recorded its figures last; runs may be older.",
            "The many other intervals in the tables are not corrected for their number: of twenty differences that are truly "
            "nought, one is bold by chance on average.",
        )
    )
