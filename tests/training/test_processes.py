"""Several processes act as one: a torchrun of two gives the gradient and the policy's memory of one process."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from momatch.training.processes import Processes
from momatch.training.step import METRICS
from tests.training.setting import INLIER, small_batch, small_step, with_settings

pytestmark = pytest.mark.trains

ROOT = Path(__file__).parents[2]
ALONE = Processes()

STEPS, LR = 4, 0.02

#: Without momentum, decay and clipping `grad` after a step is the gradient: the optimiser writes into it otherwise.
PLAIN = {"momentum": 0.0, "weight_decay": 0.0, "clip_norm": 0.0, "moment_weight": 0.3}
FREEMATCH = {"algorithm": "freematch", "fairness_weight": 2.0}
SETTINGS = {
    "flexmatch": {"algorithm": "flexmatch"},
    "fixmatch": {"algorithm": "fixmatch"},
    "freematch": FREEMATCH,
    "softmatch": {"algorithm": "softmatch", "moment_order": 4},
    "outliers": {"algorithm": "fixmatch", "outliers": "percentile", "outlier_percentile": 50.0},
    "inliers": {"algorithm": "fixmatch", "outliers": "auto", "moment_inliers": True},
    "published": {"moment_variant": "published", "moment_assignment": "prediction"},
    "linear": {"head": "linear", "moment_order": 0},
    "mmd": {"constraint": "mmd"},
    "pseudolabel": {"algorithm": "pseudolabel"},
    "meanteacher": {"algorithm": "meanteacher"},
    "uda": {"algorithm": "uda"},
    "mixmatch": {"algorithm": "mixmatch", "outliers": "percentile", "outlier_percentile": 80.0},
    "remixmatch": {"algorithm": "remixmatch", "outliers": "percentile", "outlier_percentile": 80.0},
    "comatch": {"algorithm": "comatch", "memory_size": 7},
    "simmatch": {"algorithm": "simmatch"},
    "simmatchv2": {"algorithm": "simmatchv2", "memory_size": 20},
    "accumulate-flexmatch": {"algorithm": "flexmatch", "accumulate": 2},
    "accumulate-freematch": {**FREEMATCH, "accumulate": 2},
}

WORKER = """
import sys, torch
from safetensors.torch import save_file
from tests.training.test_processes import SETTINGS, parameters, trained
from momatch.training.processes import joined_processes

torch.set_num_threads(1)
with joined_processes("cpu") as processes:
    for name, settings in SETTINGS.items():
        step = trained(settings, processes)
        tensors = {f"gradient.{i}": p.grad.clone() for i, p in enumerate(parameters(step))}
        tensors |= {f"objective.{key}": value.clone() for key, value in step.objective.state_dict().items()}
        tensors["metrics"] = step.metrics
        save_file(tensors, f"{sys.argv[1]}/{name}-{processes.rank}.safetensors")
    assert processes.any(processes.rank == 1, torch.device("cpu"))
    assert not processes.any(False, torch.device("cpu"))
    processes.wait()
"""


def trained(settings, processes=ALONE):
    """The step after a few batches, of which each process has its part."""
    step = small_step(with_settings(**PLAIN, **settings), processes=processes, dtype=torch.float64)
    if step.objective.inlier_probability is not None:
        step.objective.inlier_probability.copy_(INLIER)
    for number in range(STEPS):
        step(own_part(small_batch(number), processes), lr=LR, progress=0.3)
    return step


def parameters(step):
    """Those of the network, and the algorithm's own."""
    return [*step.classifier.parameters(), *step.objective.algorithm.parameters()]


def own_part(batch, processes):
    part = {
        name: processes.own_part(getattr(batch, name))
        for name in ("labeled", "labels", "labeled_indices", "unlabeled", "unlabeled_indices")
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
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("name", SETTINGS)
def test_gradient_of_two_processes_is_that_of_one(name, results):
    step = trained(SETTINGS[name])
    first, second = results[f"{name}-0"], results[f"{name}-1"]
    for i, parameter in enumerate(parameters(step)):
        one, two = parameter.grad, first[f"gradient.{i}"]
        # In float32 rounding alone comes to some 1e-6; float64 leaves the algorithm.
        assert float((one - two).norm()) <= 1e-6 * float(one.norm())
        assert torch.equal(two, second[f"gradient.{i}"])
    for key, value in step.objective.state_dict().items():
        torch.testing.assert_close(first[f"objective.{key}"], value, rtol=1e-5, atol=1e-6)
        assert torch.equal(first[f"objective.{key}"], second[f"objective.{key}"])
    torch.testing.assert_close(first["metrics"], step.metrics, rtol=1e-5, atol=1e-5)
    # Otherwise what the processes tell each other would not have been put to the test.
    metrics = dict(zip(METRICS, (step.metrics / STEPS).tolist(), strict=False))
    assert 0.1 < metrics["utilisation"] <= 1
    assert metrics["utilisation"] < 1 or name == "meanteacher"
    assert (metrics["fairness_loss"] < -0.1) == ("freematch" in name)
    assert (0.1 < metrics["outlier_share"] < 0.9) == (name in ("outliers", "inliers", "mixmatch", "remixmatch"))


@pytest.mark.parametrize("name", ["freematch", "accumulate-freematch"])
def test_fairness_is_a_good_part_of_the_gradient(name):
    def gradient(step):
        return torch.cat([parameter.grad.flatten() for parameter in step.classifier.parameters()])

    fair, unfair = (gradient(trained({**SETTINGS[name], "fairness_weight": weight})) for weight in (2.0, 0.0))
    assert float((fair - unfair).norm()) > 0.05 * float(fair.norm())


def test_one_process_is_left_alone():
    x = torch.randn(3, 2, requires_grad=True)
    assert ALONE.gather_with_gradient(x) is x
    assert not ALONE.gather(x).requires_grad
    assert ALONE.own_part(x) is x
    assert ALONE.any(True, torch.device("cpu"))
    ALONE.average_([x.detach()])
    ALONE.wait()
