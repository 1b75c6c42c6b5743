"""What a loader is told and what it tells: options; errors, warnings and a count of everything it skipped or converted."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path


class DataError(ValueError):
    """The data cannot be used as they are; the message says what was found, what was expected and what to do.

    What can be done with an option of `load_dataset` stands apart from the message, because not every caller has that option,
    and some call it otherwise: `renamed` tells it as they do.

    Args:
        message: got, expected, what to do.
        remedies: option of `load_dataset` -> what it would do here, with {} for its name: ", or raise {}". They follow the
            message.
    """

    def __init__(self, message: str, remedies: Mapping[str, str] | None = None) -> None:
        self.message, self.remedies = message, dict(remedies or {})
        super().__init__(message + "".join(text.format(option) for option, text in self.remedies.items()))

    def renamed(self, names: Mapping[str, str]) -> "DataError":
        """The error for a caller that has these options alone.

        Args:
            names: option of `load_dataset` -> what the caller calls it.
        """
        return DataError(self.message, {names[key]: text for key, text in self.remedies.items() if key in names})


class DataWarning(UserWarning):
    """The data was used, but not all of it or not as it stands on disk; the message says what and how much."""


@dataclass(frozen=True)
class Skipped:
    """A file or manifest row that was left out.

    Attributes:
        name: the file (and its manifest line, where there is one).
        reason: why.
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
        skipped: files and rows that could not be used, with the reason.
        conversions: how many images went through each stated conversion (``16-bit to 8-bit``, ...).
        ignored: how many files are no images by their extension, and were not looked at.
        warnings: what the user should know before trusting the data; `load_dataset` warns of each.
        notes: what was done on request (duplicates dropped, ...).
        cache: the folder that holds the decoded images, or None if they are in memory.
    """

    source: str
    skipped: list[Skipped] = field(default_factory=list)
    conversions: dict[str, int] = field(default_factory=dict)
    ignored: int = 0
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cache: Path | None = None


def examples(items: list[str] | list[Skipped], most: int = 5) -> str:
    """The first few of `items`, one a line, and how many more there are."""
    lines = [f"  {item}" for item in items[:most]]
    if len(items) > most:
        lines.append(f"  ... and {len(items) - most} more")
    return "\n".join(lines)


@dataclass(frozen=True)
class LoadOptions:
    """Options of `load_dataset`. An option that means nothing to the dataset at hand is refused, not ignored.

    Attributes:
        download: fetch a known dataset that is not there yet.
        verify: compare files that are already there with the official checksums (known datasets).
        cache_dir: where decoded images are kept; default: ``$MOMATCH_CACHE`` or the user's cache folder.
        progress: show progress bars on standard error.
        workers: decoding processes; default: one a core.
        size: side of the images in pixels. Of files, the shorter side is resized to it and the centre cropped to a square;
            arrays and known datasets are stretched to it.
        strict: refuse the dataset at the first file or row that cannot be used.
        max_skipped: how many files and rows may be skipped; default: 10 or 1 %, whichever is more.
        test_fraction: hold out this fraction of the labelled images of each class for testing.
        test_seed: which images are held out.
        unlabeled_folders: names that mark the folder of unlabelled images.
        test_folder: name of the folder of test images.
        extra: add SVHN's 531,131 `extra` images to the training set.
        drop_test_duplicates: leave out STL-10's unlabelled images that are near-duplicates of test images.
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
    extra: bool = False
    drop_test_duplicates: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.unlabeled_folders, tuple):
            raise DataError(f"unlabeled_folders: got {self.unlabeled_folders!r}, expected a tuple of names")
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
        """How many of `total` files may be skipped."""
        if self.strict:
            return 0
        return max(10, total // 100) if self.max_skipped is None else self.max_skipped

    @property
    def skip_remedy(self) -> dict[str, str]:
        """What helps where too many files cannot be used."""
        return {} if self.strict else {"max_skipped": ", or raise {}"}

    def refuse_unused(self, source: str, used: frozenset[str]) -> None:
        """Refuse options that were set but mean nothing to `source`.

        Raises:
            DataError: naming the options.
        """
        changed = {option.name for option in fields(self) if getattr(self, option.name) != option.default}
        unused = sorted(changed - used - {"cache_dir", "progress", "download", "workers"})
        if unused:
            text = "{} has no meaning for this dataset; leave it out"
            raise DataError(f"{source}: ", {name: text if name == unused[0] else f". {text}" for name in unused})
