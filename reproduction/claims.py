"""The paper's claims and the rules that judge them, in the order of the results page (`CLAIMS`)."""

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from momatch.config import TrainConfig
from momatch.sweep.metrics import HELD_OUT, METRICS, SCORES, STATES, Metric, auroc_metric, origins
from momatch.sweep.record import Record
from momatch.sweep.statistics import Estimate, paired_difference, paired_ratio
from momatch.sweep.table_text import estimate_text
from reproduction.paper import ORDERS, CellName, in_words, published, quote
from reproduction.verdict import (
    FEWEST_PAIRS,
    LEARNED,
    Check,
    Claim,
    Measured,
    Verdict,
    check_difference,
    check_ratio,
    check_value,
    conclude,
    list_cells,
    mind_losses,
    unlearned,
)

ACCURACY = METRICS["accuracy"]
COMPACTNESS = METRICS["compactness"]
OFFSET = METRICS["center_offset"]
SPREAD = METRICS["center_spread"]
MEMORY = METRICS["peak_memory"]
_RECORDS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
#: What the constraint's own tensors take; no sweep measures it.
OWN_TENSORS = _RECORDS / "moments-tensors.json"
#: By how much the constraint makes a process grow that returns freed blocks; the sweeps' processes keep them.
PROCESS_MEMORY = _RECORDS / "process_memory.json"

WIDE: CellName = ("Linear, all features", "none")
NARROW: CellName = ("Linear 8-D", "none")
AAGMM: CellName = ("AAGMM 8-D", "none")
AAGMM_1ST: CellName = ("AAGMM 8-D", "1st")
AAGMM_2ND: CellName = ("AAGMM 8-D", "2nd")
KMEANS: CellName = ("KMeans 8-D", "none")
KMEANS_1ST: CellName = ("KMeans 8-D", "1st")
#: Both heads by the orders that the paper has.
HEADS: tuple[CellName, ...] = (AAGMM, AAGMM_1ST, AAGMM_2ND, KMEANS, KMEANS_1ST, ("KMeans 8-D", "2nd"))


# Accuracy: claims 1a, 1b and 4.

#: How much worse still counts as a match, in points.
MARGIN = 1.0


def _minus(record: Record, one: CellName, other: CellName, *, bound: float = 0.0, sign: int = 1) -> Check:
    subject = f"{in_words(one)} minus {in_words(other)}, points"
    left, right = Measured(record, ACCURACY, one), Measured(record, ACCURACY, other)
    return check_difference(left, right, subject=subject, bound=bound, sign=sign)


def _matches_wide(record: Record) -> Verdict:
    aagmm, wide = Measured(record, ACCURACY, AAGMM), Measured(record, ACCURACY, WIDE)
    check = _minus(record, AAGMM, WIDE, bound=-MARGIN)
    found = paired_difference(aagmm.by_seed, wide.by_seed)
    if found is not None and found.n >= FEWEST_PAIRS and found.low is None and found.mean > -MARGIN:
        # Equal differences leave no doubt about a match: the margin is wider than the resolution of the test images.
        words = (
            f"{in_words(AAGMM)} minus {in_words(WIDE)}, points: {found.mean:+.2f} for each of {found.n} seeds: a match."
        )
        check = mind_losses(Check(True, words), aagmm, wide)
    beside = [f"Accuracy, %: {list_cells(record, ACCURACY, (WIDE, AAGMM, AAGMM_1ST, AAGMM_2ND))}."]
    beside += [_minus(record, cell, WIDE, bound=-MARGIN).sentence for cell in (AAGMM_1ST, AAGMM_2ND)]
    if wide.estimate is not None and 100 - wide.estimate.mean < 5 * MARGIN:
        beside.append(
            f"The linear layer on all features has an error of {100 - wide.estimate.mean:.2f} %: compared with that, a margin "
            f"of {MARGIN:g} point is wide."
        )
    return conclude([check, *unlearned(record, WIDE)], beside=beside)


def _beats_narrow(record: Record) -> Verdict:
    beside = [f"Accuracy, %: {list_cells(record, ACCURACY, (NARROW, AAGMM, AAGMM_1ST, AAGMM_2ND))}."]
    beside += [_minus(record, cell, NARROW).sentence for cell in (AAGMM_1ST, AAGMM_2ND)]
    loss = _minus(record, NARROW, WIDE, sign=-1)
    beside.append(f"What the reduction to 8-D costs the linear layer: {loss.sentence}")
    if loss.holds is False:
        beside.append(
            "In the paper that reduction costs the linear layer 4.14 points, which AAGMM wins back. Here no loss is shown, so "
            "there is nothing to win back."
        )
    return conclude([_minus(record, AAGMM, NARROW), *unlearned(record, WIDE)], beside=beside)


