"""From files to rows: the same as `SavedModel.predict`, in bounded memory, whole or not at all."""

import csv
import json
import os
import threading
import warnings
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from momatch.inference.predict import output, pipeline, stream
from momatch.inference.predict.inputs import ArraySource, FileSource, find_sources
from momatch.inference.predict.output import check_out
from momatch.inference.predict.pipeline import in_order
from momatch.inference.predict.stream import Settings, predict_to_file
from momatch.outliers import benjamini_hochberg
from tests.inference.small_saved_models import CLASSES, pictures, small_model

NUMBERS = ("confidence", "log_density", "distance", "outlier_score", "p_value")


def predicted(model, words, out, **settings):
    summary = predict_to_file(
        model, find_sources([str(word) for word in words]), out, Settings(progress=False, **settings)
    )
    return read(out), summary


def read(path: Path):
    """The rows of any format, as JSON has them."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    with open(path, newline="") as file:
        rows = [{name: value or None for name, value in row.items()} for row in csv.DictReader(file)]
    for row in rows:
        row["row"] = None if row["row"] is None else int(row["row"])
        row["flagged"] = {None: None, "yes": True, "no": False}[row["flagged"]]
        row.update({name: None if row[name] is None else float(row[name]) for name in NUMBERS})
    return rows


def assert_scores(rows, scores):
    assert [row["label"] for row in rows] == [CLASSES[k] for k in scores.labels]
    for name in NUMBERS:
        values = torch.tensor([row[name] for row in rows])
        torch.testing.assert_close(values, getattr(scores, name), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("extension", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("judged", [False, True])
def test_rows_are_those_of_predict(tmp_path, extension, judged, monkeypatch):
    monkeypatch.setattr(output, "ROW_GROUP", 4)
    model = small_model(judged=judged)
    paths = pictures(tmp_path / "x")
    rows, summary = predicted(model, [tmp_path / "x"], tmp_path / f"out.{extension}", batch_size=3)
    assert [row["path"] for row in rows] == [str(path) for path in paths]
    assert {row["error"] for row in rows} == {None}
    assert {row["row"] for row in rows} == {None}
    assert_scores(rows, model.predict([str(path) for path in paths]))
    assert [row["flagged"] for row in rows] == [row["p_value"] <= 0.05 for row in rows]
    assert (summary.images, summary.unreadable, summary.flagged) == (7, 0, sum(row["flagged"] for row in rows))
    assert 0 < summary.flagged < 7
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"out.{extension}", "x"]


def test_arrays_with_their_rows(tmp_path):
    model = small_model()
    pixels = np.random.default_rng(0).integers(0, 256, (5, 12, 10), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels)
    rows, _ = predicted(model, [tmp_path / "a.npz", *pictures(tmp_path / "x", 1)], tmp_path / "out.jsonl", batch_size=2)
    assert [row["row"] for row in rows] == [0, 1, 2, 3, 4, None]
    assert {row["path"] for row in rows[:5]} == {str(tmp_path / "a.npz")}
    assert_scores(rows[:5], model.predict(pixels))


@pytest.mark.parametrize("judged", [False, True])
def test_neither_batches_nor_threads_change_the_rows(tmp_path, judged):
    model = small_model(judged=judged)
    pictures(tmp_path / "x", 11)
    expected, _ = predicted(model, [tmp_path / "x"], tmp_path / "a.jsonl", batch_size=64, workers=1)
    for batch_size, workers in ((1, 1), (2, 3), (5, 2)):
        rows, _ = predicted(model, [tmp_path / "x"], tmp_path / "b.jsonl", batch_size=batch_size, workers=workers)
        for row, wanted in zip(rows, expected, strict=True):
            assert {name: row[name] for name in row if name not in NUMBERS} == {
                name: wanted[name] for name in wanted if name not in NUMBERS
            }
            for name in NUMBERS:
                assert row[name] == pytest.approx(wanted[name], rel=1e-5, abs=1e-5)


def test_threads_read_the_stages_of_their_own_batch(tmp_path, monkeypatch):
    """Bit for bit the rows of one thread, also while the network is made to wait in the middle of other batches."""
    model = small_model(judged=True)
    pictures(tmp_path / "x", 60)
    expected, _ = predicted(model, [tmp_path / "x"], tmp_path / "a.jsonl", batch_size=2, workers=1)
    layer = model.classifier.backbone.layers[0]
    forward = layer.forward
    turns = iter(range(10**6))

    def slow(x):
        threading.Event().wait(0.003 * (next(turns) % 4))
        return forward(x)

    monkeypatch.setattr(layer, "forward", slow)
    for workers in (2, 8):
        rows, _ = predicted(model, [tmp_path / "x"], tmp_path / "b.jsonl", batch_size=2, workers=workers)
        assert rows == expected
    # No hook is left behind.
    assert not any(module._forward_hooks for module in model.classifier.modules())


def test_hooks_are_removed_after_an_error(tmp_path, monkeypatch):
    model = small_model(judged=True)
    pictures(tmp_path / "x", 4)
    monkeypatch.setattr(pipeline, "make_table", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        predicted(model, [tmp_path / "x"], tmp_path / "out.jsonl", workers=2)
    assert not any(module._forward_hooks for module in model.classifier.modules())


@pytest.mark.parametrize("channels", [1, 3])
def test_any_image_becomes_one_of_the_models(tmp_path, channels):
    """Sizes, colours, orientation, transparency and 16 bits in one folder; against steps of Pillow alone."""
    model = small_model(channels=channels, size=(8, 8))
    rng = np.random.default_rng(1)
    color = Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "x").mkdir()
    color.save(tmp_path / "x" / "a.png")
    color.convert("L").save(tmp_path / "x" / "b.png")
    color.save(tmp_path / "x" / "c.png", exif=exif)
    color.convert("P").save(tmp_path / "x" / "d.gif")
    turned = color.transpose(Image.Transpose.ROTATE_270)
    mode = "L" if channels == 1 else "RGB"
    wanted = []
    with Image.open(tmp_path / "x" / "d.gif") as file:
        palette = file.convert("RGB")
    for image in (color, color.convert("L"), turned, palette):
        gray = image.convert("L") if channels == 1 else image
        small = gray.resize((12, 8) if image.width > image.height else (8, 12), Image.Resampling.BILINEAR)
        box = (2, 0, 10, 8) if image.width > image.height else (0, 2, 8, 10)
        pixels = np.asarray(small.crop(box).convert(mode)).reshape(8, 8, channels)
        wanted.append(pixels.transpose(2, 0, 1))
    rows, _ = predicted(model, [tmp_path / "x"], tmp_path / "out.jsonl")
    assert_scores(rows, model.predict(torch.from_numpy(np.stack(wanted))))


def test_images_that_are_not_square(tmp_path):
    model = small_model(size=(6, 9))
    pixels = np.random.default_rng(1).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "same.png")
    Image.fromarray(np.pad(pixels, ((0, 0), (2, 2), (0, 0)))).save(tmp_path / "wide.png")
    rows, _ = predicted(model, [tmp_path / "same.png", tmp_path / "wide.png"], tmp_path / "out.jsonl")
    assert_scores(rows, model.predict(np.stack([pixels, pixels])))


def test_unreadable_files_have_a_row_with_the_reason(tmp_path, monkeypatch):
    good, cut, *_ = pictures(tmp_path / "x", 2, side=32)
    cut.write_bytes(cut.read_bytes()[:800])
    (tmp_path / "x" / "empty.png").touch()
    (tmp_path / "x" / "text.jpg").write_text("no image")
    (tmp_path / "x" / "folder.png").mkdir()
    manifest = tmp_path / "list.csv"
    manifest.write_text('path\nx/0.png\nx/gone.png\nx/folder.png\nx/1.png\nx/empty.png\nx/text.jpg\n""\n')
    rows, summary = predicted(small_model(), [manifest], tmp_path / "out.csv", batch_size=2)
    reasons = [row["error"] for row in rows]
    assert reasons[0] is None
    for reason, expected in zip(
        reasons[1:],
        [
            "No such file",
            "Is a directory",
            "truncated",
            "is empty",
            "not a recognised image",
            "line 8: the path is empty",
        ],
        strict=True,
    ):
        assert expected in reason
        assert "\n" not in reason
    assert all(row[name] is None for row in rows[1:] for name in ("label", "flagged", *NUMBERS))
    assert_scores(rows[:1], small_model_again(rows, good))
    assert (summary.images, summary.unreadable) == (1, 6)


def small_model_again(rows, good):
    """The scores of the same model: the seed is the test's, so it is built again."""
    torch.manual_seed(0)
    return small_model().predict([str(good)])


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    (path,) = pictures(tmp_path / "x", 1)

    def refuse(*arguments):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(pipeline, "decode_for", refuse)
    rows, summary = predicted(small_model(), [path], tmp_path / "out.jsonl")
    assert rows[0]["error"] == "Permission denied"
    assert summary.images == 0


