"""Whole steps against a naive reference in float64, written from the method alone (docs/method.md, docs/training.md)."""

import copy
import math
from collections import Counter

import pytest
import torch

from momatch.heads import log_posterior
from momatch.training.step import METRICS
from tests.training.setting import INLIER, LATE_AVERAGES, POOL, K, small_batch, small_step, with_settings

STEPS = 4
LR = 0.02
MOMENTUM = 0.999  # of FreeMatch's and SoftMatch's averages

#: No weight, factor or decay at a value that would hide it.
COMMON = {
    "unlabeled_weight": 1.5,
    "moment_weight": 0.3,
    "fairness_weight": 2.0,
    "clip_norm": 4.0,
    "head_lr_factor": 2.0,
    "weight_decay": 0.05,
    "momentum": 0.8,
    "ema_decay": 0.25,  # smaller than the growing decay from the third of four steps on
}
POLICIES = ("flexmatch", "fixmatch", "freematch", "softmatch")
SETTINGS = {
    **{f"order {order}": {"moment_order": order} for order in (0, 1, 2)},
    **{policy: {"algorithm": policy} for policy in POLICIES[1:]},
    "supervised": {"algorithm": "supervised"},
    "kmeans": {"head": "kmeans"},
    "linear": {"head": "linear", "moment_order": 0},
    **{
        f"outliers-{policy}": {"outliers": "percentile", "outlier_percentile": 50.0, "algorithm": policy}
        for policy in POLICIES
    },
    **{f"auto-{policy}": {"outliers": "auto", "algorithm": policy} for policy in POLICIES},
    "split": {"forward": "split"},
    "assigned by prediction": {"moment_assignment": "prediction"},
    "accumulate-flexmatch": {"accumulate": 2, "algorithm": "flexmatch"},
    "accumulate-freematch": {"accumulate": 2, "algorithm": "freematch"},
    "accumulate-auto": {"accumulate": 2, "outliers": "auto"},
    "constraint of inliers": {"outliers": "auto", "moment_inliers": True},
}


def common_of(algorithm="flexmatch", **_):
    """COMMON without the settings that an algorithm does not have."""
    without = {"freematch": set(), "supervised": {"fairness_weight", "unlabeled_weight"}}
    return {key: value for key, value in COMMON.items() if key not in without.get(algorithm, {"fairness_weight"})}


class FixMatch:
    def __init__(self, config):
        self.cutoff = config.cutoff

    def weights(self, p, indices, outlier):
        return [float(max(row) >= self.cutoff and not out) for row, out in zip(p.tolist(), outlier, strict=True)]


class FlexMatch(FixMatch):
    def __init__(self, config):
        super().__init__(config)
        self.selected = [-1] * POOL

    def weights(self, p, indices, outlier):
        counts = Counter(self.selected)
        beta = [counts[c] / max(counts.values()) for c in range(K)]
        weights = []
        for row, index, out in zip(p.tolist(), indices.tolist(), outlier, strict=True):
            confidence, c = max(row), row.index(max(row))
            weights.append(float(confidence >= self.cutoff * beta[c] / (2 - beta[c]) and not out))
            if confidence >= self.cutoff and not out:
                self.selected[index] = c
        return weights


class Averages:
    """Running averages of the samples that are no outliers."""

    def __init__(self, config):
        start = LATE_AVERAGES[config.algorithm]
        self.average = {name: torch.tensor(value, dtype=torch.float64) for name, value in start.items()}

    def move(self, name, value):
        self.average[name] = MOMENTUM * self.average[name] + (1 - MOMENTUM) * value


class FreeMatch(Averages):
    def weights(self, p, indices, outlier):
        inliers = p[~outlier]
        if len(inliers) > 0:
            self.move("tau", inliers.max(1).values.mean())
            self.move("mean_posterior", inliers.mean(0))
            self.move("mean_histogram", histogram(inliers))
        mean = self.average["mean_posterior"]
        thresholds = (self.average["tau"] * mean / mean.max()).tolist()
        weights = []
        for row, out in zip(p.tolist(), outlier, strict=True):
            c = row.index(max(row))
            weights.append(float(row[c] >= thresholds[c] and not out))
        return weights

    def fairness(self, strong, weight):
        """Over the classes that some strong view is given: the others have no ratio."""
        counted = strong[weight > 0]
        if len(counted) == 0:
            return strong.new_zeros(())
        h = histogram(counted)
        seen = [c for c in range(K) if h[c] > 0]
        ratio = torch.stack([counted[:, c].mean() / h[c] for c in seen])
        target = self.average["mean_posterior"] / self.average["mean_histogram"]
        return ((target / target.sum())[seen] * (ratio / ratio.sum()).log()).sum()


