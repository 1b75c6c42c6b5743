"""Which embedded image each row of a manifest means: by content if its file is there, else by name, but never by a guess.

A name that is not the whole path counts only if one row and one image fit each other and nothing else: photographs of
different days often have the same name, and the label of one that was deleted must not go to another.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from momatch.data.report import DataError


@dataclass(frozen=True)
class KnownImage:
    """An embedded image.

    Attributes:
        file: its name now, relative to the folder of the images.
        embedded: its name when it was embedded.
        digest: of its content.
    """

    file: str
    embedded: str
    digest: bytes


@dataclass(frozen=True)
class ListedRow:
    """A row of a manifest.

    Attributes:
        line: where it is.
        file: the path as written.
        digest: of the content of the file; None if it is not there.
    """

    line: int
    file: str
    digest: bytes | None


@dataclass
class Matches:
    """What rows mean.

    Attributes:
        rows: number of an image -> number of the row that means it.
        by_old_name: images that are meant by less than their path of today.
        unknown: numbers of rows that mean no embedded image.
    """

    rows: dict[int, int] = field(default_factory=dict)
    by_old_name: set[int] = field(default_factory=set)
    unknown: list[int] = field(default_factory=list)


def match_rows(
    rows: Sequence[ListedRow], images: Sequence[KnownImage], *, manifest: Path, folder: Path | None
) -> Matches:
    """Find the image that each row means.

    Args:
        rows: of the manifest.
        images: those that are embedded.
        manifest: where the rows are from.
        folder: what the names of images are relative to; None if it is not there any more.

    Raises:
        DataError: if a row has so little of a path that several images fit it.
    """
    found = Matches()
    left = _by_content(rows, images, found)
    has_files = any(row.digest is not None for row in rows)
    inside = {number: _inside(rows[number].file, manifest, folder) if has_files else None for number in left}
    names = {number: inside[number] or _normal(rows[number].file) for number in left}
    for how in ("file", "embedded"):
        place = {_normal(getattr(image, how)): number for number, image in enumerate(images)}
        for number in left.copy():
            image = place.get(names[number])
            if image is not None and image not in found.rows:
                found.rows[image] = number
                left.remove(number)
                if how == "embedded" and names[number] != _normal(images[image].file):
                    found.by_old_name.add(image)
    # A row that names a place in the folder where there is no file means a file that is gone.
    found.unknown += [number for number in left if inside[number] is not None]
    _by_part([number for number in left if inside[number] is None], rows, images, manifest, found)
    return found


def _by_content(rows: Sequence[ListedRow], images: Sequence[KnownImage], found: Matches) -> list[int]:
    """Match the rows whose files are there; returns the others. Of copies, a row means the one whose path is most alike."""
    copies: dict[bytes, list[int]] = defaultdict(list)
    for number, image in enumerate(images):
        copies[image.digest].append(number)
    others = []
    for number, row in enumerate(rows):
        if row.digest is None:
            others.append(number)
            continue
        free = [image for image in copies.get(row.digest, ()) if image not in found.rows]
        if free:
            found.rows[max(free, key=lambda image: _common(row.file, images[image].file))] = number
        else:
            found.unknown.append(number)
    return others


def _by_part(
    left: Sequence[int], rows: Sequence[ListedRow], images: Sequence[KnownImage], manifest: Path, found: Matches
) -> None:
    """Match the rows whose path ends with that of an image, or the other way round, if both fit nothing else."""
    has_whole_paths = bool(found.rows)
    named: dict[str, list[int]] = defaultdict(list)
    for number, image in enumerate(images):
        if number not in found.rows:
            named[_parts(image.file)[0]].append(number)
    wanted: dict[int, list[int]] = defaultdict(list)
    for number in left:
        file = rows[number].file
        # Beside rows with the paths that images have, a longer one means another place.
        longest = len(_parts(file)) if has_whole_paths and not os.path.isabs(file) else None
        fits = [image for image in named.get(_parts(file)[0], ()) if _ends_alike(file, images[image].file, longest)]
        most = max((_common(file, images[image].file) for image in fits), default=0)
        best = [image for image in fits if _common(file, images[image].file) == most]
        if len(best) > 1 and not has_whole_paths:
            raise DataError(
                f"{manifest}: line {rows[number].line}: got {file}, which fits {len(best)} embedded images, expected more of "
                "its path"
            )
        if len(best) == 1:
            wanted[best[0]].append(number)
        else:
            found.unknown.append(number)
    for place, numbers in wanted.items():
        if len(numbers) == 1:
            found.rows[place] = numbers[0]
            found.by_old_name.add(place)
        else:
            found.unknown += numbers


def _ends_alike(file: str, other: str, longest: int | None) -> bool:
    """Whether one path is the end of the other; `longest`: the least components that the other must have."""
    components = len(_parts(other))
    return _common(file, other) == min(len(_parts(file)), components) and (longest is None or longest <= components)


def _common(file: str, other: str) -> int:
    """How many components two paths have in common, from the end."""
    pairs = zip(_parts(file), _parts(other), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _parts(file: str) -> list[str]:
    """The components of a path, the last one first."""
    return [part for part in reversed(_normal(file).split("/")) if part] or [""]


def _normal(file: str) -> str:
    return os.path.normpath(file).replace("\\", "/")


def _inside(file: str, manifest: Path, folder: Path | None) -> str | None:
    """The path of a row relative to the folder of the images; None if it is elsewhere."""
    if folder is None:
        return None
    path = os.path.relpath(os.path.join(os.path.realpath(manifest.parent), file), os.path.realpath(folder))
    return None if _normal(path).split("/")[0] == ".." else _normal(path)
