import pytest
import torch

from momatch.data.catalog import KNOWN
from momatch.data.load import BY_NAME, load_dataset, load_with_report
from momatch.data.locate import cache_root, data_root
from momatch.data.report import DataError, LoadOptions


def test_names_are_those_of_the_catalog():
    assert list(BY_NAME) == list(KNOWN)


@pytest.mark.parametrize(
    ("name", "meant"), [("minst", "mnist"), ("CIFAR-10", "cifar10"), ("fashion_mnist", "fashion-mnist")]
)
def test_a_wrong_name_gets_a_suggestion(name, meant):
    with pytest.raises(DataError, match=f"did you mean '{meant}'"):
        load_dataset(name)


def test_a_path_that_is_not_there_gets_none():
    with pytest.raises(DataError, match=r"nor a path that exists$"):
        load_dataset("./some/where/else/entirely")


def test_unknown_files_are_refused(tmp_path):
    for name in ("a.zip", "a"):
        (tmp_path / name).write_text("x")
        with pytest.raises(DataError, match=r"expected a folder, \.csv, \.parquet or \.npz"):
            load_dataset(tmp_path / name)


def test_options_without_meaning_are_refused(folder):
    with pytest.raises(DataError, match="digits: strict does not apply"):
        load_dataset("digits", strict=True)
    with pytest.raises(DataError, match="drop_test_duplicates does not apply"):
        load_dataset(folder, drop_test_duplicates=True)
    with pytest.raises(DataError, match="sise"):
        load_dataset("digits", sise=8)


@pytest.mark.parametrize(
    "wrong", [{"size": 0}, {"workers": 0}, {"max_skipped": -1}, {"test_fraction": 1.0}, {"test_folder": "unlabeled"}]
)
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(DataError, match="expected"):
        LoadOptions(**wrong)


def test_limit():
    assert [LoadOptions().skip_limit(total) for total in (5, 1000, 5000)] == [10, 10, 50]
    assert LoadOptions(max_skipped=3).skip_limit(10**6) == 3
    assert LoadOptions(strict=True, max_skipped=3).skip_limit(10**6) == 0


def test_places(tmp_path, monkeypatch):
    assert cache_root() == tmp_path / "cache"
    assert cache_root("x").name == "x"
    assert data_root() == tmp_path / "cache/datasets"
    monkeypatch.setenv("MOMATCH_DATA", "elsewhere")
    assert data_root().name == "elsewhere"
    monkeypatch.delenv("MOMATCH_CACHE")
    assert cache_root().name == "momatch"


def test_a_report_comes_with_a_name_too():
    dataset, report = load_with_report("digits")
    assert (dataset.name, report.warnings) == ("digits", [])


def test_known_datasets_can_be_resized():
    own, larger = load_dataset("digits"), load_dataset("digits", size=16)
    assert larger.train.images.shape == (1297, 1, 16, 16)
    assert larger.test.images.shape == (500, 1, 16, 16)
    assert larger.train.images.dtype == torch.uint8
    assert torch.equal(own.test.labels, larger.test.labels)
    # Averaged back, the picture is the same.
    back = torch.nn.functional.avg_pool2d(larger.test.images.float(), 2)
    assert float((back - own.test.images).abs().mean()) < 25
    assert torch.equal(load_dataset("digits", size=8).test.images, own.test.images)
