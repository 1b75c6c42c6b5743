"""Several processes act as one: a torchrun of two gives the gradient and the policy's memory of one process."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from momatch.training.processes import Processes
from tests.training.setting import small_batch, small_step, with_settings

ROOT = Path(__file__).parents[2]

SETTINGS = {
    "flexmatch": {"policy": "flexmatch"},
    "freematch": {"policy": "freematch", "fairness_weight": 0.5},
    "softmatch": {"policy": "softmatch", "moment_order": 4},
    "outliers": {"policy": "flexmatch", "outliers": "percentile", "outlier_percentile": 50.0},
    "published": {"moment_variant": "published", "moment_assignment": "prediction"},
    "linear": {"head": "linear", "moment_order": 0},
    "mmd": {"constraint": "mmd"},
    "accumulate": {"accumulate": 2, "moment_order": 0, "policy": "fixmatch"},
}

WORKER = """
import sys, torch
from safetensors.torch import save_file
from tests.training.setting import small_batch, small_step, with_settings
from tests.training.test_processes import SETTINGS, own_part
from momatch.training.processes import joined_processes

torch.set_num_threads(1)
with joined_processes("cpu") as processes:
    for name, settings in SETTINGS.items():
        step = small_step(with_settings(**settings), processes=processes)
        for number in range(3):
            step(own_part(small_batch(number), processes), lr=0.05, progress=0.3)
        tensors = {f"gradient.{i}": p.grad.clone() for i, p in enumerate(step.classifier.parameters())}
        tensors |= {f"objective.{key}": value.clone() for key, value in step.objective.state_dict().items()}
        tensors["metrics"] = step.metrics
        save_file(tensors, f"{sys.argv[1]}/{name}-{processes.rank}.safetensors")
    assert processes.any(processes.rank == 1, torch.device("cpu"))
    assert not processes.any(False, torch.device("cpu"))
    processes.wait()
"""


def own_part(batch, processes):
    from dataclasses import replace

    part = {
        name: processes.own_part(getattr(batch, name))
        for name in ("labeled_images", "labels", "labeled_indices", "unlabeled_images", "unlabeled_indices")
    }
    b, u = len(part["labels"]), len(part["unlabeled_indices"])
    return replace(batch, **part, labeled_offset=processes.rank * b, unlabeled_offset=processes.rank * u)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What two processes under torchrun computed."""
    from safetensors.torch import load_file

    folder = tmp_path_factory.mktemp("processes")
    (folder / "worker.py").write_text(WORKER)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(folder / "worker.py"), str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {path.stem: load_file(path) for path in folder.glob("*.safetensors")}


def environment():
    import os

    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("name", SETTINGS)
def test_gradient_of_two_processes_is_that_of_one(name, results):
    step = small_step(with_settings(**SETTINGS[name]))
    for number in range(3):
        step(small_batch(number), lr=0.05, progress=0.3)
    first, second = results[f"{name}-0"], results[f"{name}-1"]
    # Accumulated parts of two processes are other parts of the batch, but means of equal parts are the mean.
    for i, parameter in enumerate(step.classifier.parameters()):
        one, two = parameter.grad, first[f"gradient.{i}"]
        assert float((one - two).norm()) <= 1e-6 * max(1.0, float(one.norm()))
        assert torch.equal(two, second[f"gradient.{i}"])
    for key, value in step.objective.state_dict().items():
        torch.testing.assert_close(first[f"objective.{key}"], value, rtol=1e-5, atol=1e-6)
        assert torch.equal(first[f"objective.{key}"], second[f"objective.{key}"])
    torch.testing.assert_close(first["metrics"], step.metrics, rtol=1e-5, atol=1e-5)


def test_one_process_is_left_alone():
    alone = Processes()
    x = torch.randn(3, 2, requires_grad=True)
    assert alone.gather_with_gradient(x) is x
    assert not alone.gather(x).requires_grad
    assert alone.own_part(x) is x
    assert alone.any(True, torch.device("cpu"))
    alone.average_([x.detach()])
    alone.wait()