def test_an_image_so_large_that_it_may_be_an_attack(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    pictures(tmp_path / "x", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        rows, _ = predicted(small_model(), [tmp_path / "x"], tmp_path / "out.jsonl", workers=2)
    assert "DecompressionBomb" in rows[0]["error"]


def test_false_discovery_rate_over_all_images(tmp_path):
    model = small_model(calibration_size=199)
    paths = [str(path) for path in pictures(tmp_path / "x", 12)]
    (tmp_path / "x" / "broken.png").touch()
    p = model.predict(paths).p_value
    for fdr in (0.02, 0.1, 0.5):
        rows, summary = predicted(model, [tmp_path / "x"], tmp_path / "out.csv", fdr=fdr, batch_size=5)
        flags = {row["path"]: row["flagged"] for row in rows}
        assert [flags[path] for path in paths] == benjamini_hochberg(p, fdr).tolist()
        assert flags[str(tmp_path / "x" / "broken.png")] is None
        assert summary.flagged == sum(value is True for value in flags.values())
    assert summary.flagged > 0


def test_without_calibration_nothing_is_flagged(tmp_path):
    pictures(tmp_path / "x", 2)
    for settings in ({"alpha": 0.5}, {"fdr": 0.5}):
        rows, summary = predicted(small_model(calibration_size=0), [tmp_path / "x"], tmp_path / "out.csv", **settings)
        assert {(row["p_value"], row["flagged"]) for row in rows} == {(None, None)}
        assert summary.flagged is None


def test_a_linear_head_has_no_distance(tmp_path):
    pictures(tmp_path / "x", 2)
    model = small_model(head="linear")
    rows, _ = predicted(model, [tmp_path / "x"], tmp_path / "out.jsonl")
    assert {row["distance"] for row in rows} == {None}
    assert all(row["p_value"] is not None for row in rows)


def test_posterior_of_each_class(tmp_path):
    pictures(tmp_path / "x", 3)
    model = small_model()
    rows, _ = predicted(model, [tmp_path / "x"], tmp_path / "out.parquet", posterior=True)
    posterior = torch.tensor([[row[f"posterior_{name}"] for name in CLASSES] for row in rows])
    expected = model.predict([str(path) for path in sorted((tmp_path / "x").iterdir())]).posterior
    torch.testing.assert_close(posterior, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"fdr": 0.1}])
