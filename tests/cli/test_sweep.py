"""``momatch sweep`` from its arguments to its tables, with runs of two steps in this process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from momatch.cli.main import main
from momatch.cli.sweep import read_overrides
from momatch.config.layers import FlagError
from momatch.sweep.record import read_record
from tests.sweep.sweeping import TINY, Inline
from tests.training.test_processes import environment


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with the grid tiny.toml, whose runs are carried out in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setenv("MOMATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("momatch.sweep.launch.LocalLauncher", Inline)
    Path("tiny.toml").write_text(TINY)
    return tmp_path


def sweep(*arguments):
    return main(["sweep", *arguments])


def test_sweep_then_nothing_is_left_to_do(capsys):
    assert sweep("tiny.toml", "--seeds", "0", "--out", "o", "--runs", "r") == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [f"o/digits/tiny{end}" for end in (".md", ".tex", ".csv", "-summary.csv")]
    assert "3 of 3: tiny: k, 1st, seed 0: accuracy" in shown.err
    record = read_record(Path("o/digits/tiny.json"))
    assert [outcome.error for outcome in record.outcomes] == [None] * 3
    assert record.environment["command"] == "momatch sweep tiny.toml --seeds 0 --out o --runs r"
    assert all((Path("r") / outcome.run / "result.json").exists() for outcome in record.outcomes)
    before = Path("o/digits/tiny.json").read_bytes()
    assert sweep("tiny.toml", "--seeds", "0", "--out", "o", "--runs", "r") == 0
    assert "of 3" not in capsys.readouterr().err
    assert Path("o/digits/tiny.json").read_bytes() == before


def test_finished_runs_are_taken_over_without_their_record(monkeypatch, capsys):
    assert sweep("tiny.toml", "--seeds", "0") == 0
    before = read_record(Path("sweeps/digits/tiny.json")).outcomes
    Path("sweeps/digits/tiny.json").unlink()
    monkeypatch.setattr(Inline, "__call__", lambda self, job: pytest.fail("it was finished"))
    assert sweep("tiny.toml", "--seeds", "0") == 0
    assert read_record(Path("sweeps/digits/tiny.json")).outcomes == before


def test_failed_run_is_named_and_tried_again(capsys):
    names = [f"digits-4-{kind}-flexmatch-seed0-" for kind in ("aagmm-8d-order0", "aagmm-8d-order1")]
    assert sweep("tiny.toml", "--seeds", "0", "--dry-run") == 0
    (name,) = [word for word in capsys.readouterr().out.split() if word.startswith(names[1])]
    foreign = Path("runs") / name / "mine.txt"
    foreign.parent.mkdir(parents=True)
    foreign.touch()
    assert sweep("tiny.toml", "--seeds", "0") == 1
    error = capsys.readouterr().err
    assert "momatch sweep: error: 1 of 3 runs failed" in error
    assert f"  tiny: a, 1st, seed 0 ({name}): runs/{name}: got a directory with 'mine.txt'" in error
    states = [outcome.error is None for outcome in read_record(Path("sweeps/digits/tiny.json")).outcomes]
    assert states == [True, False, True]
    foreign.unlink()
    assert sweep("tiny.toml", "--seeds", "0") == 0
    assert "3 of 3: tiny: a, 1st, seed 0: accuracy" in capsys.readouterr().err


def test_run_of_other_settings_in_the_way_fails_alone(capsys):
    assert sweep("tiny.toml", "--seeds", "0") == 0
    config = next(Path("runs").glob("*kmeans*")) / "config.json"
    config.write_text(config.read_text().replace('"lr": 0.1', '"lr": 0.7'))
    assert sweep("tiny.toml", "--seeds", "0") == 1
    assert "holds a run with other settings (lr: 0.7 there, 0.1 here)" in capsys.readouterr().err


def test_dry_run_says_what_is_done_and_changes_nothing(capsys, place):
    assert sweep("tiny.toml", "--seeds", "0") == 0
    (next(Path("runs").glob("*kmeans*")) / "result.json").unlink()
    capsys.readouterr()
    before = sorted(place.rglob("*"))
    assert sweep("tiny.toml", "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "6 runs: 2 done, 1 unfinished, 3 new"
    assert any(line.startswith("unfinished  ") and line.endswith("(step 2 of 2)") for line in lines)
    assert sorted(place.rglob("*")) == before


def test_settings_on_top_and_their_record(capsys):
    assert sweep("tiny.toml", "--seeds", "0", "--set", "log_interval=1", "--set", "lr=0.05") == 0
    record = read_record(Path("sweeps/digits/tiny.json"))
    assert record.overrides == {"log_interval": 1, "lr": 0.05}
    assert {outcome.settings["lr"] for outcome in record.outcomes} == {0.05}
    assert sweep("tiny.toml", "--seeds", "0") == 1
    assert "got no --set, but this record was made with --set log_interval=1 --set lr=0.05" in capsys.readouterr().err


def test_data_that_cannot_be_had_fails_its_runs_before_anything_is_started(monkeypatch, capsys):
    def obtain(name, root, options):
        raise ValueError("no network")

    monkeypatch.setattr("momatch.sweep.sweep.obtain", obtain)
    monkeypatch.setattr(Inline, "__call__", lambda self, job: pytest.fail("started"))
    assert sweep("tiny.toml", "--seeds", "0", "--preset", "mnist-cpu", "--data-dir", "nothing") == 1
    assert capsys.readouterr().err.count("no network") == 2 * 3, "a line each while it goes on, and one at the end"


def test_two_sweeps_do_not_write_one_record(capsys):
    from filelock import FileLock

    Path("sweeps/digits").mkdir(parents=True)
    with FileLock("sweeps/digits/.sweep.lock"):
        assert sweep("tiny.toml") == 1
    assert "in use by another sweep" in capsys.readouterr().err


def test_outliers_not_at_hand_are_said(capsys):
    Path("odd.toml").write_text('outliers = ["mnist"]\n' + TINY)
    assert sweep("odd.toml", "--data-dir", "nothing", "--dry-run") == 0
    assert capsys.readouterr().err.count("no outliers from mnist: not in nothing") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["tabel1"], 2, "did you mean 'table1'"),
        (["tiny.toml", "--preset", "digit"], 2, "did you mean 'digits'"),
        (["tiny.toml", "--workers", "0"], 2, "--workers: got 0, expected at least 1"),
        (["tiny.toml", "--threads", "-1"], 2, "--threads: got -1"),
        (["tiny.toml", "--seeds", "1", "1"], 2, "--seeds: got 1 1"),
        (["tiny.toml", "--seeds", "-1"], 1, "seed: got -1"),
        (["tiny.toml", "--set", "steps"], 2, "--set: got 'steps', expected KEY=VALUE"),
        (["tiny.toml", "--set", "stepz=3"], 1, "did you mean 'steps'"),
        (["--results", "page.md"], 2, "write the results page with: python -m reproduction.results PAGE --records DIR"),
        ([], 2, "GRID: got none, expected"),
        (["--dry-run"], 2, "the path of a .toml file"),
        (["tiny.toml", "tiny.toml"], 2, "'tiny' twice"),
        (["tiny.toml", "--dry-run", "--runs", "tiny.toml"], 2, "--runs: got tiny.toml, which is a file"),
        (["missing.toml"], 1, "missing.toml: got no such file"),
    ],
)
def test_wrong_arguments(arguments, code, message, capsys):
    assert sweep(*arguments) == code
    assert message in capsys.readouterr().err


def test_unknown_metric_is_refused_before_the_work(capsys):
    Path("odd.toml").write_text(TINY.replace("accuracy", "acuracy"))
    assert sweep("odd.toml") == 1
    assert "odd.toml: metrics: got the unknown metric 'acuracy'; did you mean 'accuracy'" in capsys.readouterr().err


def test_values_of_set():
    words = [
        "steps=20",
        "lr=1e-2",
        "refit=false",
        "head=linear",
        "held-out-classes=6",
        "moment_order=None",
        "dataset=a=b",
    ]
    assert read_overrides([*words, 'algorithm="flexmatch"']) == {
        "steps": 20,
        "lr": 0.01,
        "refit": False,
        "head": "linear",
        "held_out_classes": "6",
        "moment_order": None,
        "dataset": "a=b",
        "algorithm": "flexmatch",
    }
    with pytest.raises(FlagError):
        read_overrides(["=3"])


@pytest.mark.parametrize("arguments", [["--help"], ["tiny.toml", "--dry-run"]], ids=["help", "plan"])
def test_own_process_does_not_import_torch(arguments):
    """The peak memory of a child is counted from its parent's, so what starts the runs stays small."""
    code = (
        "import sys, contextlib\nfrom momatch.cli.main import main\n"
        f"with contextlib.suppress(SystemExit):\n    main(['sweep', *{arguments}])\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
        "import momatch.sweep.launch, momatch.sweep.sweep\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    assert {"--help": "table1", "tiny.toml": "6 runs: 6 new"}[arguments[0]] in done.stdout


def lines_of_metrics():
    return sum(len(path.read_text().splitlines()) for path in Path("runs").glob("*/metrics.jsonl"))


def workers():
    """The worker processes of this folder's runs."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if "momatch.sweep.worker" in (path / "cmdline").read_text() and (path / "cwd").resolve() == Path.cwd():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def wait_for(condition, seconds=240):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
def test_killed_and_interrupted_sweep_goes_on():
    """SIGKILL: no worker stays. SIGINT: all is saved. Then the rest is done, from where it was."""
    two_runs = TINY.replace('"k" = { head = "kmeans", columns = ["1st"] }\n', "")
    Path("tiny.toml").write_text(two_runs.replace("steps = 2", "steps = 100"))
    settings = ["--set", "log_interval=5", "--set", "checkpoint_interval=5"]
    command = [sys.executable, "-m", "momatch", "sweep", "tiny.toml", "--seeds", "0", "--workers", "2", *settings]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment()}

    process = subprocess.Popen(command, **pipes)
    wait_for(lambda: lines_of_metrics() >= 2)
    process.kill()
    process.communicate()
    wait_for(lambda: not workers(), 60)

    process = subprocess.Popen(command, **pipes)
    before = lines_of_metrics()
    wait_for(lambda: lines_of_metrics() > before + 2)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "resume with: momatch sweep tiny.toml --seeds 0" in error
    assert not workers()

    done = subprocess.run(command, timeout=500, check=False, **pipes)
    assert done.returncode == 0, done.stderr
    record = read_record(Path("sweeps/digits/tiny.json"))
    assert [outcome.result["steps"] for outcome in record.outcomes] == [100] * 2
    assert any("resumed at step" in path.read_text() for path in Path("runs").glob("*/run.log"))
    assert not Path("sweeps/digits/workers").exists()
    assert json.loads(Path("sweeps/digits/tiny.json").read_text())["format"] == "momatch sweep"
