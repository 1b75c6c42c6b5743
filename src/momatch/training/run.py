"""A training run: what `fit` and `Run.load` return."""

import shlex
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from momatch.config import TrainConfig
from momatch.data.arrays import Images
from momatch.heads import Head
from momatch.models.classifier import Classifier
from momatch.models.model_files import load_model
from momatch.models.saved_model import SavedModel, model_settings
from momatch.models.scorer import Scores
from momatch.models.spec import ModelSpec
from momatch.storage.run_directory import RunDirectory


class Run:
    """Read access to the settings, metrics, result and classifier of a run. Writes nothing and needs no lock.

    Args:
        directory: the run directory.
        trust_code: allow importing a custom backbone (``package.module:factory``).

    Attributes:
        directory: the run directory.
        trust_code: whether a custom backbone may be imported.
        config: the settings.
        result: the contents of result.json; None until the run is finished.

    Raises:
        ValueError: if there is no run, or a file is damaged.
    """

    def __init__(self, directory: str | Path, *, trust_code: bool | str = False) -> None:
        self.directory = Path(directory)
        self.trust_code = trust_code
        if not self.directory.is_dir():
            raise ValueError(f"{self.directory}: there is no such directory, expected a run directory")
        self._files = RunDirectory(self.directory)
        self.config: TrainConfig = self._files.config
        self.result: dict[str, Any] | None = self._files.read_result()

    @classmethod
    def load(cls, directory: str | Path, *, trust_code: bool | str = False) -> "Run":
        """Load the run in `directory`; the classifier is loaded on first use.

        Args:
            directory: the run directory.
            trust_code: allow importing a custom backbone (``package.module:factory``) named in the run. Without it, the
                classifier of such a run cannot be loaded.

        Raises:
            ValueError: if there is no run, or a file is damaged.
        """
        return cls(directory, trust_code=trust_code)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, read from disk on every call.

        Raises:
            ValueError: if a line is damaged.
        """
        return self._files.read_metrics()

    @property
    def classifier(self) -> Classifier:
        """The trained classifier (EMA weights), on the CPU, in evaluation mode.

        Raises:
            ValueError: if the run is not finished, or its model is damaged.
        """
        return self.model.classifier

    @property
    def spec(self) -> ModelSpec:
        """The spec that the classifier was built from.

        Raises:
            ValueError: as `classifier`.
        """
        return self.model.spec

    @property
    def refitted_head(self) -> Head | None:
        """The mixture refitted in closed form for outlier scores; None for a linear head or with ``refit=False``.

        Raises:
            ValueError: as `classifier`.
        """
        return self.model.refitted_head

    @property
    def class_names(self) -> tuple[str, ...]:
        """Label k is ``class_names[k]``.

        Raises:
            ValueError: as `classifier`.
        """
        return self.spec.class_names

    def predict(self, images: Images, *, batch_size: int = 512) -> Scores:
        """Predict label, posterior, log density, distance and outlier p-value of raw images of any size.

        Images can be a uint8 tensor or array, Pillow images, or paths of image files. Label k is ``class_names[k]``.

        Raises:
            ValueError: as `classifier`, or if the images are not raw pixels.
        """
        return self.model.predict(images, batch_size=batch_size)

    @cached_property
    def model(self) -> SavedModel:
        """The classifier with everything needed for prediction.

        Raises:
            ValueError: as `classifier`.
        """
        if self.result is None:
            raise ValueError(
                f"{self.directory}: the run is not finished and has no model yet; "
                f"resume it with: momatch train --resume --run-dir {shlex.quote(str(self.directory))}"
            )
        model = load_model(self.directory, trust_code=self.trust_code)
        if model.settings is None:
            # Saved by an older release, which did not store settings in the model.
            model = replace(model, settings=model_settings(self.config, model.spec), result=self.result)
        return model

    def __repr__(self) -> str:
        state = "not finished" if self.result is None else "finished"
        return f"Run({str(self.directory)!r}, {state})"


def load_trained(directory: str | Path, *, trust_code: bool | str = False) -> SavedModel:
    """Load the model of a finished run, or from a directory that contains only a model.

    Args:
        directory: of the run or the model.
        trust_code: as for `Run.load`.

    Raises:
        ValueError: if there is neither, the run is not finished, or a file is damaged.
        OSError: if a file cannot be read.
    """
    folder = Path(directory)
    if (folder / "model.json").exists() and not (folder / "config.json").exists():
        return load_model(folder, trust_code=trust_code)
    if folder.is_dir() and not (folder / "config.json").exists():
        raise ValueError(
            f"{folder}: found neither config.json nor model.json, expected a run directory or a saved model"
        )
    return Run.load(folder, trust_code=trust_code).model
