"""Photographs that are embedded once."""

from pathlib import Path

import pytest

from tests.labeling.setting import copied, embed_photographs, write_photographs


@pytest.fixture(scope="session")
def embedded_photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photographs and features; read only."""
    folder = write_photographs(tmp_path_factory.mktemp("label") / "photos")
    embed_photographs(folder)
    return folder


@pytest.fixture
def photos(embedded_photographs: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return copied(embedded_photographs, tmp_path / "photos")
