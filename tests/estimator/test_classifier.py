"""`MoMatchClassifier` as people use it: alone, among scikit-learn's tools, on frames, with outliers."""

import io
import pickle

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, make_circles
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from momatch import MoMatchClassifier, NetworkOptions
from momatch.estimator.settings import read_settings
from tests.estimator.conftest import QUICK, quick_with
from tests.outliers.naive_answers import WEIGHT, unusual_by

#: Checks of every shape in every step cost more than the steps; the other tests have them on.
unchecked = pytest.mark.usefixtures("unchecked")


def everything(model, X):
    """All that a fitted model says about samples."""
    return (
        model.predict_proba(X),
        model.transform(X),
        model.score_samples(X),
        model.outlier_p_value(X),
        model.predict(X, reject=0.1),
    )


def assert_same(one, other, X):
    for a, b in zip(everything(one, X), everything(other, X), strict=True):
        np.testing.assert_array_equal(a, b)


def test_learns_from_a_few_labels_and_says_so(fitted, problem):
    hidden = problem.y == -1
    assert fitted.score(problem.X[hidden], problem.truth[hidden]) > 0.85
    probabilities = fitted.predict_proba(problem.X)
    np.testing.assert_allclose(probabilities.sum(1), 1.0)
    np.testing.assert_array_equal(fitted.classes_[probabilities.argmax(1)], fitted.predict(problem.X))
    assert fitted.transform(problem.X).shape == (300, 4)


@pytest.mark.slow
@unchecked
def test_digits_with_four_labels_a_class_beat_a_supervised_model():
    X, truth = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    train, test = order[:1300], order[1300:]
    shown = np.concatenate([train[truth[train] == k][:4] for k in range(10)])
    y = np.full(len(X), -1)
    y[shown] = truth[shown]
    model = MoMatchClassifier(random_state=0, steps=200).fit(X[train], y[train])
    supervised = make_pipeline(MinMaxScaler(), LogisticRegression()).fit(X[shown], truth[shown])
    accuracy = model.score(X[test], truth[test])
    assert accuracy > supervised.score(X[test], truth[test])
    # Noise made of the digits' own pixels is no digit; other digits mostly are.
    junk = np.random.default_rng(0).permuted(X[test], axis=1)
    assert (model.predict(junk, reject=0.05) == -1).mean() > 0.7
    assert (model.predict(X[test], reject=0.05) == -1).mean() < 0.17


@unchecked
def test_unlabelled_samples_help():
    X, truth = make_circles(400, noise=0.05, factor=0.5, random_state=0)
    y = np.full(400, -1)
    for k in range(2):
        y[np.flatnonzero(truth == k)[:4]] = k
    hidden = y == -1
    model = MoMatchClassifier(random_state=0, steps=100)
    alone = model.fit(X[~hidden], y[~hidden]).score(X[hidden], truth[hidden])
    together = model.fit(X, y).score(X[hidden], truth[hidden])
    assert together > 0.85
    assert together > alone


@pytest.mark.parametrize("names", [np.array(["ant", "bee", "fly"]), np.array(["ant", "bee", "fly"], dtype=object)])
@unchecked
def test_names_for_classes(quick, fitted, problem, names):
    y = names.astype(object)[problem.y]
    y[problem.y == -1] = -1
    model = quick.fit(problem.X, y)
    assert model.classes_.tolist() == names.tolist()
    np.testing.assert_array_equal(model.predict(problem.X), names[fitted.predict(problem.X)])
    far = problem.X[:3] + 1000.0
    assert model.predict(far, reject=0.1).tolist() == ["rejected"] * 3
    assert model.set_params(rejected_label="?").predict(far, reject=0.1).tolist() == ["?"] * 3
    assert model.score(problem.X, y) == fitted.score(problem.X, problem.y)


def test_score_leaves_unlabelled_samples_out(fitted, problem):
    labeled = problem.y != -1
    expected = fitted.score(problem.X[labeled], problem.truth[labeled])
    assert fitted.score(problem.X, problem.y) == expected
    weight = np.arange(300.0)
    right = (fitted.predict(problem.X) == problem.truth)[labeled]
    assert fitted.score(problem.X, problem.y, weight) == pytest.approx(np.average(right, weights=weight[labeled]))
    with pytest.raises(ValueError, match="expected labelled samples to score on"):
        fitted.score(problem.X[~labeled], problem.y[~labeled])


