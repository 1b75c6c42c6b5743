"""One official file from its site: fetched by pooch, checked by its MD5, resumed where a transfer broke off.

pooch downloads to a temporary name, compares the checksum and only then gives the file its name, so half a file is never taken
for a whole one; but it forgets what a broken transfer had already brought. `ResumingDownloader` keeps that in ``NAME.part`` and
asks the server for the rest (HTTP Range). A server that does not know ranges sends the whole file again.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from momatch.data.catalog import RemoteFile
from momatch.data.report import DataError

#: Small, because what a broken transfer brought of its last block is lost.
_BLOCK = 1 << 14
_PARTIAL_CONTENT = 206
_RANGE_NOT_SATISFIABLE = 416


class ResumingDownloader:
    """A pooch downloader that goes on where an earlier transfer of the same file ended.

    Args:
        part: what has arrived so far; handed to pooch when it is whole.
        progress: show a progress bar.
    """

    def __init__(self, part: Path, progress: bool) -> None:
        self.part = part
        self.progress = progress

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        """Bring the rest of `url` and give it to pooch as `output_file`; a transfer that breaks off is taken up again."""
        import requests

        while True:
            before = self._held()
            try:
                self._transfer(url)
                break
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
                # Worth another try only if something arrived; otherwise the network is down.
                if self._held() <= before:
                    raise
        os.replace(self.part, output_file)

    def _held(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _transfer(self, url: str) -> None:
        import requests
        from tqdm import tqdm

        held = self._held()
        headers = {"Range": f"bytes={held}-"} if held else {}
        with requests.get(url, headers=headers, stream=True, timeout=30) as response:
            if response.status_code == _RANGE_NOT_SATISFIABLE:
                # Nothing is left to send: the part is whole, or wrong. The checksum tells which.
                return
            response.raise_for_status()
            resumed = response.status_code == _PARTIAL_CONTENT
            start = held if resumed else 0
            length = response.headers.get("Content-Length")
            with (
                open(self.part, "ab" if resumed else "wb") as out,
                tqdm(
                    desc=self.part.stem,
                    total=start + int(length) if length else None,
                    initial=start,
                    unit="B",
                    unit_scale=True,
                    disable=not self.progress,
                ) as bar,
            ):
                for block in response.iter_content(_BLOCK):
                    out.write(block)
                    bar.update(len(block))


def check_md5(path: Path, remote: RemoteFile) -> None:
    """Compare a file with its official checksum.

    Raises:
        DataError: naming the file, the expected and the found checksum.
    """
    import pooch

    got = pooch.file_hash(str(path), alg="md5")
    if got != remote.md5:
        raise DataError(
            f"wrong checksum: {path} has MD5 {got}, expected {remote.md5}. The file is damaged, incomplete or another "
            f"version; remove it and fetch {remote.url} again"
        )


def fetch(
    remote: RemoteFile, folder: Path, *, download: bool, progress: bool, others: Sequence[RemoteFile] = ()
) -> Path:
    """The path of `remote` in `folder`: the file that is there if its checksum is right, else downloaded.

    Args:
        remote: what is wanted.
        folder: where it is, or goes to.
        download: False to refuse instead of downloading.
        progress: show a progress bar.
        others: what will be wanted next; named too when `remote` cannot be fetched.

    Raises:
        DataError: if the checksum is wrong, or if the file cannot be downloaded: which file to fetch and where to put it.
    """
    import pooch
    import requests

    path = folder / remote.name
    if path.exists():
        check_md5(path, remote)
        return path
    wanted = (f"  {file.url} (about {file.megabytes} MB, MD5 {file.md5})" for file in (remote, *others))
    by_hand = "\n".join([f"Fetch by other means and put into {folder.absolute()}, then try again:", *wanted])
    if not download:
        raise DataError(f"{remote.name} is not there and download is off. {by_hand}")
    folder.mkdir(parents=True, exist_ok=True)
    downloader = ResumingDownloader(path.with_name(path.name + ".part"), progress)
    try:
        pooch.retrieve(remote.url, f"md5:{remote.md5}", fname=path.name, path=folder, downloader=downloader)
    except requests.RequestException as error:
        raise DataError(f"cannot download {remote.name}: {_cause(error)}. {by_hand}") from error
    except ValueError as error:
        # pooch's own message gives the file, the expected and the found checksum.
        raise DataError(f"wrong checksum of the downloaded {remote.name}: {error} {by_hand}") from error
    return path


def _cause(error: BaseException) -> str:
    """The innermost reason of a chain of network errors, in a few words."""
    while error.args and isinstance(error.args[0], BaseException):
        error = error.args[0]
    inner = getattr(error, "reason", None)
    return str(inner or error)
