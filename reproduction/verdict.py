"""How a claim is judged: by checks that pass, fail, or cannot be decided by the recorded runs.

A claim is confirmed if all of its checks pass, which needs no correction for their number.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from momatch.sweep.metrics import METRICS, Metric
from momatch.sweep.record import Outcome, Record
from momatch.sweep.statistics import Estimate, estimate, paired_difference, paired_ratio, summary
from momatch.sweep.table_text import estimate_text, summary_text
from reproduction.paper import CellName, in_words

#: Why a check is undecided -> the state of a claim that it leaves open.
OPEN = {
    "scale": "not testable at this scale",
    "not run": "not testable: not run",
    "runs": "not testable: too few runs",
}
Reason = Literal["scale", "not run", "runs"]

#: A model with a lower accuracy, in %, has not learned enough to be compared.
LEARNED = 50.0
#: Two pairs have an interval of 12.7 standard errors on either side: they cannot show anything.
FEWEST_PAIRS = 3


@dataclass(frozen=True)
class Check:
    """One condition of a claim.

    Attributes:
        holds: None if undecided.
        sentence: what was compared, with its numbers and what they show.
        reason: why it is undecided, a key of `OPEN`. "scale": a model has not learned. "not run": there is no run with the
            metric. "runs": too few, or some of them failed.
    """

    holds: bool | None
    sentence: str
    reason: Reason = "runs"


@dataclass(frozen=True)
class Verdict:
    """What the runs of one preset say about a claim.

    Attributes:
        state: "confirmed" if every check passes, "not confirmed" if one fails, else a value of `OPEN`.
        summary: the evidence in one line.
        evidence: all of it, in sentences.
    """

    state: str
    summary: str
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Claim:
    """A claim and its rule.

    Attributes:
        number: on the results page.
        statement: the claim.
        paper: the paper's evidence for it.
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
        """The verdict by the records of one preset, by name of the grid."""
        if self.grid not in records:
            return Verdict(OPEN["not run"], f"momatch sweep {self.grid} was not run", ())
        record = records[self.grid]
        failed = sum(outcome.error is not None for outcome in record.outcomes)
        verdict = self.judge(record)
        if not failed:
            return verdict
        left = f"{failed} of {len(record.outcomes)} runs of this sweep failed; the numbers are of the others."
        return replace(verdict, evidence=(*verdict.evidence, left))


@dataclass(frozen=True)
class Measured:
    """A metric of one cell over the seeds of a record; `str` gives it as mean ± std (runs)."""

    record: Record
    metric: Metric
    cell: CellName

    def __str__(self) -> str:
        found = summary(list(self.by_seed.values()))
        return "no run" if found is None else summary_text(found, self.metric, len(self.record.seeds))

    @property
    def by_seed(self) -> dict[int, float]:
        """Seed -> value."""
        return self.metric.by_seed(self.record, *self.cell)

    @property
    def estimate(self) -> Estimate | None:
        """The mean with its interval; None without a run."""
        return estimate(list(self.by_seed.values()))

    @property
    def outcomes(self) -> list[Outcome]:
        """All outcomes of the cell."""
        return [outcome for outcome in self.record.outcomes if (outcome.row, outcome.column) == self.cell]

    @property
    def failed(self) -> int:
        """Number of runs that failed."""
        return sum(outcome.error is not None for outcome in self.outcomes)

    @property
    def losses(self) -> str:
        """How many runs failed or have no finite value, in words; "" if none."""
        without = sum(self.metric.read(outcome) is None for outcome in self.outcomes) - self.failed
        of = f"of {len(self.outcomes)} runs of {in_words(self.cell)}"
        pieces = [f"{self.failed} {of} failed"] if self.failed else []
        pieces += [f"{without} {of} have no finite value"] if without else []
        return ", ".join(pieces)


def list_cells(record: Record, metric: Metric, cells: Sequence[CellName]) -> str:
    """The metric of some cells: "AAGMM 8-D without constraint 97.32 ± 0.41 (5); ..."."""
    return "; ".join(f"{in_words(cell)} {Measured(record, metric, cell)}" for cell in cells)


def check_difference(one: Measured, other: Measured, *, subject: str = "", bound: float = 0.0, sign: int = 1) -> Check:
    """Whether the interval of the paired difference lies above a bound (below it for sign = -1)."""
    subject = subject or f"{one.metric.title}, {in_words(one.cell)} minus {in_words(other.cell)}"
    found = paired_difference(one.by_seed, other.by_seed)
    return mind_losses(check_interval(found, subject, one.metric.decimals, bound=bound, sign=sign), one, other)


