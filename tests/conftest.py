"""Shared by all tests."""

import gc
import inspect
import re
import signal
import threading
from collections.abc import Generator, Iterator
from functools import cache, partial
from importlib import import_module
from types import ModuleType

import hypothesis
import jaxtyping
import pytest
import torch

from tests.report import browser

# How long an example takes says more about what else the machine does than about the code.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

#: Shapes are checked for so long in each test.
CHECKED_SECONDS = 1.0
#: Modules that train runs, and are not about how the pool is judged.
QUICKLY_JUDGED = (
    "tests.cli.",
    "tests.embedding.",
    "tests.labeling.",
    "tests.report.",
    "tests.suggestions.",
    "tests.training.test_data",
)
#: Modules that write reports, and are not about how good the map is.
QUICKLY_MAPPED = (
    "tests.cli.", "tests.embedding.", "tests.labeling.", "tests.report.test_collect", "tests.reproduction.test_figures",
    "tests.test_docs", "tests.training.test_data",
)  # fmt: skip
#: A module that mentions one of these trains something.
TRAINERS = re.compile(r"\b(fit|carry_out|main|backward|MoMatchClassifier|TrainStep)\(")


@cache
def trains(module: ModuleType) -> bool:
    """Whether a test module, or a helper from tests/ that it imports, calls something that trains.

    A module that trains only in other processes marks itself: `pytestmark = pytest.mark.trains`.
    """
    helpers = {inspect.getmodule(value) for value in vars(module).values() if callable(value)}
    sources = [module, *(helper for helper in helpers if helper and helper.__name__.startswith("tests."))]
    return any(TRAINERS.search(inspect.getsource(source)) for source in sources)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of a module that trains, so that `make test-kernels` finds them wherever they move.

    They run first: of two processes none should be left with the longest of them at the end.
    """
    for item in items:
        if trains(item.module):
            item.add_marker("trains")
    items.sort(key=lambda item: item.get_closest_marker("trains") is None)


def pytest_collection_finish() -> None:
    """What has been imported stays to the end: the garbage collector need not look through it again and again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same random numbers."""
    torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Check shapes in the first seconds of each test: what it does after that it mostly repeats, and checks take a third."""
    timer = threading.Timer(CHECKED_SECONDS, jaxtyping.config.update, ("jaxtyping_disable", True))
    timer.start()
    try:
        return (yield)
    finally:
        timer.cancel()
        timer.join()
        jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module", autouse=True)
def less_effort(request: pytest.FixtureRequest) -> Iterator[None]:
    """Judge the pool and draw the map with less effort, which else take longer than the few steps of a run."""
    name = request.module.__name__
    with pytest.MonkeyPatch.context() as patch:
        if name.startswith(QUICKLY_JUDGED):
            patch.setattr("momatch.outliers.contamination._STEPS", 20)
            patch.setattr("momatch.evaluation.pool_judging._TURNS", 1)
            patch.setattr("momatch.evidence.views._TREES", 8)
            patch.setattr("momatch.evidence.evidence._FEW_TREES", 4)
        if name.startswith(QUICKLY_MAPPED):
            manifold = import_module("sklearn.manifold")
            patch.setattr(manifold, "TSNE", partial(manifold.TSNE, max_iter=250))
        yield


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


@pytest.fixture(scope="module")
def chromium():
    """A browser; without one, the tests that need it are skipped and say so."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the browser test needs the package playwright")
    path = browser.find()
    if path is None:
        pytest.skip("there is no Chromium on this machine, so the browser test did not run (make browser installs one)")
    with playwright.sync_playwright() as driver:
        try:
            started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"{path} does not start, so the browser test did not run: {error}")
        yield started
        started.close()
