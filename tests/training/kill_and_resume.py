"""Trains once undisturbed, then again under SIGKILL at random moments, resumed each time; prints how many kills hit.

A child kills itself, so that no clock decides where: at the n-th moment, n drawn at random. A moment is a training step, or a
call that brings something to the disk. Run by test_killed.py in an interpreter of its own: children are forked, so that each
begins at once and not with an import of torch.
"""

import os
import random
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch

from momatch.config import TrainConfig
from momatch.data.load import load_dataset
from momatch.training.fit import fit
from momatch.training.step import TrainStep

torch.set_num_threads(1)

#: Moments of a life, at most; the whole run has more than ten times as many.
LONGEST = 60


def die_at(moment):
    """Have this process kill itself at the given moment."""
    left = [moment]

    def counted(function):
        def call(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    TrainStep.__call__ = counted(TrainStep.__call__)
    for name in ("fsync", "replace", "open", "write"):
        setattr(os, name, counted(getattr(os, name)))


def child(config, moment=None):
    process = os.fork()
    if process == 0:
        code = 1
        try:
            if moment is not None:
                die_at(moment)
            fit(config)
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(process, 0)[1]


def main(folder, kills):
    # Every kind of state: batch norm, momentum, the policy's, a refitted head for outliers, metrics half through an interval.
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
    load_dataset("digits")  # the children find its imports done
    assert child(config) == 0, "the undisturbed run failed"
    rng = random.Random(0)
    hits = 0
    config = replace(config, run_dir=str(folder / "killed"))
    while hits < kills:
        started = (Path(config.run_dir) / "config.json").exists()
        status = child(replace(config, resume=started), rng.randint(1, LONGEST))
        if not os.WIFSIGNALED(status):
            # It had come to its end first: begin again, so that every kill counted did hit.
            assert os.WEXITSTATUS(status) == 0, "a resumed run failed"
            config = replace(config, run_dir=str(folder / f"killed-{hits}"))
            continue
        hits += 1
    assert child(replace(config, resume=(Path(config.run_dir) / "config.json").exists())) == 0, "the last resume failed"
    print(hits, config.run_dir)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
