import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from momatch.storage import checkpoint
from momatch.storage.checkpoint import delete_checkpoints, last_good, load_newest, prune, save_checkpoint
from tests.training.faults import CHANGING, WRITING, Killed, every_moment, fill, no_space, small_disk

DTYPES = (
    *(torch.bfloat16, torch.float16, torch.float32, torch.float64),
    *(torch.int64, torch.int32, torch.uint8, torch.bool),
)


def save(folder, step, value=None):
    value = float(step) if value is None else value
    return save_checkpoint(folder, step, {"weight": torch.full((3, 2), value)}, {"value": value})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def flip_bit(path, place=0.5):
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 4
    path.write_bytes(data)


def as_bytes(tensor):
    """The bits of a tensor, whatever its dtype (numpy knows no bfloat16)."""
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    size = torch.Size(shape).numel() * dtype.itemsize
    data = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if dtype == torch.bool:
        data = bytearray(byte & 1 for byte in data)
    flat = torch.frombuffer(data, dtype=dtype) if size else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(shape)
    if draw(st.booleans()) and tensor.ndim >= 2:
        tensor = tensor.transpose(0, 1)
    if draw(st.booleans()) and tensor.ndim == 4:
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    return tensor


@settings(max_examples=40)
@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), tensors(), max_size=4))
def test_every_bit_comes_back(tmp_path_factory, state):
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    save_checkpoint(folder, 7, state, {})
    found = load_newest(folder)
    assert found.tensors.keys() == state.keys()
    for name, tensor in state.items():
        got = found.tensors[name]
        assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape)
        assert as_bytes(got) == as_bytes(tensor)
    shutil.rmtree(folder.parent)


def test_shared_memory_views_and_parameters(tmp_path):
    base = torch.arange(24.0)
    layer = torch.nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    state = {
        "whole": base,
        "again": base,
        "view": base[4:9],
        "strided": base[::2],
        "transposed": base.reshape(4, 6).t(),
        "expanded": torch.ones(1).expand(5),
        "parameter": layer.weight,
        "scalar": torch.tensor(7),
    }
    save_checkpoint(tmp_path / "c", 1, state, {})
    found = load_newest(tmp_path / "c").tensors
    for name, tensor in state.items():
        assert torch.equal(found[name], tensor)
        found[name].add_(1)  # each has memory of its own, and may be written to
    assert torch.equal(base, torch.arange(24.0))


def test_facts_come_back_exactly(tmp_path):
    facts = {
        "lr": 0.1 + 0.2,
        "big": 2**63 + 1,
        "small": 5e-324,
        "text": "Käfer\n\udc80",
        "list": [1, None, True],
        "n": {"a": {}},
    }
    save_checkpoint(tmp_path / "c", 3, {}, {**facts, "pair": (1, 2), "by_class": {10: 1, 9: 2}})
    found = load_newest(tmp_path / "c")
    assert found.facts == {**facts, "pair": [1, 2], "by_class": {"10": 1, "9": 2}}
    assert (found.step, found.tensors, found.rejected) == (3, {}, ())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_facts_are_strict_json(tmp_path, value):
    with pytest.raises(ValueError, match="JSON"):
        save_checkpoint(tmp_path / "c", 3, {}, {"loss": value})
    assert load_newest(tmp_path / "c") is None


@pytest.mark.parametrize("tensor", [torch.empty(2, device="meta"), torch.eye(2).to_sparse()])
def test_what_has_no_dense_values_is_refused(tmp_path, tensor):
    with pytest.raises(ValueError, match=r"weight: got a tensor of layout .* expected a dense one"):
        save_checkpoint(tmp_path / "c", 3, {"weight": tensor}, {})


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="step: got -1"):
        save(tmp_path / "c", -1)
    with pytest.raises(ValueError, match="keep: got 0"):
        prune(tmp_path / "c", 0)


