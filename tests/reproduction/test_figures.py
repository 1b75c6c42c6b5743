"""The figures of docs/figures: what they claim is computed, and each script draws its picture alone."""

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from momatch import TrainConfig, fit
from reproduction.learning_curves import Curve, Curves

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"
SCRIPTS = sorted(
    path.stem for path in (ROOT / "reproduction" / "figures").glob("*.py") if path.stem not in ("__init__", "drawing")
)
#: Figure -> the page that shows it, if it is not method.md.
SHOWN = {"pixels": "results.md"}
TINY = {"steps": 2, "eval_interval": 0, "checkpoint_interval": 0, "unlabeled_batch_size": 8, "progress": False}


@pytest.fixture
def script():
    """Imports a script as a module."""
    return lambda name: importlib.import_module(f"reproduction.figures.{name}")


@pytest.fixture(scope="module")
def tiny_runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    settings = {"aagmm": {"embedding_dim": 3}, "kmeans": {"embedding_dim": 2, "moment_order": 0}, "linear": {}}
    return {
        head: fit(TrainConfig(head=head, run_dir=str(folder / head), **options, **TINY)).directory
        for head, options in settings.items()
    }


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_has_a_picture_and_a_word(name):
    picture = FIGURES / f"{name}.png"
    assert picture.stat().st_size < 200_000
    with Image.open(picture) as image:
        assert 900 <= image.width <= 1200
    assert f"python -m reproduction.figures.{name}" in (FIGURES / "README.md").read_text(encoding="utf-8")
    page = FIGURES.parent / SHOWN.get(name, "method.md")
    assert f"figures/{name}.png" in page.read_text(encoding="utf-8")


def test_a_script_runs_alone_and_warns_of_nothing(tmp_path):
    out = tmp_path / "new" / "identity.png"
    command = [sys.executable, "-W", "error", "-m", "reproduction.figures.softmax_identity", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert out.stat().st_size > 10_000


def test_softmax_identity(script):
    module = script("softmax_identity")
    assert 0 < module.check_identity() < 1e-9
    equal, unequal = (module.mixture(module.CENTERS, variances) for variances in (module.EQUAL, module.UNEQUAL))
    # (mu_A - mu_B) / variance and (mu_B^2 - mu_A^2) / (2 variance) of -1 and 2 with variance 1, by hand.
    assert module.sigmoid_parameters(equal) == pytest.approx((-3.0, 1.5))
    x = torch.linspace(-6, 6, 50, dtype=torch.float64).unsqueeze(1)
    assert module.check_sigmoid(equal, x) < 1e-12
    with pytest.raises(ArithmeticError, match="differ"):
        module.check_sigmoid(unequal, x)
    assert module.largest_difference(unequal, module.as_linear(unequal), x) > 1


def test_outlier_schematic_shows_what_it_says(script):
    module = script("outlier_schematic")
    data = module.make_data()
    heads = module.train_heads(data)
    flagged = {
        name.split(",")[0]: module.detector(head, data[2]).is_outlier(module.OUTLIERS) for name, head in heads.items()
    }
    assert flagged["Softmax"].tolist() == [False, False, False]
    assert flagged["KMeans"].tolist() == [True, True, False]
    assert flagged["AAGMM"].tolist() == [True, True, True]
    for head in heads.values():  # confident all the same: the posterior does not tell
        assert torch.softmax(head(module.OUTLIERS), 1).amax(1).min() > 0.9


def test_outlier_schematic_draws(script, tmp_path, monkeypatch, capsys):
    module = script("outlier_schematic")
    monkeypatch.setattr(module, "train_heads", lambda data, train=module.train_heads: train(data, steps=20))
    module.main(["--out", str(tmp_path / "schematic.png")])
    assert (tmp_path / "schematic.png").stat().st_size > 10_000
    assert capsys.readouterr().out.count("confidence") == 3


def test_alignment_by_hand(script):
    measure = script("tsne_panels").measure_alignment
    # Two classes in one dimension: means 0 and 10, spreads 1 and 2; the third class has one image and is left out.
    z = torch.tensor([[-1.0], [1.0], [8.0], [12.0], [50.0]])
    labels = torch.tensor([0, 0, 1, 1, 2])
    found = measure(z, labels, torch.tensor([[0.5], [7.0], [7.0]]))
    assert (found.typical, found.worst) == pytest.approx(((0.5 + 1.5) / 2, 1.5))
    assert found.gap == pytest.approx(6.5 / 1.5)
    assert found.word == "aligned"


def test_alignment_does_not_depend_on_scale_and_place(script):
    measure = script("tsne_panels").measure_alignment
    z, centers, labels = torch.randn(60, 4).double(), torch.randn(5, 4).double(), torch.arange(60) % 5
    here, there = measure(z, labels, centers), measure(7 * z + 3, labels, 7 * centers + 3)
    assert (here.typical, here.worst, here.gap) == pytest.approx((there.typical, there.worst, there.gap))


def test_words_of_the_four_panels(script):
    module = script("tsne_panels")
    z = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [9.0, 0.0], [11.0, 0.0], [9.0, 20.0], [11.0, 20.0]])
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    means = torch.tensor([[0.0, 0.0], [10.0, 0.0], [10.0, 20.0]])
    words = {
        "degenerate": means * 0.05,
        "misaligned": means * 0.5 + 2.0,
        "aligned": means + torch.tensor([[0.5, 0.0], [0.5, 0.0], [3.0, 0.0]]),
        "well aligned": means + 0.3,
    }
    assert {word: module.measure_alignment(z, labels, centers).word for word, centers in words.items()} == {
        word: word for word in words
    }


