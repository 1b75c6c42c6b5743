"""An algorithm of the user's own: imported only with permission, checked, trained and resumed."""

import pytest

from momatch import Algorithm, TrainConfig, Wants, fit
from momatch.algorithms import Sizes
from momatch.config import LossSettings
from momatch.models.backbones.custom import UntrustedCodeError
from momatch.training.algorithm import build_algorithm

SIZES = Sizes(num_classes=3, num_samples=10, num_labeled=4, num_features=5)
#: Leaves a trace when it is imported.
MINE = """
from pathlib import Path
import torch
import torch.nn.functional as F
from momatch import Algorithm, Targets

Path(__file__).with_name("executed").touch()

class Mine(Algorithm):
    terms = ("unlabeled_loss", "size_loss")

    def __init__(self, sizes, *, unlabeled_weight, cutoff, smoothing=0.25):
        super().__init__()
        self.weight, self.cutoff, self.smoothing = unlabeled_weight, cutoff, smoothing
        self.scale = torch.nn.Parameter(torch.ones(sizes.num_classes))
        self.register_buffer("steps", torch.zeros(()))

    def label(self, guess):
        self.steps += 1
        return Targets(guess.posterior.argmax(-1), guess.keep * (guess.posterior.amax(-1) >= self.cutoff), guess.keep)

    def losses(self, outputs, pseudo):
        losses = F.cross_entropy(outputs["strong"].log_joint * self.scale, pseudo.target, reduction="none")
        return {"unlabeled_loss": self.weight * (pseudo.weight * losses).mean(), "size_loss": self.scale.square().mean()}

not_a_class = 3
def a_function(): pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_method.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "own_method", raising=False)
    return tmp_path


def config(folder, **settings):
    quick = {"steps": 6, "labeled_batch_size": 8, "unlabeled_batch_size": 8, "log_interval": 3, "image_size": 8}
    return TrainConfig(
        algorithm="own_method:Mine", run_dir=str(folder / "run"), progress=False, device="cpu", **{**quick, **settings}
    )


def test_it_is_imported_only_with_permission(folder):
    with pytest.raises(
        UntrustedCodeError, match=r"names the algorithm 'own_method:Mine': .*import the module 'own_method'"
    ):
        fit(config(folder))
    assert not (folder / "executed").exists()
    assert not (folder / "run").exists()
    run = fit(config(folder, cutoff=0.3), trust_code="cnn-tiny,own_method:Mine")
    assert (folder / "executed").exists()
    assert run.metrics()[-1]["size_loss"] > 0
    assert run.config.algorithm == "own_method:Mine"


def test_it_is_given_the_settings_that_it_names(folder):
    settings = LossSettings(algorithm="own_method:Mine", cutoff=0.4, unlabeled_weight=3.0).for_head("aagmm")
    mine = build_algorithm(settings, SIZES, trust_code=True)
    assert (mine.weight, mine.cutoff, mine.smoothing) == (3.0, 0.4, 0.25)
    given = LossSettings(algorithm="own_method:Mine", smoothing=0.5).for_head("aagmm")
    assert build_algorithm(given, SIZES, trust_code=True).smoothing == 0.5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_method:Nothing", "algorithm: got 'own_method:Nothing', but 'own_method' has no attribute 'Nothing'"),
        ("nowhere:Mine", "algorithm: got 'nowhere:Mine', but there is no module 'nowhere'"),
        ("own_method:a_function", "expected a subclass of momatch.Algorithm"),
        ("own_method:not_a_class", "algorithm: got 'own_method:not_a_class', which is a int"),
    ],
)
def test_what_is_not_an_algorithm_is_refused(folder, name, message):
    with pytest.raises(ValueError, match=message):
        build_algorithm(LossSettings(algorithm=name).for_head("aagmm"), SIZES, trust_code=True)


def misspelt():
    """As a user may write it, whose run does not check types."""
    wants = Wants()
    object.__setattr__(wants, "guess", "teachr")
    return wants


@pytest.mark.parametrize(
    ("wants", "message"),
    [
        (
            Wants(trained=("strong",)),
            "wants pseudo-labels of the views weak from the pass with gradient, which has strong",
        ),
        (Wants(mixed=("weak",)), "wants mixed views with guess 'trained'"),
        (Wants(trained=("weak", "stong")), "wants the view 'stong', expected weak, weak_1"),
        (Wants(trained=("weak", "weak_0")), "wants the view 'weak_0', expected weak, weak_1"),
        (misspelt(), "wants guess 'teachr', expected one of trained, first, teacher"),
        (Wants(guessed=(), guess="first", mixed=("weak",)), "wants mixed views without pseudo-labels"),
    ],
)
def test_contradictory_wishes_are_refused(wants, message, monkeypatch):
    class Confused(Algorithm):
        def __init__(self, sizes):
            super().__init__()

    Confused.wants = wants
    monkeypatch.setitem(__import__("momatch.algorithms").algorithms.ALGORITHMS, "fixmatch", Confused)
    with pytest.raises(ValueError, match=message):
        build_algorithm(LossSettings(algorithm="fixmatch").for_head("aagmm"), SIZES)


def test_a_constructor_that_cannot_be_called_is_shown(monkeypatch):
    class Demanding(Algorithm):
        def __init__(self, sizes, *, colour):
            super().__init__()

    monkeypatch.setitem(__import__("momatch.algorithms").algorithms.ALGORITHMS, "fixmatch", Demanding)
    with pytest.raises(ValueError, match=r"its constructor \(sizes, \*, colour\) cannot be called: missing .*'colour'"):
        build_algorithm(LossSettings(algorithm="fixmatch").for_head("aagmm"), SIZES)


def test_a_constructor_that_takes_anything_is_refused(folder):
    (folder / "own_method.py").write_text(MINE.replace("smoothing=0.25)", "smoothing=0.25, **others)"))
    with pytest.raises(ValueError, match=r"takes any setting, expected the settings that it has by name"):
        build_algorithm(LossSettings(algorithm="own_method:Mine").for_head("aagmm"), SIZES, trust_code=True)


def test_a_setting_that_it_does_not_have_is_refused(folder):
    settings = LossSettings(algorithm="own_method:Mine", contrast_dim=3).for_head("aagmm")
    with pytest.raises(
        ValueError, match=r"contrast_dim: got 3, which the constructor of 'own_method:Mine' does not take"
    ):
        build_algorithm(settings, SIZES, trust_code=True)


@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        ('"size_loss"', '"gradient_norm"', "has the term 'gradient_norm', which the log has for something else"),
        (
            "self.scale.square().mean()",
            "self.scale.square()",
            r"the term size_loss has shape \(10,\), expected a scalar",
        ),
    ],
)
def test_a_term_that_cannot_be_logged_is_refused(folder, written, instead, message):
    (folder / "own_method.py").write_text(MINE.replace(written, instead))
    with pytest.raises(ValueError, match=message):
        fit(config(folder), trust_code=True)


@pytest.mark.parametrize("name", ["mixmatch", "remixmatch"])
def test_mixed_images_have_no_predicted_cluster(name):
    settings = LossSettings(algorithm=name, moment_assignment="prediction").for_head("aagmm")
    with pytest.raises(ValueError, match=r"moment_assignment: got 'prediction' with algorithm .*, expected 'label'"):
        build_algorithm(settings, SIZES)


def test_a_term_that_is_not_announced_is_refused(folder):
    (folder / "own_method.py").write_text(MINE.replace('("unlabeled_loss", "size_loss")', '("unlabeled_loss",)'))
    with pytest.raises(ValueError, match="Mine: losses returned size_loss, expected only unlabeled_loss"):
        fit(config(folder), trust_code=True)


def test_a_view_that_is_not_wanted_is_named(folder):
    (folder / "own_method.py").write_text(MINE.replace('outputs["strong"]', 'outputs["strong_1"]'))
    with pytest.raises(
        KeyError, match="the view 'strong_1' did not pass through the network with gradient, expected one of"
    ):
        fit(config(folder), trust_code=True)
