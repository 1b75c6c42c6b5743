"""Graphs of models: what they say is what the model says, for any number of images; and what differs is not written."""

import copy
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from momatch.inference.export import export_model, formats, parity
from momatch.inference.export.graph import OUTPUTS, Graph, as_outputs, trace
from momatch.inference.export.parity import ParityError, compare, made_up_images
from momatch.models.saved_model import OutlierCalibration
from tests.training.small_models import random_images, small_model

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")


def run(path, images):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(zip(OUTPUTS, session.run(list(OUTPUTS), {"images": images.numpy()}), strict=True))


def assert_says_what(model, path, images):
    """Not by the library's own comparison: with the public prediction, by numpy's."""
    got, scores = run(path, images), model.predict(images)
    np.testing.assert_array_equal(got["label"], scores.labels)
    for name in ("posterior", "log_density", "distance", "outlier_score", "p_value"):
        np.testing.assert_allclose(got[name], getattr(scores, name), rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.fixture(scope="module", params=[True, False], ids=["judge", "head"])
def model(request):
    return small_model(judged=request.param)


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    return export_model(model, tmp_path_factory.mktemp("export") / "model.onnx")


def test_any_number_of_images(model, exported):
    session = onnxruntime.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    assert (entry.name, entry.type, entry.shape[1:]) == ("images", "tensor(uint8)", [1, 9, 8])
    assert isinstance(entry.shape[0], str)
    outputs = [(one.name, one.type, one.shape[1:]) for one in session.get_outputs()]
    assert outputs == [
        ("label", "tensor(int64)", []),
        ("posterior", "tensor(float)", [3]),
        ("log_density", "tensor(float)", []),
        ("distance", "tensor(float)", []),
        ("outlier_score", "tensor(float)", []),
        ("p_value", "tensor(float)", []),
    ]
    for n in (1, 2, 7, 300):
        assert_says_what(model, exported.path, random_images(model.spec, n, seed=n))


def test_another_size_of_images_is_refused_by_the_graph(exported):
    with pytest.raises(Exception, match="images"):
        run(exported.path, torch.zeros(1, 1, 9, 9, dtype=torch.uint8))


def test_what_was_compared_is_told(model, exported):
    parity = exported.parity
    assert parity.images == len(made_up_images(model.spec))
    assert {1, 2, 7, 64} <= set(parity.batches)
    assert parity.differences.keys() == set(OUTPUTS)
    assert 0 < max(parity.differences.values()) < 1e-4
    assert exported.size == exported.path.stat().st_size
    assert f"{parity.images} images, 1, 2, 7" in str(parity)
    assert exported.runner.startswith("onnxruntime ")
    assert [path.name for path in exported.path.parent.iterdir()] == ["model.onnx"]


def test_the_file_says_how_to_read_it(model, exported):
    proto = onnx.load(exported.path)
    onnx.checker.check_model(proto)
    assert proto.producer_name == "momatch"
    facts = {entry.key.removeprefix("momatch."): entry.value for entry in proto.metadata_props}
    assert json.loads(facts["class_names"]) == ["cat", "dog", "Käfer"]
    assert facts["score"] == ("nearest" if model.judge is None else "judge")
    assert ("log p(image's stages)" in facts["outputs"]) == (model.judge is not None)
    assert facts["calibration"] == "30"
    assert facts["calibration_source"] == "30 test images"
    assert "smallest useful alpha is 0.032" in facts["alpha"]
    assert "uint8 (n, 1, 9, 8), gray" in facts["input"]
    assert facts["created_by"] == model.spec.created_by
    assert set(json.loads(facts["outputs"])) == set(OUTPUTS)


NETWORKS = {
    "kmeans, RGB, wide resnet": {"backbone": "wrn-10-1", "head": "kmeans", "in_channels": 3, "refitted": False},
    "kmeans, RGB, without a judge": {
        "backbone": "mlp", "head": "kmeans", "in_channels": 3, "refitted": False, "judged": False,
    },
    "linear, own backbone": {"backbone": "tests.training.networks:tied", "head": "linear", "judged": False},
    "a judge, own backbone without declared stages": {"backbone": "tests.training.networks:tied", "head": "linear"},
    "many cells, no calibration": {
        "backbone": "mlp", "embedding_dim": 0, "class_names": tuple(map(str, range(40))), "calibrated": 0,
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("options", NETWORKS.values(), ids=NETWORKS)
def test_every_head_and_kind_of_network(tmp_path, monkeypatch, options):
    model = small_model(**options)
    program = trace(model)
    monkeypatch.setattr(formats, "trace", lambda model: program)  # the same for both formats
    export_model(model, tmp_path / "a.onnx")
    export_model(model, tmp_path / "a.pt2", to="torch")
    loaded = torch.export.load(tmp_path / "a.pt2").module()
    for n in (1, 5):
        images = random_images(model.spec, n, seed=n)
        for got, expected in zip(loaded(images), as_outputs(model.predict(images)), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
        assert_says_what(model, tmp_path / "a.onnx", images)
        got = run(tmp_path / "a.onnx", images)
        assert np.isnan(got["distance"]).all() == (model.spec.head == "linear" and model.judge is None)
        assert np.isfinite(got["outlier_score"]).all()
        assert np.isnan(got["p_value"]).all() == (model.calibration is None)


@pytest.mark.slow
def test_a_pretrained_network_that_enlarges_its_images(tmp_path, monkeypatch):
    pytest.importorskip("efficientnet_lite_pytorch")
    monkeypatch.setattr(parity, "COUNT", 6)  # it is a large network
    few = {"seen": 12, "calibrated": 6}
    model = small_model(backbone="efficientnet-lite0", in_channels=1, image_size=(16, 20), normalization=None, **few)
    export_model(model, tmp_path / "a.onnx")
    assert_says_what(model, tmp_path / "a.onnx", random_images(model.spec, 3))


def test_a_program_of_torch_runs_without_the_library(tmp_path):
    model = small_model()
    images = random_images(model.spec, 3)
    export_model(model, tmp_path / "a.pt2", to="torch")
    torch.save(images, tmp_path / "images.pt")
    code = (
        "import sys, json, torch\n"
        "extra = {'momatch.json': ''}\n"
        "graph = torch.export.load('a.pt2', extra_files=extra).module()\n"
        "assert not any(name.startswith('momatch') for name in sys.modules)\n"
        "print(json.loads(json.loads(extra['momatch.json'])['class_names'])[1])\n"
        "torch.save(graph(torch.load('images.pt')), 'got.pt')\n"
    )
    shown = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert shown.stdout == "dog\n", shown.stderr
    for got, expected in zip(torch.load(tmp_path / "got.pt"), Graph(model)(images), strict=True):
        torch.testing.assert_close(got, expected.detach())


def tampered(model, name, change):
    """A graph that is the model but for one output."""

    def run(images):
        with torch.no_grad():
            got = dict(zip(OUTPUTS, Graph(model)(images), strict=True))
        got[name] = change(got[name])
        return got

    return run


def test_the_model_itself_is_without_difference(model):
    parity = compare(model, tampered(model, "label", torch.clone), random_images(model.spec, 20))
    assert parity.differences == dict.fromkeys(OUTPUTS, 0.0)
    assert parity.batches == (1, 2, 7, 10)


def spoilt(value):
    value = value.clone()
    value[-1] = torch.nan
    return value


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("posterior", lambda p: p + 3e-4),
        ("posterior", lambda p: p.flip(1)),
        ("posterior", lambda p: p.double()),
        ("log_density", lambda p: p + 1.0),
        ("log_density", lambda p: p[:-1]),
        ("distance", lambda p: p * (1 + 3e-4) + 1e-4),
        ("distance", spoilt),
        ("distance", lambda p: torch.full_like(p, torch.inf)),
        ("outlier_score", lambda p: p + 3e-4 * (1 + p.abs())),
        ("outlier_score", spoilt),
        ("p_value", lambda p: p + 3 / 31),
        ("p_value", lambda p: p * 0),
        ("p_value", spoilt),
        ("label", lambda k: (k + 1) % 3),
        ("label", lambda k: k.int()),
        ("label", lambda k: None),
    ],
)
def test_a_difference_is_found(model, name, change):
    with pytest.raises(ParityError, match=f"^{name}"):
        compare(model, tampered(model, name, change), random_images(model.spec, 12))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("posterior", lambda p: p + 9e-5),
        ("log_density", lambda p: p - 9e-5 * (1 + p.abs())),
        ("distance", lambda p: p * (1 + 9e-5)),
        ("outlier_score", lambda p: p - 9e-5 * (1 + p.abs())),
        ("p_value", lambda p: p + 1e-9),
    ],
)
def test_rounding_is_no_difference(model, name, change):
    parity = compare(model, tampered(model, name, change), random_images(model.spec, 12))
    assert 0 <= parity.differences[name] <= 1e-4


