"""What `suggest` needs, from a features file or a finished run."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from momatch.data.dataset import NO_CLASS, UNLABELED, Dataset
from momatch.data.feature_spec import read_feature_spec
from momatch.data.labeling import find_source
from momatch.data.load import load_dataset
from momatch.data.rows import FeatureRows, Rows
from momatch.data.sources.manifest import PAGE_COLUMNS, PAGE_LABELS
from momatch.evaluation.judging import fit_judge
from momatch.evaluation.pool_judging import judge_pool
from momatch.models.outputs import Outputs, run_classifier
from momatch.suggestions.choice import Suggestions, suggest
from momatch.training.data import load_run_data, part_classes, split_rows
from momatch.training.guide import directions
from momatch.training.inputs import input_of
from momatch.training.run import Run

#: The judge sees at most so many unlabelled rows; of others nothing is said.
_MOST_JUDGED = 20_000


@dataclass(frozen=True)
class Pool:
    """Training images, as a model or a backbone sees them.

    Attributes:
        features: (N, F) to compare images by.
        labels: (N,) labels that training saw; -1 for none, -2 for images that are known to be of no class.
        class_names: label k is ``class_names[k]``.
        dataset_rows: (N,) row of each image in the training split of the dataset; -1 for those of no class: they are not in it.
        files: file name of each image; empty if the images did not come from files.
        posterior: (N, K) class probabilities by a run; None without one.
        p_inlier: (N,) probability of being an inlier; None if there is no telling.
    """

    features: Float32[np.ndarray, "N F"]
    labels: Int64[np.ndarray, " N"]
    class_names: tuple[str, ...]
    dataset_rows: Int64[np.ndarray, " N"]
    files: tuple[str, ...]
    posterior: Float64[np.ndarray, "N K"] | None
    p_inlier: Float64[np.ndarray, " N"] | None

    def suggest(self, n: int, *, seed: int = 0) -> Suggestions:
        """Choose n images to label; see `momatch.suggest`."""
        return suggest(self.features, self.labels, n=n, posterior=self.posterior, p_inlier=self.p_inlier, seed=seed)

    def name(self, row: int) -> str:
        """File name of an image; its row number if it has none."""
        return self.files[row] if self.files else str(self.dataset_rows[row])


def read_pool(source: str | Path, *, labels: str | Path | None = None, trust_code: bool | str = False) -> Pool:
    """Read a features file, or the features, labels and predictions of a finished run.

    Args:
        source: a features file, or a run directory.
        labels: where to read the labels of a features file, as for `load_dataset`; a run has its own.
        trust_code: allow importing the run's custom backbone.

    Raises:
        ValueError: if it is neither, labels are given for a run, the run is not finished, or its data have changed.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        if labels is not None:
            raise ValueError(
                f"labels: got {labels} for the run {source}, expected none: a run has the labels it was trained on"
            )
        return _of_run(Run.load(path, trust_code=trust_code))
    if not path.exists():
        raise ValueError(f"{source}: there is no such file or directory, expected a features file or a run directory")
    if read_feature_spec(path) is None:
        raise ValueError(f"{source}: got no features file, expected one made with momatch embed, or a run directory")
    return _of_features(load_dataset(path, labels=labels))


def page_labels(source: str | Path) -> Path | None:
    """The manifest of `momatch label` beside a features file; None if there is none, or it was itself embedded."""
    path = Path(source).expanduser()
    manifest = path.with_name(PAGE_LABELS)
    spec = read_feature_spec(path) if path.is_file() and manifest.is_file() else None
    if spec is None:
        return None
    embedded = find_source(spec)
    if embedded is not None and embedded.resolve() == manifest.resolve():
        return None
    with open(manifest, encoding="utf-8-sig", errors="replace", newline="") as file:
        columns = {column.strip() for column in next(csv.reader(file), [])}
    return manifest if columns >= set(PAGE_COLUMNS) else None


def _of_features(dataset: Dataset) -> Pool:
    split, spec = dataset.train, dataset.features
    assert spec is not None, "the caller has checked"
    rows, labels, dataset_rows, files = _with_no_class(dataset, split.rows, split.labels.numpy(), np.arange(len(split)))
    assert isinstance(rows, FeatureRows), "so are those of no class"
    stages = rows.stages_at(torch.arange(len(rows)))
    return Pool(
        directions(rows, spec.weak_views).numpy(),
        labels,
        dataset.class_names,
        dataset_rows,
        files,
        None,
        None if stages is None else judged_inliers(stages, labels),
    )


