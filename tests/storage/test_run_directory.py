import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
import torch

from momatch.config import TrainConfig
from momatch.storage.checkpoint import load_newest, save_checkpoint
from momatch.storage.run_config import is_run
from momatch.storage.run_directory import RunDirectory
from tests.training.faults import CHANGING, WRITING, Killed, every_moment, fill, no_space, small_disk

CONFIG = TrainConfig(seed=3, lr=0.1 + 0.2, data_dir="Käse").resolved()
OTHER = TrainConfig(seed=4).resolved()


def make(path, *, finished=False):
    """A run with a bit of everything."""
    with RunDirectory.create(path, CONFIG) as run:
        for step in (20, 40):
            run.append_metrics({"step": step, "loss": 1 / step})
        save_checkpoint(run.checkpoints, 40, {"weight": torch.ones(2)}, {})
        run.log("started")
        (path / "model.json").touch()
        (path / "model.safetensors").touch()
        run.tensorboard.mkdir()
        (run.tensorboard / "events.out.tfevents.1.host").touch()
        if finished:
            run.write_result({"test_accuracy": 0.5})


def names(path):
    return sorted(entry.name for entry in path.iterdir())


def test_created_empty_and_read_back(tmp_path):
    path = tmp_path / "runs" / "a"
    with RunDirectory.create(path, CONFIG) as run:
        assert run.config == CONFIG
        assert run.read_metrics() == []
        assert run.read_result() is None
        assert not run.finished
    assert names(path) == ["config.json", "run.lock"]
    with RunDirectory.open(path) as run:
        assert run.config == CONFIG


def test_config_is_readable_and_marked(tmp_path):
    RunDirectory.create(tmp_path, CONFIG).close()
    text = (tmp_path / "config.json").read_text("utf-8")
    assert '\n    "seed": 3,\n' in text
    assert "Käse" in text
    content = json.loads(text)
    assert (content["format"], content["version"]) == ("momatch run", 1)
    assert content["config"] == CONFIG.to_dict()
    assert is_run(tmp_path)


def test_metrics_are_strict_json_lines_that_are_there_at_once(tmp_path):
    with RunDirectory.create(tmp_path, CONFIG) as run:
        run.append_metrics({"step": 1, "loss": float("nan"), "per_class": [0.1, float("inf")], "note": "ä"})
        lines = (tmp_path / "metrics.jsonl").read_text("utf-8")
        assert lines == '{"step": 1, "loss": null, "per_class": [0.1, null], "note": "ä"}\n'
        run.append_metrics({"step": 2, "loss": 0.1 + 0.2})
        run.sync()
        assert RunDirectory(tmp_path).read_metrics()[1] == {"step": 2, "loss": 0.1 + 0.2}
        with pytest.raises(ValueError, match="metrics: got step None"):
            run.append_metrics({"loss": 1.0})


def test_metrics_are_truncated_to_a_step(tmp_path):
    with RunDirectory.create(tmp_path, CONFIG) as run:
        for step in (20, 40, 60):
            run.append_metrics({"step": step})
        run.truncate_metrics(40)
        assert [line["step"] for line in run.read_metrics()] == [20, 40]
        run.append_metrics({"step": 50})
        assert [line["step"] for line in run.read_metrics()] == [20, 40, 50]
        run.truncate_metrics(0)
        assert run.read_metrics() == []
        run.append_metrics({"step": 1})
        assert run.read_metrics() == [{"step": 1}]


def test_metrics_that_are_not_there_may_be_truncated(tmp_path):
    with RunDirectory.create(tmp_path, CONFIG) as run:
        run.truncate_metrics(10)
        assert run.read_metrics() == []


@pytest.mark.parametrize("torn", ['{"step": 60, "lo', '{"step": 60}', "\0\0\0", '{"step": 60, "lo\0\0\n', "7\n"])
def test_a_torn_last_line_is_left_out(tmp_path, torn):
    make(tmp_path / "a")
    metrics = tmp_path / "a" / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(whole + torn)
    with RunDirectory.open(tmp_path / "a") as run:
        assert [line["step"] for line in run.read_metrics()] == [20, 40]
        run.truncate_metrics(40)
        assert metrics.read_text() == whole