def with_other_densities(model, images, size):
    """The graph with log densities that are larger by a multiple of what they are made of, 1 + |log p| + distance^2 / 2."""
    found = model.predict(images)
    shifts = iter(size * (1 + found.log_density.abs() + 0.5 * found.distance.square()))
    return tampered(model, "log_density", lambda p: p + torch.stack([next(shifts) for _ in p]))


def test_a_log_density_may_differ_by_the_rounding_of_what_it_is_made_of(model):
    images = random_images(model.spec, 12)
    compare(model, with_other_densities(model, images, 0.9e-4), images)
    with pytest.raises(ParityError, match=r"^log_density"):
        compare(model, with_other_densities(model, images, 2.5e-4), images)


def test_at_a_calibration_score_one_rank_may_differ(model):
    images = random_images(model.spec, 60, seed=0)[:30]  # those of the calibration
    scores, ordered = model.predict(images).outlier_score, model.calibration.scores
    for shift in (-1e-5, 1e-5):
        p_values = iter(torch.tensor([(1 + int((ordered >= one + shift).sum())) / 31 for one in scores]))
        compare(
            model,
            tampered(model, "p_value", lambda p, p_values=p_values: torch.stack([next(p_values) for _ in p])),
            images,
        )
    with pytest.raises(ParityError, match=r"^p_value: .* differ for 1 of 1 images"):
        compare(model, tampered(model, "p_value", lambda p: p - 2 / 31), images)


