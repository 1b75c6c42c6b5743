"""A labelling session: images, classes, answers on disk, and a model that follows them. Safe to use from several threads."""

import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from momatch.data.dataset import NO_CLASS, UNLABELED, Dataset
from momatch.labeling.answers import Answer, Answers, check_class_name
from momatch.labeling.model import REFIT_EVERY, Fit, Model, Refitting
from momatch.storage.durable import replace_files

#: The guesses of so many of the latest labels tell how good the model is now.
RECENT = 20
#: Images that may be asked for at once.
MOST_OFFERED = 48


class ConflictError(ValueError):
    """An answer was given to an image that was answered otherwise meanwhile."""


@dataclass(frozen=True)
class Paths:
    """Where a session keeps things.

    Attributes:
        images: the folder of images.
        labels: the manifest.
        features: the features file.
    """

    images: Path
    labels: Path
    features: Path

    @property
    def classes(self) -> Path:
        """Names of the classes, one per line, so that one without a label is not forgotten."""
        return self.labels.with_suffix(".classes.txt")

    def kept_classes(self) -> list[str]:
        """What `classes` holds; nothing if it does not exist."""
        try:
            return [line.strip() for line in self.classes.read_text(encoding="utf-8-sig").splitlines()]
        except FileNotFoundError:
            return []

    def in_manifest(self, file: str) -> str:
        """The name of an image in the manifest, of which the name in the folder is given."""
        return os.path.normpath(os.path.join(self._way, file))

    @cached_property
    def _way(self) -> str:
        # Between where both really are: a way up from behind a symbolic link leads elsewhere.
        return os.path.relpath(self.images.resolve(), self.labels.parent.resolve())

    def commands(self) -> list[str]:
        """What to run next: train, predict and export. They replace earlier results: after more labels they are run again."""
        # By the whole path from here: two folders may have one name, and the commands replace what is there.
        way = Path(os.path.relpath(self.images.resolve(), Path.cwd()))
        name = "-".join(part for part in way.parts if part != "..") or self.images.resolve().name
        run = shlex.quote(str(Path("runs") / name))
        images, labels, features = (shlex.quote(str(path)) for path in (self.images, self.labels, self.features))
        return [
            f"momatch train --dataset {features} --labels {labels} --run-dir {run} --overwrite",
            f"momatch predict {run} {images} --out predictions.csv --overwrite",
            f"momatch export {run}",
        ]


