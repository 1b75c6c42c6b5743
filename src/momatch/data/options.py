"""How a dataset is loaded: every option, with its default, in one place."""

from dataclasses import dataclass, fields
from pathlib import Path

from momatch.data.report import DataError


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

    def refuse_unused(self, source: str, used: frozenset[str]) -> None:
        """Refuse options that were set but mean nothing to `source`.

        Raises:
            DataError: naming the options.
        """
        changed = {option.name for option in fields(self) if getattr(self, option.name) != option.default}
        unused = sorted(changed - used - {"cache_dir", "progress", "download", "workers"})
        if unused:
            raise DataError(f"{source}: {', '.join(unused)} has no meaning for this dataset; leave it out")
