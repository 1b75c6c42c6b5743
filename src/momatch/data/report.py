"""Loader options, errors and warnings, and the report of everything a loader skipped or converted."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from momatch.config.checks import MAX_SIDE


class DataError(ValueError):
    """The data cannot be used; the message says what was found, what was expected and what to do.

    Remedies that use an option of `load_dataset` are kept apart from the message, because callers may lack that option or name
    it differently; see `renamed`.

    Args:
        message: got, expected, what to do.
        remedies: option of `load_dataset` -> text appended to the message, with {} for the option's name: ", or raise {}".
    """

    def __init__(self, message: str, remedies: Mapping[str, str] | None = None) -> None:
        self.message, self.remedies = message, dict(remedies or {})
        super().__init__(message + "".join(text.format(option) for option, text in self.remedies.items()))

    def renamed(self, names: Mapping[str, str]) -> "DataError":
        """The error for a caller with its own option names; other remedies are dropped.

        Args:
            names: option of `load_dataset` -> the caller's name for it.
        """
        return type(self)(self.message, {names[key]: text for key, text in self.remedies.items() if key in names})


class NothingReadableError(DataError):
    """No image file can be decoded."""


class MixedSizesError(DataError):
    """The images have different sizes, and none was asked for."""


class DataWarning(UserWarning):
    """Some of the data was skipped or changed; the message says what and how much."""


@dataclass(frozen=True)
class Skipped:
    """A skipped file or manifest row.

    Attributes:
        name: the file, with its manifest line if any.
        reason: why it was skipped.
    """

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass
class LoadReport:
    """What happened while a dataset was loaded.

    Attributes:
        source: the folder or file the data was read from.
        skipped: files and rows that could not be used.
        conversions: number of images per conversion (``16-bit to 8-bit``, ...).
        ignored: number of files without an image extension; they were not opened.
        warnings: what the user should know before trusting the data; `load_dataset` issues them as warnings.
        notes: what was done on request (duplicates dropped, ...).
        cache: where the data is memory-mapped from, or None if it is in memory.
    """

    source: str
    skipped: list[Skipped] = field(default_factory=list)
    conversions: dict[str, int] = field(default_factory=dict)
    ignored: int = 0
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cache: Path | None = None


def examples(items: list[str] | list[Skipped], most: int = 5) -> str:
    """The first few of `items`, one per line, and how many more there are."""
    lines = [f"  {item}" for item in items[:most]]
    if len(items) > most:
        lines.append(f"  ... and {len(items) - most} more")
    return "\n".join(lines)


@dataclass(frozen=True)
class LoadOptions:
    """Options of `load_dataset`. Options that do not apply to the dataset are an error.

    Attributes:
        download: download a known dataset that is missing.
        verify: check existing files of a known dataset against the official checksums.
        cache_dir: cache for decoded images; default: ``$MOMATCH_CACHE``, or the user cache directory.
        progress: show progress bars on standard error.
        workers: decoding processes; default: one per core.
        size: image side in pixels. Files are resized by their shorter side and centre-cropped to a square; arrays and known
            datasets are stretched.
        strict: fail on the first file or row that cannot be used.
        max_skipped: most files and rows to skip; default: 10 or 1 %, whichever is more.
        test_fraction: hold out this fraction of the labelled images of each class for testing.
        test_seed: seed for choosing the held-out images.
        unlabeled_folders: names of the unlabelled image folder.
        test_folder: name of the test image folder.
        labels: features files only: where to read labels. None: in the folder or manifest of the images, as they are now, if it
            is there; a folder or manifest; or "stored", for the labels in the file.
        extra: add SVHN's 531,131 `extra` images to the training set.
        drop_test_duplicates: drop STL-10's unlabelled near-duplicates of test images.
    """

    download: bool = True
    verify: bool = False
    cache_dir: str | Path | None = None
    progress: bool = True
    workers: int | None = None
    size: int | None = None
    strict: bool = False
    max_skipped: int | None = None
    test_fraction: float = 0.0
    test_seed: int = 0
    unlabeled_folders: tuple[str, ...] = ("unlabeled", "unlabelled")
    test_folder: str = "test"
    labels: str | Path | None = None
    extra: bool = False
    drop_test_duplicates: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.unlabeled_folders, tuple):
            raise DataError(f"unlabeled_folders: got {self.unlabeled_folders!r}, expected a tuple of names")
        if self.size is not None and self.size > MAX_SIDE:
            raise DataError(f"size: got {self.size}, expected at most {MAX_SIDE} pixels")
        for name in ("workers", "size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DataError(f"{name}: got {value}, expected an integer of at least 1")
        if self.max_skipped is not None and self.max_skipped < 0:
            raise DataError(f"max_skipped: got {self.max_skipped}, expected 0 or more")
        if not 0.0 <= self.test_fraction < 1.0:
            raise DataError(f"test_fraction: got {self.test_fraction}, expected at least 0 and less than 1")
        if self.test_folder in self.unlabeled_folders:
            raise DataError(
                f"test_folder and unlabeled_folders: got {self.test_folder!r} in both, expected different names"
            )

    def skip_limit(self, total: int) -> int:
        """Most of `total` files that may be skipped."""
        if self.strict:
            return 0
        return max(10, total // 100) if self.max_skipped is None else self.max_skipped

    @property
    def skip_remedy(self) -> dict[str, str]:
        """Remedy for too many skipped files."""
        return {} if self.strict else {"max_skipped": ", or raise {}"}

    def refuse_unused(self, source: str, used: frozenset[str]) -> None:
        """Raise `DataError` if an option was set that does not apply to `source`."""
        changed = {option.name for option in fields(self) if getattr(self, option.name) != option.default}
        unused = sorted(changed - used - {"cache_dir", "progress", "download", "workers"})
        if unused:
            text = "{} does not apply to this dataset; drop it"
            raise DataError(f"{source}: ", {name: text if name == unused[0] else f". {text}" for name in unused})
