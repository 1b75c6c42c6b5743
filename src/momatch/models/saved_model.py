"""A trained classifier with all that prediction needs, as a folder that loads on any machine (docs/export.md).

`save_pretrained`, `from_pretrained` and `push_to_hub` are those of the Hugging Face hub's mixin (`momatch.models.hub`).
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from momatch.config import RUNTIME_KEYS, TrainConfig
from momatch.data.arrays import Images, images_for
from momatch.heads import Head
from momatch.models.classifier import Classifier
from momatch.models.hub import model_folder, send_folder
from momatch.models.outputs import run_classifier
from momatch.models.scorer import Scorer, Scores
from momatch.models.spec import ModelSpec
from momatch.outliers import Score


@dataclass(frozen=True)
class OutlierCalibration:
    """Outlier scores of held-out inliers, among which p-values are ranked.

    Attributes:
        scores: (m,) in ascending order.
        score: what they are, see `momatch.OutlierDetector`.
        source: in words, which images they are of.
    """

    scores: Float[Tensor, " m"]
    score: Score
    source: str


@dataclass(frozen=True)
class SavedModel:
    """A trained classifier with all that prediction needs.

    Attributes:
        classifier: on the CPU, in evaluation mode.
        spec: what it was built from.
        refitted_head: the mixture in closed form for outlier scores; None where there is none.
        calibration: for p-values; None where nothing was held out.
        settings: that it was trained with; None where they were not recorded. They may be those of another release.
        result: what the training came to, as in result.json; None where they were not recorded.
    """

    classifier: Classifier
    spec: ModelSpec
    refitted_head: Head | None = None
    calibration: OutlierCalibration | None = None
    settings: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None

    @cached_property
    def scorer(self) -> Scorer:
        """Says of embeddings what a prediction says."""
        head, outlier_head, calibration = self.classifier.head, self.refitted_head, self.calibration
        if calibration is None:
            return Scorer(head, outlier_head)
        return Scorer(head, outlier_head, score=calibration.score, calibration_scores=calibration.scores)

    def predict(self, images: Images, *, batch_size: int = 512) -> Scores:
        """Label, posterior, log density, distance and outlier p-value of raw images.

        Args:
            images: uint8 tensor or array, Pillow images, or paths of image files, gray or RGB, of any size: see
                `momatch.data.arrays.images_for`, which brings them to the model's.
            batch_size: images a pass.

        Raises:
            ValueError: if there are no images, they are not raw pixels, or a file cannot be read.
        """
        fitted = images_for(images, (self.spec.in_channels, *self.spec.image_size))
        scores: Scores = self.scorer(run_classifier(self.classifier, fitted, batch_size=batch_size).z)
        return scores

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        trust_code: bool = False,
        **model_kwargs: Any,
    ) -> "SavedModel":
        """Load a model from a folder, from the directory of a finished run, or from the Hugging Face hub.

        Args:
            pretrained_model_name_or_path: a folder, or where there is none of that name "owner/name" on the hub.
            force_download: from the hub: fetch it again.
            token: from the hub: of a private repository; None for that of ``hf auth login``.
            cache_dir: from the hub: where it is kept.
            local_files_only: from the hub: take only what was fetched before.
            revision: from the hub: branch, tag or commit.
            trust_code: import the backbone's module where the model names one (``package.module:factory``). Without it no
                code that the model names is run.
            model_kwargs: none are known; the folder holds all there is to say.

        Raises:
            ValueError: if there is no model, or it is damaged, of a newer format, or needs a backbone that is not here.
            ImportError: if it is to come from the hub and the hub's package is missing.
            OSError: if it cannot be fetched or read.
        """
        # It builds what is defined here.
        from momatch.models.model_files import load_model

        if model_kwargs:
            raise ValueError(f"from_pretrained: got {sorted(model_kwargs)}, expected no arguments of the model's")
        options = {
            "force_download": force_download,
            "token": token,
            "cache_dir": cache_dir,
            "local_files_only": local_files_only,
            "revision": revision,
        }
        return load_model(model_folder(pretrained_model_name_or_path, options), trust_code=trust_code)

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        config: object = None,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: Mapping[str, Any] | None = None,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Save the model as a folder: model.safetensors, model.json, and README.md, its card.

        A model of momatch that is there is replaced. Everything else in the folder stays, a README.md that is no card as
        momatch wrote it too.

        Args:
            save_directory: made where it is missing.
            config: nothing; model.json holds all settings.
            repo_id: for the hub; by default the folder's name.
            push_to_hub: send it to the Hugging Face hub as well.
            model_card_kwargs: entries for the head of the card, ``{"license": "mit"}`` for example.
            push_to_hub_kwargs: see `push_to_hub`.

        Returns:
            The address of the commit on the hub; None if it was not sent.

        Raises:
            ValueError: if the folder holds a run, or another kind of model under the same file names.
            ImportError: if it is to be sent to the hub and the hub's package is missing.
            OSError: if it cannot be written or sent; a model that was there is then intact.
        """
        from momatch.models.model_files import save_folder

        if config is not None:
            raise ValueError("save_pretrained: got a config, expected none: the model's settings are its own")
        if push_to_hub_kwargs and not push_to_hub:
            raise ValueError(f"save_pretrained: got {sorted(push_to_hub_kwargs)}, expected them with push_to_hub=True")
        folder = Path(save_directory)
        save_folder(folder, self, card_entries=model_card_kwargs)
        if not push_to_hub:
            return None
        repo_id = folder.resolve().name if repo_id is None else repo_id
        return self.push_to_hub(repo_id, model_card_kwargs=model_card_kwargs, **push_to_hub_kwargs)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        config: object = None,
        commit_message: str = "A model of momatch",
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
        allow_patterns: list[str] | str | None = None,
        ignore_patterns: list[str] | str | None = None,
        delete_patterns: list[str] | str | None = None,
        model_card_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Send the model to the Hugging Face hub; needs ``pip install 'momatch[hub]'`` and ``hf auth login``.

        Args:
            repo_id: "owner/name"; it is made where there is none.
            config: nothing; model.json holds all settings.
            commit_message: of the commit.
            private: whether a new repository is.
            token: None for that of ``hf auth login``.
            branch: None for the main one.
            create_pr: as a pull request.
            allow_patterns: files to send; None for all three.
            ignore_patterns: files not to send.
            delete_patterns: files of the repository to delete in the same commit.
            model_card_kwargs: see `save_pretrained`.

        Returns:
            The address of the commit.

        Raises:
            ValueError: as `save_pretrained`.
            ImportError: if the hub's package is missing.
            OSError: if the hub does not take it.
        """
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "model"
            self.save_pretrained(folder, config=config, model_card_kwargs=model_card_kwargs)
            options = {
                "commit_message": commit_message,
                "revision": branch,
                "create_pr": create_pr,
                "allow_patterns": allow_patterns,
                "ignore_patterns": ignore_patterns,
                "delete_patterns": delete_patterns,
            }
            return send_folder(folder, repo_id, private=private, token=token, options=options)


def model_settings(config: TrainConfig, spec: ModelSpec) -> dict[str, Any]:
    """The settings that say how a model came about, without those of the machine: no path of it goes with the model."""
    settings = {key: value for key, value in config.to_dict().items() if key not in RUNTIME_KEYS}
    return settings | {"dataset": spec.dataset}
