"""data.json: which data a run was trained on and how they were loaded; labels.csv: the labels it saw. No torch."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from momatch.storage.checkpoint import explain_write_errors
from momatch.storage.durable import json_bytes, read_object, replace_files

DATA = "data.json"
#: The images and labels of a run on features whose labels are kept elsewhere (`momatch.data.labeling.label_record`).
LABELS = "labels.csv"
_KIND = "momatch data"
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class DataRecord:
    """What a run was trained on.

    Attributes:
        source: name or path of the dataset, as given.
        contents: description of the rows, e.g. "images: 16x16, gray, uint8".
        image_size: side that images were resized to on loading; None for their original size.
        test_fraction: share of each class held out for testing on loading.
        given: whether `fit` was given a `Dataset` instead of loading one.
        class_names: label k is ``class_names[k]``, including held-out classes.
        train: number of training rows.
        test: number of test rows.
        digest: of the loaded data, `Dataset.digest`.
        labels: folder or manifest that the labels of features were read from; None if they came with the data.
        labeled: number of labelled training rows; None in older records.
        notes: what the user was told about the data, one sentence each.
    """

    source: str
    contents: str
    image_size: int | None
    test_fraction: float
    given: bool
    class_names: tuple[str, ...]
    train: int
    test: int
    digest: str
    labels: str | None = None
    labeled: int | None = None
    notes: tuple[str, ...] = ()


def write_data_record(directory: Path, record: DataRecord, labels: bytes | None = None) -> None:
    """Write data.json, and labels.csv if `labels` are given.

    Raises:
        OSError: if they cannot be written.
    """
    files = {} if labels is None else {directory / LABELS: labels}
    with explain_write_errors(f"writing {DATA}", directory):
        # Last, because labels without a record are ignored, and a record is written only once.
        files[directory / DATA] = json_bytes({"format": _KIND, "version": _VERSION, **asdict(record)})
        replace_files(files)


def read_data_record(directory: Path) -> DataRecord:
    """What the run in `directory` was trained on.

    Raises:
        ValueError: if there is no record, or it is damaged or of another kind.
        OSError: if it cannot be read.
    """
    path = directory / DATA
    values: dict[str, Any] | None = read_object(path)
    if values is None:
        raise ValueError(
            f"{path}: there is no such file, so the training data of the run are unknown; runs of momatch 0.1 have "
            "none: name the dataset, or train again"
        )
    kind, version = values.pop("format", None), values.pop("version", None)
    if (kind, version) != (_KIND, _VERSION):
        raise ValueError(f"{path}: got {kind!r}, version {version!r}, expected {_KIND!r}, version {_VERSION}")
    try:
        exact = {"class_names": tuple(values["class_names"]), "notes": tuple(values.get("notes", ()))}
        return DataRecord(**{**values, **exact})
    except (TypeError, KeyError) as error:
        raise ValueError(
            f"{path}: got {sorted(values)}, expected the data record of a run; the file is damaged"
        ) from error