def test_the_newest_by_number_is_loaded(tmp_path):
    assert load_newest(tmp_path / "c") is None
    for step in (99_999_999, 100_000_000, 5):
        save(tmp_path / "c", step)
    assert load_newest(tmp_path / "c").step == 100_000_000
    assert names(tmp_path / "c") == ["step-00000005", "step-100000000", "step-99999999"]


@pytest.mark.parametrize("file", ["state.json", "state.safetensors"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "delete", "noise"])
def test_a_damaged_checkpoint_is_rejected_for_the_one_before(tmp_path, file, damage):
    save(tmp_path, 1)
    path = save(tmp_path, 2) / file
    match damage:
        case "flip":
            flip_bit(path)
        case "truncate":
            path.write_bytes(path.read_bytes()[:-9])
        case "empty":
            path.write_bytes(b"")
        case "delete":
            path.unlink()
        case "noise":
            path.write_bytes(random.Random(0).randbytes(300))
    found = load_newest(tmp_path)
    assert found.step == 1
    assert len(found.rejected) == 1
    assert "step-00000002" in found.rejected[0]
    assert file in found.rejected[0]
    assert last_good(tmp_path) == tmp_path / "step-00000001"


def test_every_flipped_bit_is_found(tmp_path):
    """In the JSON file a flip may also fall on a space between two entries, which changes nothing."""
    path = save_checkpoint(tmp_path, 2, {"weight": torch.arange(3.0)}, {"value": 0.25, "text": "a"})
    for file in ("state.json", "state.safetensors"):
        good = (path / file).read_bytes()
        for position in range(len(good)):
            bad = bytearray(good)
            bad[position] ^= 1 << (position % 8)
            (path / file).write_bytes(bad)
            if file == "state.json" and good[position : position + 1].isspace():
                continue
            with pytest.raises(ValueError, match="expected an intact one"):
                load_newest(tmp_path)
        (path / file).write_bytes(good)
    assert load_newest(tmp_path).facts == {"value": 0.25, "text": "a"}


def test_nothing_usable_is_an_error_and_not_a_fresh_start(tmp_path):
    for step in (1, 2):
        flip_bit(save(tmp_path, step) / "state.safetensors", 0.99)
    with pytest.raises(ValueError, match=r"got 2 checkpoints.*step-00000002.*damaged.*step-00000001"):
        load_newest(tmp_path)


def test_versions_kinds_and_renamed_folders_are_told_apart(tmp_path):
    text = (save(tmp_path, 1) / "state.json").read_text()
    (tmp_path / "step-00000001" / "state.json").write_text(text.replace('"version": 1', '"version": 99'))
    with pytest.raises(ValueError, match="got format version 99, expected 1; it was written by another release"):
        load_newest(tmp_path)
    (tmp_path / "step-00000001" / "state.json").write_text('{"format": "something"}')
    with pytest.raises(ValueError, match="another kind"):
        load_newest(tmp_path)
    (tmp_path / "step-00000001" / "state.json").write_text(text)
    os.rename(tmp_path / "step-00000001", tmp_path / "step-00000009")
    with pytest.raises(ValueError, match="got the state of step 1; the folder was renamed"):
        load_newest(tmp_path)


def test_prune_keeps_the_newest_and_what_is_not_ours(tmp_path):
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    (tmp_path / "step-00000005.part").mkdir()
    (tmp_path / "step-best").mkdir()
    (tmp_path / "notes.txt").touch()
    prune(tmp_path, 2)
    assert names(tmp_path) == ["notes.txt", "step-00000003", "step-00000004", "step-best"]
    prune(tmp_path, 1)
    assert load_newest(tmp_path).step == 4


def test_prune_does_not_read_what_was_just_saved(tmp_path, monkeypatch):
    for step in (1, 2):
        save(tmp_path, step)
    saved = save(tmp_path, 3)
    reads = []
    monkeypatch.setattr(checkpoint, "read_verified", lambda *arguments: reads.append(arguments))
    prune(tmp_path, 2, saved=saved)
    assert reads == []
    assert names(tmp_path) == ["step-00000002", "step-00000003"]


