"""Where the labels of a dataset of features come from, in words for the user and for the record of a run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Labeling:
    """Where the labels of features come from, and how the images there differ from those embedded.

    Attributes:
        source: the folder or manifest; None if the labels are those stored with the features.
        changed: images whose label or split is not the stored one.
        missing: images there that are not embedded.
        dropped: embedded images that are not there; they are not used.
        command: embeds what is missing.
        reason: why the stored labels are used, if they had to be.
    """

    source: str | None = None
    changed: int = 0
    missing: int = 0
    dropped: int = 0
    command: str = ""
    reason: str = ""

    def notes(self) -> list[str]:
        """What the user should know, one sentence each."""
        if self.source is None:
            return [f"labels are those stored with the features: {self.reason}"] if self.reason else []
        since = f"{self.changed:,} changed since the embedding" if self.changed else "as at the embedding"
        notes = [f"labels are read from {self.source}: {since}"]
        if self.dropped:
            notes.append(f"{self.dropped:,} embedded images are no longer in {self.source} and are not used")
        if self.missing:
            notes.append(f"{self.missing:,} images of {self.source} are not embedded and not used; run: {self.command}")
        return notes
