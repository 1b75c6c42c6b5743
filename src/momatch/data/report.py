"""What a loader tells besides the data: errors, warnings and a count of everything it skipped or converted."""

from dataclasses import dataclass, field
from pathlib import Path


class DataError(ValueError):
    """The data cannot be used as it is; the message says what was found, what was expected and what to do."""


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