def _removal_hurts(record: Record) -> Verdict:
    checks = [_minus(record, ("P90 removed", order), ("kept", order), sign=-1) for order in ("1st", "2nd")]
    checks += unlearned(record, ("kept", "1st"), ("kept", "2nd"))
    without = _minus(record, ("P90 removed", "none"), ("kept", "none"), sign=-1)
    beside = [f"Without a constraint: {without.sentence}"]
    for rule in ("annealed removed", "chi-square removed"):
        check = _minus(record, (rule, "1st"), ("kept", "1st"), sign=-1)
        if check.reason != "not run":
            beside.append(f"Another threshold: {check.sentence}")
    rows = ("kept", "P90 removed", "annealed removed", "chi-square removed")
    used = "; ".join(f"{row} {Measured(record, METRICS['utilisation'], (row, '1st'))}" for row in rows)
    beside.append(f"Share of the pool with a pseudo-label at the end, %, with the first order: {used}.")
    return conclude(checks, beside=beside)


MATCHES_WIDE = Claim(
    number="1a",
    statement="AAGMM on 8 dimensions matches the linear layer on all features.",
    paper=quote("table1", "accuracy", WIDE, AAGMM, AAGMM_1ST, AAGMM_2ND),
    rule=(
        "The 95 % interval of the paired difference in accuracy, AAGMM 8-D without constraint minus the linear layer on all "
        f"features, lies above -{MARGIN:g} point, as does a difference that is the same for every seed. Not testable if the "
        f"linear layer's accuracy is below {LEARNED:g} %."
    ),
    grid="table1",
    judge=_matches_wide,
)
BEATS_NARROW = Claim(
    number="1b",
    statement="AAGMM on 8 dimensions beats the linear layer on 8 dimensions.",
    paper=quote("table1", "accuracy", NARROW, AAGMM),
    rule=(
        "The 95 % interval of the paired difference in accuracy, AAGMM 8-D without constraint minus linear 8-D, lies above 0. "
        f"Not testable if the accuracy of the linear layer on all features is below {LEARNED:g} %."
    ),
    grid="table1",
    judge=_beats_narrow,
)
REMOVAL_HURTS = Claim(
    number="4",
    statement="Removing outliers beyond the 90th percentile hurts once a constraint is on.",
    paper=quote("outliers", "accuracy", *((row, order) for order in ORDERS[:3] for row in ("kept", "P90 removed"))),
    rule=(
        "With the first and with the second order: the 95 % interval of the paired difference in accuracy, removed minus kept, "
        f"lies below 0. Not testable if the accuracy with outliers kept is below {LEARNED:g} % for one of the orders."
    ),
    grid="outliers",
    judge=_removal_hurts,
)


# Centers: claims 2 and 3.

#: How many times farther images must be from their center without a constraint.
MANY = 2.0


def _distance_ratio(record: Record, one: CellName, other: CellName, *, bound: float, sign: int) -> Check:
    left, right = Measured(record, COMPACTNESS, one), Measured(record, COMPACTNESS, other)
    subject = f"Mean distance to the assigned center, {in_words(one)} {left} against {in_words(other)} {right}"
    return check_ratio(left, right, subject=subject, bound=bound, sign=sign)


def _shrinks(record: Record) -> Verdict:
    constrained = [cell for cell in HEADS if cell[1] != "none"]
    checks = [_distance_ratio(record, cell, (cell[0], "none"), bound=1.0, sign=-1) for cell in constrained]
    sizes = [outcome.settings.get("embedding_dim", TrainConfig.embedding_dim) for outcome in record.outcomes]
    D = max(sizes, default=0)
    beside = []
    if D:
        expected = math.sqrt(2) * math.exp(math.lgamma((D + 1) / 2) - math.lgamma(D / 2))
        beside.append(
            f"A cluster that met the target of the second order exactly, unit variance in {D} dimensions, would have a mean "
            f"distance of {expected:.2f}; smaller is not better. Distances also shrink if the whole space does: claim 3 "
            "measures them in units of the clusters' spread."
        )
    return conclude([*checks, *unlearned(record, *HEADS)], beside=beside)


