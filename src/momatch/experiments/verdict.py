"""What a claim's verdict is made of: checks that hold, do not hold, or cannot be told from the runs at hand.

Every rule is a conjunction: a claim is confirmed if all of its checks hold. So no correction is needed for their number; the
intervals in the tables, which nobody asked for in advance, are another matter.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from momatch.experiments.figures import Figure, by_seed
from momatch.experiments.record import Record
from momatch.experiments.statistics import Estimate, estimate, paired_difference, summary
from momatch.experiments.table_text import estimate_text, summary_text

State = Literal["confirmed", "not confirmed", "not testable at this scale", "not testable: not run"]

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
    """

    holds: bool | None
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """What the runs of one preset say about a claim.

    Attributes:
        state: confirmed if every check holds, not confirmed if one does not.
        summary: the evidence in one line.
        evidence: all of it, in sentences.
    """

    state: State
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
            return Verdict("not testable: not run", f"momatch sweep {self.grid} was not run", ())
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
    failing = [check for check in checks if check.holds is False]
    unknown = [check for check in checks if check.holds is None]
    state: State = "confirmed"
    if failing:
        state = "not confirmed"
    elif unknown:
        state = "not testable at this scale"
    first = (failing or unknown or list(checks))[0].sentence
    if len(checks) > 1:
        first += f" Checks that hold: {sum(check.holds is True for check in checks)} of {len(checks)}."
    return Verdict(state, first, (*(check.sentence for check in checks), *beside))


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
        return Check(None, f"{subject}: no run, or no seed that both have.")
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
