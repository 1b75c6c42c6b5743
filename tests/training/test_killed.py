"""A run that is killed again and again ends bit for bit as the undisturbed one."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.test_fit import assert_same_run
from tests.training.test_processes import environment

KILLS = 12


@pytest.mark.slow
def test_killed_run_ends_as_the_undisturbed_one(tmp_path):
    script = Path(__file__).with_name("kill_and_resume.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(KILLS)],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    hits, folder = done.stdout.split()
    assert int(hits) == KILLS
    assert_same_run(tmp_path / "whole", Path(folder))
