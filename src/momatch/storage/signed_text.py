"""Text files that we write and the user may edit: a mark at the end tells whether the file is still ours to replace."""

import hashlib
import re
from pathlib import Path

_MARK = re.compile(r"<!-- written by momatch; edit it and it stays as it is \(sha256 ([0-9a-f]{64})\) -->\n\Z")


def sign(text: str) -> str:
    """The text with the mark, which is a comment in Markdown and HTML."""
    digest = hashlib.sha256(_bytes(text)).hexdigest()
    return f"{text}<!-- written by momatch; edit it and it stays as it is (sha256 {digest}) -->\n"


def may_replace(path: Path) -> bool:
    """True if there is no file, or one that is as momatch wrote it.

    Raises:
        OSError: if it cannot be read.
    """
    try:
        text = path.read_bytes().decode(errors="surrogateescape")
    except FileNotFoundError:
        return True
    mark = _MARK.search(text)
    return mark is not None and hashlib.sha256(_bytes(text[: mark.start()])).hexdigest() == mark[1]


def _bytes(text: str) -> bytes:
    return text.encode(errors="backslashreplace")
