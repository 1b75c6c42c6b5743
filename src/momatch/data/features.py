"""A features file: a backbone's features of images, in several views, and its weights. Written by ``momatch embed``.

It is an .npz archive. Members are uncompressed and start at multiples of 64 bytes, so arrays are memory-mapped in place and
read only when needed:

    momatch_features.json     how the features were made (`feature_spec`)
    train_features.npy        float16 (N, V, F): plain view first, then weak, then strong views
    train_stages.npy          float32 (N, S): statistics of the backbone's stages in the plain view (`momatch.outliers.stages`)
    train_labels.npy          int64 (N,), -1 for unlabelled
    train_pictures.npy        uint8 (N, C, h, w), no side longer than 96: for reports
    train_digests.npy         uint8 (N, 16): digest of each image's content (`momatch.data.content`)
    train_files.json          file name of each image; absent if the images did not come from image files
    test_...                  the same, with the plain view only; absent if there are no test images
    unreadable.json           digests of image files that could not be decoded; absent if there are none
    backbone.safetensors      weights and buffers of the backbone
"""

import io
import json
import shutil
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from jaxtyping import Int64
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from momatch.data.cache import map_tensor
from momatch.data.content import DIGEST_BYTES, Digests
from momatch.data.dataset import Dataset, Split
from momatch.data.feature_spec import FeatureSpec, read_feature_spec
from momatch.data.label_source import Labeling
from momatch.data.labeling import CurrentLabels, LabeledRows, StoredSplit, current_labels
from momatch.data.report import DataError, LoadOptions, LoadReport
from momatch.data.rows import FeatureRows, Rows
from momatch.data.sources.manifest import NONE

#: Member with the backbone's weights.
WEIGHTS = "backbone.safetensors"
#: Member with the digests of files that could not be decoded.
UNREADABLE = "unreadable.json"
#: Storage dtype of features.
FEATURES_DTYPE = np.dtype("<f2")
#: Storage dtype of the statistics of stages: more precise, because a covariance is fitted to them.
STAGES_DTYPE = np.dtype("<f4")
#: Members start at multiples of this, so that numbers are aligned in memory.
ALIGNMENT = 64

#: Length of a member's header: the fixed part, and the 64-bit sizes that `force_zip64` adds.
_HEADER = 30 + 20
#: ID of an extra field that readers ignore.
_PADDING = 0xD935
_BLOCK = 1 << 22
#: Signature, and the lengths of the name and of the extra field, before a member's content.
_LOCAL_HEADER = struct.Struct("<4s22xHH")


def load_features(name: str, path: Path, options: LoadOptions) -> tuple[Dataset, LoadReport]:
    """Open a features file; features, statistics of stages and pictures stay on disk.

    Labels are read where the images are (`momatch.data.labeling`); the dataset then has the images that are there now.

    Args:
        name: name for the dataset.
        path: the features file.
        options: uses `labels`, and `verify`, which reads the whole file and compares its checksums.

    Raises:
        DataError: if it is damaged, its parts do not match, or the labels cannot be read.
    """
    stored, unreadable = open_features(name, path, verify=options.verify)
    spec = stored.features
    assert spec is not None, "they are features"
    contents = {
        split: StoredSplit(rows.labels.numpy(), rows.files, rows.digests)
        for split, rows in stored.splits.items()
        if rows.digests is not None
    }
    current = current_labels(spec, contents, unreadable, options) if contents else Labeling()
    dataset = replace(stored, labeling=current) if isinstance(current, Labeling) else _relabeled(stored, current)
    report = LoadReport(str(path), cache=path)
    report.notes.append(
        f"features of {spec.dataset} by {spec.backbone}: 1 plain, {spec.weak_views} weak and {spec.strong_views} strong "
        f"views of {spec.image_size[1]}x{spec.image_size[0]} images"
    )
    assert dataset.labeling is not None, "set above"
    report.notes += [*dataset.labeling.notes(), *dataset.no_class_notes()]
    return dataset, report


