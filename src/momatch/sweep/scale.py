"""At which scale figures were measured, in words: no figure is read rightly without it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from momatch.config import TrainConfig
from momatch.sweep.record import Outcome, Record


def scale_text(record: Record) -> str:
    """Dataset, labels, network, steps, batch and seeds of a record's runs, as one sentence; what differs is named in full."""
    done = [outcome for outcome in record.outcomes if outcome.result is not None]
    seeds = sorted({outcome.seed for outcome in done})
    if not done:
        return "No run is finished."
    datasets = _of(done, lambda outcome: _setting(outcome, "dataset"))
    held_out = [text for text in _of(done, lambda outcome: _setting(outcome, "held_out_classes")) if text]
    parts = [
        _joined(datasets),
        *([f"classes {_joined(held_out)} held out of training"] if held_out else []),
        f"{_joined(_results(done, 'labeled_images'))} labels",
        f"pool of {_joined(_results(done, 'unlabeled_images'))} images",
        f"{_joined(_results(done, 'test_images'))} test images",
        _joined(_of(done, lambda outcome: _setting(outcome, "backbone"))),
        f"{_joined(_results(done, 'steps'))} steps",
        f"batches of {_joined(_of(done, _batch))}",
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}",
    ]
    return "; ".join(parts) + "."


def _of(outcomes: Iterable[Outcome], read: Callable[[Outcome], Any]) -> list[Any]:
    """The different values, sorted."""
    return sorted({value for outcome in outcomes if (value := read(outcome)) is not None})


def _results(outcomes: Iterable[Outcome], key: str) -> list[Any]:
    return _of(outcomes, lambda outcome: (outcome.result or {}).get(key))


def _setting(outcome: Outcome, key: str) -> Any:
    """Settings that are the default are not recorded."""
    return outcome.settings.get(key, getattr(TrainConfig, key, None))


def _batch(outcome: Outcome) -> str:
    return f"{_setting(outcome, 'labeled_batch_size')} + {_setting(outcome, 'unlabeled_batch_size')}"


def _joined(values: Sequence[Any]) -> str:
    texts = [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
    if len(texts) > 3:
        return f"{texts[0]} to {texts[-1]}"
    return " or ".join(texts) if texts else "unknown"