def test_a_line_is_never_appended_to_a_torn_one(tmp_path):
    make(tmp_path / "a")
    with open(tmp_path / "a" / "metrics.jsonl", "a") as file:
        file.write('{"step": 60, "lo')
    with RunDirectory.open(tmp_path / "a") as run:
        run.append_metrics({"step": 60})
        assert [line["step"] for line in run.read_metrics()] == [20, 40, 60]


def test_damage_before_the_last_line_is_named(tmp_path):
    make(tmp_path / "a")
    metrics = tmp_path / "a" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text(lines[0] + "%\n" + lines[1])
    with RunDirectory.open(tmp_path / "a") as run:
        with pytest.raises(ValueError, match=r"metrics.jsonl: line 2 is damaged; delete that line"):
            run.read_metrics()
        with pytest.raises(ValueError, match="line 2 is damaged"):
            run.truncate_metrics(40)
        run.truncate_metrics(20)  # nothing that is to stay is damaged
        assert [line["step"] for line in run.read_metrics()] == [20]


def test_the_result_finishes_the_run(tmp_path):
    with RunDirectory.create(tmp_path, CONFIG) as run:
        run.write_result({"test_accuracy": 1 / 3, "ece": float("nan")})
        assert run.finished
        assert run.read_result() == {"test_accuracy": 1 / 3, "ece": None}
    assert (tmp_path / "result.json").read_text() == '{\n  "test_accuracy": 0.3333333333333333,\n  "ece": null\n}\n'


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": NaN}', "\udcff", "[" * 100_000])
def test_a_damaged_result_is_an_error(tmp_path, content):
    RunDirectory.create(tmp_path, CONFIG).close()
    (tmp_path / "result.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=r"result.json: .*the file is damaged"):
        RunDirectory(tmp_path).read_result()
    assert RunDirectory(tmp_path).finished, "a finished run is not overwritten because a bit flipped"


def test_the_log_has_a_line_and_a_time_for_each_entry(tmp_path):
    with RunDirectory.create(tmp_path, CONFIG) as run:
        run.log("step 1")
        run.log("two\nlines, \udc80")
    lines = (tmp_path / "run.log").read_text("utf-8").splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d step 1", lines[0])
    assert lines[1].endswith(r" two | lines, \udc80")


def test_an_existing_run_is_not_overwritten_unasked(tmp_path):
    make(tmp_path / "finished run", finished=True)
    make(tmp_path / "unfinished")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"a finished run with the same settings; .*--run-dir.*--overwrite.*new since"):
        RunDirectory.create(tmp_path / "finished run", CONFIG)
    with pytest.raises(
        ValueError, match="an unfinished run with the same settings; resume it with: momatch train --resume"
    ):
        RunDirectory.create(tmp_path / "unfinished", CONFIG)
    for name in ("finished run", "unfinished"):
        with pytest.raises(
            ValueError, match=r"holds another run \(.* there and .* here\); choose another run_dir"
        ) as caught:
            RunDirectory.create(tmp_path / name, OTHER)
        assert "overwrite" not in str(caught.value)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_overwriting_deletes_the_run_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    make(path, finished=True)
    (path / "report.html").touch()
    (path / "notes.txt").write_text("mine")
    (path / "checkpoints" / "mine").touch()
    RunDirectory.create(path, OTHER, overwrite=True).close()
    assert names(path) == ["checkpoints", "config.json", "notes.txt", "run.lock"]
    assert names(path / "checkpoints") == ["mine"]
    assert RunDirectory(path).config == OTHER


def test_overwriting_nothing_is_creating(tmp_path):
    RunDirectory.create(tmp_path / "a", CONFIG, overwrite=True).close()
    assert RunDirectory(tmp_path / "a").config == CONFIG


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("content", ['{"model_type": "bert"}', "{", "", "[]", '{"format": "momatch model"}'])
def test_what_is_no_run_is_refused(tmp_path, overwrite, content):
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(ValueError, match=r"got a directory with 'photo.jpg' that is not a run, expected an empty one"):
        RunDirectory.create(tmp_path, CONFIG, overwrite=overwrite)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config.json: .*(another kind|damaged)"):
        RunDirectory.create(tmp_path, CONFIG, overwrite=overwrite)
    with pytest.raises(ValueError, match=r"config.json: .*(another kind|damaged)"):
        RunDirectory.open(tmp_path)
    with pytest.raises(ValueError, match="got a file, expected a directory"):
        RunDirectory.create(tmp_path / "photo.jpg", CONFIG, overwrite=overwrite)
    assert names(tmp_path) == ["config.json", "photo.jpg"]
    assert (tmp_path / "config.json").read_text() == content


def test_a_config_of_another_release(tmp_path):
    RunDirectory.create(tmp_path, CONFIG).close()
    path = tmp_path / "config.json"
    text = path.read_text("utf-8")
    path.write_text(text.replace('"version": 1', '"version": 2').replace('"momatch": "', '"momatch": "9.'), "utf-8")
    with pytest.raises(ValueError, match=r"got format version 2, expected 1; it was written by momatch 9\."):
        RunDirectory.open(tmp_path)
    path.write_text(text.replace('"seed"', '"sede"'), "utf-8")
    with pytest.raises(ValueError, match=r"config.json: got the unknown key 'sede'; did you mean 'seed'"):
        RunDirectory.open(tmp_path)
    RunDirectory.create(tmp_path, OTHER, overwrite=True).close()  # it is a run, if not one to go on with


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_there_is_nothing_to_resume(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="no run to resume; start one without resume"):
        RunDirectory.open(tmp_path / name)
    assert names(tmp_path / "empty") == []


def test_writing_needs_the_lock(tmp_path):
    RunDirectory.create(tmp_path, CONFIG).close()
    run = RunDirectory(tmp_path)
    for write in (
        lambda: run.append_metrics({"step": 1}),
        lambda: run.truncate_metrics(1),
        lambda: run.write_result({}),
        lambda: run.log("text"),
    ):
        with pytest.raises(ValueError, match="open for reading"):
            write()
    assert names(tmp_path) == ["config.json", "run.lock"]


#: Another process on the same run; it does not wait for torch.
HOLDER = """
import sys
from filelock import FileLock
lock = FileLock(sys.argv[1])
lock.acquire()
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_at_once_and_a_killed_one_blocks_nobody(tmp_path):
    make(tmp_path / "a")
    with RunDirectory.open(tmp_path / "a"), pytest.raises(OSError, match="another process is using this run"):
        RunDirectory.open(tmp_path / "a")
    command = [sys.executable, "-c", HOLDER, tmp_path / "a" / "run.lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(OSError, match="another process is using this run"):
            RunDirectory.open(tmp_path / "a")
        with pytest.raises(OSError, match="another process is using this run"):
            RunDirectory.create(tmp_path / "a", OTHER, overwrite=True)
        assert len(RunDirectory(tmp_path / "a").read_metrics()) == 2, "reading needs no lock"
        os.kill(process.pid, signal.SIGKILL)
    RunDirectory.open(tmp_path / "a").close()


def test_the_lock_file_alone_is_an_empty_directory(tmp_path):
    (tmp_path / "run.lock").touch()
    (tmp_path / ".config.json.part").write_text("{")  # a process died while it wrote its config
    with pytest.raises(ValueError, match="no run to resume"):
        RunDirectory.open(tmp_path)
    RunDirectory.create(tmp_path, CONFIG).close()
    assert names(tmp_path) == ["config.json", "run.lock"]


def test_a_failed_creation_releases_the_lock(tmp_path):
    for attempt in every_moment(WRITING, no_space, for_good=True):
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        error = attempt(lambda: RunDirectory.create(tmp_path / "a", CONFIG).close())
        if error is not None:
            assert "failed: No space left on device; there is no checkpoint yet; free some space, then" in str(error)
            if not (tmp_path / "a" / "config.json").exists():
                assert str(error).endswith("then start again")
                RunDirectory.create(tmp_path / "a", CONFIG).close()
        RunDirectory.open(tmp_path / "a").close()


def test_a_kill_at_any_moment_of_creating(tmp_path):
    for attempt in every_moment(CHANGING, Killed, for_good=True):
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        attempt(lambda: RunDirectory.create(tmp_path / "a", CONFIG).close())
        again = RunDirectory.open if is_run(tmp_path / "a") else lambda path: RunDirectory.create(path, CONFIG)
        again(tmp_path / "a").close()
        assert RunDirectory(tmp_path / "a").config == CONFIG
        assert names(tmp_path / "a") == ["config.json", "run.lock"]


def test_a_kill_at_any_moment_of_overwriting_leaves_a_run(tmp_path):
    for attempt in every_moment(CHANGING, Killed, for_good=True):
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        make(tmp_path / "a", finished=True)
        attempt(lambda: RunDirectory.create(tmp_path / "a", OTHER, overwrite=True).close())
        with RunDirectory.open(tmp_path / "a") as run:
            assert run.config in (CONFIG, OTHER)
            if run.finished:  # nothing of it is gone
                assert {"model.json", "model.safetensors"} <= set(names(tmp_path / "a"))
            found = load_newest(run.checkpoints)
            steps = [line["step"] for line in run.read_metrics()]
            assert steps == [20, 40] if found is not None else steps in ([], [20, 40])
            if run.config == OTHER:
                assert (found, steps, run.finished) == (None, [], False)
        RunDirectory.create(tmp_path / "a", OTHER, overwrite=True).close()
        assert names(tmp_path / "a") == ["config.json", "run.lock"]


OPERATIONS = {
    "metrics": lambda run: run.append_metrics({"step": 60, "loss": 0.5}),
    "truncate": lambda run: run.truncate_metrics(20),
    "result": lambda run: run.write_result({"test_accuracy": 0.5}),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("error", [Killed, no_space])
def test_any_write_may_fail_at_any_moment(tmp_path, operation, error):
    names_of_calls = WRITING if error is no_space else CHANGING
    for attempt in every_moment(names_of_calls, error, for_good=error is no_space):
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        make(tmp_path / "a")
        with RunDirectory.open(tmp_path / "a") as run:
            raised = attempt(lambda: OPERATIONS[operation](run))
            steps = [line["step"] for line in run.read_metrics()]
            assert (
                steps
                in {"metrics": ([20, 40], [20, 40, 60]), "truncate": ([20, 40], [20]), "result": ([20, 40],)}[operation]
            )
            assert run.read_result() in (None, {"test_accuracy": 0.5})
            if isinstance(raised, OSError):
                assert re.search(
                    r"writing .* failed: No space left on device; the last good checkpoint is step-00000040",
                    str(raised),
                )
                assert str(raised).endswith(f"momatch train --resume --run-dir {tmp_path / 'a'}")
                if operation == "metrics":
                    assert (tmp_path / "a" / "metrics.jsonl").read_bytes().endswith(b"\n"), (
                        "no part of the line is left"
                    )
        with RunDirectory.open(tmp_path / "a") as run:
            run.truncate_metrics(40)
            OPERATIONS[operation](run)
            assert not [name for name in names(tmp_path / "a") if name.endswith(".part")]
            assert load_newest(run.checkpoints).step == 40


def test_a_full_disk_for_real(tmp_path):
    with small_disk(tmp_path) as disk:
        make(disk / "a")
        run = RunDirectory.open(disk / "a")
        ballast = fill(disk)
        message = (
            r"writing .* failed: No space left on device; the last good checkpoint is step-00000040; free some space"
        )

        def append_many():  # the last page of a file still takes some lines
            for step in range(60, 6000, 20):
                run.append_metrics({"step": step, "text": "x" * 100})

        with pytest.raises(OSError, match=message):
            append_many()
        steps = [line["step"] for line in run.read_metrics()]
        assert steps == list(range(20, 20 * len(steps) + 20, 20))
        with pytest.raises(OSError, match=message):
            run.write_result({"text": "x" * 5000})
        with pytest.raises(OSError, match=message):
            run.log("x" * 5000)
        with pytest.raises(OSError, match=message):
            run.truncate_metrics(40)
        run.close()
        with pytest.raises(
            OSError, match="No space left on device; there is no checkpoint yet; free some space, then start"
        ):
            RunDirectory.create(disk / "b", CONFIG)
        ballast.unlink()
        with RunDirectory.open(disk / "a") as run:
            assert not run.finished
            run.truncate_metrics(40)
            assert [line["step"] for line in run.read_metrics()] == [20, 40]
            assert load_newest(run.checkpoints).step == 40
            run.write_result({"test_accuracy": 1.0})
