"""Shared by all tests."""

import signal
from collections.abc import Iterator

import hypothesis
import jaxtyping
import pytest
import torch

# How long an example takes says more about what else the machine does than about the code.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same random numbers."""
    torch.manual_seed(0)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switch the shape checks of the test run off: what is left is what a user meets."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session", autouse=True)
def interruptible():
    """Ctrl-C works in the tests of signals, also where they were started in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
