"""Claims: each is confirmed, not confirmed and left open where its rule says so."""

import json
import re
from dataclasses import replace

import pytest

from momatch.sweep.statistics import Estimate
from reproduction import claims
from reproduction.claims import CLAIMS
from reproduction.paper import paper_grid
from reproduction.verdict import Check, check_interval, conclude
from tests.sweep.records import density, fill, make_outcome, make_record, merged, table1

BY_NUMBER = {claim.number: claim for claim in CLAIMS}
CONFIRMED, NOT = "confirmed", "not confirmed"
SCALE, FEW, NOT_RUN = "not testable at this scale", "not testable: too few runs", "not testable: not run"


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
    assert verdict.state == NOT_RUN


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.number)
def test_record_of_failed_runs_confirms_nothing(claim):
    outcomes = [
        make_outcome(cell.row, cell.column, seed, error="out of memory")
        for cell in paper_grid(claim.grid).cells
        for seed in range(3)
    ]
    verdict = claim.verdict({claim.grid: make_record(claim.grid, outcomes)})
    assert verdict.state == (NOT if claim.number == "5" else FEW)
    assert "failed" in verdict.summary
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


def test_the_same_accuracy_with_every_seed_is_a_match():
    verdict = judged("1a", accuracies(97.0, noise=0.0))
    assert verdict.state == CONFIRMED
    assert "+0.00 for each of 5 seeds" in verdict.summary
    assert judged("1a", accuracies(95.0, noise=0.0)).state == NOT


def test_matches_says_how_wide_the_margin_is():
    assert any("a margin of 1 point is wide" in line for line in judged("1a", accuracies(97.0)).evidence)
    assert not any("is wide" in line for line in judged("1a", accuracies(80.0, wide=80.0)).evidence)


def test_two_seeds_decide_nothing():
    verdict = judged("1a", accuracies(97.0, seeds=(0, 1)))
    assert verdict.state == FEW
    assert "2 of at least 3 seeds" in verdict.summary


def test_model_that_has_not_learned_is_not_compared():
    for number in ("1a", "1b"):
        verdict = judged(number, accuracies(18.0, wide=18.5, narrow=10.0))
        assert verdict.state == SCALE
        assert "has not learned" in verdict.summary


def test_beats():
    won = judged("1b", accuracies(97.0, narrow=91.0))
    assert won.state == CONFIRMED
    assert not any("nothing to win back" in line for line in won.evidence)
    level = judged("1b", accuracies(97.0, narrow=97.0))
    assert level.state == NOT
    assert "inconclusive" in level.summary
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
    assert "Checks passed: 4 of 4." in verdict.summary
    # The mean of a chi distribution of 8 degrees of freedom.
    assert any("a mean distance of 2.74" in line for line in verdict.evidence)


@pytest.mark.parametrize("which", ["aagmm", "kmeans"])
def test_one_head_that_does_not_shrink_is_enough(which):
    verdict = judged("2", distances(**{which: (2.0, 1.0, 4.0)}))
    assert verdict.state == NOT
    assert "Checks passed: 3 of 4." in verdict.summary


def test_degenerate():
    assert judged("3", distances()).state == CONFIRMED
    # Far, but only because the whole space is large.
    within = judged("3", distances(offsets=(0.6, 0.5, 0.5)))
    assert within.state == NOT
    # Out of place, but no farther than with the constraint.
    assert judged("3", distances(kmeans=(1.3, 1.2, 1.2))).state == NOT
    assert judged("3", distances(offsets=None)).state == NOT_RUN


def test_distance_of_nought_is_left_open():
    record = distances()
    outcomes = tuple(replace(outcome, result={**outcome.result, "compactness": 0.0}) for outcome in record.outcomes)
    assert judged("2", replace(record, outcomes=outcomes)).state == NOT_RUN


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
    assert judged("4", removal(20.0, 10.0, kept=30.0)).state == SCALE


def test_removal_is_left_open_where_one_order_has_not_learned():
    record = removal(90.0, 30.0)
    outcomes = [
        replace(outcome, result={**outcome.result, "test_accuracy": 0.3 + outcome.seed / 100})
        if (outcome.row, outcome.column) == ("kept", "2nd")
        else outcome
        for outcome in record.outcomes
    ]
    # With the second order nothing is shown either way; that it has not learned comes first.
    verdict = judged("4", replace(record, outcomes=tuple(outcomes)))
    assert verdict.state == SCALE
    assert "kept with the second order: accuracy 32.00" in verdict.summary