class SoftMatch(Averages):
    def weights(self, p, indices, outlier):
        if not outlier.all():
            self.move("mean_posterior", p[~outlier].mean(0))
        aligned = p / self.average["mean_posterior"]
        confidence = (aligned / aligned.sum(1, keepdim=True)).max(1).values
        inliers = confidence[~outlier]
        if len(inliers) > 0:
            mean = sum(inliers) / len(inliers)
            self.move("mean", mean)
            self.move("variance", sum((c - mean) ** 2 for c in inliers) / max(len(inliers) - 1, 1))
        mean, variance = self.average["mean"], self.average["variance"]
        below = [min(float(c - mean), 0.0) for c in confidence]
        return [0.0 if out else math.exp(-(b**2) / (2 * variance / 4)) for b, out in zip(below, outlier, strict=True)]


RULES = {"fixmatch": FixMatch, "flexmatch": FlexMatch, "freematch": FreeMatch, "softmatch": SoftMatch}


def histogram(p):
    counts = Counter(p.argmax(1).tolist())
    return torch.tensor([counts[c] / len(p) for c in range(K)], dtype=torch.float64)


def cross_entropies(log_joint, labels):
    return torch.stack([row.logsumexp(0) - row[c] for row, c in zip(log_joint, labels, strict=True)])


def moment_loss(z, clusters, counts, centers, order):
    """Each sample counts in its cluster as much as `counts` has for it."""
    loss = z.new_zeros(())
    for k in range(K):
        u, weight = z[clusters == k] - centers[k], counts[clusters == k].double()
        if weight.sum() == 0:
            continue
        share, weight = weight.sum() / len(z), weight / weight.sum()
        if order >= 1:
            loss = loss + share * (weight @ u).square().mean()
        if order >= 2:
            cells = {True: [], False: []}
            for i in range(z.shape[1]):
                for j in range(z.shape[1]):
                    cells[i == j].append((weight @ (u[:, i] * u[:, j]) - float(i == j)) ** 2)
            loss = loss + 0.5 * share * (torch.stack(cells[True]).mean() + torch.stack(cells[False]).mean()) / 2
    return loss


class Reference:
    """The same training, sample by sample where that is plainer."""

    def __init__(self, step, config):
        self.config, self.views = config, step
        self.model = copy.deepcopy(step.classifier).double()
        self.policy = None if config.algorithm == "supervised" else RULES[config.algorithm](config)
        self.inlier = INLIER if config.outliers == "auto" else torch.ones(POOL)
        self.velocity = {name: torch.zeros_like(p) for name, p in self.model.named_parameters()}
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def log_joint(self, z):
        head = self.model.head
        if self.config.head == "linear":
            return z @ head.weight.T + head.bias
        variances = head.log_variances.exp() if self.config.head == "aagmm" else torch.ones_like(head.centers)
        columns = [
            math.log(1 / K) + (-0.5 * (2 * math.pi * variance).log() - (z - center) ** 2 / (2 * variance)).sum(1)
            for center, variance in zip(head.centers, variances, strict=True)
        ]
        return torch.stack(columns, 1)

    def is_outlier(self, weak, labeled, indices):
        """Farther from all centers than the percentile of the labelled samples; or less likely an inlier than not."""
        if self.config.outliers in ("none", "auto"):
            return self.inlier[indices] < 0.5
        head = self.model.head

        def score(z):
            squares = (z[:, None] - head.centers) ** 2 / head.log_variances.exp()
            return squares.sum(2).min(1).values.sqrt().detach()

        return score(weak) > torch.quantile(score(labeled), self.config.outlier_percentile / 100)

    def loss(self, labeled, labels, weak, strong, indices):
        """Loss and utilisation of a part of the batch."""
        config = self.config
        z = [self.model.embed(self.model.preprocess(images)) for images in (labeled, weak, strong)]
        log_joint = self.log_joint(z[0])
        loss, utilisation = cross_entropies(log_joint, labels).mean(), 0.0
        by_class = config.moment_assignment == "label"
        terms = [(z[0], labels if by_class else log_joint.argmax(1), torch.ones(len(labels)))]
        if self.policy is not None:
            p = self.log_joint(z[1]).softmax(1).detach()
            pseudo = p.argmax(1)
            outlier = self.is_outlier(z[1], z[0], indices)
            weight = torch.tensor(self.policy.weights(p, indices, outlier), dtype=torch.float64) * self.inlier[indices]
            strong_log_joint = self.log_joint(z[2])
            loss = loss + config.unlabeled_weight * (weight * cross_entropies(strong_log_joint, pseudo)).mean()
            if config.algorithm == "freematch":
                loss = loss + config.fairness_weight * self.policy.fairness(strong_log_joint.softmax(1), weight)
            utilisation = float(weight.mean())
            counts = self.inlier[indices] if config.moment_inliers else torch.ones(len(indices))
            terms += [(view, pseudo, counts) for view in (z[1:] if config.forward == "joint" else z[2:])]
        if config.moment_order:
            centers = self.model.head.centers
            constraint = sum(moment_loss(*term, centers, config.moment_order) for term in terms)
            loss = loss + config.moment_weight * constraint
        return loss, utilisation

    def __call__(self, batch, lr):
        """Train on `batch`; returns its loss and utilisation."""
        draws = {"seed": self.config.seed, "step": batch.step}
        labeled = self.views.weak(batch.labeled, view=2, **draws)
        weak, strong = (view(batch.unlabeled, **draws) for view in (self.views.weak, self.views.strong))
        columns = (labeled, batch.labels, weak, strong, batch.unlabeled_indices)
        n = self.config.accumulate
        parts = [self.loss(*(column[part::n] for column in columns)) for part in range(n)]
        self.model.zero_grad()
        loss = sum(part for part, _ in parts) / n
        loss.backward()
        self.update(lr, batch.step)
        return float(loss.detach()), sum(utilisation for _, utilisation in parts) / n

    @torch.no_grad()
    def update(self, lr, number):
        """Clipped SGD with Nesterov's momentum; then the average."""
        config, parameters = self.config, dict(self.model.named_parameters())
        decay = min(config.ema_decay, (1 + number) / (10 + number))
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in parameters.values()))
        for name, p in parameters.items():
            decays = name in ("backbone.0.weight", "projection.weight", "head.weight")
            gradient = p.grad * min(1.0, config.clip_norm / norm) + (config.weight_decay * p if decays else 0.0)
            self.velocity[name] = config.momentum * self.velocity[name] + gradient
            step = gradient + config.momentum * self.velocity[name]
            p.sub_(lr * (config.head_lr_factor if name.startswith("head.") else 1.0) * step)
            self.average[name] = decay * self.average[name] + (1 - decay) * p