def _degenerate(record: Record) -> Verdict:
    offset, constrained = Measured(record, OFFSET, KMEANS), Measured(record, OFFSET, KMEANS_1ST)
    checks = [
        _distance_ratio(record, KMEANS, KMEANS_1ST, bound=MANY, sign=1),
        check_value(offset, bound=1.0),
        check_difference(offset, constrained),
        *unlearned(record, KMEANS, KMEANS_1ST),
    ]
    beside = [f"{metric.title}: {list_cells(record, metric, HEADS)}." for metric in (OFFSET, SPREAD)]
    aagmm = _distance_ratio(record, AAGMM, AAGMM_1ST, bound=MANY, sign=1)
    beside.append(f"AAGMM, for comparison (the paper: 1.03 against 0.58): {aagmm.sentence}")
    return conclude(checks, beside=beside)


SHRINKS = Claim(
    number="2",
    statement="Constraints shrink the distance of images to their centers.",
    paper=quote("compactness", "compactness", *HEADS),
    rule=(
        "For AAGMM and KMeans, with the first and with the second order: the 95 % interval of the paired ratio of mean "
        "distances to the assigned center, with over without the constraint, lies below 1. Not testable if the accuracy of one "
        f"of these models is below {LEARNED:g} %."
    ),
    grid="compactness",
    judge=_shrinks,
)
DEGENERATE = Claim(
    number="3",
    statement="KMeans without a constraint has degenerate centers.",
    paper=(
        "Mean distance to the assigned center, "
        + quote("compactness", "compactness", KMEANS, KMEANS_1ST).rstrip(".")
        + "; degenerate in every run."
    ),
    rule=(
        "Degenerate means: not where the images are. The 95 % interval of the paired ratio of mean distances to the assigned "
        f"center, without over with the first order, lies above {MANY:g}. And a center is farther from the mean of its class's "
        "test images than these are (root mean squares): the interval of that ratio lies above 1 without the constraint, and "
        "the interval of its paired difference to the ratio with the constraint lies above 0. Not testable if the accuracy of "
        f"one of the two models is below {LEARNED:g} %."
    ),
    grid="compactness",
    judge=_degenerate,
)


# Memory: claim 5.

#: A growth up to this factor over no constraint counts as flat.
FLAT = 1.10
#: The growth that explicit moments must cause for a measurement to rule them out.
DOUBLE = 2.0
#: Of every dataset that the paper's grids are for.
CLASSES = 10
DIMENSIONS = (8, 32, 128, 512)


def _explicit(D: int, order: str) -> float:
    """MiB of the D^p cells of one p-th moment in float32, for each class."""
    return float(CLASSES * D ** ORDERS.index(order) * 4 / 2**20)


@cache
def own_tensors() -> Mapping[tuple[int, str], float]:
    """(D, order) -> MiB of the constraint's own tensors in a step, as counted by `benchmarks/moments.py --tensors`.

    Raises:
        ValueError: if that record is damaged.
    """
    try:
        rows = json.loads(OWN_TENSORS.read_text())["rows"]
        return {(row["D"], order): row[f"order {p} (MiB)"] for row in rows for p, order in enumerate(ORDERS) if p > 0}
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{OWN_TENSORS.name}: got a damaged record ({error!r}); run python benchmarks/moments.py --tensors"
        ) from error


@cache
def process_growth(preset: str) -> Mapping[int, Mapping[str, float]]:
    """D -> order -> MiB by which the process grows where freed blocks are returned; empty for presets that were not measured.

    Raises:
        ValueError: if the record of `benchmarks/process_memory.py` is damaged.
    """
    try:
        rows = json.loads(PROCESS_MEMORY.read_text())["rows"]
        return {
            row["D"]: {order: row[f"order {p}, growth (MiB)"] for p, order in enumerate(ORDERS) if p > 0}
            for row in rows
            if row["preset"] == preset
        }
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{PROCESS_MEMORY.name}: got a damaged record ({error!r}); run python benchmarks/process_memory.py"
        ) from error


