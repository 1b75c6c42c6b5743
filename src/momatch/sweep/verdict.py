"""What a claim's verdict is made of: checks that hold, do not hold, or cannot be told from the runs at hand.

Every rule is a conjunction: a claim is confirmed if all of its checks hold. So no correction is needed for their number; the
intervals in the tables, which nobody asked for in advance, are another matter.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from momatch.sweep.figures import FIGURES, Figure, by_seed
from momatch.sweep.record import Outcome, Record
from momatch.sweep.statistics import Estimate, estimate, paired_difference, summary
from momatch.sweep.table_text import estimate_text, summary_text

#: Why a check cannot be told -> the state of a claim that it leaves open.
OPEN = {
    "scale": "not testable at this scale",
    "not run": "not testable: not run",
    "runs": "not testable: too few runs",
}
Reason = Literal["scale", "not run", "runs"]

#: Where a model gets fewer test images right, in %, it has not learned enough to be compared.
LEARNED = 50.0
#: Two pairs have an interval of 12.7 standard errors either side: they cannot show anything.
FEWEST_PAIRS = 3

#: Row and column of a grid.
Place = tuple[str, str]


@dataclass(frozen=True)
class Check:
    """One condition of a claim.

    Attributes:
        holds: None where it cannot be told.
        sentence: what was compared, with its numbers, and what that shows.
        reason: why it cannot be told, a key of `OPEN`; only of meaning there. "scale": a model has not learned. "not run":
            there is no run, or none with the figure. "runs": too few, or some of them failed.
    """

    holds: bool | None
    sentence: str
    reason: Reason = "runs"


@dataclass(frozen=True)
class Verdict:
    """What the runs of one preset say about a claim.

    Attributes:
        state: "confirmed" if every check holds, "not confirmed" if one does not, else a value of `OPEN`.
        summary: the evidence in one line.
        evidence: all of it, in sentences.
    """

    state: str
    summary: str
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Claim:
    """A claim, and how it is judged.

    Attributes:
        number: by which the page refers to it.
        statement: the claim.
        paper: what the paper has to show for it.
        rule: in words, when it counts as confirmed.
        grid: whose record it is judged by.
        judge: from that record to the verdict.
    """

    number: str
    statement: str
    paper: str
    rule: str
    grid: str
    judge: Callable[[Record], Verdict]

    def verdict(self, records: Mapping[str, Record]) -> Verdict:
        """The verdict by the records of one preset, by name of grid."""
        if self.grid not in records:
            return Verdict(OPEN["not run"], f"momatch sweep {self.grid} was not run", ())
        record = records[self.grid]
        failed = sum(outcome.error is not None for outcome in record.outcomes)
        verdict = self.judge(record)
        if not failed:
            return verdict
        left = f"{failed} of {len(record.outcomes)} runs of this sweep failed; the numbers are of the others."
        return replace(verdict, evidence=(*verdict.evidence, left))


def conclude(checks: Sequence[Check], *, beside: Sequence[str] = ()) -> Verdict:
    """The verdict of some checks.

    Args:
        checks: at least one. The first that stands in the way of a confirmation, or else the first, opens the summary.
        beside: further evidence, which the verdict does not rest on.
    """
    unknown = [check for check in checks if check.holds is None]
    # A model that has not learned shows nothing, whatever its numbers: it comes before a check that does not hold.
    decisive = [check for check in unknown if check.reason == "scale"]
    decisive = decisive or [check for check in checks if check.holds is False]
    for reason in ("not run", "runs"):
        decisive = decisive or [check for check in unknown if check.reason == reason]
    state, first = "confirmed", checks[0].sentence
    if decisive:
        state = "not confirmed" if decisive[0].holds is False else OPEN[decisive[0].reason]
        first = decisive[0].sentence
    if len(checks) > 1:
        first += f" Checks that hold: {sum(check.holds is True for check in checks)} of {len(checks)}."
    return Verdict(state, first, (*(check.sentence for check in checks), *beside))


def unlearned(record: Record, *places: Place) -> list[Check]:
    """A check that cannot be told for each place whose model did not learn."""
    accuracy = FIGURES["accuracy"]
    found = {place: own_estimate(record, accuracy, place) for place in dict.fromkeys(places)}
    return [
        Check(
            None,
            f"{named(place)}: {cell_text(record, accuracy, place)} % right, less than {LEARNED:g} %: it has not learned "
            "enough to be compared.",
            "scale",
        )
        for place, estimated in found.items()
        if estimated is not None and estimated.mean < LEARNED
    ]


def mind_losses(check: Check, record: Record, *compared: tuple[Figure, Place]) -> Check:
    """The check, with a word on runs of the compared cells that failed or have no finite figure; then it cannot hold.

    Those that are left are no fair sample: what fails is what does badly. A seed that was never run is no loss.
    """
    lost = [words for figure, place in dict.fromkeys(compared) if (words := _losses(record, figure, place))]
    if not lost:
        return check
    failed = any(outcome.error for _, place in compared for outcome in record.outcomes if _place(outcome) == place)
    reason: Reason = check.reason if check.holds is None and not failed else "runs"
    sentence = f"{check.sentence.rstrip('.')}; but {', '.join(dict.fromkeys(lost))}."
    return Check(False if check.holds is False else None, sentence, reason)


def _place(outcome: Outcome) -> Place:
    return outcome.row, outcome.column


def _losses(record: Record, figure: Figure, place: Place) -> str:
    outcomes = [outcome for outcome in record.outcomes if _place(outcome) == place]
    failed = sum(outcome.error is not None for outcome in outcomes)
    without = sum(figure.read(outcome) is None for outcome in outcomes) - failed
    pieces = [f"{failed} of {len(outcomes)} runs of {named(place)} failed"] if failed else []
    if without:
        pieces.append(f"{without} of {len(outcomes)} runs of {named(place)} have no finite figure")
    return ", ".join(pieces)


def compare(
    record: Record, figure: Figure, of: Place, to: Place, *, subject: str, bound: float = 0.0, sign: int = 1
) -> Check:
    """Whether the interval of the paired difference of two cells lies above a bound (below it for sign = -1)."""
    found = difference(record, figure, of, to)
    check = check_above(found, subject, decimals=figure.decimals, bound=bound, sign=sign)
    return mind_losses(check, record, (figure, of), (figure, to))


def difference(record: Record, figure: Figure, of: Place, to: Place) -> Estimate | None:
    """Paired difference of one cell to another; None if they share no seed."""
    return paired_difference(by_seed(record, *of, figure), by_seed(record, *to, figure))


def own_estimate(record: Record, figure: Figure, of: Place) -> Estimate | None:
    """The mean of one cell with its interval; None without a run."""
    return estimate(list(by_seed(record, *of, figure).values()))


def cell_text(record: Record, figure: Figure, of: Place) -> str:
    """Mean ± std (n) of one cell."""
    found = summary(list(by_seed(record, *of, figure).values()))
    return "no run" if found is None else summary_text(found, figure, len(record.seeds))


_ORDERS = {
    "none": "without constraint",
    "1st": "with the first order",
    "2nd": "with the second order",
}


def named(place: Place) -> str:
    """Row and column in a sentence; a linear layer is without constraint anyway."""
    row, column = place
    if row.startswith("Linear") and column == "none":
        return row
    return f"{row} {_ORDERS[column]}" if column in _ORDERS else f"{row}, {column}"


def check_above(
    found: Estimate | None, subject: str, *, decimals: int, bound: float = 0.0, sign: int = 1, signed: bool = True
) -> Check:
    """Whether the interval of an estimate lies above a bound (below it for sign = -1).

    Args:
        found: a paired difference, or a mean.
        subject: what is compared, as the beginning of a sentence.
        decimals: to print.
        bound: that the interval must leave behind.
        sign: 1 for above, -1 for below.
        signed: print it with a plus, as a difference.
    """
    if found is None:
        return Check(None, f"{subject}: no run, or no seed that both have.", "not run")
    numbers = f"{subject}: {estimate_text(found, decimals, signed=signed)}"
    if found.n < FEWEST_PAIRS:
        return Check(None, f"{numbers}: {found.n} of at least {FEWEST_PAIRS} seeds.")
    if found.low is None:
        return Check(False, f"{numbers}: alike with every seed, so that there is no interval; not shown.")
    side, other = ("above", "below") if sign > 0 else ("below", "above")
    limit = f"{bound:g}"
    if found.is_above(bound) if sign > 0 else found.is_below(bound):
        return Check(True, f"{numbers}: {side} {limit}.")
    if found.is_below(bound) if sign > 0 else found.is_above(bound):
        return Check(False, f"{numbers}: {other} {limit}, the opposite.")
    return Check(False, f"{numbers}: the interval holds {limit}, so it is not shown either way.")
