"""Evaluation of whole classifiers: outputs batch by batch, figures, outlier scores, refit."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from momatch import AAGMM, Classifier, KMeans, Linear, Normalize, OutlierDetector
from momatch.data.rows import PixelRows
from momatch.evaluation.evaluate import (
    Outputs,
    confident_samples,
    evaluate_classifier,
    evaluate_outputs,
    outlier_scores,
    refit_head,
    run_classifier,
    separation,
)
from momatch.heads import Head
from momatch.outliers.stages import statistics

K, D, N = 4, 3, 23


def make_classifier(head="aagmm", num_classes=K):
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU())
    network.num_features = 8
    return Classifier.build(
        network, head, num_classes=num_classes, embedding_dim=D, in_channels=1, normalization=((0.5,), (0.5,))
    )


def make_images(n=N):
    return torch.randint(0, 256, (n, 1, 4, 4), dtype=torch.uint8)


# --- Outputs ---


@pytest.mark.parametrize("batch_size", [1, 5, N, 512])
def test_batches_do_not_change_the_outputs(batch_size):
    classifier, images = make_classifier().eval(), make_images()
    outputs = run_classifier(classifier, images, batch_size=batch_size)
    with torch.no_grad():
        torch.testing.assert_close(outputs.z, classifier.embed(images))
        torch.testing.assert_close(outputs.log_joint, classifier(images))


def test_rows_of_a_memory_mapped_file(tmp_path):
    images, rows = make_images(), torch.tensor([4, 0, 22, 4])
    np.save(tmp_path / "images.npy", images.numpy())
    mapped = torch.from_numpy(np.load(tmp_path / "images.npy", mmap_mode="r+"))
    classifier = make_classifier()
    expected = run_classifier(classifier, images[rows])
    got = run_classifier(classifier, PixelRows([mapped], rows), batch_size=3)
    torch.testing.assert_close(got.log_joint, expected.log_joint)
    torch.testing.assert_close(got.z, expected.z)


def test_each_part_keeps_its_mode_even_after_an_error():
    classifier = make_classifier().train()
    frozen = classifier.backbone[2].eval()
    statistics = frozen.running_mean.clone()
    run_classifier(classifier, make_images())
    with pytest.raises(RuntimeError):
        run_classifier(classifier, torch.zeros(2, 1, 5, 5, dtype=torch.uint8))
    assert not frozen.training
    assert all(part.training for part in classifier.modules() if part is not frozen)
    assert torch.equal(frozen.running_mean, statistics)


def test_outputs_are_ordinary_float32_tensors():
    classifier = make_classifier()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        outputs = run_classifier(classifier, make_images())
        inspected = run_classifier(classifier, make_images(), stage_names=["1", "4"])
    for tensor in (outputs.z, outputs.log_joint, inspected.z, inspected.log_joint, inspected.stages):
        assert tensor.dtype == torch.float32
        assert not tensor.requires_grad
        assert not tensor.is_inference()
    # Autocast would have left its rounding to 8 bits in the embeddings.
    assert not torch.equal(outputs.z, outputs.z.bfloat16().float())


def test_every_kth_statistic():
    classifier, images, names = make_classifier(), make_images(), {"stage_names": ["1", "4"]}
    whole = run_classifier(classifier, images, **names).stages
    S = whole.shape[1]
    for most, step in [(S, 1), (S - 1, 2), (3, -(-S // 3))]:
        some = run_classifier(classifier, images, most_statistics=most, **names).stages
        assert torch.equal(some, whole[:, ::step])


def test_a_classifier_in_half_precision_gives_float32():
    outputs = run_classifier(make_classifier().bfloat16(), make_images())
    assert outputs.z.dtype == outputs.log_joint.dtype == torch.float32


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(0, 1, 4, 4, dtype=torch.uint8), "images: got none"),
        (torch.zeros(2, 1, 4, 4), "expected raw pixels"),
        (torch.zeros(1, 4, 4, dtype=torch.uint8), "expected raw pixels"),
    ],
)
def test_what_is_no_batch_of_raw_images_is_refused(images, message):
    with pytest.raises(ValueError, match=message):
        run_classifier(make_classifier(), images)
    with pytest.raises(ValueError, match="batch_size"):
        run_classifier(make_classifier(), make_images(), batch_size=0)


@pytest.mark.parametrize("batch_size", [1, 5, 512])
def test_stages_come_with_the_same_pass(batch_size):
    classifier, images = make_classifier().train(), make_images()
    plain = run_classifier(classifier, images)
    outputs = run_classifier(classifier, images, stage_names=["1", "input"], batch_size=batch_size)
    torch.testing.assert_close(outputs.z, plain.z)
    torch.testing.assert_close(outputs.log_joint, plain.log_joint)
    assert plain.stages is None
    with torch.no_grad():
        x = classifier.preprocess(images)
        expected = torch.cat([classifier.backbone[1](x.flatten(1)), statistics(x)], 1)
    torch.testing.assert_close(outputs.stages, expected)
    some = torch.tensor([4, 0])
    assert torch.equal(outputs.select(some).stages, outputs.stages[some])
    assert torch.equal(outputs.append(outputs.select(some)).stages[N:], outputs.stages[some])
    assert plain.append(plain).stages is None


# --- Evaluation ---


@pytest.mark.parametrize("head", ["aagmm", "kmeans", "linear"])
def test_evaluation_by_hand(head):
    classifier, images, labels = make_classifier(head), make_images(60), torch.randint(0, K - 1, (60,))
    evaluation = evaluate_classifier(classifier, images, labels, batch_size=7)
    outputs = run_classifier(classifier, images)
    predicted = outputs.log_joint.argmax(1).tolist()
    pairs = list(zip(labels.tolist(), predicted, strict=True))
    assert evaluation.n == 60
    assert evaluation.accuracy == sum(y == p for y, p in pairs) / 60
    for k in range(K - 1):
        own = [p for y, p in pairs if y == k]
        assert evaluation.per_class[k] == sum(p == k for p in own) / len(own)
    assert evaluation.per_class[K - 1] is None
    assert evaluation.confusion.tolist() == [[pairs.count((y, p)) for p in range(K)] for y in range(K)]
    if head == "linear":
        assert evaluation.compactness is evaluation.compactness_true is None
        return
    centers = classifier.head.centers.tolist()
    for got, assigned in ((evaluation.compactness, predicted), (evaluation.compactness_true, labels.tolist())):
        distances = [math.dist(z, centers[k]) for z, k in zip(outputs.z.tolist(), assigned, strict=True)]
        assert got == pytest.approx(sum(distances) / 60, rel=1e-6)


def test_unlabelled_images_are_left_out():
    classifier, images, labels = make_classifier(), make_images(), torch.randint(0, K, (N,))
    some = torch.arange(0, N, 2)
    masked = torch.full((N,), -1).index_copy(0, some, labels[some])
    got = evaluate_classifier(classifier, images, masked)
    expected = evaluate_classifier(classifier, images[some], labels[some])
    assert (got.n, got.accuracy, got.per_class) == (expected.n, expected.accuracy, expected.per_class)
    assert got.ece == pytest.approx(expected.ece, rel=1e-4)


def test_the_order_of_images_does_not_matter():
    classifier, images, labels, order = make_classifier(), make_images(), torch.randint(0, K, (N,)), torch.randperm(N)
    got = evaluate_classifier(classifier, images[order], labels[order])
    expected = evaluate_classifier(classifier, images, labels)
    assert torch.equal(got.confusion, expected.confusion)
    assert (got.ece, got.nll) == pytest.approx((expected.ece, expected.nll), rel=1e-4)
    assert got.compactness == pytest.approx(expected.compactness, rel=1e-4)


@pytest.mark.parametrize(("n", "num_classes"), [(1, K), (5, 1), (1, 1)])
def test_one_sample_and_one_class(n, num_classes):
    classifier = make_classifier(num_classes=num_classes)
    evaluation = evaluate_classifier(classifier, make_images(n), torch.zeros(n, dtype=torch.long))
    assert evaluation.n == n
    assert evaluation.per_class[0] == evaluation.accuracy
    assert len(evaluation.per_class) == num_classes


def test_figures_go_into_json():
    outputs = Outputs(torch.zeros(2, D), torch.tensor([[0.0, -math.inf], [0.0, -math.inf]]))
    evaluation = evaluate_outputs(Linear(D, 2), outputs, torch.tensor([0, 1]))
    assert evaluation.nll == math.inf
    values = json.loads(json.dumps(evaluation.to_dict(), allow_nan=False))
    assert values["nll"] is None
    assert values["accuracy"] == 0.5
    assert values["ece"] == 0.5
    assert values["confusion"] == [[1, 0], [1, 0]]
    assert values["calibration"]["count"] == [0] * 14 + [2]


def test_labels_that_do_not_fit_are_refused(unchecked):
    classifier, images = make_classifier(), make_images(3)
    for labels, message in (
        (torch.tensor([-1, -1, -1]), "expected at least one labelled"),
        (torch.tensor([0, 1]), r"expected \(3,\), one per image"),
        (torch.tensor([0, 1, K]), "expected 0 to 3"),
        (torch.tensor([0, 1, -2]), "from -2"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate_classifier(classifier, images, labels)


def test_a_diverged_model_is_named():
    outputs = Outputs(torch.zeros(3, D), torch.tensor([[0.0, 1.0], [math.nan, 1.0], [-math.inf, -math.inf]]))
    with pytest.raises(ValueError, match="got a NaN posterior for 2 of 3 samples"):
        evaluate_outputs(Linear(D, 2), outputs, torch.tensor([0, 1, 1]))


# --- Outlier scores ---


def make_outputs(head, z):
    with torch.no_grad():
        return Outputs(z, head(z))


@pytest.mark.parametrize("head_type", [AAGMM, KMeans, Linear])
def test_scores_are_those_of_the_detector(head_type):
    head, z = head_type(D, K), 3 * torch.randn(50, D)
    scores = outlier_scores(head, make_outputs(head, z))
    names = {"density"} if head_type is Linear else {"nearest", "assigned", "farthest", "density"}
    assert scores.keys() == names | {"confidence"}
    for name in names:
        torch.testing.assert_close(scores[name], OutlierDetector(head, score=name).score(z))
    confidence = torch.softmax(head(z).double(), 1).amax(1)
    torch.testing.assert_close(scores["confidence"].exp(), 1 - confidence)


def test_sure_samples_do_not_tie():
    head = KMeans(1, 2)
    with torch.no_grad():
        head.centers.copy_(torch.tensor([[0.0], [20.0]]))
    scores = outlier_scores(head, make_outputs(head, torch.tensor([[-2.0], [-1.0], [0.0], [1.0]])))
    assert scores["confidence"].tolist() == sorted(scores["confidence"].tolist())
    assert len(set(scores["confidence"].tolist())) == 4


def test_scores_follow_the_head_that_is_given_and_not_the_outputs():
    head, other, z = AAGMM(D, K), AAGMM(D, K), torch.randn(9, D)
    got, expected = outlier_scores(other, make_outputs(head, z)), outlier_scores(other, make_outputs(other, z))
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_embeddings_that_are_no_numbers_are_most_outlying():
    head = AAGMM(D, K)
    for score in outlier_scores(head, Outputs(torch.full((1, D), math.nan), torch.zeros(1, K))).values():
        assert score.tolist() == [math.inf]


def test_separation_of_near_and_far_samples():
    head = AAGMM(D, K)
    near, far = head.sample(200), head.sample(100) + 50
    figures = separation(outlier_scores(head, make_outputs(head, near)), outlier_scores(head, make_outputs(head, far)))
    for name in ("nearest", "assigned", "farthest", "density"):
        assert figures[name] == {"auroc": 1.0, "fpr95": 0.0}
    assert 0 <= figures["confidence"]["auroc"] <= 1
    with pytest.raises(ValueError, match="as for the inliers"):
        separation({"density": torch.ones(1)}, {"nearest": torch.ones(1)})


# --- Refit ---


def test_confident_samples_by_hand():
    probabilities = torch.tensor([[0.95, 0.05], [0.94, 0.06], [0.01, 0.99], [0.5, 0.5], [0.0, 1.0]])
    z = torch.zeros(5, D)
    z[4] = math.nan
    outputs, labels = Outputs(z, probabilities.double().log() + 3), torch.tensor([-1, -1, 0, 1, -1])
    positions, classes = confident_samples(outputs, labels, cutoff=0.949)
    assert positions.tolist() == [0, 2, 3]
    assert classes.tolist() == [0, 0, 1]  # the prediction for the first, the truth for the labelled ones


def test_nothing_confident_leaves_nothing():
    outputs = Outputs(torch.zeros(2, D), torch.zeros(2, K))
    positions, classes = confident_samples(outputs, torch.tensor([-1, -1]))
    assert positions.tolist() == classes.tolist() == []
    with pytest.raises(ValueError, match="cutoff"):
        confident_samples(outputs, torch.tensor([-1, -1]), cutoff=1.5)


@pytest.mark.parametrize("head_type", [AAGMM, KMeans])
def test_refit_takes_means_and_variances_and_leaves_the_head_alone(head_type):
    head, z, labels = head_type(D, K), torch.randn(80, D), torch.randint(0, K, (80,))
    before = {name: value.clone() for name, value in head.state_dict().items()}
    refitted = refit_head(head, z, labels)
    assert all(torch.equal(before[name], value) for name, value in head.state_dict().items())
    for k in range(K):
        own = z[labels == k]
        torch.testing.assert_close(refitted.centers[k], own.mean(0))
        expected = own.var(0, correction=0) if head_type is AAGMM else torch.ones(D)
        torch.testing.assert_close(refitted.variances[k], expected)


def test_a_head_without_centers_has_nothing_to_refit():
    assert refit_head(Linear(D, K), torch.randn(4, D), torch.tensor([0, 1, 2, 3])) is None
    with pytest.raises(ValueError, match="empty batch"):
        refit_head(AAGMM(D, K), torch.empty(0, D), torch.empty(0, dtype=torch.long))


class OwnHead(Head):
    """A user's head: sizes and forward, and nothing else."""

    def __init__(self):
        super().__init__()
        self.embedding_dim, self.num_classes = 8, K
        self.layers = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, K))

    def forward(self, z):
        return self.layers(z)


def test_a_head_of_the_users_own_is_evaluated_as_one_without_centers():
    classifier = make_classifier()
    other = Classifier(classifier.backbone, OwnHead(), preprocess=Normalize((0.5,), (0.5,)))
    outputs = run_classifier(other, make_images())
    assert outlier_scores(other.head, outputs).keys() == {"density", "confidence"}
    assert evaluate_outputs(other.head, outputs, torch.zeros(N, dtype=torch.long)).compactness is None
