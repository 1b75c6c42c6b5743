"""Where the labels of a dataset of features come from, in words for the user and for the record of a run."""

from dataclasses import dataclass

from momatch.console.wording import plural


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
        folder: the folder of images that a manifest adds to; empty if the source is all there is.
        listed: labels of training images that the manifest gave.
        from_folder: labels of training images that it did not list.
        gone: rows of the manifest whose files are not there; they are not used.
    """

    source: str | None = None
    changed: int = 0
    missing: int = 0
    dropped: int = 0
    command: str = ""
    reason: str = ""
    folder: str = ""
    listed: int = 0
    from_folder: int = 0
    gone: int = 0

    def notes(self) -> list[str]:
        """What the user should know, one sentence each."""
        if self.source is None:
            return [f"labels are those stored with the features: {self.reason}"] if self.reason else []
        since = f"{self.changed:,} changed since the embedding" if self.changed else "as at the embedding"
        notes = [f"labels are read from {self.source}: {since}"]
        if self.from_folder and (self.folder or self.listed):
            folder = self.folder or "the folder, as at the embedding"
            notes.append(f"{plural(self.listed, 'label')} from {self.source}, {self.from_folder:,} from {folder}")
        if self.gone:
            notes.append(f"not used: {plural(self.gone, 'row')} of {self.source} without an image file")
        images = self.folder or self.source
        if self.dropped:
            notes.append(f"not used: {plural(self.dropped, 'embedded image')} no longer in {images}")
        if self.missing:
            notes.append(f"not used: {plural(self.missing, 'image')} of {images} not embedded yet; run: {self.command}")
        return notes