def open_features(name: str, path: Path, *, verify: bool = False) -> tuple[Dataset, frozenset[bytes]]:
    """Open a features file with the labels stored in it.

    Args:
        name: name for the dataset.
        path: the features file.
        verify: read the whole file and compare its checksums.

    Returns:
        The dataset, and the digests of image files that could not be decoded.

    Raises:
        DataError: if it is damaged, or its parts do not match.
    """
    try:
        spec = read_feature_spec(path)
        assert spec is not None, "the caller has checked"
        with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
            content = _Content(spec, archive, file)
            if verify and (damaged := archive.testzip()) is not None:
                raise DataError(f"{path}: {damaged} is damaged; embed the images again")
            if not content.has(WEIGHTS):
                raise DataError(
                    f"{path}: got features without the weights of their backbone ({WEIGHTS}), expected both: a model for "
                    "images needs them. Embed the images with momatch embed; for plain vectors use MoMatchClassifier"
                )
            train = content.split("train", spec.num_views)
            test = content.split("test", 1) if content.has("test_labels.npy") else None
            unreadable = json.loads(archive.read(UNREADABLE)) if content.has(UNREADABLE) else []
            return Dataset(name, spec.class_names, train, test, spec), frozenset(map(bytes.fromhex, unreadable))
    except (zipfile.BadZipFile, EOFError, OSError, KeyError, struct.error) as error:
        raise DataError(f"{path}: cannot be read as a features file ({error}); embed the images again") from error
    except ValueError as error:
        raise error if isinstance(error, DataError) else DataError(f"{path}: {error}") from error


def _relabeled(stored: Dataset, current: CurrentLabels) -> Dataset:
    """The stored features with other labels: of the images that are in use now, in their order."""
    train, test = stored.train.rows, None if stored.test is None else stored.test.rows
    testable = train.plain() if test is None else test.append(train.plain())
    digests = [
        split.digests for split in (stored.test, stored.train) if split is not None and split.digests is not None
    ]
    assert stored.train.digests is not None, "there are current labels"
    of_test, of_none = current.splits["test"], current.splits[NONE]
    return replace(
        stored,
        class_names=current.class_names,
        train=_split_at(train, stored.train.digests, current.splits["train"]),
        test=_split_at(testable, np.concatenate(digests), of_test) if of_test.rows else None,
        labeling=current.labeling,
        no_class=_split_at(train, stored.train.digests, of_none) if of_none.rows else None,
    )


def _split_at(rows: Rows, digests: Digests, chosen: LabeledRows) -> Split:
    index = torch.tensor(chosen.rows, dtype=torch.int64)
    labels = torch.tensor(chosen.labels, dtype=torch.int64)
    return Split(rows.select(index), labels, tuple(chosen.files), digests[chosen.rows])


def backbone_weights(spec: FeatureSpec) -> dict[str, Tensor]:
    """The backbone's weights and buffers by name, checked against the archive's checksum.

    Raises:
        DataError: if they cannot be read.
    """
    try:
        with zipfile.ZipFile(spec.path) as archive:
            return load(archive.read(WEIGHTS))
    except (zipfile.BadZipFile, KeyError, EOFError, OSError, SafetensorError) as error:
        raise DataError(f"{spec.path}: {WEIGHTS} cannot be read ({error}); embed the images again") from error


