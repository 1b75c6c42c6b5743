"""Claims: each is confirmed, not confirmed and left open where its rule says so."""

from dataclasses import replace

import pytest

from momatch.experiments.claims import CLAIMS
from momatch.experiments.grid import load_grid
from momatch.experiments.statistics import Estimate
from momatch.experiments.verdict import Check, check_above, conclude
from tests.experiments.made_records import density, fill, make_outcome, make_record, merged, table1

BY_NUMBER = {claim.number: claim for claim in CLAIMS}
CONFIRMED, NOT, OPEN = "confirmed", "not confirmed", "not testable at this scale"


def judged(number, record):
    claim = BY_NUMBER[number]
    return claim.verdict({claim.grid: record})


def accuracies(aagmm, wide=97.0, narrow=97.0, **others):
    orders = {("AAGMM 8-D", column): aagmm for column in ("none", "1st", "2nd")}
    return table1({("Linear, all features", "none"): wide, ("Linear 8-D", "none"): narrow, **orders}, **others)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.number)
def test_without_a_record_nothing_is_said(claim):
    verdict = claim.verdict({})
    assert (verdict.state, verdict.evidence) == ("not testable: not run", ())
    assert claim.grid in verdict.summary


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.number)
def test_empty_record_is_left_open(claim):
    verdict = claim.verdict({claim.grid: make_record(claim.grid, [])})
    assert verdict.state == OPEN


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.number)
def test_record_of_failed_runs_confirms_nothing(claim):
    outcomes = [
        make_outcome(cell.row, cell.column, seed, error="out of memory")
        for cell in load_grid(claim.grid).cells
        for seed in range(3)
    ]
    verdict = claim.verdict({claim.grid: make_record(claim.grid, outcomes)})
    assert verdict.state != CONFIRMED
    assert f"{len(outcomes)} of {len(outcomes)} runs of this sweep failed" in " ".join(verdict.evidence)


def test_numbers_and_rules():
    assert list(BY_NUMBER) == ["1a", "1b", "2", "3", "4", "5", "6a", "6b", "6c"]
    for claim in CLAIMS:
        assert claim.rule.endswith(".")
        assert claim.statement.endswith(".")


@pytest.mark.parametrize(
    ("aagmm", "state"),
    [(97.0, CONFIRMED), (96.8, CONFIRMED), (99.5, CONFIRMED), (96.1, NOT), (90.0, NOT)],
)
def test_matches_is_no_worse_than_a_point(aagmm, state):
    assert judged("1a", accuracies(aagmm)).state == state


def test_matches_says_how_wide_the_margin_is():
    assert any("a margin of 1 point is wide" in line for line in judged("1a", accuracies(97.0)).evidence)
    assert not any("is wide" in line for line in judged("1a", accuracies(80.0, wide=80.0)).evidence)


def test_two_seeds_decide_nothing():
    verdict = judged("1a", accuracies(97.0, seeds=(0, 1)))
    assert verdict.state == OPEN
    assert "2 of at least 3 seeds" in verdict.summary


def test_model_that_has_not_learned_is_not_compared():
    for number in ("1a", "1b"):
        verdict = judged(number, accuracies(18.0, wide=18.5, narrow=10.0))
        assert verdict.state == OPEN
        assert "has not learned" in verdict.summary


def test_beats():
    won = judged("1b", accuracies(97.0, narrow=91.0))
    assert won.state == CONFIRMED
    assert not any("nothing to win back" in line for line in won.evidence)
    level = judged("1b", accuracies(97.0, narrow=97.0))
    assert level.state == NOT
    assert "not shown either way" in level.summary
    assert any("nothing to win back" in line for line in level.evidence)
    lost = judged("1b", accuracies(90.0, narrow=97.0))
    assert lost.state == NOT
    assert "the opposite" in lost.summary


def test_the_verdict_rests_on_no_constraint_as_in_the_paper():
    values = {("Linear, all features", "none"): 97.0, ("Linear 8-D", "none"): 91.0, ("AAGMM 8-D", "none"): 97.0}
    record = table1({**values, ("AAGMM 8-D", "1st"): 80.0, ("AAGMM 8-D", "2nd"): 80.0})
    assert judged("1a", record).state == CONFIRMED
    assert any("with the first order minus Linear, all features" in line for line in judged("1a", record).evidence)


