"""The central promise: that the constraint makes p(x) mean something; and whether it beats what a linear layer has anyway."""

from momatch.sweep.figures import FIGURES, HELD_OUT, SCORES, STATES, Figure, auroc_figure, by_seed, origins
from momatch.sweep.record import Record
from momatch.sweep.statistics import paired_difference
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

CHANCE = 0.5
WITHOUT: Place = ("AAGMM 8-D", "none")
WITH: Place = ("AAGMM 8-D", "1st")
LINEAR: Place = ("Linear, all features", "none")
MEANINGFUL = ("density", "nearest")
#: The linear layer's scores, by what they are called there.
LINEAR_SCORES = {"confidence": "confidence", "density": "energy"}


def _origins(record: Record, *places: Place) -> tuple[list[str], list[Check], list[str]]:
    """What outliers the models of `places` were told apart from.

    Returns:
        Origins that all of them have; for each kind of which there is none a check that cannot be told; a sentence on each
        origin that only some have, which no comparison can be made for.
    """
    by_place = [origins(outcome for outcome in record.outcomes if (outcome.row, outcome.column) == of) for of in places]
    there = origins(record.outcomes)
    shared = [origin for origin in there if all(origin in found for found in by_place)]
    kinds = {HELD_OUT: HELD_OUT in shared, "another dataset": any(origin != HELD_OUT for origin in shared)}
    models = " and ".join(named(place) for place in places)
    words = [f"No run was evaluated against {kind}, of each of {models}." for kind, found in kinds.items() if not found]
    losses = [(FIGURES["accuracy"], place) for place in places]
    absent = [mind_losses(Check(None, sentence, "not run"), record, *losses) for sentence in words]
    others = [
        f"{origin}: not counted, as not all of {models} were evaluated." for origin in there if origin not in shared
    ]
    return shared, absent, others


def _places(record: Record) -> list[Place]:
    return list(dict.fromkeys((outcome.row, outcome.column) for outcome in record.outcomes))


def _above_chance(record: Record, figure: Figure, place: Place) -> Check:
    found = own_estimate(record, figure, place)
    subject = f"{figure.title}, {named(place)}"
    check = check_above(found, subject, decimals=3, bound=CHANCE, signed=False)
    if found is not None and found.n >= FEWEST_PAIRS and found.low is None and found.mean == 1.0:
        told = f"{subject}: {cell_text(record, figure, place)}: every outlier is told apart with every seed."
        check = Check(True, told)
    return mind_losses(check, record, (figure, place))


def _gain(record: Record, figure: Figure, of: Place, to: Place) -> Check:
    return compare(record, figure, of, to, subject=f"{figure.title}, {named(of)} minus {named(to)}")


def _means_something(record: Record) -> Verdict:
    shared, checks, beside = _origins(record, WITH, WITHOUT)
    for origin in shared:
        for score in MEANINGFUL:
            figure = auroc_figure(origin, "as_trained", score)
            checks += [_gain(record, figure, WITH, WITHOUT), _above_chance(record, figure, WITH)]
        density = auroc_figure(origin, "as_trained", "density")
        places = [place for place in _places(record) if not place[0].startswith("Linear")]
        texts = "; ".join(f"{named(place)} {cell_text(record, density, place)}" for place in places)
        beside.append(f"{density.title}: {texts}.")
    return conclude([*checks, *unlearned(record, WITH, WITHOUT)], beside=beside)


def _against_linear(record: Record, origin: str, state: str, score: str, linear_score: str) -> Check:
    """Score of AAGMM 8-D with the first order against one of the wide linear layer, seed by seed."""
    ours, theirs = auroc_figure(origin, state, score), auroc_figure(origin, "as_trained", linear_score)
    found = paired_difference(by_seed(record, *WITH, ours), by_seed(record, *LINEAR, theirs))
    subject = (
        f"{ours.title}, {named(WITH)} ({cell_text(record, ours, WITH)}) minus the {LINEAR_SCORES[linear_score]} of "
        f"{named(LINEAR)} ({cell_text(record, theirs, LINEAR)})"
    )
    check = check_above(found, subject, decimals=3)
    if found is not None and check.holds is not None:
        won, lost = found.is_above(0.0), found.is_below(0.0)
        winner = "the mixture wins" if won else "the linear layer wins" if lost else "no winner"
        check = Check(check.holds, f"{check.sentence.rstrip('.')}: {winner}.")
    return mind_losses(check, record, (ours, WITH), (theirs, LINEAR))