@dataclass(frozen=True)
class _Content:
    """An open features file."""

    spec: FeatureSpec
    archive: zipfile.ZipFile
    file: BinaryIO

    def has(self, name: str) -> bool:
        return name in self.archive.namelist()

    def split(self, split: str, num_views: int) -> Split:
        """Read a split and check that its parts match."""
        with self.archive.open(f"{split}_labels.npy") as member:
            labels = np.lib.format.read_array(member, allow_pickle=False)
        n = len(labels)
        if n == 0 or labels.shape != (n,) or labels.dtype != np.int64:
            raise DataError(
                f"{self.spec.path}: {split}_labels: got {labels.dtype} {labels.shape}, expected int64 (N,), N at least 1"
            )
        features = self.mapped(f"{split}_features.npy", FEATURES_DTYPE, (n, num_views, self.spec.num_features))
        stages = self.mapped(f"{split}_stages.npy", STAGES_DTYPE, (n, self.spec.num_statistics))
        pictures = None
        if self.has(f"{split}_pictures.npy"):
            pictures = self.mapped(f"{split}_pictures.npy", np.dtype(np.uint8), (n, self.spec.in_channels, -1, -1))
        files = json.loads(self.archive.read(f"{split}_files.json")) if self.has(f"{split}_files.json") else ()
        digests = None
        if self.has(f"{split}_digests.npy"):
            digests = self.mapped(f"{split}_digests.npy", np.dtype(np.uint8), (n, DIGEST_BYTES)).numpy()
        rows = FeatureRows([features], pictures=None if pictures is None else [pictures], stages=[stages])
        return Split(rows, torch.from_numpy(labels), tuple(map(str, files)), digests)

    def mapped(self, name: str, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Tensor:
        """A member as a memory-mapped tensor; -1 in `shape` matches any size."""
        info = self.archive.getinfo(name)
        # The archive's directory has the start of the member's header, but only the header itself has its length.
        self.file.seek(info.header_offset)
        signature, name_length, extra_length = _LOCAL_HEADER.unpack(self.file.read(_LOCAL_HEADER.size))
        if signature != b"PK\3\4" or info.compress_type != zipfile.ZIP_STORED:
            raise DataError(f"{self.spec.path}: {name} is compressed or damaged; embed the images again")
        self.file.seek(name_length + extra_length, 1)
        begin = self.file.tell()
        np.lib.format.read_magic(self.file)
        stored, fortran, found = np.lib.format.read_array_header_1_0(self.file)
        fits = len(stored) == len(shape) and all(want in (-1, got) for got, want in zip(stored, shape, strict=True))
        offset = self.file.tell()
        size = offset - begin + int(np.prod(stored)) * dtype.itemsize
        if found != dtype or fortran or not fits or size != info.file_size:
            wanted = str(shape).replace("-1", "any")
            raise DataError(f"{self.spec.path}: {name}: got {found} {stored}, expected {dtype} {wanted}")
        return map_tensor(self.spec.path, stored, dtype, offset)


@dataclass(frozen=True)
class GatheredRows:
    """An array of a new features file, gathered from rows of others; written block by block.

    Attributes:
        sources: arrays (N_i, ...) of one dtype and row shape.
        rows: (N,) rows of their concatenation.
    """

    sources: Sequence[np.ndarray]
    rows: Int64[np.ndarray, " N"]

    def blocks(self) -> Iterator[bytes]:
        """The content of an .npy file, in parts."""
        first = self.sources[0]
        header = io.BytesIO()
        shape = (len(self.rows), *first.shape[1:])
        np.lib.format.write_array_header_1_0(
            header, {"descr": np.lib.format.dtype_to_descr(first.dtype), "fortran_order": False, "shape": shape}
        )
        yield header.getvalue()
        starts = np.cumsum([0, *(len(source) for source in self.sources)])
        step = max(1, _BLOCK // max(1, first[:1].nbytes))
        for begin in range(0, len(self.rows), step):
            rows = self.rows[begin : begin + step]
            block = np.empty((len(rows), *first.shape[1:]), first.dtype)
            owner = np.searchsorted(starts, rows, side="right") - 1
            for number, source in enumerate(self.sources):
                where = np.flatnonzero(owner == number)
                block[where] = source[rows[where] - starts[number]]
            yield block.tobytes()


def write_archive(path: Path, members: Mapping[str, bytes | Path | GatheredRows]) -> None:
    """Write a zip archive of uncompressed members, each starting at a multiple of `ALIGNMENT`.

    Args:
        path: a temporary path: after an error the file is incomplete.
        members: name -> content, a file with the content, or an array to gather.

    Raises:
        OSError: if it cannot be written.
    """
    with open(path, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o644 << 16
            # The padding field itself has a header of four bytes.
            begin = file.tell() + _HEADER + len(name.encode()) + 4
            padding = -begin % ALIGNMENT
            info.extra = struct.pack("<HH", _PADDING, padding) + bytes(padding)
            with archive.open(info, "w", force_zip64=True) as member:
                if isinstance(content, bytes):
                    member.write(content)
                elif isinstance(content, GatheredRows):
                    for block in content.blocks():
                        member.write(block)
                else:
                    with open(content, "rb") as source:
                        shutil.copyfileobj(source, member, _BLOCK)
