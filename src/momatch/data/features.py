"""A features file: what a backbone made of images, in several views, with its weights. ``momatch embed`` makes it.

An .npz archive whose members are stored, not compressed, and begin at multiples of 64 bytes, so that features are memory-mapped
where they lie and nothing is read before it is asked for:

    momatch_features.json     what the file says about itself (`feature_spec`)
    train_features.npy        float16 (N, V, F): the plain view, then the weak, then the strong ones
    train_labels.npy          int64 (N,), -1 for unlabelled
    train_pictures.npy        uint8 (N, C, h, w), no side longer than 32: for reports
    train_files.json          where each image came from; absent where not from files of their own
    test_...                  the same with the plain view alone; absent where there are no test images
    backbone.safetensors      weights and buffers of the backbone
"""

import json
import shutil
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from momatch.data.cache import map_tensor
from momatch.data.dataset import Dataset, Split
from momatch.data.feature_spec import FeatureSpec, read_feature_spec
from momatch.data.report import DataError, LoadOptions, LoadReport
from momatch.data.rows import FeatureRows

#: Member that holds the backbone.
WEIGHTS = "backbone.safetensors"
#: What features are kept as.
FEATURES_DTYPE = np.dtype("<f2")
#: Members begin at multiples of this: numbers must be aligned in memory.
ALIGNMENT = 64

#: A member's own header, its fixed part and the sizes in 64 bits that `force_zip64` adds to it.
_HEADER = 30 + 20
#: Number of an extra field that readers pass over.
_PADDING = 0xD935
_BLOCK = 1 << 22
#: Signature, and the lengths of the name and of the extra field, which precede a member's content.
_LOCAL_HEADER = struct.Struct("<4s22xHH")


def load_features(name: str, path: Path, options: LoadOptions) -> tuple[Dataset, LoadReport]:
    """Open a features file; the features and pictures stay on disk.

    Args:
        name: what to call the dataset.
        path: of the file.
        options: of them `verify` reads the whole file and compares its checksums.

    Raises:
        DataError: if it is damaged, or its parts do not fit together.
    """
    try:
        spec = read_feature_spec(path)
        assert spec is not None, "the caller has looked"
        with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
            content = _Content(spec, archive, file)
            if options.verify and (damaged := archive.testzip()) is not None:
                raise DataError(f"{path}: {damaged} in it is damaged; embed the images anew")
            if not content.has(WEIGHTS):
                raise DataError(
                    f"{path}: got features without the weights of their backbone ({WEIGHTS}), expected both: without them no "
                    "model for images can come of it. Embed the images with momatch embed; for plain vectors there is "
                    "MoMatchClassifier"
                )
            train = content.split("train", spec.num_views)
            test = content.split("test", 1) if content.has("test_labels.npy") else None
            dataset = Dataset(name, spec.class_names, train, test, spec)
    except (zipfile.BadZipFile, EOFError, OSError, KeyError, struct.error) as error:
        raise DataError(f"{path}: cannot be read as a features file ({error}); embed the images anew") from error
    except ValueError as error:
        raise error if isinstance(error, DataError) else DataError(f"{path}: {error}") from error
    report = LoadReport(str(path), cache=path)
    report.notes.append(
        f"features of {spec.dataset} by {spec.backbone}: 1 plain, {spec.weak_views} weak and {spec.strong_views} strong "
        f"views of images of {spec.image_size[1]}x{spec.image_size[0]}"
    )
    return dataset, report


def backbone_weights(spec: FeatureSpec) -> dict[str, Tensor]:
    """The backbone's weights and buffers by name, checked by the archive's checksum.

    Raises:
        DataError: if they cannot be read.
    """
    try:
        with zipfile.ZipFile(spec.path) as archive:
            return load(archive.read(WEIGHTS))
    except (zipfile.BadZipFile, KeyError, EOFError, OSError, SafetensorError) as error:
        raise DataError(f"{spec.path}: {WEIGHTS} in it cannot be read ({error}); embed the images anew") from error


@dataclass(frozen=True)
class _Content:
    """An open features file."""

    spec: FeatureSpec
    archive: zipfile.ZipFile
    file: BinaryIO

    def has(self, name: str) -> bool:
        return name in self.archive.namelist()

    def split(self, split: str, num_views: int) -> Split:
        """One of the two splits, after a check that its parts fit together."""
        with self.archive.open(f"{split}_labels.npy") as member:
            labels = np.lib.format.read_array(member, allow_pickle=False)
        n = len(labels)
        if n == 0 or labels.shape != (n,) or labels.dtype != np.int64:
            raise DataError(
                f"{self.spec.path}: {split}_labels: got {labels.dtype} {labels.shape}, expected int64 (N,), N at least 1"
            )
        features = self.mapped(f"{split}_features.npy", FEATURES_DTYPE, (n, num_views, self.spec.num_features))
        pictures = None
        if self.has(f"{split}_pictures.npy"):
            pictures = self.mapped(f"{split}_pictures.npy", np.dtype(np.uint8), (n, self.spec.in_channels, -1, -1))
        files = json.loads(self.archive.read(f"{split}_files.json")) if self.has(f"{split}_files.json") else ()
        rows = FeatureRows([features], pictures=None if pictures is None else [pictures])
        return Split(rows, torch.from_numpy(labels), tuple(map(str, files)))

    def mapped(self, name: str, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Tensor:
        """A member as a memory-mapped tensor; -1 in the expected `shape` stands for any size."""
        info = self.archive.getinfo(name)
        # The archive's own record of a member names its beginning; how long the header there is, only that says.
        self.file.seek(info.header_offset)
        signature, name_length, extra_length = _LOCAL_HEADER.unpack(self.file.read(_LOCAL_HEADER.size))
        if signature != b"PK\3\4" or info.compress_type != zipfile.ZIP_STORED:
            raise DataError(f"{self.spec.path}: {name} in it is compressed or damaged; embed the images anew")
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


def write_archive(path: Path, members: Mapping[str, bytes | Path]) -> None:
    """Write a zip archive of uncompressed members, each of which begins at a multiple of `ALIGNMENT`.

    Args:
        path: of the archive; it must not matter if it is left half-written.
        members: name -> content, or the file that holds it.

    Raises:
        OSError: if it cannot be written.
    """
    with open(path, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o644 << 16
            # The padding has a header of four bytes itself.
            begin = file.tell() + _HEADER + len(name.encode()) + 4
            padding = -begin % ALIGNMENT
            info.extra = struct.pack("<HH", _PADDING, padding) + bytes(padding)
            with archive.open(info, "w", force_zip64=True) as member:
                if isinstance(content, bytes):
                    member.write(content)
                else:
                    with open(content, "rb") as source:
                        shutil.copyfileobj(source, member, _BLOCK)
