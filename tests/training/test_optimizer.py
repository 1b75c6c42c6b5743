"""The optimisers are torch's own, bit for bit, without its compiler."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from momatch.config import OptimizerSettings
from momatch.training.optimizer import build_optimizer, parameter_groups


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_steps_are_those_of_torch(name):
    settings = OptimizerSettings(optimizer=name, lr=0.1, weight_decay=0.01)
    networks = []
    for own in (True, False):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        groups = parameter_groups(network, settings)
        if own:
            optimizer = build_optimizer(network, settings)
        elif name == "sgd":
            optimizer = torch.optim.SGD(groups, lr=0.1, momentum=settings.momentum, nesterov=True)
        else:
            optimizer = torch.optim.AdamW(groups, lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            network(torch.ones(2, 4)).square().sum().backward()
            with torch.no_grad():
                optimizer.step()
        networks.append(network)
    for ours, theirs in zip(*(network.parameters() for network in networks), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_compiler_is_not_imported():
    program = (
        "import sys, torch\n"
        "from momatch.config import OptimizerSettings\n"
        "from momatch.training.optimizer import build_optimizer\n"
        "model = torch.nn.Linear(2, 2); model(torch.ones(1, 2)).sum().backward()\n"
        "with torch.no_grad(): build_optimizer(model, OptimizerSettings(optimizer='adamw')).step()\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