def naive_nearest(model, X):
    """Distances to the nearest center of the head that scores outliers."""
    head, z = model.fitted_.scorer.outlier_head, model.transform(X)
    centers, variances = head.centers.detach().numpy(), head.variances.detach().numpy()
    return [min(np.sqrt((((row - c) ** 2) / v).sum()) for c, v in zip(centers, variances, strict=True)) for row in z]


def naive_judge(model, X):
    """Distances to the nearest class and answers, in units of what is usual; the stages by hand."""
    judge, classifier = model.fitted_.scorer.judge, model.fitted_.classifier
    with torch.no_grad():
        seen = torch.from_numpy(model.fitted_.scaling(np.asarray(X, float)))
        parts = {"input": seen}
        for name, layer in classifier.backbone.named_children():
            seen = layer(seen)
            parts[name] = seen
        stages = torch.cat([parts[name] for name in judge.stage_names], 1).numpy()
        z = torch.from_numpy(model.transform(X))
        white, posterior = judge.whitening.numpy(), model.fitted_.scorer.head(z).softmax(1).numpy()
    rows = (stages - judge.shift.numpy()) / judge.scale.numpy() @ white
    distance = [min(np.sqrt(((row - center) ** 2).sum()) for center in judge.centers.numpy()) for row in rows]
    unusual = (np.array(distance) - float(judge.typical_distance)) / float(judge.distance_deviation)
    return unusual + WEIGHT * unusual_by(judge.answers, posterior)


@pytest.fixture(scope="module")
def by_head(problem):
    return MoMatchClassifier(**QUICK, outlier_score="nearest").fit(problem.X, problem.y)


@pytest.mark.parametrize(("name", "naive_scores"), [("fitted", naive_judge), ("by_head", naive_nearest)])
def test_p_values_against_their_definition(name, naive_scores, problem, request):
    model = request.getfixturevalue(name)
    calibration = model.fitted_.scorer.calibration_scores.numpy()
    assert model.n_calibration_ == len(calibration) == round(0.1 * 285)
    assert model.calibration_source_ == "unlabeled"

    def naive(X):
        return [(1 + sum(calibration >= score)) / (len(calibration) + 1) for score in naive_scores(model, X)]

    # A sample that was calibrated with meets its own score, which rounding may place on either side of it.
    near = model.outlier_p_value(problem.X)
    np.testing.assert_allclose(near, naive(problem.X), atol=1.001 / (len(calibration) + 1))
    away = problem.X + 0.01
    np.testing.assert_array_equal(model.outlier_p_value(away), naive(away))


@unchecked
@pytest.mark.filterwarnings("ignore:reject")  # only eight samples are different, and the network sees them all
def test_a_sample_gets_the_same_answer_alone_and_among_others():
    rng = np.random.default_rng(4)
    kinds = rng.integers(0, 2, (8, 12)).astype(float)
    which = rng.integers(0, 8, 600)
    X = kinds[which]
    y = np.full(600, -1)
    y[:40] = X[:40, 0]
    model = MoMatchClassifier(random_state=4, steps=20, calibration_fraction=0.5).fit(X, y)
    alone = [np.concatenate(answers) for answers in zip(*(everything(model, row[None]) for row in kinds), strict=True)]
    for rows in (X, X[:77], np.asfortranarray(X)):
        for together, answer in zip(everything(model, rows), alone, strict=True):
            np.testing.assert_array_equal(together, answer[which[: len(rows)]])


def test_rounding_does_not_break_a_tie_with_a_calibration_sample(fitted, problem):
    # Samples that were calibrated with, moved by less than matters: none may fall below all of its like.
    X = np.repeat(problem.X, 4, axis=0)
    p_value = fitted.outlier_p_value(X).reshape(300, 4)
    near = fitted.outlier_p_value(X * (1 + 1e-13 * np.random.default_rng(0).normal(size=X.shape))).reshape(300, 4)
    np.testing.assert_array_equal(near, p_value)


