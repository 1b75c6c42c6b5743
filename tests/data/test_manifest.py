import sys
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from momatch.data.load import load_dataset
from momatch.data.report import DataError, DataWarning
from momatch.data.sources.manifest import load_manifest, read_manifest

ROWS = [
    ("pets/cat/0.png", "cat", "train"),
    ("pets/dog/0.png", "dog", ""),
    ("pets/cat/1.png", "", "train"),
    ("pets/cat/2.png", "cat", "test"),
    ("pets/dog/1.png", "dog", "train"),
]


def write(path, rows, header="path,label,split"):
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n", "utf-8")
    return path


@pytest.fixture
def manifest(folder):
    return write(folder.parent / "list.csv", ROWS)


def test_rows_labels_and_splits(manifest, options):
    dataset, _ = load_manifest("list.csv", manifest, options)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train.labels.tolist() == [0, 1, -1, 1]
    assert dataset.train.images[:, 0, 0, 0].tolist() == [10, 30, 15, 35]
    assert dataset.test is not None
    assert dataset.test.labels.tolist() == [0]
    assert dataset.test.images[0, 0, 0, 0] == 20


def test_parquet_agrees_with_csv(manifest, options):
    path = manifest.with_suffix(".parquet")
    columns = zip(*[(a, b or None, c or None) for a, b, c in ROWS], strict=True)
    pq.write_table(pa.table(dict(zip(("path", "label", "split"), columns, strict=True))), path)
    csv, _ = load_manifest("a", manifest, options)
    parquet, _ = load_manifest("b", path, options)
    assert torch.equal(csv.train.images, parquet.train.images)
    assert csv.train.labels.tolist() == parquet.train.labels.tolist()
    assert csv.class_names == parquet.class_names


def with_status(manifest, statuses):
    """The manifest with a column more."""
    rows = [(*row, status) for row, status in zip(ROWS, statuses, strict=True)]
    return write(manifest, rows, header="path,label,split,status")


def test_an_image_of_no_class_is_apart(manifest, options):
    before, _ = load_manifest("list.csv", manifest, options)
    # The label counts, whatever the status says, and other statuses mean nothing.
    path = with_status(manifest, ("none", "labelled", "None", "none", "skipped"))
    dataset, report = load_manifest("list.csv", path, options)
    assert dataset.train.labels.tolist() == [0, 1, 1]
    assert dataset.train.images[:, 0, 0, 0].tolist() == [10, 30, 35]
    assert dataset.train.files == ("pets/cat/0.png", "pets/dog/0.png", "pets/dog/1.png")
    assert dataset.test.labels.tolist() == [0]
    assert dataset.no_class.labels.tolist() == [-2]
    assert dataset.no_class.images[:, 0, 0, 0].tolist() == [15]
    assert dataset.no_class.files == ("pets/cat/1.png",)
    assert report.notes == ["left out: 1 image of no class (status none in the manifest)"]
    assert before.no_class is None
    assert report.cache == load_manifest("list.csv", manifest, options)[1].cache, "nothing was decoded again"


def test_an_image_of_no_class_does_not_test(manifest, options):
    write(
        manifest, [(*row, "") for row in ROWS[:3]] + [("pets/cat/2.png", "", "test", "none")], "path,label,split,status"
    )
    dataset, _ = load_manifest("list.csv", manifest, options)
    assert dataset.test is None
    assert dataset.no_class.files == ("pets/cat/2.png",)


def test_status_in_parquet(manifest, options):
    path = manifest.with_suffix(".parquet")
    columns = {"path": [row[0] for row in ROWS[:3]], "label": ["a", "b", None], "status": [None, "none", "none"]}
    pq.write_table(pa.table(columns), path)
    dataset, _ = load_manifest("list", path, options)
    assert (dataset.train.labels.tolist(), dataset.no_class.files) == ([0, 1], ("pets/cat/1.png",))


def test_a_file_is_not_of_no_class_and_unlabelled_at_once(manifest, options):
    write(manifest, [(*row, "") for row in ROWS] + [("pets/cat/1.png", "", "train", "none")], "path,label,split,status")
    with pytest.raises(DataError, match=r"lines 4 and 7 give pets/cat/1\.png different"):
        load_manifest("list.csv", manifest, options)


def test_parquet_numbers_with_gaps_keep_their_values(manifest, options):
    labels = pa.array([2.0, 10.0, float("nan"), None, 0.0])
    table = pa.table({"path": [row[0] for row in ROWS], "label": labels})
    pq.write_table(table, manifest.with_suffix(".pq"))
    files = read_manifest(manifest.with_suffix(".pq"), options)
    assert files.class_names == ("0", "2", "10")
    assert files.labels.tolist() == [1, 2, -1, -1, 0]


