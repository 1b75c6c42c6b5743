"""What every command does first."""

import os

from momatch.cli import main as cli


def test_threads_sleep_unless_the_user_says_otherwise(monkeypatch):
    for given, expected in (
        ({}, "1000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, None),
    ):
        for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setitem(cli.COMMANDS, "data", lambda argv: 0)
        assert cli.main(["data"]) == 0
        assert os.environ.get("GOMP_SPINCOUNT") == expected
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
