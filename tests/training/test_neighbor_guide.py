"""What neighbours of cached features say about the pool, and how training uses it."""

from dataclasses import replace

import pytest
import torch

from momatch.data.dataset import Examples
from momatch.data.rows import FeatureRows
from momatch.data.splits import split_by_rows
from momatch.embedding import embed
from momatch.training import guide
from momatch.training.fit import fit
from momatch.training.guide import pool_guide
from momatch.training.setup import build_training
from tests.embedding.setting import small_options
from tests.embedding.test_training import small_config
from tests.training.test_fit import assert_same_run, config


def clusters(n=60, F=200, *, views=3):
    """Three directions with noise, far from each other, of different lengths; the strong view is nonsense."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 3
    centers = 4 * torch.randn(3, F, generator=generator)
    length = 0.5 + torch.rand(n, 1, 1, generator=generator)
    features = length * (centers[labels][:, None] + 0.3 * torch.randn(n, views, F, generator=generator))
    features[:, -1] = torch.randn(n, F, generator=generator)
    return features.half(), labels


@pytest.mark.parametrize("labeled_in_pool", [True, False])
def test_labels_reach_their_own_cluster(labeled_in_pool):
    features, labels = clusters()
    examples = Examples(FeatureRows([features]), labels)
    data = split_by_rows(examples, ["a", "b", "c"], [0, 1, 2], labeled_in_pool=labeled_in_pool)
    whole = pool_guide(data, weak_views=1, neighbors=4, seed=0)
    *views, lead = whole.evidence.values()
    assert sum(views) == pytest.approx(1.0)
    assert lead == 1.0 - whole.floor
    found = whole.posterior
    assert found.shape == (60 if labeled_in_pool else 57, 3)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(1), torch.ones(len(found)))
    assert torch.equal(found.argmax(1), data.truth.labels)


def test_components_keep_the_distances(monkeypatch):
    table = torch.randn(50, 20, dtype=torch.float64) @ torch.randn(20, 200, dtype=torch.float64)
    monkeypatch.setattr(guide, "COMPONENTS", 20)
    torch.testing.assert_close(torch.pdist(guide.leading_components(table)), torch.pdist(table))
    assert guide.leading_components(table).shape == (50, 20)
    narrow = table[:, :20]
    assert torch.equal(guide.leading_components(narrow), narrow)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    embed(small_options(folder))
    return folder


def test_pseudo_labels_follow_it_at_first_and_less_at_last(folder, monkeypatch):
    training = build_training(small_config(folder, graph_neighbors=3).resolved(), torch.device("cpu"), trust_code=True)
    seen = []
    objective = training.step.objective.forward

    def watched(head, z, facts, *args):
        seen.append(facts.guide)
        return objective(head, z, facts, *args)

    monkeypatch.setattr(training.step.objective, "forward", watched)
    batch = next(training.stream)
    training.step(batch, lr=0.01, progress=0.0)
    training.step(next(training.stream), lr=0.01, progress=0.75)
    assert [one.weight for one in seen] == [1.0, pytest.approx(1.0 - 0.75 * (1.0 - training.step.guide_floor))]
    assert 0 <= training.step.guide_floor <= 1
    assert torch.equal(seen[0].posterior, training.step.guide[batch.unlabeled_indices])


def test_a_guided_run_repeats_bit_for_bit(folder):
    # A named preset: what equals its default counts as given, so that 0 neighbours are 0.
    settings = {"steps": 30, "preset_name": "digits"}
    guided = settings | {"graph_neighbors": 3}
    whole = fit(small_config(folder, **guided, run_dir=str(folder / "whole")), trust_code=True)
    again = fit(small_config(folder, **guided, run_dir=str(folder / "again")), trust_code=True)
    assert_same_run(whole.directory, again.directory)
    plain = fit(small_config(folder, **settings, run_dir=str(folder / "plain")), trust_code=True)
    assert plain.metrics()[0]["loss"] != whole.metrics()[0]["loss"]


def test_supervised_training_takes_its_confidence_alone(folder):
    settings = small_config(folder, graph_neighbors=3, algorithm="supervised").resolved()
    training = build_training(settings, torch.device("cpu"), trust_code=True)
    assert training.step.guide is None
    assert 0 < training.guide.confidence <= 1


def test_images_have_no_neighbours(tmp_path):
    with pytest.raises(ValueError, match="graph_neighbors: got 5 for images, expected 0"):
        fit(replace(config(tmp_path / "run"), graph_neighbors=5))