def distances(aagmm=(6.0, 1.0, 2.0), kmeans=(8.0, 1.2, 2.2), offsets=(2.0, 0.7, 0.6), **others):
    orders = ("none", "1st", "2nd")
    rows = {"AAGMM 8-D": aagmm, "KMeans 8-D": kmeans}
    values = {(row, order): value for row, by in rows.items() for order, value in zip(orders, by, strict=True)}
    record = fill("compactness", "compactness", values, noise=0.5, **others)
    if offsets is None:
        return record
    values = {(row, order): value for row in rows for order, value in zip(orders, offsets, strict=True)}
    return merged(record, fill("compactness", "center_offset", values, noise=0.2, **others), "center_offset")


def test_shrinks():
    verdict = judged("2", distances())
    assert verdict.state == CONFIRMED
    assert "Checks that hold: 4 of 4." in verdict.summary
    # The mean of a chi distribution of 8 degrees of freedom.
    assert any("a mean distance of 2.74" in line for line in verdict.evidence)


@pytest.mark.parametrize("which", ["aagmm", "kmeans"])
def test_one_head_that_does_not_shrink_is_enough(which):
    verdict = judged("2", distances(**{which: (2.0, 1.0, 4.0)}))
    assert verdict.state == NOT
    assert "Checks that hold: 3 of 4." in verdict.summary


def test_degenerate():
    assert judged("3", distances()).state == CONFIRMED
    # Far, but only because the whole space is large.
    within = judged("3", distances(offsets=(0.6, 0.5, 0.5)))
    assert within.state == NOT
    # Out of place, but no farther than with the constraint.
    assert judged("3", distances(kmeans=(1.3, 1.2, 1.2))).state == NOT
    assert judged("3", distances(offsets=None)).state == OPEN


def test_distance_of_nought_is_left_open():
    record = distances()
    outcomes = tuple(replace(outcome, result={**outcome.result, "compactness": 0.0}) for outcome in record.outcomes)
    assert judged("2", replace(record, outcomes=outcomes)).state == OPEN


def removal(first, second, none=97.0, kept=97.0):
    values = {("kept", order): kept for order in ("none", "1st", "2nd")}
    removed = {
        ("P90 removed", order): value
        for order, value in zip(("none", "1st", "2nd"), (none, first, second), strict=True)
    }
    others = {("annealed removed", "1st"): kept, ("chi-square removed", "1st"): kept}
    return fill("outliers", "test_accuracy", {**values, **removed, **others}, scale=0.01)


def test_removal_hurts():
    verdict = judged("4", removal(90.0, 90.0))
    assert verdict.state == CONFIRMED
    assert any(line.startswith("Without a constraint: ") for line in verdict.evidence)
    assert sum(line.startswith("Another threshold: ") for line in verdict.evidence) == 2
    assert judged("4", removal(90.0, 97.0)).state == NOT
    assert judged("4", removal(97.0, 97.0, none=90.0)).state == NOT
    assert judged("4", removal(20.0, 10.0, kept=30.0)).state == OPEN


def memory(growth, D=512):
    values = {(cell.row, cell.column): 500.0 for cell in load_grid("memory").cells}
    values[f"{D}-D", "4th"] *= growth
    return fill("memory", "peak_memory_mb", values, seeds=(0,), noise=0.0)


def test_memory():
    flat = judged("5", memory(1.05))
    assert flat.state == CONFIRMED
    assert any("the paper: 7.71 GiB and more than 20.47 GiB" in line for line in flat.evidence)
    assert any("256 GiB at 512-D" in line for line in flat.evidence)
    assert judged("5", memory(1.5, D=8)).state == NOT
    failed = memory(1.0)
    outcomes = [
        make_outcome(outcome.row, outcome.column, 0, error="killed by signal 9")
        if (outcome.row, outcome.column) == ("512-D", "4th")
        else outcome
        for outcome in failed.outcomes
    ]
    verdict = judged("5", replace(failed, outcomes=tuple(outcomes)))
    assert verdict.state == NOT
    assert "killed by signal 9" in verdict.summary


def aurocs(without, constrained, *, confidence=0.8, energy=0.8, refitted=0.95):
    values = {("Linear, all features", "none", "as_trained", "confidence"): confidence}
    values["Linear, all features", "none", "as_trained", "density"] = energy
    for score in ("density", "nearest"):
        values["AAGMM 8-D", "none", "as_trained", score] = without
        values["AAGMM 8-D", "1st", "as_trained", score] = constrained
        values["AAGMM 8-D", "none", "refitted", score] = refitted
        values["AAGMM 8-D", "1st", "refitted", score] = refitted
    return values