def damage(record, place, number, **change):
    """The record with a change to the first runs of a cell."""
    outcomes = []
    for outcome in record.outcomes:
        if (outcome.row, outcome.column) == place and number:
            number -= 1
            outcomes.append(replace(outcome, **change))
        else:
            outcomes.append(outcome)
    return replace(record, outcomes=tuple(outcomes))


FAILED = {"result": None, "evaluation": None, "error": "the loss is not finite"}


@pytest.mark.parametrize("number", ["1a", "1b", "2", "3", "4", "5", "6a", "6b", "6c"])
def test_failed_run_of_a_compared_cell_leaves_nothing_confirmed(number):
    place = {
        "1a": ("AAGMM 8-D", "none"),
        "1b": ("Linear 8-D", "none"),
        "2": ("AAGMM 8-D", "2nd"),
        "3": ("KMeans 8-D", "none"),
        "4": ("P90 removed", "2nd"),
        "5": ("128-D", "2nd"),
        "6a": ("AAGMM 8-D", "1st"),
        "6b": ("Linear, all features", "none"),
        "6c": ("AAGMM 8-D", "none"),
    }[number]
    record = confirming()[BY_NUMBER[number].grid]
    assert judged(number, record).state == CONFIRMED
    verdict = judged(number, damage(record, place, 1, **FAILED))
    assert verdict.state == (NOT if number == "5" else FEW)
    assert "failed" in verdict.summary
    if number != "5":
        assert f"1 of {len(record.seeds)} runs of {place[0]}" in verdict.summary
    # A seed that was never run takes nothing away.
    left = [o for o in record.outcomes if (o.row, o.column, o.seed) != (*place, 4)]
    assert judged(number, replace(record, outcomes=tuple(left))).state == CONFIRMED


def test_run_without_a_finite_value_leaves_nothing_confirmed():
    record = damage(confirming()["table1"], ("AAGMM 8-D", "none"), 1, result={"test_accuracy": None})
    verdict = judged("1a", record)
    assert verdict.state == FEW
    assert "1 of 5 runs of AAGMM 8-D without constraint have no finite value" in verdict.summary


def test_failed_runs_do_not_hide_that_a_claim_does_not_hold():
    verdict = judged("1a", damage(accuracies(90.0), ("AAGMM 8-D", "none"), 1, **FAILED))
    assert verdict.state == NOT
    assert "1 of 5 runs" in verdict.summary


@pytest.mark.parametrize("number", ["2", "3", "6a", "6b", "6c"])
def test_model_that_has_not_learned_shows_nothing_of_centers_and_density(number):
    place = {"3": ("KMeans 8-D", "none"), "6b": ("Linear, all features", "none")}.get(number, ("AAGMM 8-D", "none"))
    record = confirming()[BY_NUMBER[number].grid]
    outcomes = [
        replace(
            outcome, result={**outcome.result, "test_accuracy": 0.2 if (outcome.row, outcome.column) == place else 0.9}
        )
        for outcome in record.outcomes
    ]
    verdict = judged(number, replace(record, outcomes=tuple(outcomes)))
    assert verdict.state == SCALE
    assert f"{place[0]}" in verdict.summary


def memory(growth, D=512, order="4th", *, seeds=(0, 1, 2), noise=1.0):
    values = {(cell.row, cell.column): 500.0 for cell in paper_grid("memory").cells}
    values[f"{D}-D", order] *= growth
    return fill("memory", "peak_memory_mb", values, seeds=seeds, noise=noise)


def test_memory():
    flat = judged("5", memory(1.05))
    assert flat.state == CONFIRMED
    # Of the orders that explicit moments would show in: 4th at 128-D, 3rd and 4th at 512-D.
    assert "Checks passed: 7 of 7." in flat.summary
    assert any("the paper, none and 4th: 7.71 GiB and more than 20.47 GiB" in line for line in flat.evidence)
    assert any("4th ratio 1.05" in line and "explicit 2.5 TiB" in line for line in flat.evidence)
    assert any(line.startswith("32-D by order") and "explicit 40 MiB" in line for line in flat.evidence)
    assert not any(" MB" in line for line in flat.evidence)
    assert judged("5", memory(1.0, noise=0.0)).state == CONFIRMED


