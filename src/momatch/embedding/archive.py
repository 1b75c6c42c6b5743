"""The features file put together from its parts: stored members, aligned, so that they can be memory-mapped where they lie."""

import shutil
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

from momatch.data.features import ALIGNMENT

#: A member's own header, its fixed part and the sizes in 64 bits that `force_zip64` adds to it.
_HEADER = 30 + 20
#: Number of an extra field that readers pass over.
_PADDING = 0xD935
_BLOCK = 1 << 22


def write_archive(path: Path, members: Mapping[str, bytes | Path]) -> None:
    """Write a zip archive of uncompressed members, each of which begins at a multiple of `ALIGNMENT`.

    Args:
        path: of the archive; it must not matter if it is left half-written.
        members: name -> content, or the file that holds it.

    Raises:
        OSError: if it cannot be written.
    """
    with open(path, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o644 << 16
            # The padding has a header of four bytes itself.
            begin = file.tell() + _HEADER + len(name.encode()) + 4
            padding = -begin % ALIGNMENT
            info.extra = struct.pack("<HH", _PADDING, padding) + bytes(padding)
            with archive.open(info, "w", force_zip64=True) as member:
                if isinstance(content, bytes):
                    member.write(content)
                else:
                    with open(content, "rb") as source:
                        shutil.copyfileobj(source, member, _BLOCK)
