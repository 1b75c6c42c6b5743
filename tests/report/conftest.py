"""A run that is trained once, for tests that read it or damage a copy of it."""

import shutil
from pathlib import Path

import pytest

from tests.report.small_runs import train


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on a small dataset beside it; read only."""
    return train(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def run_copy(trained_run: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(trained_run, tmp_path / "run"))
