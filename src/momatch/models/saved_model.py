"""A trained classifier with everything prediction needs, saved as a folder that loads on any machine (docs/export.md).

`save_pretrained`, `from_pretrained` and `push_to_hub` follow the Hugging Face hub's mixin (`momatch.models.hub`).
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
from momatch.models.scorer import OutlierScore, Scorer, Scores
from momatch.models.spec import ModelSpec
from momatch.outliers import Judge


@dataclass(frozen=True)
class OutlierCalibration:
    """Outlier scores of held-out inliers, which p-values are computed from.

    Attributes:
        scores: (m,) in ascending order.
        score: name of the score: "judge", or one of `momatch.OutlierDetector`.
        source: description of the images, e.g. "500 test images".
    """

    scores: Float[Tensor, " m"]
    score: OutlierScore
    source: str


@dataclass(frozen=True)
class SavedModel:
    """A trained classifier with everything prediction needs.

    Attributes:
        classifier: on the CPU, in evaluation mode.
        spec: what it was built from.
        refitted_head: the mixture refitted in closed form; it scores outliers if there is no judge. None if there is none.
        judge: of the network's stages, for outlier scores; None if the head scores them.
        calibration: for p-values; None if no images were held out.
        settings: training settings, possibly of another release; None if not recorded.
        result: training result, as in result.json; None if not recorded.
        temperature: of the posteriors; 1 for those of the head.
    """

    classifier: Classifier
    spec: ModelSpec
    refitted_head: Head | None = None
    judge: Judge | None = None
    calibration: OutlierCalibration | None = None
    settings: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    temperature: float = 1.0

    @cached_property
    def scorer(self) -> Scorer:
        """Computes predictions from embeddings and stages."""
        calibration = self.calibration
        return Scorer(
            self.classifier.head,
            self.refitted_head,
            judge=self.judge,
            score=None if calibration is None else calibration.score,
            calibration_scores=None if calibration is None else calibration.scores,
            temperature=self.temperature,
        )

    @property
    def stage_names(self) -> tuple[str, ...] | None:
        """Modules of the backbone that the judge sees; None without a judge."""
        return None if self.judge is None else self.judge.stage_names

    def predict(self, images: Images, *, batch_size: int = 512) -> Scores:
        """Label, posterior, log density, distance, outlier score and p-value of raw images.

        Args:
            images: uint8 tensor or array, Pillow images, or paths of image files, gray or RGB, of any size; converted to the
                model's channels and size by `momatch.data.arrays.images_for`.
            batch_size: images per batch.

        Raises:
            ValueError: if there are no images, they are not raw pixels, or a file cannot be read.
        """
        fitted = images_for(images, (self.spec.in_channels, *self.spec.image_size))
        outputs = run_classifier(self.classifier, fitted, stage_names=self.stage_names, batch_size=batch_size)
        scores: Scores = self.scorer(outputs.z, outputs.stages)
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
        trust_code: bool | str = False,
        **model_kwargs: Any,
    ) -> "SavedModel":
        """Load a model from a model folder, a finished run's directory, or the Hugging Face hub.

        Args:
            pretrained_model_name_or_path: a folder; if there is none of that name, "owner/name" on the hub.
            force_download: hub: download again, even if cached.
            token: hub: access token; None for the one saved by ``hf auth login``.
            cache_dir: hub: where downloads are cached.
            local_files_only: hub: use only cached files.
            revision: hub: branch, tag or commit.
            trust_code: allow importing the backbone's module if the model names one (``package.module:factory``). Without
                it, loading runs no code that the model names.
            model_kwargs: none are accepted.

        Raises:
            ValueError: if there is no model, or it is damaged, of a newer format, or needs a backbone that is not installed.
            ImportError: if it has to be downloaded and huggingface_hub is not installed.
            OSError: if it cannot be downloaded or read.
        """
        # Imported here: model_files imports this module.
        from momatch.models.model_files import load_model

        if model_kwargs:
            raise ValueError(f"from_pretrained: got {sorted(model_kwargs)}, expected no model arguments")
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

        Replaces an existing momatch model. Other files in the folder stay, including a README.md that momatch did not write
        or that was edited.

        Args:
            save_directory: created if missing.
            config: must be None; model.json has all settings.
            repo_id: on the hub; by default the folder's name.
            push_to_hub: also upload to the Hugging Face hub.
            model_card_kwargs: front matter of the card, e.g. ``{"license": "mit"}``.
            push_to_hub_kwargs: see `push_to_hub`.

        Returns:
            The URL of the commit on the hub; None without `push_to_hub`.

        Raises:
            ValueError: if the folder holds a run, or another library's model under the same file names.
            ImportError: if it is to be uploaded and huggingface_hub is not installed.
            OSError: if writing or uploading fails; an existing model is then intact.
        """
        from momatch.models.model_files import save_folder

        if config is not None:
            raise ValueError("save_pretrained: got a config, expected none: the model has its own settings")
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
        commit_message: str = "Upload momatch model",
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
        allow_patterns: list[str] | str | None = None,
        ignore_patterns: list[str] | str | None = None,
        delete_patterns: list[str] | str | None = None,
        model_card_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Upload the model to the Hugging Face hub; needs ``pip install 'momatch[hub]'`` and ``hf auth login``.

        Args:
            repo_id: "owner/name"; created if missing.
            config: must be None; model.json has all settings.
            commit_message: of the commit.
            private: visibility of a new repository.
            token: None for the one saved by ``hf auth login``.
            branch: None for the main branch.
            create_pr: open a pull request.
            allow_patterns: files to upload; None for all three.
            ignore_patterns: files to skip.
            delete_patterns: files of the repository to delete in the same commit.
            model_card_kwargs: see `save_pretrained`.

        Returns:
            The URL of the commit.

        Raises:
            ValueError: as `save_pretrained`.
            ImportError: if huggingface_hub is not installed.
            OSError: if the upload fails.
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
    """The training settings to save with a model, without those of the machine, such as paths."""
    settings = {key: value for key, value in config.to_dict().items() if key not in RUNTIME_KEYS}
    return settings | {"dataset": spec.dataset}
