"""The whole prediction, from image sources to a written table, in bounded memory."""

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from momatch.console.progress import CountProgress
from momatch.data.decode import quiet_pillow
from momatch.inference.predict.inputs import Batch, Source
from momatch.inference.predict.output import Spool, open_writer
from momatch.inference.predict.pipeline import Predictor, default_workers, in_order
from momatch.inference.predict.table import Table, columns, flag
from momatch.models.saved_model import SavedModel
from momatch.outliers.discovery import ConformalCounts
from momatch.training.setup import choose_device


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to predict.

    Attributes:
        alpha: flag p-values of at most this, the false-positive rate; ignored if `fdr` is set.
        fdr: flag by Benjamini-Hochberg over all images, with this false-discovery rate.
        posterior: also write the posterior of each class.
        batch_size: images per batch.
        workers: threads; None for the number of cores.
        device: where the network runs; "auto" picks the fastest available.
        progress: show a progress line.
    """

    alpha: float = 0.05
    fdr: float | None = None
    posterior: bool = False
    batch_size: int = 64
    workers: int | None = None
    device: str = "cpu"
    progress: bool = True


@dataclass(frozen=True)
class Summary:
    """Counts and time of a prediction.

    Attributes:
        images: rows with a prediction.
        unreadable: rows with an error instead.
        flagged: flagged rows; None without calibration.
        seconds: from the first image to the last row.
    """

    images: int
    unreadable: int
    flagged: int | None
    seconds: float

    @property
    def images_per_second(self) -> float:
        """Readable images per second."""
        return self.images / self.seconds if self.seconds else 0.0


def predict_to_file(model: SavedModel, sources: Sequence[Source], out: Path | None, settings: Settings) -> Summary:
    """Predict all images of `sources` and write one row each, in order.

    With `fdr`, rows are kept in a temporary file until the last p-value is known.

    Args:
        model: moved to the device.
        sources: see `momatch.inference.predict.inputs.find_sources`.
        out: output file, whose extension selects the format; None for CSV to stdout.
        settings: see `Settings`.

    Raises:
        ValueError: if the device is not available.
        OSError: if writing fails; no output is left then.
    """
    predictor = Predictor(model, choose_device(settings.device), posterior=settings.posterior)
    progress = CountProgress(sum(map(len, sources)), label="predict", enabled=settings.progress)
    begin = time.perf_counter()
    unreadable = flagged = 0
    names = columns(model.spec.class_names if settings.posterior else ())
    with (
        open_writer(out, names) as writer,
        predictor.threaded(),
        progress,
        quiet_pillow(),
        closing(_predicted(predictor, sources, settings, progress)) as predicted,
        closing(_flagged(predicted, settings, predictor.calibration_size, out)) as tables,
    ):
        for table in tables:
            unreadable += sum(reason is not None for reason in table["error"])
            flagged += sum(value is True for value in table["flagged"])
            writer.write(table)
    return Summary(
        images=progress.done - unreadable,
        unreadable=unreadable,
        flagged=flagged if predictor.calibration_size else None,
        seconds=time.perf_counter() - begin,
    )


def _predicted(
    predictor: Predictor, sources: Sequence[Source], settings: Settings, progress: CountProgress
) -> Generator[Table, None, None]:
    batches: Iterator[Batch] = (batch for source in sources for batch in source.batches(settings.batch_size))
    with closing(in_order(predictor, batches, settings.workers or default_workers())) as tables:
        for table in tables:
            progress.add(len(table["path"]))
            yield table


def _flagged(
    tables: Iterable[Table], settings: Settings, calibration_size: int, out: Path | None
) -> Generator[Table, None, None]:
    """Fill the column ``flagged``; with `fdr`, only after all tables have arrived."""
    if settings.fdr is None or not calibration_size:
        for table in tables:
            flag(table, settings.alpha)
            yield table
        return
    counts = ConformalCounts(calibration_size)
    with closing(Spool(None if out is None else out.absolute().parent)) as spool:
        for table in tables:
            counts.add([p for p in table["p_value"] if p is not None])
            spool.add(table)
        cut = counts.cut(settings.fdr)
        for table in spool.tables():
            flag(table, cut)
            yield table
