"""Claims about the centers: constraints draw the images to them, and KMeans without one leaves them out of place."""

import math

from momatch.config import TrainConfig
from momatch.experiments.figures import FIGURES, by_seed
from momatch.experiments.record import Record
from momatch.experiments.statistics import paired_ratio
from momatch.experiments.table_text import estimate_text
from momatch.experiments.verdict import (
    FEWEST_PAIRS,
    Check,
    Claim,
    Place,
    Verdict,
    cell_text,
    check_above,
    conclude,
    difference,
    named,
    own_estimate,
)

#: How many times farther images must be from their center without a constraint for "many times".
MANY = 2.0

COMPACTNESS = FIGURES["compactness"]
OFFSET = FIGURES["center_offset"]
SPREAD = FIGURES["center_spread"]
HEADS = ("AAGMM 8-D", "KMeans 8-D")
KMEANS: Place = ("KMeans 8-D", "none")


def _ratio(record: Record, of: Place, to: Place, *, bound: float, sign: int) -> Check:
    """Whether the interval of the ratio of distances lies above a bound (below it for sign = -1)."""
    found = paired_ratio(by_seed(record, *of, COMPACTNESS), by_seed(record, *to, COMPACTNESS))
    subject = (
        f"Mean distance to the assigned center, {named(of)} {cell_text(record, COMPACTNESS, of)} against {named(to)} "
        f"{cell_text(record, COMPACTNESS, to)}"
    )
    if found is None:
        return Check(None, f"{subject}: no seed has both.")
    numbers = f"{subject}: times {estimate_text(found, 2, signed=False)}"
    if found.n < FEWEST_PAIRS or found.low is None:
        return Check(None, f"{numbers}: an interval needs at least {FEWEST_PAIRS} seeds that both have.")
    holds = found.is_above(bound) if sign > 0 else found.is_below(bound)
    side = "above" if sign > 0 else "below"
    return Check(holds, f"{numbers}: {'' if holds else 'not '}{side} {bound:g}.")


def _shrinks(record: Record) -> Verdict:
    checks = [
        _ratio(record, (head, order), (head, "none"), bound=1.0, sign=-1) for head in HEADS for order in ("1st", "2nd")
    ]
    D = max(
        (outcome.settings.get("embedding_dim", TrainConfig.embedding_dim) for outcome in record.outcomes), default=0
    )
    beside = []
    if D:
        expected = math.sqrt(2) * math.exp(math.lgamma((D + 1) / 2) - math.lgamma(D / 2))
        beside.append(
            f"A cluster that met the second order's target exactly, unit variance in {D} dimensions, would have a mean "
            f"distance of {expected:.2f}; a smaller distance is not a better one. Distances also shrink when the whole space "
            "does: claim 3 measures them in spreads of the clusters."
        )
    return conclude(checks, beside=beside)


def _degenerate(record: Record) -> Verdict:
    constrained: Place = ("KMeans 8-D", "1st")
    subject = f"{OFFSET.title}, {named(KMEANS)}"
    checks = [
        _ratio(record, KMEANS, constrained, bound=MANY, sign=1),
        check_above(own_estimate(record, OFFSET, KMEANS), subject, decimals=2, bound=1.0, signed=False),
        check_above(
            difference(record, OFFSET, KMEANS, constrained), f"{subject} minus {named(constrained)}", decimals=2
        ),
    ]
    places = [(head, order) for head in HEADS for order in ("none", "1st", "2nd")]
    beside = [
        f"{figure.title}: " + "; ".join(f"{named(place)} {cell_text(record, figure, place)}" for place in places) + "."
        for figure in (OFFSET, SPREAD)
    ]
    aagmm = _ratio(record, ("AAGMM 8-D", "none"), ("AAGMM 8-D", "1st"), bound=MANY, sign=1)
    beside.append(f"AAGMM, for comparison (the paper: 1.03 against 0.58): {aagmm.sentence}")
    return conclude(checks, beside=beside)


SHRINKS = Claim(
    number="2",
    statement="Constraints shrink the distance of images to their centers.",
    paper=(
        "CIFAR-10, none / 1st / 2nd: AAGMM 1.03 / 0.58 / 0.53, KMeans 18.41 / 0.96 / 1.06; STL-10: AAGMM 2.32 / 0.79 / 0.76 "
        "(number of runs not given)."
    ),
    rule=(
        "For AAGMM and KMeans, with the first and with the second order: the 95 % interval of the paired ratio of mean "
        "distances to the assigned center, with the constraint over without it, lies below 1."
    ),
    grid="compactness",
    judge=_shrinks,
)
DEGENERATE = Claim(
    number="3",
    statement="KMeans without a constraint has degenerate centers.",
    paper="CIFAR-10: a mean distance of 18.41 without and 0.96 with the first order; degenerate in every run.",
    rule=(
        "Degenerate: not where the images are. The 95 % interval of the paired ratio of mean distances to the assigned center, "
        f"without over with the first order, lies above {MANY:g}. And a center lies farther from the mean of its class's test "
        "images than these do (root mean squares): the interval of that ratio lies above 1 without the constraint, and that "
        "of its paired difference to the ratio with the constraint above 0."
    ),
    grid="compactness",
    judge=_degenerate,
)
