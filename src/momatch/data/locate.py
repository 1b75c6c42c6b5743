"""Find a known dataset in the data directory, or download it.

pooch downloads a file to a temporary name, checks the checksum and then renames it, so a partial file is never mistaken for a
complete one. It does not resume; `ResumingDownloader` does: it keeps partial downloads in ``NAME.part`` and requests the rest
(HTTP Range). A server without range support sends the whole file again. Nothing here imports torch.
"""

import os
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from platformdirs import user_cache_dir

from momatch.data.catalog import KNOWN, Layout, RemoteFile
from momatch.data.report import DataError, LoadOptions, examples

#: Small, because an interrupted transfer loses its last block.
_BLOCK = 1 << 14
_PARTIAL_CONTENT = 206
_RANGE_NOT_SATISFIABLE = 416


def cache_root(cache_dir: str | Path | None = None) -> Path:
    """The cache directory: `cache_dir`, else ``$MOMATCH_CACHE``, else the user cache directory."""
    return Path(cache_dir or os.environ.get("MOMATCH_CACHE") or user_cache_dir("momatch", appauthor=False))


def data_root(data_dir: str | Path | None = None) -> Path:
    """The directory of known datasets: `data_dir`, else ``$MOMATCH_DATA``, else ``datasets`` in the cache directory."""
    return Path(data_dir or os.environ.get("MOMATCH_DATA") or cache_root() / "datasets")


def member_path(folder: Path, member: str) -> Path | None:
    """Path of `member` in `folder`, plain or gzipped; None if it does not exist."""
    for name in (member, f"{member}.gz"):
        if (folder / name).is_file():
            return folder / name
    return None


def is_at_hand(name: str, data_dir: Path) -> bool:
    """Whether a known dataset can be loaded without a download."""
    return not KNOWN[name].layouts or find(name, data_dir) is not None


def find(name: str, data_dir: Path) -> tuple[Layout, Path] | None:
    """The first layout of dataset `name` whose files all exist in a folder of `data_dir`, or in `data_dir` itself.

    MNIST and its relatives share their file names. For these, `data_dir` itself counts only if it is named like one of the
    layout's folders; otherwise Fashion-MNIST could be read as MNIST.

    Returns:
        The layout and the folder; None if not found.
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
    """Find dataset `name`, downloading and unpacking missing files.

    Args:
        name: a key of `KNOWN`.
        data_dir: where to look and to download to.
        options: uses `download`, `verify` and `progress`.
        extra: additional files to get.

    Returns:
        The layout and its folder.

    Raises:
        DataError: if a file is missing and cannot be downloaded, or has the wrong checksum.
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
        # A layout of single files: fetch only the missing ones.
        members = zip(layout.remote, layout.members, strict=True)
        missing = [remote for remote, member in members if member_path(home, member) is None]
        for i, remote in enumerate(missing):
            fetch(remote, home, download=options.download, progress=options.progress, others=missing[i + 1 :])
        return home
    if home.exists():
        absent = [member for member in layout.members if member_path(home, member) is None]
        raise DataError(
            f"{home} is incomplete, these files are missing:\n{examples(absent)}\n"
            "Add them, or delete the folder to have the archive unpacked again"
        )
    for remote in archives:
        unpack(fetch(remote, data_dir, download=options.download, progress=options.progress), home)
    return home


def unpack(archive: Path, home: Path) -> None:
    """Unpack the folder named like `home` from `archive`, atomically.

    Raises:
        DataError: if the archive is damaged or has no such folder.
    """
    scratch = Path(tempfile.mkdtemp(prefix=f"{home.name}.part-", dir=archive.parent))
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        if not (scratch / home.name).is_dir():
            raise DataError(
                f"{archive}: got an archive with no folder {home.name!r} inside, expected the official archive"
            )
        home.parent.mkdir(parents=True, exist_ok=True)
        os.replace(scratch / home.name, home)
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{archive}: cannot be unpacked ({error}); delete it and download it again") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _verify(layout: Layout, folder: Path, extra: tuple[RemoteFile, ...]) -> None:
    """Check files against the catalog's checksums; an archive is expected next to its unpacked folder."""
    for remote in (*layout.remote, *extra):
        path = folder.parent / remote.name if remote.is_archive else folder / remote.name
        if not path.exists():
            raise DataError(
                f"verify: {path} is missing, and only it has an official checksum; put it there, or drop verify"
            )
        check_md5(path, remote)
    if not layout.remote:
        raise DataError(f"verify: there are no official checksums for the layout of {folder}; drop verify")