def test_log_density_against_the_mixture(by_head, problem):
    head, z = by_head.fitted_.scorer.outlier_head, by_head.transform(problem.X)
    centers, variances = head.centers.detach().numpy(), head.variances.detach().numpy()
    densities = [
        sum(
            np.prod(np.exp(-((row - c) ** 2) / (2 * v)) / np.sqrt(2 * np.pi * v)) / 3
            for c, v in zip(centers, variances, strict=True)
        )
        for row in z
    ]
    near = np.array(densities) > 1e-200
    np.testing.assert_allclose(by_head.score_samples(problem.X)[near], np.log(densities)[near], rtol=1e-6)


def test_rejection_follows_the_p_values(fitted, problem):
    X = np.concatenate([problem.X, problem.X + 40.0])
    p_value, classes = fitted.outlier_p_value(X), fitted.predict(X)
    for alpha in (0.04, 0.1, 0.5, 1.0):
        expected = np.where(p_value <= alpha, -1, classes)
        np.testing.assert_array_equal(fitted.predict(X, reject=alpha), expected)
    assert (fitted.predict(X, reject=0.1)[300:] == -1).all()
    assert (fitted.predict(problem.X, reject=0.1) == -1).mean() < 0.25
    assert (fitted.predict(X, reject=0.0) == classes).all()


def test_a_rejection_that_cannot_happen_says_how_many_samples_it_takes(fitted, problem):
    with pytest.warns(UserWarning, match=r"with 28 calibration samples.*1/29.*at least 99 are needed"):
        labels = fitted.predict(problem.X + 40.0, reject=0.01)
    assert (labels != -1).all()
    assert (fitted.predict(problem.X + 40.0, reject=1 / 29) == -1).all()


@pytest.mark.parametrize("alpha", [-0.1, 1.5, float("nan"), "a", True])
@unchecked
def test_alpha_out_of_range(fitted, problem, alpha):
    with pytest.raises(ValueError, match="reject: got"):
        fitted.predict(problem.X, reject=alpha)


@unchecked
def test_no_unlabelled_samples(quick, problem):
    few = quick.fit(problem.X[:60], problem.truth[:60])
    assert (few.calibration_source_, few.n_calibration_) == ("training", 60)
    with pytest.warns(UserWarning, match=r"reject: got 0.05, but p-values are calibrated on the 60 training samples"):
        few.predict(problem.X, reject=0.05)
    many = clone(quick).fit(problem.X, problem.truth)
    assert (many.calibration_source_, many.n_calibration_) == ("labeled", 30)
    assert many.score(problem.X, problem.truth) > 0.85


@unchecked
def test_the_same_seed_gives_the_same_model_and_touches_no_global_state(quick, fitted, problem):
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002 the global state is what must not change
    expected = torch.rand(1), np.random.rand()  # noqa: NPY002
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    again = clone(quick).fit(problem.X, problem.y)
    assert (torch.rand(1), np.random.rand()) == expected  # noqa: NPY002
    assert_same(fitted, again, problem.X)
    generator = np.random.RandomState(3)
    first = clone(quick).set_params(random_state=generator).fit(problem.X, problem.y)
    second = clone(quick).set_params(random_state=generator).fit(problem.X, problem.y)
    assert not np.array_equal(first.transform(problem.X), second.transform(problem.X))


@unchecked
def test_order_and_repetition_do_not_matter_and_weights_are_repetition(fitted, quick, problem):
    order = np.random.default_rng(0).permutation(300)
    assert_same(fitted, clone(quick).fit(problem.X[order], problem.y[order]), problem.X)
    weight = np.random.default_rng(1).integers(0, 4, 300)
    repeated = clone(quick).fit(problem.X.repeat(weight, 0), problem.y.repeat(weight))
    weighted = clone(quick).fit(problem.X[order], problem.y[order], sample_weight=weight[order])
    assert_same(repeated, weighted, problem.X)
    assert not np.array_equal(weighted.transform(problem.X), fitted.transform(problem.X))