def test_density_means_something():
    good = judged("6a", density(aurocs(0.05, 0.93)))
    assert good.state == CONFIRMED
    assert "Checks that hold: 8 of 8." in good.summary
    # Better than without, but still worse than chance.
    assert judged("6a", density(aurocs(0.05, 0.4))).state == NOT
    # Above chance, but not by the constraint's doing.
    assert judged("6a", density(aurocs(0.93, 0.93))).state == NOT
    one_score = aurocs(0.05, 0.93) | {("AAGMM 8-D", "1st", "as_trained", "nearest"): 0.3}
    assert judged("6a", density(one_score)).state == NOT


def test_density_against_the_linear_layer_says_who_wins():
    won = judged("6b", density(aurocs(0.05, 0.93)))
    assert won.state == CONFIRMED
    assert "the mixture wins" in won.summary
    lost = judged("6b", density(aurocs(0.05, 0.93, confidence=0.98)))
    assert lost.state == NOT
    assert "the confidence of Linear, all features" in lost.summary
    assert "the linear layer wins" in lost.summary
    assert any(line.startswith("Highest of ") and "picked afterwards" in line for line in lost.evidence)
    level = judged("6b", density(aurocs(0.05, 0.93, energy=0.93), noise=0.1))
    assert any("no winner" in line for line in level.evidence)


def test_refit():
    assert judged("6c", density(aurocs(0.05, 0.93))).state == CONFIRMED
    assert judged("6c", density(aurocs(0.96, 0.96, refitted=0.95))).state == NOT


@pytest.mark.parametrize("number", ["6a", "6b", "6c"])
@pytest.mark.parametrize("origin", ["held-out classes", "fashion-mnist"])
def test_both_kinds_of_outliers_are_needed(number, origin):
    verdict = judged(number, density(aurocs(0.05, 0.93), origins=(origin,)))
    assert verdict.state == OPEN
    assert "No run was evaluated against" in verdict.summary
    worse = judged(number, density(aurocs(0.4, 0.3, refitted=0.2), origins=(origin,)))
    assert worse.state == NOT


def test_runs_that_were_not_evaluated_leave_it_open():
    outcomes = tuple(replace(outcome, evaluation=None) for outcome in density({}).outcomes)
    assert judged("6a", make_record("density", outcomes)).state == OPEN


def test_perfect_separation_needs_no_interval():
    verdict = judged("6c", density(aurocs(0.05, 1.0, refitted=1.0), noise=0.0, seeds=(0, 1, 2)))
    # The gain has no spread either, so it is not shown; that every outlier is told apart is.
    assert any("every outlier is told apart" in line for line in verdict.evidence)


@pytest.mark.parametrize(
    ("found", "sign", "holds"),
    [
        (Estimate(1.0, 0.5, 1.5, 3), 1, True),
        (Estimate(1.0, 0.5, 1.5, 3), -1, False),
        (Estimate(-1.0, -1.5, -0.5, 3), -1, True),
        (Estimate(0.1, -0.5, 1.5, 3), 1, False),
        (Estimate(0.5, 0.0, 1.0, 3), 1, False),
        (Estimate(1.0, 0.5, 1.5, 2), 1, None),
        (Estimate(1.0, None, None, 3), 1, False),
        (Estimate(1.0, None, None, 1), 1, None),
        (None, 1, None),
    ],
)
def test_check(found, sign, holds):
    assert check_above(found, "a minus b", decimals=2, sign=sign).holds is holds


def test_conclusion_is_as_strong_as_its_weakest_check():
    yes, no, unknown = Check(True, "yes."), Check(False, "no."), Check(None, "who knows.")
    assert conclude([yes, yes]).state == CONFIRMED
    assert conclude([yes, unknown]).state == OPEN
    assert conclude([yes, unknown, no]).state == NOT
    assert conclude([yes, unknown, no]).summary == "no. Checks that hold: 1 of 3."
    assert conclude([yes]).summary == "yes."


def test_all_claims_can_be_confirmed_at_once():
    records = {
        "table1": accuracies(97.0, narrow=91.0),
        "compactness": distances(),
        "outliers": removal(90.0, 90.0),
        "memory": memory(1.0),
        "density": density(aurocs(0.05, 0.93)),
    }
    assert {claim.number: claim.verdict(records).state for claim in CLAIMS} == dict.fromkeys(BY_NUMBER, CONFIRMED)
