"""A whole prediction: from sources of images to a written table, in memory that does not grow with their number."""

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
        alpha: flag p-values of at most this, the false-alarm rate; not looked at where there is `fdr`.
        fdr: flag by Benjamini-Hochberg over all images, so that of those flagged at most this share are expected to be inliers.
        posterior: also write the posterior of each class.
        batch_size: images a pass.
        workers: threads; None for the number of cores.
        device: where the network runs; "auto" for the fastest there is.
        progress: show how far it is.
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
    """What came of a prediction.

    Attributes:
        images: rows with a prediction.
        unreadable: rows with a reason instead.
        flagged: rows that are flagged; None where nothing was calibrated.
        seconds: from the first image to the last row.
    """

    images: int
    unreadable: int
    flagged: int | None
    seconds: float

    @property
    def images_per_second(self) -> float:
        """Of images that could be read."""
        return self.images / self.seconds if self.seconds else 0.0


def predict_to_file(model: SavedModel, sources: Sequence[Source], out: Path | None, settings: Settings) -> Summary:
    """Predict all images of `sources` and write a row each, in order.

    With `fdr` the rows wait in a temporary file until the last p-value is known.

    Args:
        model: see `SavedModel`; it is moved to the device.
        sources: see `momatch.inference.predict.inputs.find_sources`.
        out: file whose extension says the format; None for CSV to the standard output.
        settings: see `Settings`.

    Raises:
        ValueError: if the device is not there.
        OSError: if the rows cannot be written; nothing is left behind then.
    """
    predictor = Predictor(model, choose_device(settings.device), posterior=settings.posterior)
    progress = CountProgress(sum(map(len, sources)), label="predict", enabled=settings.progress)
    begin = time.perf_counter()
    unreadable = flagged = 0
    names = columns(model.spec.class_names if settings.posterior else ())
    with (
        open_writer(out, names) as writer,
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
    """The tables with their column ``flagged``; for `fdr` not before the last of them has come."""
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