def _of_run(run: Run) -> Pool:
    dataset = load_run_data(run.directory)
    input_of(dataset).check_model(run.classifier)
    parts = part_classes(dataset, run.config.held_out_classes)
    data, _ = split_rows(run.config, parts)
    labels = np.full(len(parts.train), UNLABELED)
    labels[data.labeled_rows.numpy()] = data.labels.numpy()
    # Rows of features are numbered as they are stored, which is not their order in the dataset once labels have changed.
    dataset_rows = dataset.train.rows.places()[parts.train.rows.index].numpy()
    rows, labels, dataset_rows, files = _with_no_class(dataset, parts.train.rows, labels, dataset_rows)
    rows = rows.for_model((run.spec.in_channels, *run.spec.image_size))
    outputs = run_classifier(run.classifier, rows, stage_names=run.model.stage_names)
    posterior = torch.softmax(outputs.log_joint.double() / run.model.temperature, 1)
    return Pool(
        _compared(dataset, rows, outputs),
        labels,
        run.class_names,
        dataset_rows,
        files,
        posterior.numpy(),
        None if outputs.stages is None else _inliers_of_run(outputs, labels, cutoff=run.config.cutoff),
    )


def _with_no_class(
    dataset: Dataset, rows: Rows, labels: Int64[np.ndarray, " n"], dataset_rows: Int64[np.ndarray, " n"]
) -> tuple[Rows, Int64[np.ndarray, " N"], Int64[np.ndarray, " N"], tuple[str, ...]]:
    """Training images, followed by those of no class: rows, labels, rows in the dataset and file names."""
    files = tuple(dataset.train.files[row] for row in dataset_rows) if dataset.train.files else ()
    if dataset.no_class is None:
        return rows, labels, dataset_rows, files
    count = len(dataset.no_class)
    return (
        rows.append(dataset.no_class.rows),
        np.concatenate([labels, np.full(count, NO_CLASS)]),
        np.concatenate([dataset_rows, np.full(count, -1)]),
        files + dataset.no_class.files,
    )


def _compared(dataset: Dataset, rows: Rows, outputs: Outputs) -> Float32[np.ndarray, "N F"]:
    """Features of the backbone if they are stored, else embeddings of the model."""
    if dataset.features is not None:
        return directions(rows, dataset.features.weak_views).numpy()
    return outputs.z.float().numpy()


def judged_inliers(stages: Float[Tensor, "N S"], labels: Int64[np.ndarray, " N"]) -> Float64[np.ndarray, " N"] | None:
    """P(inlier) by the judge; None if no class has two labels, so that there is no telling."""
    classes = np.unique(labels[labels >= 0])
    if len(classes) == 0 or np.bincount(labels[labels >= 0]).max() < 2:
        return None
    judged = _judged_rows(labels)
    dense = np.where(labels >= 0, np.searchsorted(classes, labels), UNLABELED)[judged]
    # The judge needs the number of classes alone of the log joints.
    of_judged = stages[torch.from_numpy(judged)]
    outputs = Outputs(of_judged, of_judged.new_zeros(len(judged), len(classes)), of_judged)
    inlier = np.ones(len(labels))
    inlier[judged] = judge_pool(outputs, torch.from_numpy(dense)).numpy()
    return inlier


def _inliers_of_run(outputs: Outputs, labels: Int64[np.ndarray, " N"], *, cutoff: float) -> Float64[np.ndarray, " N"]:
    """P(inlier) as the run's own list of outliers has it: by a judge of what its classifier is sure of."""
    judged = _judged_rows(labels)
    found = fit_judge(outputs.select(torch.from_numpy(judged)), torch.from_numpy(labels[judged]), cutoff=cutoff)
    inlier = np.ones(len(labels))
    inlier[judged] = found.p_inlier.numpy()
    return inlier


def _judged_rows(labels: Int64[np.ndarray, " N"]) -> Int64[np.ndarray, " m"]:
    """All labelled rows, and of the unlabelled ones as many as are judged."""
    free = np.flatnonzero(labels == UNLABELED)
    return np.concatenate([np.flatnonzero(labels >= 0), free[:: -(-len(free) // _MOST_JUDGED) or 1]])