def test_what_float32_cannot_tell_apart_is_no_difference():
    """Narrow clusters far from the origin: their densities in float32 are off by more than the tolerance."""
    model = small_model(class_names=tuple(map(str, range(40))), judged=False, calibrated=0)
    with torch.no_grad():
        model.classifier.projection.bias += 100.0
        for head in (model.classifier.head, model.refitted_head):
            head.centers += 100.0
        model.refitted_head.centers[0] += 1000.0
        model.refitted_head.log_variances -= 6.0
    images = random_images(model.spec, 30)
    exact = copy.deepcopy(Graph(model)).double()(images)[2].detach()
    rounded = model.predict(images).log_density
    off = float(((rounded - exact).abs() / (1 + exact.abs())).max())
    assert off > 1e-4
    other = compare(model, tampered(model, "log_density", lambda p: p + 2 * off * (1 + p.abs())), images)
    assert other.rounding["log_density"] == pytest.approx(off, rel=0.5)
    assert "float64" in str(other)
    with pytest.raises(ParityError, match="log_density"):
        compare(model, with_other_densities(model, images, 2.5e-4 + 2.5 * off), images)


def test_a_class_that_shares_the_largest_posterior_may_be_named(model):
    head = model.classifier.head
    alike = replace(model, classifier=small_model(judged=model.judge is not None).classifier)
    with torch.no_grad():
        for parameter in alike.classifier.head.parameters():
            parameter[1] = parameter[0]
    images = random_images(model.spec, 40)
    swapped = compare(alike, tampered(alike, "label", lambda k: torch.where(k == 2, k, 1 - k)), images)
    assert 0 < swapped.differences["label"] <= 1
    assert head is not alike.classifier.head
    with pytest.raises(ParityError, match="label"):
        compare(alike, tampered(alike, "label", lambda k: torch.where(k == 2, 0, 2)), images)


