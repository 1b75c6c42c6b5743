"""The examples run as they are shipped, and learn."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.trains

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_minimal_example_is_minimal():
    assert len((EXAMPLES / "minimal.py").read_text().splitlines()) <= 60


@pytest.mark.slow
def test_minimal_example_learns_and_draws(tmp_path):
    command = [sys.executable, "-W", "error", str(EXAMPLES / "minimal.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    accuracy = float(re.search(r"test accuracy\s+([\d.]+)%", done.stdout)[1])
    assert accuracy > 70
    assert (tmp_path / "out" / "latent.png").stat().st_size > 10_000