def test_prune_does_not_count_on_a_damaged_checkpoint(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    flip_bit(tmp_path / "step-00000003" / "state.safetensors", 0.99)
    prune(tmp_path, 1)
    assert load_newest(tmp_path).step == 2
    flip_bit(tmp_path / "step-00000002" / "state.json")
    prune(tmp_path, 1)  # nothing good is left: nothing is deleted
    assert names(tmp_path) == ["step-00000002", "step-00000003"]
    save(tmp_path, 3)  # the damaged one of the same step makes room
    prune(tmp_path, 1)
    assert names(tmp_path) == ["step-00000003"]


def test_the_same_step_again(tmp_path):
    save(tmp_path, 1, 0.5)
    save(tmp_path, 1, 0.75)
    save(tmp_path, 1, 0.25)
    assert load_newest(tmp_path).facts == {"value": 0.25}
    flip_bit(tmp_path / "step-00000001" / "state.json")
    assert load_newest(tmp_path).facts == {"value": 0.75}
    save(tmp_path, 1, 1.5)
    prune(tmp_path, 3)
    assert names(tmp_path) == ["step-00000001"]
    assert load_newest(tmp_path).facts == {"value": 1.5}


def test_delete_checkpoints_leaves_what_is_not_ours(tmp_path):
    save(tmp_path / "c", 1)
    save(tmp_path / "c", 1)
    (tmp_path / "c" / "step-00000002.part").mkdir()
    (tmp_path / "c" / "mine").touch()
    delete_checkpoints(tmp_path / "c")
    assert names(tmp_path / "c") == ["mine"]
    (tmp_path / "c" / "mine").unlink()
    delete_checkpoints(tmp_path / "c")
    assert not (tmp_path / "c").exists()
    delete_checkpoints(tmp_path / "c")


@pytest.mark.parametrize("step", [2, 1])
def test_a_full_disk_at_any_moment_leaves_the_last_good_checkpoint(tmp_path, step):
    (tmp_path / "config.json").touch()
    for attempt in every_moment(WRITING, no_space, for_good=True):
        folder = tmp_path / "checkpoints"
        shutil.rmtree(folder, ignore_errors=True)
        save(folder, 1, 0.5)
        error = attempt(lambda: save(folder, step, 0.75))  # noqa: B023 (used at once)
        found = load_newest(folder)
        if error is None:
            assert found.facts == {"value": 0.75}
            continue
        assert found.facts["value"] in (0.5, 0.75)
        assert f"saving the checkpoint of step {step} failed: No space left on device" in str(error)
        assert f"the last good checkpoint is {found.path.name}; free some space, then resume with" in str(error)
        assert str(error).endswith(f"momatch train --resume --run-dir {tmp_path}")
        assert error.errno == no_space().errno
        assert not list(folder.glob("*.part"))
        save(folder, step, 0.75)  # space was freed
        prune(folder, 1)
        assert load_newest(folder).facts == {"value": 0.75}


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """No kill shows it, but a power cut would: contents, then names, then the name of the whole."""
    calls = []
    for name in ("write", "fsync", "rename"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, real=real: calls.append(name) or real(*args))
    save(tmp_path, 1)
    assert calls == ["write", "fsync", "write", "fsync", "fsync", "rename", "fsync"]


def test_checkpoints_that_cannot_be_listed_are_not_taken_for_none(tmp_path, monkeypatch):
    save(tmp_path / "checkpoints", 1)

    def broken(path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "iterdir", broken)
    with pytest.raises(OSError, match="Input/output error"):
        load_newest(tmp_path / "checkpoints")
    with pytest.raises(OSError, match=r"removing old checkpoints failed: .*cannot be listed either.*; fix that, then"):
        prune(tmp_path / "checkpoints", 1)


def test_the_first_checkpoint_may_fail_as_well(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(no_space()))
        with pytest.raises(OSError, match="there is no checkpoint yet"):
            save(tmp_path / "c", 1)
    assert load_newest(tmp_path / "c") is None


@pytest.mark.parametrize("step", [3, 2])
def test_a_kill_at_any_moment_of_saving_and_pruning(tmp_path, step):
    folder = tmp_path / "checkpoints"

    def save_and_prune():
        save(folder, step, 0.75)
        prune(folder, 1)

    for attempt in every_moment(CHANGING, Killed, for_good=True):
        shutil.rmtree(folder, ignore_errors=True)
        save(folder, 1)
        save(folder, 2, 0.5)
        attempt(save_and_prune)
        found = load_newest(folder)
        assert found.facts["value"] in (0.5, 0.75)
        assert found.rejected == ()  # half a checkpoint never looks like one
        save_and_prune()  # the next process goes on
        assert names(folder) == [f"step-{step:08d}"]
        assert load_newest(folder).facts == {"value": 0.75}


def test_a_full_disk_for_real(tmp_path):
    state = {"weight": torch.arange(50_000.0)}  # 200 kB of 1 MB
    with small_disk(tmp_path) as disk:
        folder = disk / "run" / "checkpoints"
        save_checkpoint(folder, 1, state, {})
        ballast = fill(disk)
        for _ in range(3):
            with pytest.raises(
                OSError, match="No space left on device; the last good checkpoint is step-00000001; free"
            ):
                save_checkpoint(folder, 2, state, {})
            assert names(folder) == ["step-00000001"]
        assert torch.equal(load_newest(folder).tensors["weight"], state["weight"])
        ballast.unlink()
        save_checkpoint(folder, 2, state, {})
        prune(folder, 1)
        assert load_newest(folder).step == 2


#: For each line on its input, a child that saves and prunes without pause until it is killed; importing torch once is enough.
WRITER = r"""
import os, sys
from pathlib import Path
import torch
from momatch.storage.checkpoint import load_newest, prune, save_checkpoint
folder = Path(sys.argv[1])

def work():
    found = load_newest(folder)
    step = found.step if found else 0
    while True:
        step += 1
        state = {"a": torch.full((5000,), step), "b": torch.tensor(step)}
        save_checkpoint(folder, step, state, {"step": step})
        os.write(1, b"saved %d\n" % step)
        if step % 3 == 0:
            save_checkpoint(folder, step, state, {"step": step, "again": True})
        prune(folder, 1 + step % 2)

for _ in sys.stdin:
    child = os.fork()
    if child == 0:
        work()
    os.write(1, b"child %d\n" % child)
    os.waitpid(child, 0)
    os.write(1, b"dead 0\n")
"""


def test_killed_at_random_moments(tmp_path):
    """SIGKILL while checkpoints are saved and pruned without pause: what was announced is there, whole."""
    chance = random.Random(4)
    folder = tmp_path / "checkpoints"
    command = [sys.executable, "-c", WRITER, str(folder)]
    announced, seen = 0, set()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def read():
            kind, number = process.stdout.readline().split()
            return kind, int(number)

        for attempt in range(20):
            process.stdin.write("go\n")
            process.stdin.flush()
            child, before = None, announced
            # Half of the children live to save something, however slow the machine; the others die wherever they are.
            while child is None or (attempt % 2 and announced == before):
                kind, number = read()
                if kind == "child":
                    child = number
                else:
                    announced = number
            time.sleep(chance.random() * 0.06)
            os.kill(child, signal.SIGKILL)
            while (line := read())[0] != "dead":
                announced = line[1]
            found = load_newest(folder)
            step = 0 if found is None else found.step
            assert announced <= step <= announced + 1
            if found is not None:
                assert found.rejected == ()
                assert found.facts["step"] == step
                assert torch.equal(found.tensors["a"], torch.full((5000,), step))
            announced = step
            seen.add(step)
        process.stdin.close()
    assert len(seen) >= 10