class ResumingDownloader:
    """A pooch downloader that resumes an interrupted transfer.

    Args:
        part: file for the partial download; passed to pooch when complete.
        progress: show a progress bar.
    """

    def __init__(self, part: Path, progress: bool) -> None:
        self.part = part
        self.progress = progress

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        """Download the rest of `url` to `output_file`, retrying while a broken transfer makes progress."""
        import requests

        while True:
            before = self._held()
            try:
                self._transfer(url)
                break
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
                # Retry only if something arrived; otherwise the network is down.
                if self._held() <= before:
                    raise
        os.replace(self.part, output_file)

    def _held(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _transfer(self, url: str) -> None:
        import requests

        from momatch.console.progress import CountProgress

        held = self._held()
        headers = {"Range": f"bytes={held}-"} if held else {}
        with requests.get(url, headers=headers, stream=True, timeout=30) as response:
            if response.status_code == _RANGE_NOT_SATISFIABLE:
                # Nothing left to send: the part is complete or wrong, which the checksum will tell.
                return
            response.raise_for_status()
            resumed = response.status_code == _PARTIAL_CONTENT
            start = held if resumed else 0
            length = response.headers.get("Content-Length")
            with (
                open(self.part, "ab" if resumed else "wb") as out,
                CountProgress(
                    start + int(length) if length else None,
                    label=self.part.stem,
                    unit="byte",
                    done=start,
                    enabled=self.progress,
                ) as bar,
            ):
                for block in response.iter_content(_BLOCK):
                    out.write(block)
                    bar.add(len(block))


def check_md5(path: Path, remote: RemoteFile) -> None:
    """Raise `DataError` if a file does not have its official checksum."""
    import pooch

    got = pooch.file_hash(str(path), alg="md5")
    if got != remote.md5:
        raise DataError(
            f"wrong checksum: {path} has MD5 {got}, expected {remote.md5}. The file is damaged, incomplete or another "
            f"version; delete it and download {remote.url} again"
        )


def fetch(
    remote: RemoteFile, folder: Path, *, download: bool, progress: bool, others: Sequence[RemoteFile] = ()
) -> Path:
    """The path of `remote` in `folder`, after downloading it if it does not exist.

    Args:
        remote: the file to get.
        folder: its directory.
        download: if False, raise an error instead of downloading.
        progress: show a progress bar.
        others: files needed next; listed in the error if `remote` cannot be downloaded.

    Raises:
        DataError: if the checksum is wrong, or the file cannot be downloaded; says what to download and where to put it.
    """
    import pooch
    import requests

    path = folder / remote.name
    if path.exists():
        check_md5(path, remote)
        return path
    wanted = (f"  {file.url} (about {file.megabytes} MB, MD5 {file.md5})" for file in (remote, *others))
    by_hand = "\n".join([f"Download by hand and put into {folder.absolute()}, then try again:", *wanted])
    if not download:
        raise DataError(f"{remote.name} is missing and download is off. {by_hand}")
    folder.mkdir(parents=True, exist_ok=True)
    downloader = ResumingDownloader(path.with_name(path.name + ".part"), progress)
    try:
        pooch.retrieve(remote.url, f"md5:{remote.md5}", fname=path.name, path=folder, downloader=downloader)
    except requests.RequestException as error:
        raise DataError(f"cannot download {remote.name}: {_cause(error)}. {by_hand}") from error
    except ValueError as error:
        # pooch's message has the file and both checksums.
        raise DataError(f"wrong checksum of the downloaded {remote.name}: {error} {by_hand}") from error
    return path


def _cause(error: BaseException) -> str:
    """The innermost cause in a chain of network errors."""
    while error.args and isinstance(error.args[0], BaseException):
        error = error.args[0]
    inner = getattr(error, "reason", None)
    return str(inner or error)