def test_memory_is_that_of_a_few_batches(tmp_path, monkeypatch, settings):
    """Of two hundred batches only so many are ever alive, and batches are taken only as they are needed."""
    alive, most = [0], [0]

    class Counted(dict):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            alive[0] += 1
            most[0] = max(most[0], alive[0])

        def __del__(self):
            alive[0] -= 1

    make = pipeline.make_table
    monkeypatch.setattr(pipeline, "make_table", lambda *a, **k: Counted(make(*a, **k)))
    pixels = np.random.default_rng(0).integers(0, 256, (2_000, 3, 8, 8), dtype=np.uint8)
    taken = []

    class Watched(ArraySource):
        def batches(self, size):
            for batch in super().batches(size):
                taken.append(batch.first)
                yield batch

    done = []
    monkeypatch.setattr(stream.CountProgress, "add", lambda self, count: done.append(len(taken)))
    monkeypatch.setattr(stream.CountProgress, "done", 2_000, raising=False)
    predict_to_file(
        small_model(),
        [Watched("x", pixels)],
        tmp_path / "out.csv",
        Settings(batch_size=10, workers=2, progress=False, **settings),
    )
    assert len(taken) == 200
    assert most[0] <= 8
    # Batch k is read when at most six are under way: not all at the start.
    assert all(count <= k + 7 for k, count in enumerate(done))
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 2_001


