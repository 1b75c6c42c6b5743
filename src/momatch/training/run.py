"""A run that was trained: what `fit` returns, and what `Run.load` gives of a directory."""

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
    """The settings, metrics, result and classifier of a run. Reading changes nothing on disk and needs no lock.

    Args:
        directory: of the run.
        trust_code: import the backbone's module where the run names one (``package.module:factory``).

    Attributes:
        directory: of the run.
        trust_code: whether the backbone's module may be imported.
        config: its settings.
        result: the contents of result.json; None while the run is not finished.

    Raises:
        ValueError: if there is no run, or a file of it is damaged.
    """

    def __init__(self, directory: str | Path, *, trust_code: bool = False) -> None:
        self.directory = Path(directory)
        self.trust_code = trust_code
        if not self.directory.is_dir():
            raise ValueError(f"{self.directory}: there is no such directory, expected that of a run")
        self._files = RunDirectory(self.directory)
        self.config: TrainConfig = self._files.config
        self.result: dict[str, Any] | None = self._files.read_result()

    @classmethod
    def load(cls, directory: str | Path, *, trust_code: bool = False) -> "Run":
        """The run in `directory`; the classifier is read when it is first asked for.

        Args:
            directory: of the run.
            trust_code: import the backbone's module where the run names one (``package.module:factory``). Without it no code
                that the run names is run, and its classifier cannot be loaded.

        Raises:
            ValueError: if there is no run, or a file of it is damaged.
        """
        return cls(directory, trust_code=trust_code)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, read anew: a run under way has more of them each time.

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
        """What the classifier was built from.

        Raises:
            ValueError: as `classifier`.
        """
        return self.model.spec

    @property
    def refitted_head(self) -> Head | None:
        """The mixture in closed form for outlier scores; None where it was not asked for.

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
        """Label, posterior, log density, distance and outlier p-value of raw images of any size.

        Images are a uint8 tensor or array, Pillow images, or paths of image files; label k is called ``class_names[k]``.

        Raises:
            ValueError: as `classifier`, or if the images are not raw pixels.
        """
        return self.model.predict(images, batch_size=batch_size)

    @cached_property
    def model(self) -> SavedModel:
        """The classifier with all that prediction needs.

        Raises:
            ValueError: as `classifier`.
        """
        if self.result is None:
            raise ValueError(
                f"{self.directory}: the run is not finished, so there is no model yet; "
                f"go on with: momatch train --resume --run-dir {shlex.quote(str(self.directory))}"
            )
        model = load_model(self.directory, trust_code=self.trust_code)
        if model.settings is None:
            # Saved by a release that kept them beside the model only.
            model = replace(model, settings=model_settings(self.config, model.spec), result=self.result)
        return model

    def __repr__(self) -> str:
        state = "not finished" if self.result is None else "finished"
        return f"Run({str(self.directory)!r}, {state})"


def load_trained(directory: str | Path, *, trust_code: bool = False) -> SavedModel:
    """The model of a finished run, or of a folder that holds nothing but a model.

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
        raise ValueError(f"{folder}: there is neither config.json nor model.json, expected a run or a saved model")
    return Run.load(folder, trust_code=trust_code).model
