"""Find a known dataset in the data directory, or bring it there."""

import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from momatch.data.catalog import KNOWN, Layout, RemoteFile
from momatch.data.download import check_md5, fetch
from momatch.data.options import LoadOptions
from momatch.data.report import DataError, examples


def member_path(folder: Path, member: str) -> Path | None:
    """Where `member` lies in `folder`, plain or gzipped; None if it is not there."""
    for name in (member, f"{member}.gz"):
        if (folder / name).is_file():
            return folder / name
    return None


def is_at_hand(name: str, data_dir: Path) -> bool:
    """Whether a known dataset can be loaded without a download: its files are there, or it has none."""
    return not KNOWN[name].layouts or find(name, data_dir) is not None


def find(name: str, data_dir: Path) -> tuple[Layout, Path] | None:
    """The first layout of dataset `name` whose files are all in `data_dir` (or are `data_dir` itself), and its folder.

    Several datasets share their file names (MNIST and its relatives): then `data_dir` itself counts only if it is called like
    one of the layout's folders, or clothes would be taken for digits.
    """
    for layout in KNOWN[name].layouts:
        folders = [data_dir / folder for folder in layout.folders]
        if data_dir.name in layout.folders or not _is_shared(name, layout):
            folders.append(data_dir)
        for folder in folders:
            if all(member_path(folder, member) for member in layout.members):
                return layout, folder
    return None


def _is_shared(name: str, layout: Layout) -> bool:
    others = (other for key, known in KNOWN.items() if key != name for other in known.layouts)
    return any(set(other.members) == set(layout.members) for other in others)


def obtain(name: str, data_dir: Path, options: LoadOptions, extra: tuple[RemoteFile, ...] = ()) -> tuple[Layout, Path]:
    """Find dataset `name`, downloading and unpacking what is missing.

    Args:
        name: a key of `KNOWN`.
        data_dir: where to look and where to download to.
        options: `download`, `verify` and `progress` count here.
        extra: further files wanted beside the layout's own.

    Returns:
        The layout and its folder.

    Raises:
        DataError: if a file is missing and cannot be fetched, or has the wrong checksum.
    """
    found = find(name, data_dir)
    if found is None:
        layout = KNOWN[name].layouts[0]
        found = layout, _bring(layout, data_dir, options)
    layout, folder = found
    for remote in extra:
        if not (folder / remote.name).exists():
            fetch(remote, folder, download=options.download, progress=options.progress)
    if options.verify:
        _verify(layout, folder, extra)
    return layout, folder


def _bring(layout: Layout, data_dir: Path, options: LoadOptions) -> Path:
    home = data_dir / layout.folders[0]
    archives = [remote for remote in layout.remote if remote.is_archive]
    if not archives:
        # A layout of single files: fetch those that are not there yet.
        members = zip(layout.remote, layout.members, strict=True)
        missing = [remote for remote, member in members if member_path(home, member) is None]
        for i, remote in enumerate(missing):
            fetch(remote, home, download=options.download, progress=options.progress, others=missing[i + 1 :])
        return home
    if home.exists():
        absent = [member for member in layout.members if member_path(home, member) is None]
        raise DataError(
            f"{home} is incomplete, these files are missing:\n{examples(absent)}\n"
            "Complete the folder, or remove it to have the archive unpacked again"
        )
    for remote in archives:
        unpack(fetch(remote, data_dir, download=options.download, progress=options.progress), home)
    return home


def unpack(archive: Path, home: Path) -> None:
    """Unpack the folder named like `home` from `archive`; `home` appears whole or not at all.

    Raises:
        DataError: if the archive is broken or holds no such folder.
    """
    scratch = Path(tempfile.mkdtemp(prefix=f"{home.name}.part-", dir=archive.parent))
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        if not (scratch / home.name).is_dir():
            raise DataError(f"{archive}: got no folder {home.name!r} inside, expected the official archive")
        home.parent.mkdir(parents=True, exist_ok=True)
        os.replace(scratch / home.name, home)
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{archive}: cannot be unpacked ({error}); remove it and fetch it again") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _verify(layout: Layout, folder: Path, extra: tuple[RemoteFile, ...]) -> None:
    """Compare the files that the catalog has checksums of; an archive is looked for beside its unpacked folder."""
    for remote in (*layout.remote, *extra):
        path = folder.parent / remote.name if remote.is_archive else folder / remote.name
        if not path.exists():
            raise DataError(
                f"verify: {path} is not there, and only it has an official checksum; put it there or leave verify out"
            )
        check_md5(path, remote)
    if not layout.remote:
        raise DataError(f"verify: there are no official checksums for the layout of {folder}; leave verify out")
