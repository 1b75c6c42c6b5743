"""Photographs that are embedded once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.labeling.setting import copied, embed_photographs, write_photographs


@pytest.fixture(scope="package", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Caches of these tests alone: nobody else's run fills, locks or damages them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOMATCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="package")
def embedded_photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photographs and features; read only."""
    folder = write_photographs(tmp_path_factory.mktemp("label") / "photos")
    embed_photographs(folder)
    return folder


@pytest.fixture
def photos(embedded_photographs: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return copied(embedded_photographs, tmp_path / "photos")