def test_parquet_without_pyarrow_says_so(manifest, options, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = manifest.with_suffix(".parquet")
    path.write_bytes(b"PAR1")
    with pytest.raises(DataError, match="Parquet needs pyarrow; pip install pyarrow, or save the manifest as CSV"):
        load_manifest("a", path, options)


def test_broken_parquet_is_refused(manifest, options):
    path = manifest.with_suffix(".parquet")
    path.write_bytes(b"not parquet at all")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        load_manifest("a", path, options)


def test_unusable_rows_are_named_with_their_lines(manifest):
    (manifest.parent / "pets/dog/3.png").write_bytes(b"broken")
    extra = [("pets/cat/3.png",), ("gone.png", "cat", ""), ("", "cat", ""), ("pets/dog/2.png", "dog", "val")]
    write(manifest, [*ROWS, *extra, ("pets/dog/3.png", "dog", "")])
    expected = (
        r"skipped: 5 files or rows(.|\n)*line 7: got 1 fields, expected 3(.|\n)*line 8: gone.png: No such file"
        r"(.|\n)*line 9: the path is empty(.|\n)*line 10: .*got the split 'val'(.|\n)*line 11: pets/dog/3.png"
    )
    with pytest.warns(DataWarning, match=expected):
        dataset = load_dataset(manifest, progress=False)
    assert len(dataset.train) == 4


def test_strict_and_limit_refuse_unusable_rows(manifest, options):
    write(manifest, [*ROWS, ("gone.png", "cat", "")])
    with pytest.raises(DataError, match=r"1 of 6 rows cannot be used, expected at most 0:\n  line 7: gone\.png"):
        load_manifest("a", manifest, replace(options, strict=True))
    with pytest.raises(DataError, match="expected at most 0"):
        load_manifest("a", manifest, replace(options, max_skipped=0))


def test_decoding_failures_count_with_the_rows(manifest, options):
    (manifest.parent / "pets/dog/3.png").write_bytes(b"broken")
    write(manifest, [*ROWS, ("gone.png", "cat", ""), ("pets/dog/3.png", "dog", "")])
    assert len(load_manifest("a", manifest, replace(options, max_skipped=2))[1].skipped) == 2
    with pytest.raises(DataError, match="cannot be"):
        load_manifest("a", manifest, replace(options, max_skipped=1, cache_dir=manifest.parent / "other"))


def test_contradicting_rows_are_refused(manifest, options):
    write(manifest, [*ROWS, ("pets/cat/0.png", "dog", "")])
    with pytest.raises(DataError, match=r"lines 2 and 7 give pets/cat/0\.png different labels"):
        load_manifest("a", manifest, options)
    write(manifest, [*ROWS, ("pets/cat/2.png", "cat", "train")])
    with pytest.raises(DataError, match="different labels or splits"):
        load_manifest("a", manifest, options)


def test_classes_that_differ_only_in_case_are_named(manifest, tmp_path):
    write(manifest, [*ROWS, ("pets/emu/0.png", "DOG", "train")])
    with pytest.warns(DataWarning, match="the classes DOG and dog differ only in upper and lower case"):
        dataset = load_dataset(manifest, cache_dir=tmp_path / "cache")
    assert dataset.class_names == ("DOG", "cat", "dog")


def test_the_same_row_twice_is_kept(manifest, options):
    write(manifest, [*ROWS, ROWS[0]])
    assert len(load_manifest("a", manifest, options)[0].train) == 5


def test_missing_columns_and_empty_tables_are_refused(manifest, options):
    write(manifest, ROWS, header="file,label,split")
    with pytest.raises(DataError, match="got the columns file, label, split, expected path and label"):
        load_manifest("a", manifest, options)
    manifest.write_text("")
    with pytest.raises(DataError, match=r"got the columns \(none\)"):
        load_manifest("a", manifest, options)
    write(manifest, [])
    with pytest.raises(DataError, match="got no rows"):
        load_manifest("a", manifest, options)


def test_images_without_labels_and_classes_to_be_tested_only_are_fine(manifest, options):
    write(manifest, [(path, "", "") for path, _, _ in ROWS])
    assert load_manifest("a", manifest, options)[0].class_names == ()
    write(manifest, [*ROWS, ("pets/emu/0.png", "emu", "test")])
    dataset, _ = load_manifest("a", manifest, options)
    assert dataset.class_names == ("cat", "dog", "emu")
    assert dataset.test.labels.tolist() == [0, 2]


def test_test_labels_must_be_given(manifest, options):
    write(manifest, [*ROWS, ("pets/emu/0.png", "", "test")])
    with pytest.raises(DataError, match="line 7: got a test image without a label, expected a class"):
        load_manifest("a", manifest, options)


def test_broken_quotes_and_encodings_are_refused(manifest, options):
    manifest.write_text('path,label\na.png,"cat\n')
    with pytest.raises(DataError, match="cannot be read after line"):
        load_manifest("a", manifest, options)
    manifest.write_bytes(b"path,label\ncaf\xe9.png,cat\n")
    with pytest.raises(DataError, match="expected CSV in UTF-8"):
        load_manifest("a", manifest, options)


def test_spreadsheet_csv_with_bom_and_absolute_paths(manifest, options):
    rows = [(str(manifest.parent / path), label, split) for path, label, split in ROWS]
    write(manifest, rows)
    manifest.write_bytes(b"\xef\xbb\xbf" + manifest.read_bytes())
    assert len(load_manifest("a", manifest, options)[0].train) == 4


def test_without_a_usable_row_the_first_reasons_are_said(manifest, options):
    write(manifest, [(f"gone{i}.png", "cat", "") for i in range(8)])
    with pytest.raises(
        DataError, match=r"no row that can be used out of 8(.|\n)*line 2: gone0\.png: No such file"
    ) as e:
        load_manifest("a", manifest, options)
    assert "at most" not in str(e.value)
