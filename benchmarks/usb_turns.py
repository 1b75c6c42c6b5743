"""USB's real FlexMatch step, one for each line on standard input; answers with the seconds it took.

Started by step.py with the interpreter of an environment that has semilearn. The script given as the argument builds the
algorithm on the CPU (`patch`, `build`, `prepare`, `one_step`).
"""

import argparse
import contextlib
import importlib.util
import random
import sys
import time


def main(script, labeled, ratio, threads):
    import numpy as np
    import torch

    torch.set_num_threads(threads)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    found = importlib.util.spec_from_file_location("usb_step", script)
    usb = importlib.util.module_from_spec(found)
    found.loader.exec_module(usb)
    import semilearn  # noqa: F401 - as the script does, before it replaces parts of it

    usb.patch()
    options = argparse.Namespace(batch=labeled, uratio=ratio, threads=threads, filled=0.5, variant="base")
    algorithm = usb.build(options, 0)
    usb.prepare(options, algorithm)
    batch = [next(iter(algorithm.loader_dict[name])) for name in ("train_lb", "train_ulb")]
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        print(torch.__version__, file=answers, flush=True)
        for _ in sys.stdin:
            start = time.perf_counter()
            usb.one_step(algorithm, *batch)
            print(time.perf_counter() - start, file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