def test_a_graph_that_differs_is_not_written(model, exported, tmp_path, monkeypatch):
    """A real graph, of other weights."""
    other = small_model(judged=model.judge is not None)
    with torch.no_grad():
        other.classifier.projection.bias += 0.01
    path = tmp_path / "model.onnx"
    path.write_text("what was there")
    monkeypatch.setattr(formats, "trace", lambda model: None)
    monkeypatch.setattr(formats, "_translate", lambda program, opset: onnx.load(exported.path))
    with pytest.raises(
        ParityError, match=r"(log_density|distance|posterior|outlier_score|p_value): the graph and the model differ"
    ):
        export_model(other, path, overwrite=True)
    assert [one.name for one in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_text() == "what was there"


@pytest.mark.slow
def test_fifty_sigma_and_a_calibration_as_large_as_training_makes_it(tmp_path):
    """Where exp() of a log joint is 0, and where comparing all images with all scores would take gigabytes."""
    model = small_model(judged=False)
    with torch.no_grad():
        model.classifier.projection.weight.mul_(200)
    scores = model.predict(random_images(model.spec, 10_000, seed=2)).outlier_score
    model = replace(model, calibration=OutlierCalibration(scores.sort().values, "nearest", "many"))
    export_model(model, tmp_path / "a.onnx", opset=18)
    proto = onnx.load(tmp_path / "a.onnx")
    assert [entry.version for entry in proto.opset_import if entry.domain == ""] == [18]
    assert len(proto.graph.node) < 300
    images = torch.cat([made_up_images(model.spec), random_images(model.spec, 50, seed=3)])
    got, expected = run(tmp_path / "a.onnx", images), model.predict(images)
    assert expected.log_density.min() < -1e4
    for name in ("log_density", "distance"):
        assert np.isfinite(got[name]).all()
        np.testing.assert_allclose(got[name], getattr(expected, name), rtol=1e-4)
    naive = [float(1 + (scores >= one).sum()) / 10_001 for one in expected.outlier_score]
    np.testing.assert_allclose(got["p_value"], naive, atol=5e-4)
    assert len(set(naive)) > 50


def test_made_up_images(model):
    images = made_up_images(model.spec)
    assert (images.dtype, images.shape[1:]) == (torch.uint8, (1, 9, 8))
    assert torch.equal(images, made_up_images(model.spec))
    assert (images.min(), images.max()) == (0, 255)
    spread = images.double().std((1, 2, 3))
    assert (spread == 0).sum() == 5
    assert spread.max() > 60


class Branching(torch.nn.Module):
    num_features = 2

    def forward(self, x):
        features = x.mean((2, 3)).repeat(1, 2)
        return features if bool(features.sum() > 0) else -features


class Unknown(torch.nn.Module):
    num_features = 2

    def forward(self, x):
        return torch.linalg.eigvalsh(x[:, 0, :4, :4])[:, :2]


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        (Branching, "cannot trace it for a variable number of images: "),
        (Unknown, "ONNX: the network cannot be converted: .*eigh"),
    ],
)
def test_a_network_that_makes_no_graph(tmp_path, backbone, message):
    model = small_model(embedding_dim=2, judged=False, calibrated=0, refitted=False)
    model.classifier.backbone, model.classifier.projection = backbone(), None
    with pytest.raises(ValueError, match=message):
        export_model(model, tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_is_refused(model, tmp_path, unchecked):
    (tmp_path / "there").write_text("x")
    for path, options, message in [
        (tmp_path / "a", {"to": "tensorrt"}, "to: got 'tensorrt', expected one of onnx, torch"),
        (tmp_path / "no" / "a", {}, "expected a file, not a directory, in a directory that exists"),
        (tmp_path, {}, "expected a file, not a directory"),
        (tmp_path / "there", {}, "the file exists; choose another name, or pass --overwrite"),
        (tmp_path / "a", {"to": "torch", "opset": 18}, "opset: got 18 for a torch.export program"),
        (tmp_path / "a", {"opset": 17}, "opset: got 17, expected 18 to "),
        (tmp_path / "a", {"images": torch.zeros(1, 1, 9, 9, dtype=torch.uint8)}, "images: got shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            export_model(model, path, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert (tmp_path / "there").read_text() == "x"


def test_a_model_of_normalised_images_is_refused_in_its_own_words(tmp_path):
    model = small_model(calibrated=0)
    model.classifier.preprocess = None
    with pytest.raises(ValueError, match="this classifier has no preprocess"):
        export_model(model, tmp_path / "a.onnx")


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_package_is_named_with_its_remedy(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=r"pip install 'momatch\[onnx\]'"):
        formats.onnx_packages()


def test_bytes_are_enough(model, exported):
    """No second file with the weights lies beside the graph."""
    session = onnxruntime.InferenceSession(exported.path.read_bytes())
    assert session.run(["label"], {"images": np.zeros((1, 1, 9, 8), np.uint8)})[0].shape == (1,)
