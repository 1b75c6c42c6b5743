"""The reference page lists the parameters as they are."""

import re
from pathlib import Path

import pytest

from momatch import MoMatchClassifier, NetworkOptions

PAGE = Path(__file__).parents[2] / "docs" / "estimator.md"


@pytest.mark.parametrize("model", [MoMatchClassifier, NetworkOptions])
def test_every_parameter_is_listed_with_its_default(model):
    own, _, network = PAGE.read_text(encoding="utf-8").partition("## Parameters")[2].partition("The network's options")
    table = own if model is MoMatchClassifier else network
    listed = {
        name: eval(default) for name, default in re.findall(r"^\| `(\w+)` \| (.*?) \|", table, flags=re.MULTILINE)
    }
    assert listed == model().get_params()
    described = re.findall(r"^        (\w+): ", model.__doc__.partition("Attributes:")[0], flags=re.MULTILINE)
    assert described == list(listed)
