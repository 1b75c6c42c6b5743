"""What words stand for: order, kinds, patterns, and words that stand for nothing."""

import numpy as np
import pytest
from PIL import Image

from momatch.data.report import DataError
from momatch.inference.predict.inputs import ArrayBatch, FileSource, NpzSource, find_sources
from tests.inference.small_saved_models import pictures


def names(sources, size=100):
    return [path for source in sources for batch in source.batches(size) for path in batch.paths]


def test_files_folders_and_patterns_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pictures(tmp_path / "b" / "deep", 2)
    pictures(tmp_path / "b", 1)
    pictures(tmp_path / "a", 2, extension="JPG")
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / "a" / ".hidden.png").touch()
    (tmp_path / "odd.data").write_text("named, so looked into")
    (tmp_path / "a" / "table.csv").write_text("path\nx.png\n")
    assert names(find_sources(["b"])) == ["b/0.png", "b/deep/0.png", "b/deep/1.png"]
    assert names(find_sources(["odd.data", "a/", "b/0.png"])) == ["odd.data", "a/0.JPG", "a/1.JPG", "b/0.png"]
    assert names(find_sources(["a/*"])) == ["a/0.JPG", "a/1.JPG"]
    assert names(find_sources(["*/1.*"])) == ["a/1.JPG"]
    assert names(find_sources(["?"])) == ["a/0.JPG", "a/1.JPG", "b/0.png", "b/deep/0.png", "b/deep/1.png"]
    assert names(find_sources(["**/*.png"])) == ["b/0.png", "b/deep/0.png", "b/deep/1.png"]
    # Folders are not taken a second time where the pattern reaches into them.
    assert names(find_sources(["b/**"])) == ["b/0.png", "b/deep/0.png", "b/deep/1.png"]
    assert names(find_sources(["a/*.csv"])) == ["a/x.png"]
    # A file may be called like a pattern.
    Image.new("L", (8, 8)).save("[1].png")
    assert names(find_sources(["[1].png"])) == ["[1].png"]


def test_files_that_follow_each_other_fill_batches(tmp_path):
    paths = [str(path) for path in pictures(tmp_path, 5)]
    (source,) = find_sources([*paths, str(tmp_path)])
    assert [len(batch.paths) for batch in source.batches(4)] == [4, 4, 2]


def test_links_in_circles_and_to_nothing(tmp_path):
    pictures(tmp_path / "a", 1)
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    assert names(find_sources([str(tmp_path / "a")])) == [f"{tmp_path}/a/0.png", f"{tmp_path}/a/gone.png"]
    assert names(find_sources([f"{tmp_path}/a/gone.png"])) == [f"{tmp_path}/a/gone.png"]


@pytest.mark.parametrize("extension", ["csv", "parquet"])
def test_manifests(tmp_path, extension):
    listed = ["x/0.png", "", "/elsewhere/1.png", "x/0.png"]
    path = tmp_path / f"list.{extension}"
    if extension == "csv":
        path.write_text("\n".join(["name,path", *(f"n,{name}" for name in listed), "too,many,fields"]) + "\n")
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"path": listed}), path)
    (source,) = find_sources([str(path)])
    found = [str(tmp_path / "x/0.png"), str(path), "/elsewhere/1.png", str(tmp_path / "x/0.png")]
    assert source.paths[:4] == found
    assert "the path is empty" in source.reasons[1]
    assert source.reasons.get(4) == ("line 6: got 3 fields, expected 2" if extension == "csv" else None)
    # Reasons stay with their rows where sources are joined and where batches are cut.
    (joined,) = find_sources([str(path)] * 2)
    assert [i for i in range(len(joined)) if i in joined.reasons] == [
        i + k * len(source) for k in (0, 1) for i in source.reasons
    ]
    assert [list(batch.reasons) for batch in source.batches(1)][:3] == [[], [0], []]


def test_npz_in_every_layout_and_role(tmp_path):
    gray = np.arange(5 * 8 * 8, dtype=np.uint8).reshape(5, 8, 8)
    color = np.arange(3 * 8 * 8 * 3, dtype=np.uint8).reshape(3, 8, 8, 3)
    np.savez(tmp_path / "a.npz", images=gray, labels=np.zeros(5, int))
    np.savez_compressed(tmp_path / "b.npz", x_test=color, train_images=color.transpose(0, 3, 1, 2))
    sources = find_sources([str(tmp_path / "a.npz"), str(tmp_path / "b.npz")])
    assert [source.name for source in sources] == [f"{tmp_path}/a.npz", f"{tmp_path}/b.npz", f"{tmp_path}/b.npz/x_test"]
    read = [list(source.batches(2)) for source in sources]
    assert [batch.first for batch in read[0]] == [0, 2, 4]
    assert np.array_equal(np.concatenate([batch.pixels for batch in read[0]]), gray[:, None])
    for part in read[1:]:
        assert np.array_equal(np.concatenate([batch.pixels for batch in part]), color.transpose(0, 3, 1, 2))


def test_a_damaged_npz_gives_rows_that_say_so(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "a.npz"
    np.savez(path, images=rng.integers(0, 256, (600, 16, 16), dtype=np.uint8))
    data = bytearray(path.read_bytes())
    data[100_000] ^= 0xFF
    path.write_bytes(data)
    (source,) = find_sources([str(path)])
    batches = list(source.batches(32))
    assert isinstance(source, NpzSource)
    assert sum(batch.count for batch in batches) == 600
    assert [batch.first for batch in batches] == list(range(0, 600, 32))
    assert isinstance(batches[-1], ArrayBatch)
    assert batches[-1].pixels is None
    assert "CRC" in batches[-1].reason


def test_known_datasets_give_their_test_images():
    (source,) = find_sources(["digits"])
    assert (source.name, len(source), source.pixels.shape[1:]) == ("digits", 500, (1, 8, 8))
    assert [batch.count for batch in source.batches(300)] == [300, 200]


def test_words_that_stand_for_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "bad.csv").write_text("file\nx.png\n")
    (tmp_path / "none.csv").write_text("path\n")
    (tmp_path / "bad.npz").write_text("no zip")
    np.savez("floats.npz", images=np.zeros((2, 8, 8)))
    np.savez("other.npz", arr_0=np.zeros((2, 8, 8), np.uint8))
    for words, message in {
        (): "got no paths",
        ("gone.png",): "nor a path that exists",
        ("digit",): "did you mean 'digits'",
        ("empty",): "empty: no images found",
        ("*.txt",): "matches 1 files, but no image",
        ("*.gif",): "matches 0 files",
        ("bad.csv",): "got the columns file, expected path",
        ("none.csv",): "got no rows",
        ("bad.npz",): "cannot be read as .npz",
        ("floats.npz",): "got dtype float64, expected uint8",
        ("other.npz",): "got the arrays arr_0, expected at least images",
    }.items():
        with pytest.raises(DataError, match=message):
            find_sources(list(words))


def test_nothing_is_opened_while_listing(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"")
    (source,) = find_sources([str(tmp_path)])
    assert isinstance(source, FileSource)
    assert len(source) == 1


def test_a_folder_called_like_a_dataset_is_not_passed_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pictures(tmp_path / "digits", 1)
    with pytest.raises(DataError, match=r"write \./digits for the path"):
        find_sources(["digits"])
    assert [len(source) for source in find_sources(["./digits"])] == [1]


def test_an_npz_without_images(tmp_path):
    np.savez(tmp_path / "none.npz", images=np.zeros((0, 4, 4, 3), np.uint8))
    with pytest.raises(DataError, match="images: got no images, expected at least one"):
        find_sources([str(tmp_path / "none.npz")])