def _beats_linear(record: Record) -> Verdict:
    shared, checks, beside = _origins(record, WITH, LINEAR)
    for origin in shared:
        checks += [_against_linear(record, origin, "as_trained", "density", score) for score in LINEAR_SCORES]
        for state, ours in (("as_trained", "nearest"), ("refitted", "density"), ("refitted", "nearest")):
            beside += [_against_linear(record, origin, state, ours, score).sentence for score in LINEAR_SCORES]
        beside += _best(record, origin)
    return conclude([*checks, *unlearned(record, WITH, LINEAR)], beside=beside)


def _best(record: Record, origin: str) -> list[str]:
    """The highest mean AUROC of all cells, scores and states, for what a choice afterwards is worth."""
    found = []
    for place in _places(record):
        for state in STATES:
            for score in SCORES:
                figure = auroc_figure(origin, state, score)
                mean = own_estimate(record, figure, place)
                if mean is not None:
                    found.append((mean.mean, figure, place))
    if not found:
        return []
    _, figure, place = max(found, key=lambda entry: entry[0])
    text = cell_text(record, figure, place)
    return [f"Highest of {len(found)} means, picked afterwards: {figure.title}, {named(place)}: {text}."]


def _refit_repairs(record: Record) -> Verdict:
    shared, checks, beside = _origins(record, WITHOUT)
    for origin in shared:
        trained, refitted = (auroc_figure(origin, state, "density") for state in STATES)
        found = paired_difference(by_seed(record, *WITHOUT, refitted), by_seed(record, *WITHOUT, trained))
        subject = f"AUROC of density, {origin}, {named(WITHOUT)}: refitted minus as trained"
        check = mind_losses(check_above(found, subject, decimals=3), record, (refitted, WITHOUT), (trained, WITHOUT))
        checks += [check, _above_chance(record, refitted, WITHOUT)]
        beside.append(_gain(record, refitted, WITH, WITHOUT).sentence)
    return conclude([*checks, *unlearned(record, WITHOUT)], beside=beside)


MEANS_SOMETHING = Claim(
    number="6a",
    statement="The constraint makes p(x) mean something: it is lower for images unlike the training data.",
    paper="Stated, without figures.",
    rule=(
        "AAGMM 8-D as trained, for the density and for the distance to the nearest center, against the held-out classes and "
        "against another dataset: the 95 % interval of the paired difference in AUROC, first order minus none, lies above 0, "
        "and that of the AUROC with the first order lies above 0.5, which is chance. Not testable where one of the two models "
        f"gets less than {LEARNED:g} % of the test images right."
    ),
    grid="density",
    judge=_means_something,
)
BEATS_LINEAR = Claim(
    number="6b",
    statement="p(x) of the constrained mixture tells outliers apart better than the linear layer's confidence and energy.",
    paper="Stated (outlier detection that softmax does not allow), without figures.",
    rule=(
        "Density of AAGMM 8-D with the first order, as trained, minus the confidence and minus the energy of the linear layer "
        "on all features: the 95 % interval of the paired difference in AUROC lies above 0 for each origin of outliers. Below "
        f"0, the linear layer wins. Not testable where one of the two gets less than {LEARNED:g} % right."
    ),
    grid="density",
    judge=_beats_linear,
)
REFIT_REPAIRS = Claim(
    number="6c",
    statement="Refitted in closed form, p(x) means something without a constraint (momatch's claim, not the paper's).",
    paper="Not in the paper.",
    rule=(
        "AAGMM 8-D without constraint, for each origin of outliers: the 95 % interval of the paired difference in AUROC of "
        "the density, refitted minus as trained, lies above 0, and that of the AUROC refitted lies above 0.5. Not testable "
        f"where the model gets less than {LEARNED:g} % right."
    ),
    grid="density",
    judge=_refit_repairs,
)