@pytest.mark.parametrize("name", SETTINGS)
def test_steps_are_those_of_the_naive_reference(name):
    config = with_settings(**common_of(**SETTINGS[name]), **SETTINGS[name])
    step = small_step(config)
    if config.outliers == "auto":
        step.objective.inlier_probability.copy_(INLIER)
    reference = Reference(step, config)
    utilisations = []
    for number in range(STEPS):
        batch = small_batch(number, u=0 if config.algorithm == "supervised" else 8)
        loss, utilisation = reference(batch, LR)
        step(batch, lr=LR, progress=number / STEPS)
        assert float(step.last_metrics["loss"]) == pytest.approx(loss, rel=1e-5)
        if config.algorithm != "supervised":
            assert float(step.last_metrics["utilisation"]) == pytest.approx(utilisation, rel=1e-5)
        for key, p in reference.model.named_parameters():
            trained, average = (m.get_parameter(key) for m in (step.classifier, step.average.classifier))
            torch.testing.assert_close(trained.double(), p, rtol=1e-4, atol=2e-5)
            torch.testing.assert_close(average.double(), reference.average[key], rtol=1e-4, atol=2e-5)
        utilisations.append(utilisation)
    if config.algorithm != "supervised":
        # Otherwise the weights would not have been put to the test.
        assert 0.1 < min(utilisations) < 1


@torch.no_grad()
@pytest.mark.parametrize("head", ["aagmm", "kmeans", "linear"])
def test_setting_tells_views_and_classes_apart(head):
    step = small_step(with_settings(head=head, moment_order=0))
    for number in range(STEPS):
        images = small_batch(number).unlabeled
        views = [view(images, seed=0, step=number) for view in (step.weak, step.strong)]
        weak, strong = (log_posterior(step.classifier(view)).exp() for view in views)
        assert len(weak.argmax(1).unique()) >= 2
        assert 2 <= int((weak.argmax(1) != strong.argmax(1)).sum()) <= 7
        assert 0.35 < float(weak.amax(1).min()) < 0.6 < float(weak.amax(1).max())


@pytest.mark.parametrize("name", ["fairness_loss", "unlabeled_loss", "constraint_loss", "outlier_share"])
def test_setting_leaves_no_term_at_rest(name):
    step = small_step(with_settings(algorithm="freematch", outliers="percentile", outlier_percentile=50.0, **COMMON))
    for number in range(STEPS):
        step(small_batch(number), lr=LR, progress=0.0)
    value = float(step.metrics[METRICS.index(name)]) / STEPS
    assert abs(value) > 0.05
    assert name != "outlier_share" or value < 0.95