@unchecked
def test_weights_decide_between_contradicting_labels(quick):
    X = np.repeat([[0.0], [1.0]], 20, axis=0)
    y = np.tile([0, 1], 20)
    weight = np.where(y == (X[:, 0] > 0.5), 1.0, 0.05)
    assert quick.fit(X, y, weight).predict([[0.0], [1.0]]).tolist() == [0, 1]
    assert quick.fit(X, y, 1.05 - weight).predict([[0.0], [1.0]]).tolist() == [1, 0]


def test_pickle_joblib_and_clone(fitted, problem):
    assert_same(fitted, pickle.loads(pickle.dumps(fitted)), problem.X)
    file = io.BytesIO()
    joblib.dump(fitted, file)
    file.seek(0)
    assert_same(fitted, joblib.load(file), problem.X)
    fresh = clone(fitted)
    assert repr(fresh.get_params()) == repr(fitted.get_params())
    with pytest.raises(NotFittedError):
        fresh.predict(problem.X)


@unchecked
def test_pipeline_passes_reject_and_weights_on(problem):
    pipeline = make_pipeline(MinMaxScaler(), MoMatchClassifier(**QUICK))
    pipeline.fit(problem.X, problem.y, momatchclassifier__sample_weight=np.ones(300))
    assert pipeline.score(problem.X, problem.truth) > 0.85
    assert (pipeline.predict(problem.X + 40.0, reject=0.1) == -1).all()
    assert pipeline[:-1].transform(problem.X).shape == (300, 6)


@pytest.mark.slow
@unchecked
def test_grid_search_in_two_processes(problem):
    grid = {"network__strong_noise": [0.5], "network__embedding_dim": np.array([2, 3])}  # numpy's numbers are numbers
    search = GridSearchCV(MoMatchClassifier(**QUICK), grid, cv=StratifiedKFold(2), n_jobs=2)
    search.fit(problem.X, problem.y)
    assert search.best_score_ > 0.7
    assert search.best_estimator_.transform(problem.X).shape == (300, search.best_params_["network__embedding_dim"])


@unchecked
def test_cross_val_predict(problem):
    labels = cross_val_predict(MoMatchClassifier(**QUICK), problem.X, problem.y, cv=3)
    assert (labels == problem.truth).mean() > 0.85
    # For probabilities scikit-learn numbers the labels anew, from 0, and keeps a column for the marker.
    renumbered = MoMatchClassifier(**QUICK, unlabeled=0)
    with pytest.warns(RuntimeWarning, match="does not match total number of classes"):
        posterior = cross_val_predict(renumbered, problem.X, problem.y, cv=2, method="predict_proba")
    np.testing.assert_array_equal(posterior[:, 0], 0.0)
    assert (posterior[:, 1:].argmax(1) == problem.truth).mean() > 0.85


@pytest.mark.parametrize("frame", [pd.DataFrame, lambda X, columns: pl.DataFrame(X, schema=columns)])
@unchecked
def test_frames(quick, fitted, problem, frame):
    names = [f"feature {number}" for number in range(6)]
    X = frame(problem.X, columns=names)
    y = type(X["feature 0"])(problem.y)
    model = quick.fit(X, y)
    assert model.feature_names_in_.tolist() == names
    np.testing.assert_array_equal(model.predict_proba(X), fitted.predict_proba(problem.X))
    embedded = model.set_output(transform="pandas" if isinstance(X, pd.DataFrame) else "polars").transform(X)
    assert isinstance(embedded, type(X))
    assert list(embedded.columns) == [f"momatchclassifier{number}" for number in range(4)]
    np.testing.assert_array_equal(embedded.to_numpy(), fitted.transform(problem.X))


@unchecked
def test_unlabelled_rows_of_a_frame_may_be_missing_values(fitted, problem):
    y = pd.Series(problem.y, dtype="Int64").mask(problem.y == -1)
    model = MoMatchClassifier(**QUICK, unlabeled=None).fit(problem.X, y)
    assert_same(model, fitted, problem.X)


