"""Trains once undisturbed, then again under SIGKILL at random moments, resumed each time; prints how many kills hit.

Run by test_killed.py in an interpreter of its own: children are forked, so that each begins in a moment and not with an
import of torch.
"""

import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from momatch.config import TrainConfig
from momatch.training.fit import fit

torch.set_num_threads(1)


def child(config):
    process = os.fork()
    if process == 0:
        code = 1
        try:
            fit(config)
            code = 0
        finally:
            os._exit(code)
    return process


def main(folder, kills):
    # Every kind of state: batch norm, momentum, the policy's memory, an outlier head, metrics half through an interval.
    config = TrainConfig(
        image_size=8,
        steps=150,
        labeled_batch_size=10,
        unlabeled_batch_size=20,
        log_interval=7,
        eval_interval=30,
        checkpoint_interval=4,
        outliers="percentile",
        outlier_refit_interval=25,
        progress=False,
        device="cpu",
        run_dir=str(folder / "whole"),
    )
    begin = time.monotonic()
    os.waitpid(child(config), 0)
    # On average a life is a tenth of the whole: progress is made, and most kills come in mid-training.
    life = (time.monotonic() - begin) / 10
    rng = random.Random(0)
    hits = 0
    config = replace(config, run_dir=str(folder / "killed"))
    while hits < kills:
        started = (Path(config.run_dir) / "config.json").exists()
        process = child(replace(config, resume=started))
        time.sleep(rng.uniform(0.0, 2 * life))
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        if not os.WIFSIGNALED(status):
            # It had come to its end first: begin again, so that every kill counted did hit.
            assert os.WEXITSTATUS(status) == 0, "a resumed run failed"
            config = replace(config, run_dir=str(folder / f"killed-{hits}"))
            (folder / "finished-early").touch()
            continue
        hits += 1
    config = replace(config, resume=(Path(config.run_dir) / "config.json").exists())
    _, status = os.waitpid(child(config), 0)
    assert os.WEXITSTATUS(status) == 0, "the last resume failed"
    print(hits, config.run_dir)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