def check_ratio(one: Measured, other: Measured, *, subject: str, bound: float, sign: int) -> Check:
    """Whether the interval of the paired ratio lies above a bound (below it for sign = -1)."""
    found = paired_ratio(one.by_seed, other.by_seed)
    return mind_losses(check_interval(found, subject, 2, bound=bound, sign=sign, form="ratio {}"), one, other)


def check_value(one: Measured, *, bound: float) -> Check:
    """Whether the interval of the mean lies above a bound."""
    subject = f"{one.metric.title}, {in_words(one.cell)}"
    return mind_losses(check_interval(one.estimate, subject, one.metric.decimals, bound=bound, form="{}"), one)


def check_interval(
    found: Estimate | None, subject: str, decimals: int, *, bound: float = 0.0, sign: int = 1, form: str = ""
) -> Check:
    """Whether the interval of an estimate lies above a bound (below it for sign = -1).

    Args:
        found: a paired difference or ratio, or a mean.
        subject: what is compared, as the beginning of a sentence.
        decimals: to print.
        bound: that the interval must not contain.
        sign: 1 for above, -1 for below.
        form: how the estimate is printed, with {} for its number; "" for a difference, which has a plus sign.
    """
    if found is None:
        return Check(None, f"{subject}: no run, or no seed with both.", "not run")
    numbers = f"{subject}: {(form or '{}').format(estimate_text(found, decimals, signed=not form))}"
    if found.n < FEWEST_PAIRS:
        return Check(None, f"{numbers}: {found.n} of at least {FEWEST_PAIRS} seeds.")
    if found.low is None:
        return Check(False, f"{numbers}: the same for every seed, so there is no interval and nothing is shown.")
    side, other = ("above", "below") if sign > 0 else ("below", "above")
    if found.is_above(bound) if sign > 0 else found.is_below(bound):
        return Check(True, f"{numbers}: {side} {bound:g}.")
    if found.is_below(bound) if sign > 0 else found.is_above(bound):
        return Check(False, f"{numbers}: {other} {bound:g}, the opposite.")
    return Check(False, f"{numbers}: inconclusive, the interval contains {bound:g}.")


def mind_losses(check: Check, *compared: Measured) -> Check:
    """The check, with a remark on compared runs that failed or have no finite value; it then cannot pass.

    The runs that are left are not a fair sample: those that do badly fail. A seed that was never run is no loss.
    """
    lost = [words for measured in compared if (words := measured.losses)]
    if not lost:
        return check
    failed = any(measured.failed for measured in compared)
    reason: Reason = check.reason if check.holds is None and not failed else "runs"
    sentence = f"{check.sentence.rstrip('.')}; but {', '.join(dict.fromkeys(lost))}."
    return Check(False if check.holds is False else None, sentence, reason)


def unlearned(record: Record, *cells: CellName) -> list[Check]:
    """An undecided check for each cell whose model has not learned."""
    found = [Measured(record, METRICS["accuracy"], cell) for cell in dict.fromkeys(cells)]
    return [
        Check(
            None,
            f"{in_words(measured.cell)}: accuracy {measured} %, below {LEARNED:g} %: it has not learned enough to be compared.",
            "scale",
        )
        for measured in found
        if measured.estimate is not None and measured.estimate.mean < LEARNED
    ]


def conclude(checks: Sequence[Check], *, beside: Sequence[str] = ()) -> Verdict:
    """The verdict of some checks.

    Args:
        checks: at least one. The first that prevents a confirmation, or else the first, opens the summary.
        beside: further evidence, which does not count.
    """
    unknown = [check for check in checks if check.holds is None]
    # A model that has not learned shows nothing, whatever its numbers: this comes before a check that fails.
    decisive = [check for check in unknown if check.reason == "scale"]
    decisive = decisive or [check for check in checks if check.holds is False]
    for reason in ("not run", "runs"):
        decisive = decisive or [check for check in unknown if check.reason == reason]
    state, first = "confirmed", checks[0].sentence
    if decisive:
        state = "not confirmed" if decisive[0].holds is False else OPEN[decisive[0].reason]
        first = decisive[0].sentence
    if len(checks) > 1:
        first += f" Checks passed: {sum(check.holds is True for check in checks)} of {len(checks)}."
    return Verdict(state, first, (*(check.sentence for check in checks), *beside))
