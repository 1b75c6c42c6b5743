"""Forests, against scikit-learn's."""

import pickle

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

from momatch.evidence.forest import Forest

KINDS = {"random": RandomForestClassifier, "extra": ExtraTreesClassifier}


def blobs(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Three overlapping classes in four dimensions."""
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=n)
    return rng.normal(size=(3, 4))[labels] + rng.normal(size=(n, 4)), labels


@pytest.mark.parametrize("kind", KINDS)
def test_it_says_what_scikit_learn_says(kind):
    x, labels = blobs(300)
    fitted = Forest.fit(kind, x[:150], np.eye(3)[labels[:150]], np.ones(150), trees=400, seed=(0, 0))
    theirs = KINDS[kind](400, random_state=0).fit(x[:150], labels[:150]).predict_proba(x[150:])
    assert np.abs(fitted(x[150:]) - theirs).mean() < 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_sum_to_one_and_depend_on_the_seed_alone(kind):
    x, labels = blobs(120)
    first, again, other = (
        Forest.fit(kind, x[:60], np.eye(4)[labels[:60]], np.ones(60), trees=5, seed=(seed, 1)) for seed in (3, 3, 4)
    )
    assert np.allclose(first(x).sum(1), 1)
    assert (first(x)[:, 3] == 0).all()
    assert np.array_equal(first(x), again(x))
    assert not np.array_equal(first(x), other(x))
    assert np.array_equal(first(x), pickle.loads(pickle.dumps(first))(x))


def test_a_weight_counts_as_copies():
    """Of one tree that sees every feature: random splits aside, the least squared error is the least Gini impurity."""
    x, labels = blobs(40)
    weight = np.random.default_rng(1).integers(1, 4, size=40).astype(float)
    tree = Forest.fit("extra", x[:, :1], np.eye(3)[labels], weight, trees=1, seed=(0, 0))
    copies = np.repeat(np.arange(40), weight.astype(int))
    grown = DecisionTreeClassifier(random_state=0).fit(x[copies, :1], labels[copies])
    assert np.allclose(tree(x[:, :1]), grown.predict_proba(x[:, :1]))