@pytest.mark.parametrize(
    "settings",
    [
        {"encoder": "none"},
        {"encoder": "none", "head": "kmeans", "moment_order": 2},
        {"head": "linear"},
        {"hidden_sizes": ()},
        {"algorithm": "supervised"},
        {"algorithm": "meanteacher"},
        {"algorithm": "remixmatch"},
        {"algorithm": "simmatch"},
        {"algorithm": "freematch", "outlier_score": "density"},
        {"neighbors": 0, "graph_neighbors": 0},
        {"scale": "feature", "graph_neighbors": 20},
        {"moment_order": 4, "hidden_sizes": [8, 8]},
    ],
)
def test_every_kind_of_model_learns(problem, settings):
    model = quick_with(**settings).fit(problem.X, problem.y)
    assert model.score(problem.X, problem.truth) > 0.7  # chance is 1/3
    assert model.transform(problem.X).shape == (300, 6 if settings.get("encoder") == "none" else 4)
    assert np.isfinite(model.score_samples(problem.X)).all()
    assert model.outlier_p_value(problem.X).min() > 0


def test_without_an_encoder_the_embedding_is_the_standardised_features(problem):
    model = quick_with(encoder="none", calibration_fraction=0.0, scale="feature").fit(problem.X, problem.y)
    standardised = (problem.X - problem.X.mean(0)) / problem.X.std(0)
    np.testing.assert_allclose(model.transform(problem.X), standardised, atol=1e-9)


def test_extreme_inputs_get_finite_answers(fitted, problem):
    extreme = np.array([[1e307] * 6, [-1e307] * 6, [1e-308] * 6])
    for answer in everything(fitted, extreme):
        assert np.isfinite(answer).all()
    assert fitted.outlier_p_value(extreme)[:2].tolist() == [1 / 29, 1 / 29]


