import ctypes
import json
import subprocess
import sys

import pytest
import torch

from momatch.training import allocator
from momatch.training.allocator import explain_out_of_memory, keep_large_blocks

#: A step asks for blocks of 33 to 43 MB (above 32 MB glibc always maps them) and frees them; prints page faults a step and
#: the peak of memory in megabytes after a few steps and at the end.
PROGRAM = """
import ctypes, json, resource, sys
import torch
from momatch.training.allocator import keep_large_blocks

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # no huge pages, so that faults can be counted: PR_SET_THP_DISABLE

if sys.argv[1] == "keep":
    assert keep_large_blocks() and keep_large_blocks()

def usage():
    return resource.getrusage(resource.RUSAGE_SELF)

def step(number):
    kept = [torch.ones((33 + (7 * i + 3 * number) % 11) << 18) for i in range(3)]
    return sum(float(block[0]) for block in kept)

for number in range(3):
    step(number)
early, before = usage().ru_maxrss, usage().ru_minflt
for number in range(30):
    step(number)
print(json.dumps({"faults": (usage().ru_minflt - before) / 30, "early": early / 1024, "late": usage().ru_maxrss / 1024}))
"""

linux_glibc = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="needs glibc"
)


def measure(how):
    result = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@linux_glibc
def test_large_blocks_stay_with_the_process():
    without, kept = measure("leave"), measure("keep")
    assert without["faults"] > 10_000  # 3 x 38 MB in pages of 4 kB
    assert kept["faults"] < without["faults"] / 20
    # What is kept is used again: other sizes in each step do not pile up.
    assert kept["late"] < kept["early"] * 1.2 + 50


@linux_glibc
def test_says_that_it_was_done(monkeypatch):
    calls = []

    class Libc:
        def gnu_get_libc_version(self): ...

        def mallopt(self, parameter, value):
            calls.append((parameter, value))
            return 1

    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: Libc())
    assert keep_large_blocks()
    assert (-4, 0) in calls
    assert (-1, -1) in calls


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_left_alone(monkeypatch, platform):
    def refuse(name):
        raise AssertionError("no library is to be opened here")

    monkeypatch.setattr(allocator.sys, "platform", platform)
    monkeypatch.setattr(allocator.ctypes, "CDLL", refuse)
    assert not keep_large_blocks()


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(allocator.sys, "platform", "linux")
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert not keep_large_blocks()


def test_a_refused_setting_is_no_error(monkeypatch):
    class Libc:
        def gnu_get_libc_version(self): ...

        def mallopt(self, parameter, value):
            return 0

    monkeypatch.setattr(allocator.sys, "platform", "linux")
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: Libc())
    assert not keep_large_blocks()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"),
    ],
)
def test_too_little_memory_is_explained(error):
    with pytest.raises(ValueError, match=r"out of memory: .*reduce unlabeled_batch_size"), explain_out_of_memory():
        raise error
    with pytest.raises(RuntimeError, match="a bug"), explain_out_of_memory():
        raise RuntimeError("a bug")
