"""Rows, flags and the false discovery rate from counts."""

import csv
import io
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from momatch.inference.predict.output import CsvWriter, JsonlWriter
from momatch.inference.predict.table import columns, flag, make_table
from momatch.models.scorer import Scores
from momatch.outliers import benjamini_hochberg
from momatch.outliers.discovery import ConformalCounts

NAMES = ("cat", "dog")


def scores(n=2, **changed):
    fields = {
        "labels": torch.arange(n) % 2,
        "posterior": torch.tensor([[0.7, 0.3], [0.1, 0.9]]).repeat(n, 1)[:n],
        "log_density": torch.linspace(-3.3, 2.1, n),
        "distance": torch.linspace(0.1, 9.0, n),
        "outlier_score": torch.linspace(-1.5, 7.25, n),
        "p_value": torch.arange(1, n + 1) / 100,
    }
    return Scores(**fields | changed)


def test_rows_have_their_scores_and_reasons_in_place():
    table = make_table(
        list("abcd"),
        [None] * 4,
        {0: "broken", 2: "gone"},
        scores(),
        class_names=NAMES,
        calibration_size=99,
        posterior=True,
    )
    flag(table, 0.01)
    assert list(table) == columns(NAMES)
    assert table["label"] == [None, "cat", None, "dog"]
    assert table["confidence"] == [None, 0.7, None, 0.9]
    assert table["posterior_dog"] == [None, 0.3, None, 0.9]
    assert table["outlier_score"] == [None, -1.5, None, 7.25]
    assert table["p_value"] == [None, 0.01, None, 0.02]
    assert table["flagged"] == [None, True, None, False]
    assert table["error"] == ["broken", None, "gone", None]


def test_a_level_that_is_met_exactly_counts():
    # In float32 5/100 is above 0.05.
    for m, k, alpha in ((99, 5, 0.05), (19, 1, 0.05), (9, 3, 0.3), (999, 7, 0.007)):
        p = (1.0 + torch.tensor([k - 1, k])) / (m + 1.0)
        table = make_table("ab", [0, 1], {}, scores(p_value=p), class_names=NAMES, calibration_size=m)
        flag(table, alpha)
        assert table["flagged"] == [True, False]


@given(
    m=st.integers(1, 60),
    ranks=st.lists(st.integers(1, 10**6), min_size=1, max_size=80),
    fdr=st.sampled_from([0.01, 0.05, 0.1, 0.2, 0.25, 0.5, 0.9]),
    few=st.booleans(),
)
def test_counts_give_what_benjamini_hochberg_gives(m, ranks, fdr, few):
    ranks = [1 + rank % (min(m, 3) if few else m + 1) for rank in ranks]
    p = torch.tensor(ranks) / (m + 1.0)
    expected = benjamini_hochberg(p, fdr).tolist()
    counts, table = ConformalCounts(m), {"p_value": [rank / (m + 1) for rank in ranks] + [None]}
    for value in table["p_value"]:
        counts.add([] if value is None else [value])
    flag(table, counts.cut(fdr))
    assert table["flagged"] == [*expected, None]


def test_no_p_values_at_all():
    counts = ConformalCounts(9)
    counts.add([])
    assert counts.cut(0.5) == -1.0


def test_values_that_are_not_numbers_are_left_out():
    nothing = torch.full((2,), torch.nan)
    infinite = torch.tensor([torch.inf, 2.5])
    made = scores(distance=nothing, log_density=-infinite + 4.0, outlier_score=infinite, p_value=nothing)
    table = make_table("ab", [4, 5], {}, made, class_names=NAMES, calibration_size=0)
    flag(table, 0.05)
    out, lines = io.BytesIO(), io.BytesIO()
    CsvWriter(out, columns()).write(table)
    JsonlWriter(lines, columns()).write(table)
    (first, second) = csv.DictReader(io.StringIO(out.getvalue().decode()))
    assert (first["log_density"], first["distance"], first["p_value"], first["flagged"]) == ("", "", "", "")
    assert (second["row"], second["log_density"]) == ("5", "1.5")
    assert json.loads(lines.getvalue().splitlines()[0]) == {
        "path": "a",
        "row": 4,
        "label": "cat",
        "confidence": 0.7,
        "error": None,
        **dict.fromkeys(["log_density", "distance", "outlier_score", "p_value", "flagged"]),
    }


def test_numbers_come_back_as_the_float32_they_were():
    values = torch.randn(50) * 10.0 ** torch.arange(-10, 5, 0.3)
    table = make_table("a" * 50, [None] * 50, {}, scores(50, log_density=values), class_names=NAMES, calibration_size=0)
    assert np.array_equal(np.array(table["log_density"], np.float32), values.numpy())
    assert max(len(repr(value)) for value in table["log_density"]) <= 16


def test_names_that_are_no_utf8_survive():
    name = b"\xff.png".decode("utf-8", "surrogateescape")
    table = make_table([name], [None], {0: 'no, "image"\n'}, None, class_names=NAMES, calibration_size=0)
    out, lines = io.BytesIO(), io.BytesIO()
    CsvWriter(out, columns()).write(table)
    JsonlWriter(lines, columns()).write(table)
    assert b"\xff.png" in out.getvalue()
    assert json.loads(lines.getvalue())["path"] == name
    pa = pytest.importorskip("pyarrow.parquet")
    from momatch.inference.predict.output import ParquetWriter

    file = io.BytesIO()
    writer = ParquetWriter(file, columns())
    writer.write(table)
    writer.close()
    assert pa.read_table(file).to_pydict()["path"] == ["\\xff.png"]
