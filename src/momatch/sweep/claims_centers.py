"""Claims about the centers: constraints draw the images to them, and KMeans without one leaves them out of place."""

import math

from momatch.config import TrainConfig
from momatch.sweep.figures import FIGURES, by_seed
from momatch.sweep.paper_text import quote
from momatch.sweep.record import Record
from momatch.sweep.statistics import paired_ratio
from momatch.sweep.table_text import estimate_text
from momatch.sweep.verdict import (
    FEWEST_PAIRS,
    LEARNED,
    Check,
    Claim,
    Place,
    Verdict,
    cell_text,
    check_above,
    compare,
    conclude,
    mind_losses,
    named,
    own_estimate,
    unlearned,
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
        check = Check(None, f"{subject}: no seed has both, or one of them is 0.", "not run")
    elif found.n < FEWEST_PAIRS or found.low is None:
        numbers = f"{subject}: times {estimate_text(found, 2, signed=False)}"
        check = Check(None, f"{numbers}: an interval needs at least {FEWEST_PAIRS} seeds that both have.")
    else:
        numbers = f"{subject}: times {estimate_text(found, 2, signed=False)}"
        holds = found.is_above(bound) if sign > 0 else found.is_below(bound)
        side = "above" if sign > 0 else "below"
        check = Check(holds, f"{numbers}: {'' if holds else 'not '}{side} {bound:g}.")
    return mind_losses(check, record, (COMPACTNESS, of), (COMPACTNESS, to))


def _shrinks(record: Record) -> Verdict:
    checks = [
        _ratio(record, (head, order), (head, "none"), bound=1.0, sign=-1) for head in HEADS for order in ("1st", "2nd")
    ]
    checks += unlearned(record, *((head, order) for head in HEADS for order in ("none", "1st", "2nd")))
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
    own = check_above(own_estimate(record, OFFSET, KMEANS), subject, decimals=2, bound=1.0, signed=False)
    checks = [
        _ratio(record, KMEANS, constrained, bound=MANY, sign=1),
        mind_losses(own, record, (OFFSET, KMEANS)),
        compare(record, OFFSET, KMEANS, constrained, subject=f"{subject} minus {named(constrained)}"),
        *unlearned(record, KMEANS, constrained),
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
    paper=quote("compactness", "compactness", *((head, order) for head in HEADS for order in ("none", "1st", "2nd"))),
    rule=(
        "For AAGMM and KMeans, with the first and with the second order: the 95 % interval of the paired ratio of mean "
        "distances to the assigned center, with the constraint over without it, lies below 1. Not testable where one of the "
        f"models compared gets less than {LEARNED:g} % right."
    ),
    grid="compactness",
    judge=_shrinks,
)
DEGENERATE = Claim(
    number="3",
    statement="KMeans without a constraint has degenerate centers.",
    paper=(
        "Mean distance to the assigned center, "
        + quote("compactness", "compactness", KMEANS, ("KMeans 8-D", "1st")).rstrip(".")
        + "; degenerate in every run."
    ),
    rule=(
        "Degenerate: not where the images are. The 95 % interval of the paired ratio of mean distances to the assigned center, "
        f"without over with the first order, lies above {MANY:g}. And a center lies farther from the mean of its class's test "
        "images than these do (root mean squares): the interval of that ratio lies above 1 without the constraint, and that "
        "of its paired difference to the ratio with the constraint above 0. Not testable where one of the two gets less than "
        f"{LEARNED:g} % right."
    ),
    grid="compactness",
    judge=_degenerate,
)