def test_memory_has_the_constraints_own_tensors_beside_the_process(tmp_path, monkeypatch):
    lines = judged("5", memory(1.05)).evidence
    assert any(
        re.search(r"^512-D by order.*4th ratio [^;]*, own 2[0-9.]+ MiB, explicit 2\.5 TiB", line) for line in lines
    )
    damaged = tmp_path / "own.json"
    damaged.write_text('{"rows": [{"D": 8}]}')
    monkeypatch.setattr(claims, "OWN_TENSORS", damaged)
    claims.own_tensors.cache_clear()
    with pytest.raises(
        ValueError, match=r"own\.json: got a damaged record .*; run python benchmarks/moments\.py --tensors"
    ):
        judged("5", memory(1.05))


def test_memory_has_the_growth_of_a_process_that_returns_blocks_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "process.json"
    growth = {f"order {order}, growth (MiB)": order / 4 for order in (1, 2, 3, 4)}
    path.write_text(
        json.dumps({"rows": [{"preset": "digits", "D": 8, **growth}, {"preset": "other", "D": 32, **growth}]})
    )
    monkeypatch.setattr(claims, "PROCESS_MEMORY", path)
    claims.process_growth.cache_clear()
    (line,) = [line for line in judged("5", memory(1.05)).evidence if "returned to the system" in line]
    assert "(MiB, benchmarks/results/process_memory.md): 8-D 1st +0.2, 2nd +0.5, 3rd +0.8, 4th +1.0. The rest" in line
    path.write_text('{"rows": [{"preset": "digits"}]}')
    claims.process_growth.cache_clear()
    with pytest.raises(
        ValueError, match=r"process\.json: got a damaged record .*; run python benchmarks/process_memory\.py"
    ):
        judged("5", memory(1.05))


@pytest.mark.parametrize("order", ["1st", "2nd", "3rd", "4th"])
def test_memory_that_grows_with_any_order_is_not_flat(order):
    verdict = judged("5", memory(1.5, D=8, order=order))
    assert verdict.state == NOT
    assert f"largest with the {order} order" in verdict.summary


def test_memory_of_single_runs_decides_nothing():
    verdict = judged("5", memory(1.0, seeds=(0,)))
    assert verdict.state == FEW
    assert "1 of at least 3 seeds" in verdict.summary
    assert paper_grid("memory").seeds == (0, 1, 2)


def test_memory_noise_that_leaves_room_for_explicit_moments_is_not_flat():
    record = memory(1.0)
    outcomes = [
        replace(outcome, result={"peak_memory_mb": 500.0 * (0.01, 30.0, 1.0)[outcome.seed]})
        if (outcome.row, outcome.column) == ("512-D", "3rd")
        else outcome
        for outcome in record.outcomes
    ]
    verdict = judged("5", replace(record, outcomes=tuple(outcomes)))
    assert verdict.state == NOT
    assert "512-D, 3rd: explicit moments would give a ratio of 11.2" in verdict.summary


def test_memory_of_failed_runs():
    verdict = judged("5", damage(memory(1.0), ("512-D", "4th"), 1, **FAILED))
    assert verdict.state == NOT
    assert "512-D: 4th, seed 0 failed: the loss is not finite" in verdict.summary
    assert judged("5", damage(memory(1.0), ("512-D", "none"), 1, **FAILED)).state == FEW


@pytest.mark.parametrize(("device", "words"), [("cpu", "of the whole process"), ("cuda:0", "of the tensors")])
def test_memory_says_what_of(device, words):
    record = memory(1.0)
    outcomes = tuple(replace(outcome, result={**outcome.result, "device": device}) for outcome in record.outcomes)
    lines = judged("5", replace(record, outcomes=outcomes)).evidence
    assert any(f"{words} on the device '{device}'" in line for line in lines)


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
    assert "Checks passed: 8 of 8." in good.summary
    # Better than without, but still worse than chance.
    assert judged("6a", density(aurocs(0.05, 0.4))).state == NOT
    # Above chance, but not by the constraint's doing.
    assert judged("6a", density(aurocs(0.93, 0.93))).state == NOT
    one_score = aurocs(0.05, 0.93) | {("AAGMM 8-D", "1st", "as_trained", "nearest"): 0.3}
    assert judged("6a", density(one_score)).state == NOT


