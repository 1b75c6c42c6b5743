"""The claim about memory: what the order of the constraint costs."""

from momatch.sweep.figures import FIGURES, by_seed
from momatch.sweep.paper import ORDERS, PaperFigure, paper_figures
from momatch.sweep.record import Record
from momatch.sweep.statistics import Estimate, paired_ratio
from momatch.sweep.table_text import estimate_text
from momatch.sweep.verdict import (
    FEWEST_PAIRS,
    Check,
    Claim,
    Verdict,
    cell_text,
    conclude,
    difference,
    mind_losses,
    own_estimate,
)

#: How much more than without a constraint still counts as flat.
FLAT = 1.10
#: How much explicit moments must make of it for a measurement to rule them out.
DOUBLE = 2.0
#: Of every dataset that the shipped grids are for.
CLASSES = 10
DIMENSIONS = (8, 32, 128, 512)
MEMORY = FIGURES["peak_memory"]


def _explicit(D: int, order: str) -> float:
    """MiB of the D^p cells of one p-th moment in float32, for each class."""
    return float(CLASSES * D ** ORDERS.index(order) * 4 / 2**20)


def _size(mebibytes: float) -> str:
    size = 1024 * mebibytes
    for unit in ("KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def _grown(record: Record, D: int, order: str) -> Estimate | None:
    return paired_ratio(by_seed(record, f"{D}-D", order, MEMORY), by_seed(record, f"{D}-D", "none", MEMORY))


def _failed(record: Record, row: str) -> Check | None:
    """Runs of a constraint that failed are what the claim denies; one without a constraint leaves nothing to compare with."""
    failed = [outcome for outcome in record.outcomes if outcome.row == row and outcome.error is not None]
    failed.sort(key=lambda outcome: outcome.column == "none")
    if not failed:
        return None
    first = failed[0]
    holds = None if first.column == "none" else False
    return Check(holds, f"{row}: {first.column}, seed {first.seed} failed: {first.error}")


def _grows(record: Record, D: int) -> Check:
    row = f"{D}-D"
    failed = _failed(record, row)
    if failed is not None:
        return failed
    ratios = {order: _grown(record, D, order) for order in ORDERS[1:]}
    missing = [order for order, ratio in ratios.items() if ratio is None]
    if missing:
        return Check(None, f"{row}: no seed was measured both without constraint and with {missing[0]}.", "not run")
    found = {order: ratio for order, ratio in ratios.items() if ratio is not None}
    largest = max(found, key=lambda order: found[order].mean)
    ratio, added = found[largest], difference(record, MEMORY, (row, largest), (row, "none"))
    sentence = (
        f"{row}: largest with the {largest} order, {cell_text(record, MEMORY, (row, largest))} MiB against "
        f"{cell_text(record, MEMORY, (row, 'none'))} without, "
        + (f"{estimate_text(added, 0)} MiB, " if added is not None else "")
        + f"times {estimate_text(ratio, 2, signed=False)}{_paper_text(row)}."
    )
    fewest = min(ratio.n for ratio in found.values())
    if fewest < FEWEST_PAIRS:
        check = Check(None, f"{sentence.rstrip('.')}: {fewest} of at least {FEWEST_PAIRS} seeds.")
    else:
        check = Check(
            ratio.mean <= FLAT, f"{sentence.rstrip('.')}: {'' if ratio.mean <= FLAT else 'not '}at most {FLAT:g}."
        )
    return mind_losses(check, record, *((MEMORY, (row, order)) for order in ORDERS))


def _rules_out(record: Record) -> list[Check]:
    """Where explicit moments would at least double the memory: whether the runs leave no room for them."""
    checks = []
    for D in DIMENSIONS:
        without = own_estimate(record, MEMORY, (f"{D}-D", "none"))
        for order in ORDERS[1:]:
            found = _grown(record, D, order)
            if without is None or found is None or found.n < FEWEST_PAIRS:
                continue
            explicit = 1 + _explicit(D, order) / without.mean
            if explicit < DOUBLE:
                continue
            # Ratios that are all alike have no interval: that is as exact as it gets.
            high = found.mean if found.high is None else found.high
            checks.append(
                Check(
                    high < explicit,
                    f"{D}-D, {order}: explicit moments would make it times {explicit:.3g}, measured are "
                    f"{estimate_text(found, 2, signed=False)}: {'ruled out' if high < explicit else 'not ruled out'}.",
                )
            )
    return checks


def _power(record: Record, D: int) -> str:
    """All orders, and what explicit moments would add."""
    texts = []
    for order in ORDERS[1:]:
        found = _grown(record, D, order)
        measured = "not measured" if found is None else f"times {estimate_text(found, 2, signed=False)}"
        texts.append(f"{order} {measured}, explicit {_size(_explicit(D, order))}")
    return f"{D}-D by order, and what {CLASSES} explicit moments of D^p cells in float32 would add: {'; '.join(texts)}."


def _paper_text(row: str) -> str:
    known = {figure.column: figure for figure in paper_figures("memory", MEMORY.name) if figure.row == row}
    if not known:
        return "; not in the paper"
    return f"; the paper, none and 4th: {_short(known['none'])} and {_short(known['4th'])}"


def _short(figure: PaperFigure) -> str:
    return f"{'more than ' if figure.is_bound else ''}{figure.mean:.2f} {figure.unit}"


def _flat(record: Record) -> Verdict:
    devices = {str((outcome.result or {}).get("device")) for outcome in record.outcomes if outcome.result is not None}
    of = "the tensors" if any(device.startswith("cuda") for device in devices) else "all of the process"
    beside = [_power(record, D) for D in DIMENSIONS]
    beside.append(
        "Where explicit moments would add less than the runs differ by, as at 8-D, a flat figure says nothing about how they "
        "are computed."
    )
    if len(devices) == 1 and devices != {"None"}:
        beside.append(
            f"Ours is the peak of {of} on the device {next(iter(devices))!r}, the paper's that of a GPU: growth compares, size "
            "does not."
        )
    return conclude([*(_grows(record, D) for D in DIMENSIONS), *_rules_out(record)], beside=beside)


FLAT_MEMORY = Claim(
    number="5",
    statement="Memory grows with the order as D^p in the paper; computed by Gram matrices it stays flat.",
    paper="GPU memory, none to 4th: 7.72 to 8.76 GiB at 8-D; 7.71 to 13.15 (3rd) and more than 20.47 GiB (4th) at 32-D.",
    rule=(
        "At 8, 32, 128 and 512 dimensions, over at least "
        f"{FEWEST_PAIRS} seeds: the mean paired ratio of the peak memory with an order to that without a constraint is at most "
        f"{FLAT:g} for each of the orders 1 to 4. And where explicit moments of D^p cells for {CLASSES} classes would make it "
        f"{DOUBLE:g} times as much or more, the 95 % interval of the ratio lies below what they would make it."
    ),
    grid="memory",
    judge=_flat,
)
