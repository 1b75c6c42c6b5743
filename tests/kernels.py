"""Run everything that trains under four kernel settings: another processor's arithmetic, on this one.

Run: make test-kernels, or python -m tests.kernels [pytest arguments]

A trained outcome differs between processors, because sums are taken in another order. Three libraries choose their kernels by
processor, and each can be told to choose others: PyTorch's own (ATEN_CPU_CAPABILITY), oneDNN for convolutions
(ONEDNN_MAX_CPU_ISA), MKL for matrix products (MKL_CBWR). The number of threads matters as well. The four settings below have
each choice of PyTorch's kernels with each of oneDNN's, and one and two threads with each of both. The second is what an AVX2
machine does by itself; a machine with AVX-512 has a fifth, plain `make test`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLD, NEW = {"MKL_CBWR": "COMPATIBLE"}, {"MKL_CBWR": "AUTO"}
SETTINGS = [
    {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "OMP_NUM_THREADS": "1", **OLD},
    {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1", **NEW},
    {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "2", **NEW},
    {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "SSE41", "OMP_NUM_THREADS": "2", **OLD},
]


def run(setting: dict[str, str], arguments: list[str]) -> tuple[int, str]:
    """Run the tests that train; returns pytest's exit code and its last line."""
    # Two processes of one thread, or one of two: threads that wait for each other would slow both.
    processes = "2" if setting["OMP_NUM_THREADS"] == "1" else "0"
    command = [sys.executable, "-m", "pytest", "-m", "trains", "-n", processes, "--dist", "loadfile", *arguments]
    last = ""
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **setting}, stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    return process.returncode, re.sub(r"^=+ | =+$", "", last)


def main(arguments: list[str]) -> int:
    outcomes = []
    for setting in SETTINGS:
        title = " ".join(f"{name}={value}" for name, value in setting.items())
        print(f"\n{title}", flush=True)
        outcomes.append((title, *run(setting, arguments)))
    print("\nKernel settings and what each gave:")
    for title, code, summary in outcomes:
        print(f"{'passed' if code == 0 else 'FAILED'}  {title}\n        {summary}")
    return int(any(code for _, code, _ in outcomes))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
