"""Ctrl-C and SIGTERM at known points of a command: a sentence and the right exit code, never a traceback."""

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import pytest

import momatch
from momatch.cli import main as cli
from momatch.console.signals import Interrupted, command_signals

CODES = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


def run_script(tmp_path, body):
    """Run Python code in a process of its own, in which `send` signals that process."""
    script = "import os, signal, sys\n" + textwrap.dedent(body)
    environment = {**os.environ, "PYTHONPATH": str(Path(momatch.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("module", "number", "code"),
    [("tyro", signal.SIGINT, 130), ("torch._C", signal.SIGINT, 130), ("momatch.training.fit", signal.SIGTERM, 143)],
)
def test_a_signal_while_importing(tmp_path, module, number, code):
    done = run_script(
        tmp_path,
        f"""
        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == {module!r}:
                    os.kill(os.getpid(), {int(number)})

        sys.meta_path.insert(0, Finder())
        sys.argv = ["momatch", "train", "--run-dir", "run"]
        from momatch.cli.main import main
        sys.exit(main())
        """,
    )
    assert done.returncode == code
    assert done.stderr == "momatch train: interrupted\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("number", "code", "more"), [(signal.SIGINT, 130, 1), (signal.SIGTERM, 143, 3)])
def test_many_signals(tmp_path, number, code, more):
    """The first asks to stop and save, the second stops at once; those that come while it ends do no harm."""
    done = run_script(
        tmp_path,
        f"""
        import atexit
        from momatch.cli.main import main
        from momatch.storage.run_directory import RunDirectory
        from momatch.training.step import TrainStep

        def send(*_):
            os.kill(os.getpid(), {int(number)})

        close = RunDirectory.close

        def interrupted_step(self, *arguments, **options):
            send()
            send()
            raise AssertionError("the second signal stops at once")

        def interrupted_close(self):
            for _ in range({more}):
                send()
            close(self)

        TrainStep.__call__ = interrupted_step
        RunDirectory.close = interrupted_close
        atexit.register(send)
        sys.argv = ["momatch", "train", "--run-dir", "run", "--no-progress", "--steps", "3"]
        sys.exit(main())
        """,
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "stopping after this step" in done.stderr
    assert "momatch train: stopping; press Ctrl-C again to quit at once" in done.stderr
    assert done.stderr.endswith("momatch train: interrupted\n")


def test_a_signal_after_the_command_changes_nothing(tmp_path):
    done = run_script(
        tmp_path,
        """
        import atexit
        from momatch.cli.main import main

        atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
        sys.argv = ["momatch", "train", "--print-config"]
        sys.exit(main())
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("number", "code"), CODES)
def test_a_signal_in_a_command(monkeypatch, capsys, number, code):
    before = [signal.getsignal(number) for number, _ in CODES]
    monkeypatch.setitem(cli.COMMANDS, "data", lambda argv: os.kill(os.getpid(), number))
    assert cli.main(["data"]) == code
    assert capsys.readouterr().err == "momatch data: interrupted\n"
    assert [signal.getsignal(number) for number, _ in CODES] == before


@contextmanager
def closing(closed):
    try:
        yield
    finally:
        closed.append(True)


def test_what_is_open_is_closed_at_the_first_signal():
    closed = []
    with pytest.raises(Interrupted), command_signals("data", ends_process=False), closing(closed):
        os.kill(os.getpid(), signal.SIGTERM)
    assert closed == [True]