@unchecked
def test_one_absurd_sample_does_not_spoil_the_fit(quick, problem):
    X, y = np.concatenate([problem.X, np.full((1, 6), 1e9)]), np.append(problem.y, -1)
    model = quick.fit(X, y)
    assert model.score(problem.X, problem.truth) > 0.85
    assert model.predict(X[-1:], reject=0.05).tolist() == [-1]


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"encoder": "cnn"}, "encoder: got 'cnn', expected one of 'mlp', 'none'"),
        ({"head": "softmax"}, "head: got 'softmax'"),
        ({"algorithm": "flexmach"}, "algorithm: .*did you mean 'flexmatch'"),
        ({"steps": 0}, "steps"),
        ({"steps": 1.5}, "steps"),
        ({"lr": -1.0}, "lr"),
        ({"lr": 1e300}, "lr: got 1e\\+300, expected at most 1,000,000"),
        ({"unlabeled_batch_size": 0}, "unlabeled_batch_size: got 0 with algorithm 'flexmatch'"),
        ({"embedding_dim": 0}, "embedding_dim"),
        ({"hidden_sizes": (16, 0)}, "hidden_sizes"),
        ({"weak_noise": -0.1}, "weak_noise"),
        ({"strong_noise": "much"}, "strong_noise"),
        ({"mask": 1.5}, "mask"),
        ({"mask": "half"}, "mask"),
        ({"weak_move": -1}, "weak_move"),
        ({"strong_move": 2.0}, "strong_move"),
        ({"graph_neighbors": -1}, "graph_neighbors"),
        ({"scale": "minmax"}, "scale: got 'minmax', expected one of 'auto', 'global', 'feature'"),
        ({"neighbors": -1}, "neighbors"),
        ({"neighbors": 1.5}, "neighbors: got 1.5, expected an integer of at least 0"),
        ({"neighbors": False}, "neighbors: got False, expected an integer"),
        ({"calibration_fraction": 1.0}, "calibration_fraction"),
        ({"calibration_fraction": None}, "calibration_fraction"),
        ({"outlier_score": "nearest", "head": "linear"}, "outlier_score"),
        (
            {"outlier_score": "farthest"},
            "outlier_score: got 'farthest', expected one of 'auto', 'judge', 'nearest', 'density'$",
        ),
        ({"outlier_score": "x"}, "outlier_score: got 'x', expected one of 'auto', 'judge', 'nearest', 'density'$"),
        ({"moment_order": 1, "head": "linear"}, "moment_order"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_settings_that_cannot_be_used(problem, settings, match):
    with pytest.raises(ValueError, match=match):
        quick_with(**settings).fit(problem.X, problem.y)


@pytest.mark.parametrize(
    ("weight", "match"),
    [
        (np.full(300, -1.0), "got -1.0, expected weights of at least 0"),
        (np.zeros(300), "weight zero for every sample"),
        (np.ones(299), r"got shape \(299,\)"),
        (2.0, r"sample_weight: got 2.0, expected \(300,\), one weight"),
        (np.full(300, np.nan), "sample_weight contains NaN"),
        (np.full(300, 1e307), r"sample_weight: got weights up to 1e\+307, whose sum overflows"),
    ],
)
def test_weights_that_cannot_be_used(quick, fitted, problem, weight, match):
    with pytest.raises(ValueError, match=match):
        quick.fit(problem.X, problem.y, sample_weight=weight)
    with pytest.raises(ValueError, match=match):
        fitted.score(problem.X, problem.y, sample_weight=weight)


def test_the_memory_order_does_not_matter(fitted, problem):
    np.testing.assert_array_equal(fitted.predict_proba(np.asfortranarray(problem.X)), fitted.predict_proba(problem.X))


def test_score_needs_a_labelled_sample_with_weight(fitted, problem):
    with pytest.raises(ValueError, match="expected labelled samples to score on"):
        fitted.score(problem.X, problem.y, sample_weight=(problem.y == -1).astype(float))


@unchecked
def test_a_fit_that_fails_leaves_the_model_as_it_was(fitted, problem):
    model = pickle.loads(pickle.dumps(fitted)).set_params(network__lr=1e6)
    with pytest.raises(ValueError, match="diverged"):
        model.fit(pd.DataFrame(problem.X[:, :4], columns=list("abcd")), problem.y % 2)
    assert not hasattr(model, "feature_names_in_")
    assert_same(model, fitted, problem.X)


def test_divergence_is_an_error(problem):
    with pytest.raises(ValueError, match=r"diverged.*lower lr"):
        quick_with(lr=1e6).fit(problem.X, problem.y)


@unchecked
def test_verbose_shows_progress_on_stderr(quick, problem, capsys):
    quick.set_params(verbose=1).fit(problem.X, problem.y)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "loss" in shown.err
    assert "pseudo-labels used" in shown.err
    assert "40/40" in shown.err
    quick.set_params(verbose=0).fit(problem.X, problem.y)
    assert capsys.readouterr().err == ""


def hard(kind, problem):
    """Tables that a fit must survive: X and y."""
    X, y = problem.X.copy(), problem.y.copy()
    if kind == "a class with one label":
        y[np.flatnonzero(y == 2)[1:]] = -1
    elif kind == "one label in each class":
        y = np.where(np.isin(np.arange(300), [np.flatnonzero(problem.truth == k)[0] for k in range(3)]), y, -1)
    elif kind == "a class for each of 20 labels":
        y = np.where(np.arange(300) < 20, np.arange(300), -1)
    elif kind == "a constant column":
        X[:, 0] = 7.0
    elif kind == "nothing but constants":
        X[:] = 7.0
    elif kind == "1e300":
        X *= 1e300
    elif kind == "1e-300":
        X *= 1e-300
    else:
        X, y = np.vstack([X, np.repeat(X[:1], 3000, 0)]), np.append(y, np.full(3000, -1))
    return X, y


@pytest.mark.parametrize(
    "kind",
    [
        "a class with one label",
        "one label in each class",
        "a class for each of 20 labels",
        "a constant column",
        "nothing but constants",
        "1e300",
        "1e-300",
        "3,000 copies of a row",
    ],
)
@unchecked
def test_hard_tables(quick, problem, kind):
    X, y = hard(kind, problem)
    posterior = quick.fit(X, y).predict_proba(X)
    assert np.isfinite(posterior).all()
    np.testing.assert_allclose(posterior.sum(1), 1)
    assert 0 <= quick.evidence_["trust"] <= 1
    np.testing.assert_allclose(quick.class_prior_.sum(), 1)


@unchecked
def test_class_weight(fitted, problem):
    weights = {0: 1e6}
    model = quick_with(class_weight=weights).fit(problem.X, problem.y)
    assert (model.predict(problem.X) == 0).mean() > 0.9
    balanced = quick_with(class_weight="balanced").fit(problem.X, problem.y)
    expected = fitted.predict_proba(problem.X) / fitted.class_prior_
    np.testing.assert_allclose(balanced.predict_proba(problem.X), expected / expected.sum(1, keepdims=True))
    for wrong in ("equal", {0: 0.0}, {0: "much"}, 3):
        with pytest.raises(ValueError, match="class_weight: got"):
            quick_with(class_weight=wrong).fit(problem.X, problem.y)
    tiny = quick_with(class_weight={problem.y.max(): 5e-324}).fit(problem.X, problem.y).predict_proba(problem.X)
    np.testing.assert_allclose(tiny.sum(1), 1.0)
    with pytest.raises(ValueError, match="network: got 3, expected a momatch"):
        MoMatchClassifier(network=3).fit(problem.X, problem.y)


@unchecked
def test_what_does_not_fit_the_classes_or_the_table_is_said_before_training(problem, monkeypatch):
    monkeypatch.setattr("momatch.estimator.classifier.fit_set", None)
    with pytest.raises(ValueError, match="got a weight for 'typo', which is no class, expected some of"):
        quick_with(class_weight={"typo": 2.0}).fit(problem.X, problem.y)
    with pytest.raises(ValueError, match="rejected_label: got 0, which is one of the classes"):
        quick_with(rejected_label=0).fit(problem.X, problem.y)
    with pytest.raises(ValueError, match="verbose: got 'much', expected 0 or 1"):
        quick_with(verbose="much").fit(problem.X, problem.y)
    with pytest.raises(ValueError, match=r"X: got dates or times \(datetime64\[D\]\), expected numbers"):
        quick_with().fit(np.zeros(problem.X.shape, dtype="datetime64[D]"), problem.y)


@pytest.mark.slow
@unchecked
@pytest.mark.parametrize("tail", ["gaussian", "heavy"])
def test_false_alarms_of_clean_tables_are_within_the_bound(tail):
    """Next to nothing of a clean pool is taken for outliers, also where tails are long or a class has two labels."""
    alarms = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        noise = rng.normal(size=(1_600, 5)) if tail == "gaussian" else rng.standard_t(2, size=(1_600, 5))
        truth = rng.integers(2, size=1_600)
        X, y = noise + 4.0 * truth[:, None], np.where(np.arange(1_600) < 20, truth, -1)
        model = quick_with(calibration_fraction=0.3, random_state=seed).fit(X[:800], y[:800])
        assert 0.9 * 234 < model.n_calibration_ <= 234
        alarms.append(np.mean(model.outlier_p_value(X[800:]) <= 0.1))
    # The standard error of the mean is below 0.01.
    assert np.mean(alarms) < 0.13


def test_former_name_of_the_algorithm_still_works():
    options = NetworkOptions(policy="supervised").get_params(deep=False)
    with pytest.warns(FutureWarning, match="policy of NetworkOptions is now called algorithm"):
        settings = read_settings({**MoMatchClassifier().get_params(deep=False), **options})
    assert settings.loss.algorithm == "supervised"


@pytest.mark.slow
@unchecked
@pytest.mark.parametrize("junk", [200, 400])
def test_junk_in_the_pool_is_found_and_hides_no_other(junk):
    rng = np.random.default_rng(0)
    truth = rng.integers(4, size=1_600)
    X = rng.normal(size=(1_600, 12)) + 6.0 * np.eye(4, 12)[truth]
    y = np.where(np.arange(800) < 40, truth[:800], -1)
    pooled, new = rng.uniform(-15, 15, (2, junk, 12))
    model = MoMatchClassifier(calibration_fraction=0.2, random_state=0)
    model.fit(np.r_[X[:800], pooled], np.r_[y, np.full(junk, -1)])
    assert np.mean(model.outlier_p_value(new) <= 0.05) > 0.9
    assert np.mean(model.outlier_p_value(pooled) <= 0.05) > 0.9
    assert np.mean(model.outlier_p_value(X[800:]) <= 0.05) < 0.12
