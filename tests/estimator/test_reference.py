"""The reference page lists the parameters as they are."""

import re
from pathlib import Path

from momatch import MoMatchClassifier

PAGE = Path(__file__).parents[2] / "docs" / "estimator.md"


def test_every_parameter_is_listed_with_its_default():
    table = PAGE.read_text(encoding="utf-8").partition("## Parameters")[2]
    listed = {
        name: eval(default) for name, default in re.findall(r"^\| `(\w+)` \| (.*?) \|", table, flags=re.MULTILINE)
    }
    assert listed == MoMatchClassifier().get_params()
    described = re.findall(
        r"^        (\w+): ", MoMatchClassifier.__doc__.partition("Attributes:")[0], flags=re.MULTILINE
    )
    assert described == list(listed)