@pytest.mark.parametrize("extension", ["csv", "jsonl", "parquet"])
def test_output_is_whole_or_not_there(tmp_path, monkeypatch, extension):
    pictures(tmp_path / "x", 6)
    out = tmp_path / f"out.{extension}"
    out.write_text("before")
    calls = []

    def fails(self, batch):
        calls.append(batch)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(self, batch)

    original = pipeline.Predictor.__call__
    for settings in ({}, {"fdr": 0.1}):
        calls.clear()
        monkeypatch.setattr(pipeline.Predictor, "__call__", fails)
        with pytest.raises(KeyboardInterrupt):
            predicted(small_model(), [tmp_path / "x"], out, batch_size=1, workers=1, **settings)
        assert out.read_text() == "before"
        assert sorted(path.name for path in tmp_path.iterdir()) == [out.name, "x"]
    assert not [thread for thread in threading.enumerate() if "ThreadPool" in thread.name]


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    pictures(tmp_path / "x", 1)

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("momatch.inference.predict.output.os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        predicted(small_model(), [tmp_path / "x"], tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_targets_that_are_refused(tmp_path):
    (tmp_path / "there.csv").touch()
    (tmp_path / "list.csv").touch()
    (tmp_path / "folder.csv").mkdir()
    for name, message in {
        "out.txt": "expected a file name with the extension .csv, .jsonl, .parquet",
        "gone/out.csv": "in a directory that exists",
        "folder.csv": "not a directory",
        "there.csv": "the file exists; .*--overwrite",
    }.items():
        with pytest.raises(ValueError, match=message):
            check_out(tmp_path / name, overwrite=False)
    check_out(tmp_path / "there.csv", overwrite=True)
    with pytest.raises(ValueError, match="one of the inputs"):
        check_out(
            tmp_path / "list.csv",
            overwrite=True,
            inputs=["gone", str(tmp_path / "there.csv"), f"{tmp_path}/./list.csv"],
        )


def test_threads_of_torch_are_as_before_and_shared(monkeypatch):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        seen = list(in_order(lambda i: (i, torch.get_num_threads()), range(9), 2))
        assert seen == [(i, 2) for i in range(9)]
        assert torch.get_num_threads() == 4
        with pytest.raises(ZeroDivisionError):
            list(in_order(lambda i: 1 // (3 - i), range(9), 2))
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


def test_settings_of_the_process_are_left_alone(tmp_path):
    filters = list(warnings.filters)
    pictures(tmp_path / "x", 2)
    predict_to_file(
        small_model(), [FileSource([str(tmp_path / "x" / "0.png")])], tmp_path / "o.csv", Settings(progress=False)
    )
    assert warnings.filters == filters
    assert os.path.getsize(tmp_path / "o.csv") > 0