@pytest.mark.parametrize(
    ("labels", "message"), [([0, 0, 0, 1], "two or more"), ([0, 0, 1, 1], "one embedding"), ([-1, -1, -1, -1], "got 0")]
)
def test_alignment_needs_clusters(script, labels, message):
    z = torch.tensor([[0.0], [1.0], [2.0], [2.0]])
    with pytest.raises(ValueError, match=message):
        script("tsne_panels").measure_alignment(z, torch.tensor(labels), torch.zeros(2, 1))


def test_points_are_drawn_by_class_and_projected(script):
    module = script("tsne_panels")
    labels = torch.tensor([0] * 900 + [1] * 100)
    shown = module.subset(labels, 100)
    assert len(shown) == 100 == len(shown.unique())
    assert int((labels[shown] == 1).sum()) == 10
    assert len(module.subset(labels, 5000)) == 1000
    assert np.array_equal(module.project(torch.ones(4, 1)), [[1, 0]] * 4)
    assert np.array_equal(module.project(torch.ones(4, 2)), [[1, 1]] * 4)
    plane = module.project(torch.randn(12, 5))
    assert plane.shape == (12, 2)
    assert np.isfinite(plane).all()


def test_panels_of_runs(script, tiny_runs, tmp_path, capsys):
    module = script("tsne_panels")
    out = tmp_path / "panels.png"
    module.main([str(tiny_runs["aagmm"]), str(tiny_runs["kmeans"]), str(tiny_runs["kmeans"]), "--out", str(out)])
    assert out.stat().st_size > 10_000
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("(a) ")
    assert "AAGMM 3-D, 1st order" in lines[0]
    assert "KMeans 2-D, no constraint" in lines[1]


def test_panels_draw_many_classes_and_odd_names(script, tmp_path):
    module = script("tsne_panels")
    figure, axes = module.plt.subplots()
    points, labels = np.random.default_rng(0).normal(size=(300, 2)), np.arange(300) % 3
    module.draw(axes, points, labels, points[:4], ("$x", "a_b^{", "a name that goes on and on", "no images"))
    module.draw(axes, points, np.arange(300) % 100, points[:100], tuple(map(str, range(100))))
    module.save(figure, tmp_path / "odd.png")


@pytest.mark.parametrize(
    ("which", "message"), [("linear", "no centers"), ("absent", "no such directory"), ("unfinished", "not finished")]
)
def test_runs_that_cannot_be_shown(script, tiny_runs, tmp_path, which, message):
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.json").write_bytes((tiny_runs["aagmm"] / "config.json").read_bytes())
    run = {"linear": tiny_runs["linear"], "absent": tmp_path / "absent", "unfinished": unfinished}[which]
    with pytest.raises(SystemExit, match=f"tsne_panels: error: .*{message}"):
        script("tsne_panels").main([str(run), "--out", str(tmp_path / "x.png")])
    assert not (tmp_path / "x.png").exists()


def test_without_arguments_runs_are_trained_once(script, tmp_path, monkeypatch):
    module = script("tsne_panels")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "RUNS", (TrainConfig(embedding_dim=2, **TINY),))
    module.main(["--out", "one.png"])
    (model,) = tmp_path.glob("runs/*/model.safetensors")
    before = model.stat().st_mtime_ns
    module.main(["--out", "two.png"])
    assert model.stat().st_mtime_ns == before
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


def test_a_run_in_words(script):
    words = script("tsne_panels").words_of
    settings = {
        "no constraint": {"moment_order": 0},
        "1st order, head lr \N{MULTIPLICATION SIGN} 10": {"head_lr_factor": 10.0},
        "3rd order, weight 0.1": {"moment_order": 3, "moment_weight": 0.1},
        "MMD": {"constraint": "mmd"},
    }
    assert [words(TrainConfig(**some).resolved()) for some in settings.values()] == list(settings)


def test_pixels_draws_a_line_for_each_run(script):
    points = ((100, 60.0, 20.0), (200, 120.0, 45.5))
    runs = tuple(Curve(labels, head, 0, points) for labels in ("40 labels", "250 labels") for head in ("A", "B", "C"))
    figure = script("pixels").draw(Curves("", "", "", "", runs))
    assert [axes.get_title() for axes in figure.axes] == ["40 labels", "250 labels"]
    for axes in figure.axes:
        lines = [line for line in axes.get_lines() if line.get_label() in ("A", "B", "C")]
        assert [(*line.get_xdata(),) for line in lines] == [(0.1, 0.2)] * 3
        assert [(*line.get_ydata(),) for line in lines] == [(20.0, 45.5)] * 3
