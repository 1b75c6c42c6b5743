"""Features of ONNX graphs and of several backbones: embed, train, save, load without the file, predict; default image sizes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from momatch import Run, TrainConfig, export_model, fit, load_dataset
from momatch.data.report import DataWarning
from momatch.embedding import EmbedOptions, embed
from momatch.embedding.expected import fast_size
from momatch.models.backbones import build_backbone
from momatch.models.saved_model import SavedModel
from tests.embedding.setting import small_options
from tests.models.small_onnx import F, write_graph


@pytest.fixture
def photographs(tmp_path):
    """A folder of images of mixed sizes: two classes."""
    rng = np.random.default_rng(0)
    for label, level in (("dark", 60), ("light", 190)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(12):
            pixels = rng.integers(level - 50, level + 50, (40 + number, 60, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number}.png")
    return tmp_path / "photos"


@pytest.mark.parametrize("also", ["", ",cnn-tiny"])
def test_from_graph_to_predictions_without_the_file(tmp_path, also):
    path = write_graph(tmp_path / "a.onnx", shape=["n", 3, 32, 32])
    options = small_options(tmp_path, backbone=f"onnx:{path}{also}", untrained=bool(also))
    embedded = embed(options)
    assert embedded.spec.image_size == (32, 32)  # the graph's own
    assert embedded.spec.num_features == F + (64 if also else 0)
    path.unlink()
    config = TrainConfig(
        dataset=str(options.out), labels_per_class=4, steps=10, progress=False, run_dir=str(tmp_path / "run")
    )
    run = fit(config)
    test = load_dataset(options.dataset).test.images
    wanted = run.classifier.embed_features(load_dataset(options.out).test.features[:, 0])
    found = run.predict(test)
    torch.testing.assert_close(
        run.classifier.head(wanted).argmax(1), found.labels.to(torch.int64), msg="features and images agree"
    )
    run.model.save_pretrained(tmp_path / "model")
    again = SavedModel.from_pretrained(tmp_path / "model").predict(test)
    assert torch.equal(again.outlier_score, found.outlier_score)
    with pytest.raises(ValueError, match=r"an ONNX graph, which torch\.export cannot hold"):
        export_model(Run.load(tmp_path / "run").model, tmp_path / "a.pt2", to="torch")


def test_an_interrupted_embedding_keeps_its_graph(tmp_path):
    path = write_graph(tmp_path / "a.onnx", shape=["n", 3, 32, 32])
    first = embed(small_options(tmp_path, backbone=f"onnx:{path}"))
    second = embed(small_options(tmp_path, backbone=f"onnx:{path}", out=tmp_path / "b.npz", batch_size=48))
    one, two = (load_dataset(each.spec.path).train.features.float() for each in (first, second))
    torch.testing.assert_close(one, two, atol=2e-3, rtol=2e-3)


def test_training_on_images(photographs, tmp_path):
    path = write_graph(tmp_path / "a.onnx", shape=["n", 3, 32, 32])
    config = TrainConfig(
        dataset=str(photographs),
        backbone=f"onnx:{path}",
        labels_per_class=4,
        steps=3,
        labeled_batch_size=8,
        unlabeled_batch_size=8,
        progress=False,
        run_dir=str(tmp_path / "run"),
    )
    run = fit(config)
    assert run.spec.image_size == (32, 32)
    path.unlink()
    assert len(run.predict([str(photographs / "dark" / "0.png")])) == 1


def test_mixed_sizes_get_the_backbones_default(photographs, tmp_path):
    with pytest.warns(DataWarning, match="resized to 32 x 32; choose another size with image_size"):
        embedded = embed(
            EmbedOptions(
                dataset=str(photographs), out=tmp_path / "f.npz", backbone="cnn-tiny", untrained=True, progress=False
            )
        )
    assert embedded.spec.image_size == (32, 32)
    config = TrainConfig(
        dataset=str(photographs), steps=2, labeled_batch_size=8, unlabeled_batch_size=8, labels_per_class=2
    )
    with pytest.warns(DataWarning, match="resized to 32 x 32"):
        run = fit(TrainConfig.from_dict({**config.to_dict(), "progress": False, "run_dir": str(tmp_path / "run")}))
    assert '"image_size": 32' in (tmp_path / "run" / "data.json").read_text()
    assert run.spec.image_size == (32, 32)


def test_fast(tmp_path, capsys, monkeypatch):
    assert [fast_size(side) for side in (32, 224, 256, 299, 384, 518)] == [32, 128, 128, 160, 192, 288]
    path = write_graph(tmp_path / "a.onnx")  # of any size: 224 by default
    options = small_options(tmp_path, backbone=f"onnx:{path}", fast=True, limit=8, limit_test=4)
    monkeypatch.setattr("momatch.embedding.expected._WORTH_SAYING", 0.0)
    assert embed(options).spec.image_size == (128, 128)
    assert capsys.readouterr().err == ""
    embed(
        small_options(tmp_path, out=tmp_path / "b.npz", backbone=f"onnx:{path}", limit=8, limit_test=4, progress=True)
    )
    said = capsys.readouterr().err
    assert "embed: 12 images at 224 x 224 pixels, about" in said
    assert "--fast embeds them at 128 x 128" in said
    with pytest.raises(ValueError, match="fast and image_size: got both"):
        small_options(tmp_path, out=tmp_path / "c.npz", fast=True, image_size=32)
    with pytest.raises(ValueError, match="which has no size of its own"):
        small_options(tmp_path, out=tmp_path / "c.npz", backbone="cnn-tiny", fast=True).side()


def test_networks_without_pretrained_weights_are_refused(tmp_path):
    path, file = write_graph(tmp_path / "a.onnx", shape=["n", 3, 32, 32]), tmp_path / "tiny.safetensors"
    for backbone, weights in (
        ("wrn-10-1", None),
        ("efficientnet-lite0,cnn-tiny", None),
        (f"onnx:{path},cnn-tiny", ","),
    ):
        with pytest.raises(ValueError, match=r"got a network without pretrained weights.*--weights.*--untrained"):
            embed(small_options(tmp_path, backbone=backbone, weights=weights))
    save_file(build_backbone("cnn-tiny", 1).state_dict(), file)
    options = small_options(tmp_path, backbone="cnn-tiny", weights=str(file), image_size=8, limit=8, limit_test=4)
    assert embed(options).train == 8
    with pytest.raises(
        ValueError, match="with --image-size 8 and no --fast, got no --image-size and --fast; use the same"
    ):
        embed(replace(options, image_size=None, fast=True))


def test_weights_belong_to_embed(tmp_path):
    options = small_options(tmp_path, backbone="cnn-tiny", untrained=True)
    embed(options)
    with pytest.raises(
        ValueError, match=r"weights: got a\.pt, expected it not to be set.*pass the file to momatch embed"
    ):
        fit(TrainConfig(dataset=str(options.out), weights="a.pt", run_dir=str(tmp_path / "run")))
    with pytest.raises(ValueError, match="weights and untrained: got both"):
        TrainConfig(weights="a.pt", untrained=True)
