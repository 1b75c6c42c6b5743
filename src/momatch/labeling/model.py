"""What the labels so far say about the other images: fitted again in the background, on features, in seconds."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64

from momatch.data.dataset import UNLABELED, Dataset
from momatch.data.rows import FeatureRows
from momatch.suggestions.choice import choose, considered_rows, evidence_posterior, neighborhood_of
from momatch.suggestions.pool import judged_inliers
from momatch.training.guide import directions
from momatch.training.threads import one_thread

#: The model is fitted again after so many answers.
REFIT_EVERY = 5
#: Images that are queued by one fit: those up to the next one, and more for a grid, or for who is faster.
QUEUED = 60
#: Images of which the model is least sure that are shown.
SHOWN_UNSURE = 6


@dataclass(frozen=True)
class Fit:
    """What the model says, given some labels.

    Attributes:
        labels: (N,) what it was fitted to, as of `momatch.suggest`.
        posterior: (N, K) class probabilities of all images; NaN for those it does not consider. None if it knows nothing.
        queue: images to label next, the most useful first.
        unsure: images of which it is least sure.
    """

    labels: Int64[np.ndarray, " N"]
    posterior: Float64[np.ndarray, "N K"] | None
    queue: tuple[int, ...]
    unsure: tuple[int, ...]

    def guess(self, row: int) -> tuple[int, float] | None:
        """Most likely class of an image and its probability; None if nothing is known, or its label was seen."""
        if self.posterior is None or self.labels[row] != UNLABELED or np.isnan(self.posterior[row, 0]):
            return None
        return int(self.posterior[row].argmax()), float(self.posterior[row].max())


class Model:
    """Fits to labels of a dataset of features.

    Args:
        dataset: of features.
        seed: of clusters and evidence.
    """

    def __init__(self, dataset: Dataset, *, seed: int = 0) -> None:
        split, spec = dataset.train, dataset.features
        assert spec is not None, "the dataset has features"
        assert isinstance(split.rows, FeatureRows), "the dataset has features"
        self._all, self._weak_views = split.rows, spec.weak_views
        self._size, self._seed = len(split), seed
        self._consider(considered_rows(np.full(len(split), UNLABELED), n=1, seed=seed))

    def _consider(self, rows: Int64[np.ndarray, " M"]) -> None:
        chosen = self._all.select(torch.from_numpy(rows))
        self._rows = rows
        with one_thread():
            self._neighborhood = neighborhood_of(directions(chosen, self._weak_views).numpy())
        self._stages = chosen.stages_at(torch.arange(len(chosen)))

    def fit(self, labels: Int64[np.ndarray, " N"], num_classes: int) -> Fit:
        """Fit to labels, -1 for unlabelled and -2 for none of the classes."""
        # Of many images some are considered. One that gets a label by another way, such as a class folder or an edited
        # manifest, joins them; that is rare, so the neighbours are found again then.
        labeled = np.flatnonzero(labels != UNLABELED)
        if not np.isin(labeled, self._rows).all():
            self._consider(np.union1d(self._rows, labeled))
        codes = labels[self._rows]
        posterior = None
        with one_thread():
            known = evidence_posterior(self._neighborhood, codes, self._seed)
            judged = None if self._stages is None else judged_inliers(self._stages, codes)
            inlier = self._neighborhood.p_inlier() if judged is None else judged
            # As many clusters as there are answers until the next fit: the largest of many small ones are all of one kind.
            chosen = choose(self._neighborhood, codes, known, inlier, n=QUEUED, clusters=REFIT_EVERY, seed=self._seed)
        unsure: tuple[int, ...] = ()
        if known is not None and len(np.unique(codes[codes >= 0])) > 1:
            posterior = np.full((self._size, num_classes), np.nan)
            posterior[self._rows] = 0.0
            posterior[self._rows, : known.shape[1]] = known
            free = np.flatnonzero(codes == UNLABELED)
            least = free[np.argsort(known[free].max(1), kind="stable")[:SHOWN_UNSURE]]
            unsure = tuple(self._rows[least].tolist())
        return Fit(labels, posterior, tuple(self._rows[chosen].tolist()), unsure)


class Refitting:
    """A thread that fits again when it is asked to; of several requests meanwhile only the last counts.

    Args:
        fit: what to do; runs in the thread.
        done: called in the thread with the result.
        failed: called in the thread with what went wrong.
    """

    def __init__(
        self,
        fit: Callable[[Int64[np.ndarray, " N"], int], Fit],
        done: Callable[[Fit], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._fit, self._done, self._failed = fit, done, failed
        self._wanted: tuple[Int64[np.ndarray, " N"], int] | None = None
        self._condition = threading.Condition()
        self._is_closed = False
        self._is_busy = False
        self._thread = threading.Thread(target=self._run, name="momatch label: fit", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a fit is running or waiting."""
        return self._is_busy or self._wanted is not None

    def ask(self, labels: Int64[np.ndarray, " N"], num_classes: int) -> None:
        """Fit to these labels as soon as possible."""
        with self._condition:
            self._wanted = (labels, num_classes)
            self._condition.notify()

    def close(self) -> None:
        """End the thread after the fit that is running."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._wanted is not None or self._is_closed)
                if self._is_closed:
                    return
                assert self._wanted is not None, "waited for it"
                wanted, self._wanted, self._is_busy = self._wanted, None, True
            try:
                self._done(self._fit(*wanted))
            # Labels are safe without a model; the page says what went wrong.
            except Exception as error:
                self._failed(error)
            finally:
                self._is_busy = False