class Session:
    """Offers images, takes answers, and tells how it goes.

    Args:
        dataset: features of the images in the folder, with their file names.
        paths: where to keep things.
        classes: names of classes that should be there; those of the labels are added.
        seed: of suggestions.

    Raises:
        ValueError: if a class cannot be named so, or the manifest cannot be read.
        OSError: if a file cannot be written.
    """

    def __init__(self, dataset: Dataset, paths: Paths, classes: Sequence[str], *, seed: int = 0) -> None:
        self._lock = threading.RLock()
        self.paths = paths
        split = dataset.train
        #: File names as the dataset has them, to show; and as the manifest has them, relative to where it is.
        self._names = split.files
        self._files = tuple(map(paths.in_manifest, split.files))
        self._row = {file: row for row, file in enumerate(self._files)}
        found = ["" if label < 0 else dataset.class_names[label] for label in split.labels.tolist()]
        self._answers = Answers(paths.labels, self._files, found)
        self._followed = self._answers.readings
        self._classes: list[str] = []
        for name in (*paths.kept_classes(), *classes, *(self._answers[file].label for file in self._files)):
            if name and name not in self._classes:
                self._classes.append(check_class_name(name, self._classes))
        self._keep_classes()
        self._fit: Fit | None = None
        #: Why the manifest cannot be read, and why the model could not be fitted.
        self._unread, self._problem = "", ""
        self._since_fit = 0
        self._refitting = Refitting(Model(dataset, seed=seed).fit, self._fitted, self._failed)
        self._refit()

    def close(self) -> None:
        """Stop the model; answers are on disk already."""
        self._refitting.close()

    def image_path(self, row: int) -> Path | None:
        """The file of an image; None if there is no such image."""
        if not 0 <= row < len(self._files):
            return None
        return self.paths.labels.parent / self._files[row]

    def offers(self, count: int, shown: Sequence[int] = ()) -> list[dict[str, Any]]:
        """Images to label next, with the model's guess of each.

        Args:
            count: how many; fewer if there are no more.
            shown: rows that are on the page already.
        """
        with self._lock:
            self._refresh()
            queue = () if self._fit is None else self._fit.queue
            waiting = [row for row in queue if self._is_open(row) and row not in shown]
            # Everything that is worth asking for was asked for: the rest in order.
            if len(waiting) < count and self._fit is not None:
                known = {*waiting, *shown}
                waiting += [row for row in range(len(self._files)) if row not in known and self._is_open(row)]
            return [self._offer(row) for row in waiting[: min(count, MOST_OFFERED)]]

    def answer(self, answers: Mapping[int, Answer], known: Mapping[int, str] | None = None) -> None:
        """Write answers to disk; the model follows every few of them.

        Args:
            answers: row -> label and status; the guess is filled in here.
            known: row -> what was known of it when it was shown (`Answer.known`); rows that are not here are not compared.

        Raises:
            ConflictError: if an image was answered otherwise since it was shown; then nothing has changed.
            ValueError: if a row or class does not exist, or the manifest was changed and cannot be read.
            OSError: if they cannot be written.
        """
        with self._lock:
            self._follow()
            for row, answer in answers.items():
                if not 0 <= row < len(self._files):
                    raise ValueError(f"row: got {row}, expected 0 to {len(self._files) - 1}")
                if answer.label and answer.label not in self._classes:
                    raise ValueError(f"class: got {answer.label!r}, expected one of {', '.join(self._classes)}")
            new = self._without_repeats(answers, known or {})
            if new:
                self._answers.give(
                    {self._files[row]: answer._replace(guess=self._guess(row)) for row, answer in new.items()}
                )
                self._count(len(new))

    def undo(self) -> list[dict[str, Any]]:
        """Take the latest answers back and offer their images again.

        Raises:
            ValueError: if the manifest was changed and cannot be read.
            OSError: if it cannot be written.
        """
        with self._lock:
            self._follow()
            rows = [self._row[file] for file in self._answers.undo()]
            self._count(len(rows))
            return [self._offer(row) for row in rows]

    def add_class(self, name: str) -> None:
        """Add a class.

        Raises:
            ValueError: if it cannot be named so, or exists.
            OSError: if it cannot be written.
        """
        with self._lock:
            self._refresh()
            self._classes.append(check_class_name(name, self._classes))
            self._keep_classes()

    def state(self, shown: Sequence[int] = ()) -> dict[str, Any]:
        """How it goes, as plain values.

        Args:
            shown: rows on the page; those that were answered elsewhere are named.
        """
        with self._lock:
            self._refresh()
            answers = [self._answers[file] for file in self._files]
            right = [answer.guess == answer.label for answer in self._answers.last_decided() if answer.guess]
            unsure = () if self._fit is None else self._fit.unsure
            return {
                "classes": [
                    {"name": name, "labels": sum(answer.label == name for answer in answers)} for name in self._classes
                ],
                "images": len(answers),
                "none": sum(answer.status == "none" for answer in answers),
                "skipped": sum(answer.status == "skipped" for answer in answers),
                "guesses": len(right),
                "right": sum(right),
                "recent": len(right[-RECENT:]),
                "recent_right": sum(right[-RECENT:]),
                "is_ready": self._fit is not None,
                "is_fitting": self._refitting.is_busy,
                "problem": self._unread or self._problem,
                "unsure": [self._offer(row) for row in unsure if self._is_open(row) and row not in shown],
                "answered": [row for row in shown if 0 <= row < len(answers) and answers[row].status],
                "manifest": str(self.paths.labels),
                "commands": self.paths.commands(),
            }

    def _offer(self, row: int) -> dict[str, Any]:
        found = None if self._fit is None else self._fit.guess(row)
        guess, confidence = ("", 0.0) if found is None else (self._classes[found[0]], found[1])
        known = self._answers[self._files[row]].known
        return {"row": row, "name": self._names[row], "guess": guess, "confidence": confidence, "known": known}

    def _guess(self, row: int) -> str:
        return str(self._offer(row)["guess"])

    def _is_open(self, row: int) -> bool:
        return not self._answers[self._files[row]].status

    def _without_repeats(self, answers: Mapping[int, Answer], known: Mapping[int, str]) -> dict[int, Answer]:
        """Answers without those that were given already, elsewhere or by a request that was sent twice.

        Raises:
            ConflictError: as `answer`.
        """
        new: dict[int, Answer] = {}
        for row, answer in answers.items():
            now = self._answers[self._files[row]].known
            if now == known.get(row, now):
                new[row] = answer
            elif now != answer.known:
                raise ConflictError(
                    f"{self._names[row]} was answered elsewhere meanwhile ({now or 'the answer was taken back'}); "
                    "nothing was saved: look again, then answer"
                )
        return new

    def _refresh(self) -> None:
        """Follow edits of the manifest by others; one that cannot be read is said and changes nothing."""
        try:
            self._follow()
        except ValueError as error:
            self._unread = str(error)

    def _follow(self) -> None:
        """Read the manifest if others have edited it: its new classes appear, and the model is fitted again.

        Raises:
            ValueError: if it cannot be read.
        """
        self._answers.refresh()
        self._unread = ""
        if self._answers.readings == self._followed:
            return
        self._followed = self._answers.readings
        labels = (self._answers[file].label for file in self._files)
        new = [name for name in dict.fromkeys(labels) if name and name not in self._classes]
        self._classes += new
        if new:
            self._keep_classes()
        self._refit()

    def _count(self, answers: int) -> None:
        # An edit that came at the last moment was read while the answers were written.
        self._refresh()
        self._since_fit += answers
        queue = () if self._fit is None else self._fit.queue
        if self._since_fit >= REFIT_EVERY or not any(map(self._is_open, queue)):
            self._refit()

    def _refit(self) -> None:
        self._since_fit = 0
        self._refitting.ask(self._labels(), len(self._classes))

    def _labels(self) -> Int64[np.ndarray, " N"]:
        number = {name: k for k, name in enumerate(self._classes)}
        answers = [self._answers[file] for file in self._files]
        return np.array(
            [
                number[answer.label] if answer.label else NO_CLASS if answer.status == "none" else UNLABELED
                for answer in answers
            ],
            dtype=np.int64,
        )

    def _fitted(self, fit: Fit) -> None:
        with self._lock:
            self._fit, self._problem = fit, ""

    def _failed(self, error: Exception) -> None:
        with self._lock:
            self._problem = f"the model could not be fitted: {error}"

    def _keep_classes(self) -> None:
        text = "".join(f"{name}\n" for name in self._classes)
        replace_files({self.paths.classes: text.encode()})