def _size(mebibytes: float) -> str:
    size = 1024 * mebibytes
    for unit in ("KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def _growth(record: Record, D: int, order: str) -> Estimate | None:
    with_order, without = (Measured(record, MEMORY, (f"{D}-D", column)) for column in (order, "none"))
    return paired_ratio(with_order.by_seed, without.by_seed)


def _failed(record: Record, row: str) -> Check | None:
    """A failed run with a constraint contradicts the claim; one without leaves nothing to compare with."""
    failed = [outcome for outcome in record.outcomes if outcome.row == row and outcome.error is not None]
    failed.sort(key=lambda outcome: outcome.column == "none")
    if not failed:
        return None
    first = failed[0]
    holds = None if first.column == "none" else False
    return Check(holds, f"{row}: {first.column}, seed {first.seed} failed: {first.error}")


def _stays_flat(record: Record, D: int) -> Check:
    row = f"{D}-D"
    failed = _failed(record, row)
    if failed is not None:
        return failed
    ratios = {order: _growth(record, D, order) for order in ORDERS[1:]}
    found = {order: ratio for order, ratio in ratios.items() if ratio is not None}
    missing = [order for order in ratios if order not in found]
    if missing:
        return Check(None, f"{row}: no seed was measured both without constraint and with {missing[0]}.", "not run")
    largest = max(found, key=lambda order: found[order].mean)
    measured = {order: Measured(record, MEMORY, (row, order)) for order in ORDERS}
    added = paired_difference(measured[largest].by_seed, measured["none"].by_seed)
    sentence = (
        f"{row}: largest with the {largest} order, {measured[largest]} MiB against {measured['none']} MiB without, "
        + (f"{estimate_text(added, 0)} MiB, " if added is not None else "")
        + f"ratio {estimate_text(found[largest], 2, signed=False)}{_in_the_paper(row)}"
    )
    fewest, is_flat = min(ratio.n for ratio in found.values()), found[largest].mean <= FLAT
    check = Check(is_flat, f"{sentence}: {'at most' if is_flat else 'more than'} {FLAT:g}.")
    if fewest < FEWEST_PAIRS:
        check = Check(None, f"{sentence}: {fewest} of at least {FEWEST_PAIRS} seeds.")
    return mind_losses(check, *measured.values())


def _rule_out_explicit(record: Record) -> list[Check]:
    """Where explicit moments would at least double the memory: whether the measurements exclude them."""
    checks = []
    for D in DIMENSIONS:
        without = Measured(record, MEMORY, (f"{D}-D", "none")).estimate
        for order in ORDERS[1:]:
            found = _growth(record, D, order)
            if without is None or found is None or found.n < FEWEST_PAIRS:
                continue
            explicit = 1 + _explicit(D, order) / without.mean
            if explicit < DOUBLE:
                continue
            # Equal ratios have no interval: that is as exact as it gets.
            high = found.mean if found.high is None else found.high
            words = (
                f"{D}-D, {order}: explicit moments would give a ratio of {explicit:.3g}, measured is "
                f"{estimate_text(found, 2, signed=False)}: {'ruled out' if high < explicit else 'not ruled out'}."
            )
            checks.append(Check(high < explicit, words))
    return checks


def _by_order(record: Record, D: int) -> str:
    """The growth for all orders, and what explicit moments would add."""
    texts = []
    for order in ORDERS[1:]:
        found = _growth(record, D, order)
        measured = "not measured" if found is None else f"ratio {estimate_text(found, 2, signed=False)}"
        texts.append(f"{order} {measured}, own {_size(own_tensors()[D, order])}, explicit {_size(_explicit(D, order))}")
    return (
        f"{D}-D by order, what the constraint's own tensors take in such a step, counted to the byte, and what {CLASSES} "
        f"explicit moments of D^p cells in float32 would add at least: {'; '.join(texts)}."
    )


def _in_the_paper(row: str) -> str:
    numbers = published("memory", MEMORY.name, (row, "none"), (row, "4th"))
    if not numbers:
        return "; not in the paper"
    texts = [f"{'more than ' if number.is_bound else ''}{number.mean:.2f} {number.unit}" for number in numbers]
    return f"; the paper, none and 4th: {' and '.join(texts)}"


def _flat_memory(record: Record) -> Verdict:
    devices = {str((outcome.result or {}).get("device")) for outcome in record.outcomes if outcome.result is not None}
    beside = [_by_order(record, D) for D in DIMENSIONS]
    beside.append(
        "Where explicit moments would add less than the runs vary by, as at 8-D, a flat measurement says nothing about how "
        "they are computed."
    )
    beside.append(
        "Explicit moments are counted without what computing them takes, so that at 8-D they are smaller than our Gram "
        "matrices. The rule goes by the peak of the process, which is what must fit into a machine."
    )
    if grown := process_growth(record.preset):
        texts = [
            f"{D}-D {', '.join(f'{order} {growth:+.1f}' for order, growth in by_order.items())}"
            for D, by_order in grown.items()
        ]
        beside.append(
            "How much of that is the constraint's: momatch train keeps freed blocks for the next step, and where the next one "
            "lands changes with all that came before. Where freed blocks are returned to the system instead, the process grows "
            f"by (MiB, benchmarks/results/process_memory.md): {'; '.join(texts)}. The rest is the allocator's."
        )
    if len(devices) == 1 and devices != {"None"}:
        (device,) = devices
        what = "the tensors" if device.startswith("cuda") else "the whole process"
        beside.append(
            f"Ours is the peak memory of {what} on the device {device!r}, the paper's that of a GPU: growth is comparable, "
            "size is not."
        )
    return conclude([*(_stays_flat(record, D) for D in DIMENSIONS), *_rule_out_explicit(record)], beside=beside)


FLAT_MEMORY = Claim(
    number="5",
    statement="In the paper, memory grows with the order as D^p; computed by Gram matrices it stays flat.",
    paper="GPU memory, none to 4th: 7.72 to 8.76 GiB at 8-D; 7.71 to 13.15 (3rd) and more than 20.47 GiB (4th) at 32-D.",
    rule=(
        f"At 8, 32, 128 and 512 dimensions, over at least {FEWEST_PAIRS} seeds: the mean paired ratio of the peak memory with "
        f"to without a constraint is at most {FLAT:g} for each of the orders 1 to 4. And wherever explicit moments of D^p "
        f"cells for {CLASSES} classes would make it {DOUBLE:g} times as much or more, the 95 % interval of the ratio lies "
        "below that. A run with a constraint that fails contradicts the claim."
    ),
    grid="memory",
    judge=_flat_memory,
)


# Density: claims 6a to 6c.

CHANCE = 0.5
#: The linear layer's scores, by what they are called there.
LINEAR_SCORES = {"confidence": "confidence", "density": "energy"}


def _shared_origins(record: Record, *cells: CellName) -> tuple[list[str], list[Check], list[str]]:
    """The outliers that the models of `cells` were evaluated on.

    Returns:
        Origins that all of them have; an undecided check for each kind of which there is none; a sentence on each origin
        that only some have, which cannot be compared.
    """
    measured = [Measured(record, ACCURACY, cell) for cell in cells]
    by_cell = [origins(model.outcomes) for model in measured]
    there = origins(record.outcomes)
    shared = [origin for origin in there if all(origin in found for found in by_cell)]
    kinds = {HELD_OUT: HELD_OUT in shared, "another dataset": any(origin != HELD_OUT for origin in shared)}
    models = " and ".join(in_words(cell) for cell in cells)
    words = [f"No evaluation on {kind} of {models}." for kind, found in kinds.items() if not found]
    absent = [mind_losses(Check(None, sentence, "not run"), *measured) for sentence in words]
    others = [
        f"{origin}: not counted, {models} were not all evaluated on it." for origin in there if origin not in shared
    ]
    return shared, absent, others


def _all_cells(record: Record) -> list[CellName]:
    return list(dict.fromkeys((outcome.row, outcome.column) for outcome in record.outcomes))


def _above_chance(record: Record, metric: Metric, cell: CellName) -> Check:
    measured = Measured(record, metric, cell)
    found = measured.estimate
    if found is not None and found.n >= FEWEST_PAIRS and found.low is None and found.mean == 1.0:
        words = f"{metric.title}, {in_words(cell)}: {measured}: every outlier is detected with every seed."
        return mind_losses(Check(True, words), measured)
    return check_value(measured, bound=CHANCE)


def _gain(record: Record, metric: Metric) -> Check:
    return check_difference(Measured(record, metric, AAGMM_1ST), Measured(record, metric, AAGMM))


def _means_something(record: Record) -> Verdict:
    shared, checks, beside = _shared_origins(record, AAGMM_1ST, AAGMM)
    mixtures = [cell for cell in _all_cells(record) if not cell[0].startswith("Linear")]
    for origin in shared:
        for score in ("density", "nearest"):
            metric = auroc_metric(origin, "as_trained", score)
            checks += [_gain(record, metric), _above_chance(record, metric, AAGMM_1ST)]
        density = auroc_metric(origin, "as_trained", "density")
        beside.append(f"{density.title}: {list_cells(record, density, mixtures)}.")
    return conclude([*checks, *unlearned(record, AAGMM_1ST, AAGMM)], beside=beside)


def _against_linear(record: Record, origin: str, state: str, score: str, linear_score: str) -> Check:
    """A score of AAGMM 8-D with the first order against one of the linear layer on all features."""
    ours = Measured(record, auroc_metric(origin, state, score), AAGMM_1ST)
    theirs = Measured(record, auroc_metric(origin, "as_trained", linear_score), WIDE)
    subject = (
        f"{ours.metric.title}, {in_words(AAGMM_1ST)} ({ours}) minus the {LINEAR_SCORES[linear_score]} of {in_words(WIDE)} "
        f"({theirs})"
    )
    return check_difference(ours, theirs, subject=subject)


def _beats_linear(record: Record) -> Verdict:
    shared, checks, beside = _shared_origins(record, AAGMM_1ST, WIDE)
    for origin in shared:
        checks += [_against_linear(record, origin, "as_trained", "density", score) for score in LINEAR_SCORES]
        for state, ours in (("as_trained", "nearest"), ("refitted", "density"), ("refitted", "nearest")):
            beside += [_against_linear(record, origin, state, ours, score).sentence for score in LINEAR_SCORES]
        beside += _best(record, origin)
    return conclude([*checks, *unlearned(record, AAGMM_1ST, WIDE)], beside=beside)


def _best(record: Record, origin: str) -> list[str]:
    """The highest mean AUROC of all cells, scores and states: what a choice in hindsight would give."""
    metrics = [auroc_metric(origin, state, score) for state in STATES for score in SCORES]
    candidates = [Measured(record, metric, cell) for cell in _all_cells(record) for metric in metrics]
    found = [(value.mean, measured) for measured in candidates if (value := measured.estimate) is not None]
    if not found:
        return []
    _, best = max(found, key=lambda entry: entry[0])
    return [f"Highest of {len(found)} means, chosen in hindsight: {best.metric.title}, {in_words(best.cell)}: {best}."]


def _refit_repairs(record: Record) -> Verdict:
    shared, checks, beside = _shared_origins(record, AAGMM)
    for origin in shared:
        trained, refitted = (auroc_metric(origin, state, "density") for state in STATES)
        subject = f"AUROC of density, {origin}, {in_words(AAGMM)}: refitted minus as trained"
        gain = check_difference(Measured(record, refitted, AAGMM), Measured(record, trained, AAGMM), subject=subject)
        checks += [gain, _above_chance(record, refitted, AAGMM)]
        beside.append(_gain(record, refitted).sentence)
    return conclude([*checks, *unlearned(record, AAGMM)], beside=beside)


MEANS_SOMETHING = Claim(
    number="6a",
    statement="The constraint makes p(x) meaningful: it is lower for images unlike the training data.",
    paper="Stated, without numbers.",
    rule=(
        "AAGMM 8-D as trained, for the density and for the distance to the nearest center, against the held-out classes and "
        "against another dataset: the 95 % interval of the paired difference in AUROC, first order minus none, lies above 0, "
        "and that of the AUROC with the first order lies above 0.5, which is chance, or it is 1 for every seed. Not testable "
        f"if the accuracy of one of the two models is below {LEARNED:g} %."
    ),
    grid="density",
    judge=_means_something,
)
BEATS_LINEAR = Claim(
    number="6b",
    statement="p(x) of the constrained mixture detects outliers better than the linear layer's confidence and energy.",
    paper="Stated (outlier detection that softmax does not allow), without numbers.",
    rule=(
        "Density of AAGMM 8-D with the first order, as trained, minus the confidence and minus the energy of the linear layer "
        "on all features: the 95 % interval of the paired difference in AUROC lies above 0 for each origin of outliers. Below "
        f"0, the linear layer wins. Not testable if the accuracy of one of the two is below {LEARNED:g} %."
    ),
    grid="density",
    judge=_beats_linear,
)
REFIT_REPAIRS = Claim(
    number="6c",
    statement="Refitted in closed form, p(x) is meaningful without a constraint (momatch's claim, not the paper's).",
    paper="Not in the paper.",
    rule=(
        "AAGMM 8-D without constraint, for each origin of outliers: the 95 % interval of the paired difference in AUROC of "
        "the density, refitted minus as trained, lies above 0, and that of the AUROC refitted lies above 0.5, or it is 1 for "
        f"every seed. Not testable if the model's accuracy is below {LEARNED:g} %."
    ),
    grid="density",
    judge=_refit_repairs,
)

CLAIMS: tuple[Claim, ...] = (
    MATCHES_WIDE,
    BEATS_NARROW,
    SHRINKS,
    DEGENERATE,
    REMOVAL_HURTS,
    FLAT_MEMORY,
    MEANS_SOMETHING,
    BEATS_LINEAR,
    REFIT_REPAIRS,
)
