"""Records with known metrics that no run made, to test tables, claims and the results page on."""

from dataclasses import replace

from momatch.sweep.metrics import SCORES
from momatch.sweep.record import Outcome, Record
from reproduction.paper import paper_grid

ENVIRONMENT = {
    "command": "momatch sweep table1",
    "date": "2024-01-01 00:00 UTC",
    "commit": "abc1234",
    "cpu": "A CPU",
    "cores": 2,
    "system": "Linux x86_64",
    "python": "3.11.7",
    "torch": "2.13.0",
    "numpy": "2.4.6",
    "momatch": "0.1.0",
    "workers": 2,
    "threads": 1,
}
#: Differs by seed, so that there is a spread; its mean over five seeds is 0.
NOISE = (0.1, -0.1, 0.2, -0.2, 0.0)


def make_outcome(row, column, seed, *, result=None, evaluation=None, error=None, settings=None):
    facts = {"steps": 1200, "labeled_images": 40, "unlabeled_images": 1297, "test_images": 500}
    return Outcome(
        row=row,
        column=column,
        seed=seed,
        run=f"{row}-{column}-{seed}".replace(" ", "-"),
        settings=settings or {},
        result=None if error else {**facts, **(result or {})},
        evaluation=evaluation,
        error=error,
    )


def make_record(grid, outcomes, *, preset="digits", seeds=(0, 1, 2, 3, 4), overrides=None):
    return Record(grid, preset, overrides or {}, tuple(seeds), tuple(outcomes), ENVIRONMENT)


def fill(grid, key, values, *, seeds=(0, 1, 2, 3, 4), scale=1.0, noise=1.0, **others):
    """A record of one of the paper's grids whose cells have result[key] = values[row, column] plus noise, times scale.

    The noise of different cells differs, so that paired differences have a spread.
    """
    outcomes = []
    for number, cell in enumerate(paper_grid(grid).cells):
        if (cell.row, cell.column) not in values:
            continue
        for place, seed in enumerate(seeds):
            shift = noise * (1 + number % 3) * NOISE[(place + number) % 5]
            result = {key: scale * (values[cell.row, cell.column] + shift)}
            outcomes.append(make_outcome(cell.row, cell.column, seed, result=result, settings=cell.settings))
    return make_record(grid, outcomes, seeds=seeds, **others)


def table1(accuracies, **others):
    """A record of table1; row and column -> accuracy in %."""
    return fill("table1", "test_accuracy", accuracies, scale=0.01, **others)


def merged(record, other, key):
    """`record` with result[key] of `other`'s outcomes."""
    by_run = {outcome.run: outcome.result for outcome in other.outcomes}
    outcomes = [
        replace(outcome, result={**outcome.result, key: by_run[outcome.run][key]}) for outcome in record.outcomes
    ]
    return replace(record, outcomes=tuple(outcomes))


def density(aurocs, *, origins=("held-out classes", "fashion-mnist"), seeds=(0, 1, 2), noise=0.01):
    """A record of the grid density; (row, column, state, score) -> AUROC, the same for every origin; 0.6 where not given."""
    outcomes = []
    for number, cell in enumerate(paper_grid("density").cells):
        linear = cell.row.startswith("Linear")
        for place, seed in enumerate(seeds):
            states = {}
            for turn, state in enumerate(("as_trained", "refitted")):
                shift = noise * NOISE[(place + number + turn) % 5]
                scores = [score for score in SCORES if not linear or score in ("density", "confidence")]
                states[state] = {
                    score: {"auroc": aurocs.get((cell.row, cell.column, state, score), 0.6) + shift, "fpr95": 0.5}
                    for score in scores
                }
            if linear:
                states["refitted"] = None
            evaluation = {origin: {"n": 100, **states} for origin in origins}
            result = {"test_accuracy": 0.97}
            outcomes.append(
                make_outcome(cell.row, cell.column, seed, result=result, evaluation=evaluation, settings=cell.settings)
            )
    return make_record("density", outcomes, seeds=seeds)