def test_density_against_the_linear_layer():
    won = judged("6b", density(aurocs(0.05, 0.93)))
    assert won.state == CONFIRMED
    assert "above 0." in won.summary
    lost = judged("6b", density(aurocs(0.05, 0.93, confidence=0.98)))
    assert lost.state == NOT
    assert "the confidence of Linear, all features" in lost.summary
    assert "below 0, the opposite." in lost.summary
    assert any(line.startswith("Highest of ") and "chosen in hindsight" in line for line in lost.evidence)
    level = judged("6b", density(aurocs(0.05, 0.93, energy=0.93), noise=0.1))
    assert any("inconclusive" in line for line in level.evidence)


def test_refit():
    assert judged("6c", density(aurocs(0.05, 0.93))).state == CONFIRMED
    assert judged("6c", density(aurocs(0.96, 0.96, refitted=0.95))).state == NOT


@pytest.mark.parametrize("number", ["6a", "6b", "6c"])
@pytest.mark.parametrize("origin", ["held-out classes", "fashion-mnist"])
def test_both_kinds_of_outliers_are_needed(number, origin):
    verdict = judged(number, density(aurocs(0.05, 0.93), origins=(origin,)))
    assert verdict.state == NOT_RUN
    assert "No evaluation on" in verdict.summary
    worse = judged(number, density(aurocs(0.4, 0.3, refitted=0.2), origins=(origin,)))
    assert worse.state == NOT


def test_runs_that_were_not_evaluated_leave_it_open():
    outcomes = tuple(replace(outcome, evaluation=None) for outcome in density({}).outcomes)
    assert judged("6a", make_record("density", outcomes)).state == NOT_RUN


def test_origin_counts_only_where_both_models_have_it():
    record = density(aurocs(0.05, 0.93), origins=("held-out classes", "fashion-mnist", "mnist"))
    outcomes = [
        replace(outcome, evaluation={key: value for key, value in outcome.evaluation.items() if key != "mnist"})
        if (outcome.row, outcome.column) == ("AAGMM 8-D", "none")
        else outcome
        for outcome in record.outcomes
    ]
    verdict = judged("6a", replace(record, outcomes=tuple(outcomes)))
    assert verdict.state == CONFIRMED
    assert any(line.startswith("mnist: not counted") for line in verdict.evidence)
    # The linear layer has it.
    assert not any(
        line.startswith("mnist: not counted")
        for line in judged("6b", replace(record, outcomes=tuple(outcomes))).evidence
    )


def test_perfect_separation_needs_no_interval():
    verdict = judged("6c", density(aurocs(0.05, 1.0, refitted=1.0), noise=0.0, seeds=(0, 1, 2)))
    # The gain has no spread either, so it is not shown; that every outlier is detected is.
    assert any("every outlier is detected" in line for line in verdict.evidence)


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
    assert check_interval(found, "a minus b", 2, sign=sign).holds is holds


def test_conclusion_is_as_strong_as_its_weakest_check():
    yes, no, unknown = Check(True, "yes."), Check(False, "no."), Check(None, "who knows.")
    assert conclude([yes, yes]).state == CONFIRMED
    assert conclude([yes, unknown]).state == FEW
    assert conclude([yes, unknown, Check(None, "none.", "not run")]).state == NOT_RUN
    assert conclude([yes, unknown, no, Check(None, "poor.", "scale")]).state == SCALE
    assert conclude([yes, unknown, no]).state == NOT
    assert conclude([yes, unknown, no]).summary == "no. Checks passed: 1 of 3."
    assert conclude([yes]).summary == "yes."


def confirming():
    """Records that all claims are confirmed by."""
    return {
        "table1": accuracies(97.0, narrow=91.0),
        "compactness": distances(),
        "outliers": removal(90.0, 90.0),
        "memory": memory(1.0, seeds=(0, 1, 2, 3, 4)),
        "density": density(aurocs(0.05, 0.93), seeds=(0, 1, 2, 3, 4)),
    }


def test_all_claims_can_be_confirmed_at_once():
    states = {claim.number: claim.verdict(confirming()).state for claim in CLAIMS}
    assert states == dict.fromkeys(BY_NUMBER, CONFIRMED)
