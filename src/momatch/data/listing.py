"""List the image files of a folder or manifest with their labels, without opening them."""

from pathlib import Path

from momatch.data.image_files import ImageFiles
from momatch.data.report import LoadOptions
from momatch.data.sources.folder import scan_folder
from momatch.data.sources.manifest import MANIFESTS, read_manifest


def list_files(path: Path, options: LoadOptions) -> ImageFiles | None:
    """The image files of the folder or manifest at `path`; None if it is something else.

    Raises:
        DataError: if they cannot be used.
    """
    if path.is_dir():
        return scan_folder(path, options)
    return read_manifest(path, options) if path.suffix.lower() in MANIFESTS and path.is_file() else None
