"""Whole steps of the algorithms against their naive versions in float64, with all parts of the loss and its gradient."""

import copy
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch

from momatch.algorithms import Sizes
from momatch.augment.draws import below, draw
from momatch.training.step import TURNS, _hashed, _view_number
from tests.algorithms.naive import NAIVE, AveragedProjection, projection
from tests.training.setting import INLIER, POOL, K, small_batch, small_step, with_settings
from tests.training.test_objective import moment_loss

STEPS, LR, PROGRESS = 3, 0.05, 0.3
#: No weight at a value that would hide it, no optimiser that would hide the gradient.
COMMON = {"clip_norm": 0.0, "momentum": 0.0, "weight_decay": 0.0, "moment_weight": 0.3, "moment_order": 2}
CASES = {
    **{name: {"algorithm": name} for name in NAIVE},
    **{f"outliers-{name}": {"algorithm": name, "outliers": "percentile", "outlier_percentile": 60.0} for name in NAIVE},
    **{f"auto-{name}": {"algorithm": name, "outliers": "auto", "moment_inliers": True} for name in NAIVE},
    "small memory": {"algorithm": "comatch", "memory_size": 5},
    "linear": {"algorithm": "simmatch", "head": "linear", "moment_order": 0},
    "kmeans": {"algorithm": "mixmatch", "head": "kmeans"},
    "no mixing": {"algorithm": "mixmatch", "mix_alpha": 0.0},
}


class Reference:
    """The loss of each step by the network as it is before the step; the algorithm's state is its own."""

    def __init__(self, step, config):
        self.step, self.config = step, config
        options = {field.name: getattr(config, field.name) for field in fields(config)}
        sizes = Sizes(num_classes=K, num_samples=POOL, num_labeled=POOL, num_features=24)
        self.naive = NAIVE[config.algorithm](options, sizes)
        self.teach = AveragedProjection()

    def views(self, batch):
        """Name -> normalised images, in double precision."""
        step, rng = self.step, {"seed": self.config.seed, "step": batch.step}
        wants = step.objective.algorithm.wants
        names = {*wants.guessed, *wants.trained, *wants.mixed}
        views = {"labeled": step.weak(batch.labeled, view=2, **rng)}
        for name in names:
            augment = step.weak if name.startswith("weak") else step.strong
            views[name] = augment(batch.unlabeled, view=_view_number(name), **rng)
        turns = below(draw(len(batch.unlabeled), 1, view=TURNS, **rng)[:, 0], 4)
        if wants.rotated:
            images = zip(views[wants.rotated], turns.tolist(), strict=True)
            views["rotated"] = torch.stack([torch.rot90(image, turn, (1, 2)) for image, turn in images])
        return {name: self.model.preprocess(images) for name, images in views.items()}, turns

    def is_outlier(self, weak, labeled, indices):
        if self.config.outliers != "percentile":
            return INLIER[indices] < 0.5 if self.config.outliers == "auto" else torch.zeros(len(weak), dtype=torch.bool)
        head = self.guesser.head

        def score(z):
            return torch.stack([head.mahalanobis(row[None])[0].min() for row in z]).detach()

        return score(weak) > torch.quantile(score(labeled), self.config.outlier_percentile / 100)

    def loss(self, batch):
        config, naive, step = self.config, self.naive, self.step
        self.model = copy.deepcopy(step.classifier).double()
        own = copy.deepcopy(step.objective.algorithm).double()
        self.parameters = [*self.model.parameters(), *own.parameters()]
        if hasattr(own, "projector"):
            naive.project, naive.teach = projection(own.projector), self.teach
            self.teach.follow(own.projector)
        naive.turn = getattr(own, "turn", None)
        wants = own.wants
        self.guesser = copy.deepcopy(step.average.classifier).double() if wants.guess == "teacher" else self.model
        views, turns = self.views(batch)
        with torch.no_grad():
            z = {name: self.guesser.embed(views[name]) for name in ("labeled", *wants.guessed)}
            features = {name: self.guesser.backbone(views[name]) for name in ("labeled", wants.guessed[0])}
            p = sum(self.guesser.head(z[name]).softmax(-1) for name in wants.guessed) / len(wants.guessed)
        # A teacher judges outliers by its own embeddings of the labelled samples.
        outlier = self.is_outlier(z[wants.guessed[0]], z["labeled"], batch.unlabeled_indices)
        trust = INLIER[batch.unlabeled_indices].double() if config.outliers == "auto" else torch.ones(len(p)).double()
        keep = (trust * ~outlier).tolist()
        g = SimpleNamespace(p=p, keep=keep, labels=batch.labels, rows=batch.labeled_indices)
        g.features, g.labeled_features = features[wants.guessed[0]], features["labeled"]
        q, weights = naive.targets(g)
        if wants.mixed:
            naive.mix(batch.labels.tolist(), seed=_hashed(config.seed, batch.step, 0))
            blocks = ("labeled", *wants.mixed)
            whole = torch.cat([views[name] for name in blocks])
            mixed = [naive.share * x + (1 - naive.share) * whole[j] for x, j in zip(whole, naive.partner, strict=True)]
            sizes = [len(views[name]) for name in blocks]
            parts = torch.stack(mixed).split(sizes)
            views |= {f"mixed_{name}": part for name, part in zip(blocks, parts, strict=True)}
        z = {name: self.model.embed(images) for name, images in views.items()}
        out = {name: self.model.head(value) for name, value in z.items()}
        out["features"] = {name: self.model.backbone(images) for name, images in views.items()}
        out["turns"] = turns
        terms = {"supervised_loss": naive.supervised(out, batch.labels), **naive.terms(out, PROGRESS)}
        if config.moment_order:
            terms["constraint_loss"] = config.moment_weight * self.constraint(z, batch, q, keep, wants)
        return terms, sum(weights) / len(weights)

    def constraint(self, z, batch, q, keep, wants):
        """Every view by classes; what is mixed by both of its classes."""
        centers, order = self.model.head.centers, self.config.moment_order
        trust = torch.ones(len(q)) if not self.config.moment_inliers else INLIER[batch.unlabeled_indices]
        classes = torch.stack([*q]).argmax(1)
        total = 0
        if wants.labeled:
            total = total + moment_loss(z["labeled"], batch.labels, torch.ones(len(batch.labels)), centers, order)
        for name in wants.trained:
            total = total + moment_loss(z[name], classes, trust, centers, order)
        for name in ("labeled", *wants.mixed) if wants.mixed else ():
            shares = torch.stack(self.naive.y[name])
            if name != "labeled" and self.config.moment_inliers:
                shares = shares * torch.tensor(keep, dtype=torch.float64)[:, None]
            for k in range(K):
                only_k = torch.full((len(shares),), k)
                total = total + moment_loss(z[f"mixed_{name}"], only_k, shares[:, k], centers, order)
        return total


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_the_naive_version(name):
    config = with_settings(**{**COMMON, **CASES[name]})
    step = small_step(config)
    if config.outliers == "auto":
        step.objective.inlier_probability.copy_(INLIER)
    with torch.no_grad():
        for value in step.classifier.head.parameters():  # away from the teacher's, which was the same
            value.add_(0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(1)))
    reference = Reference(step, config)
    for number in range(STEPS):
        batch = small_batch(number)
        terms, utilisation = reference.loss(batch)
        sum(terms.values()).backward()
        before = [p.detach().clone() for p in (*step.classifier.parameters(), *step.objective.algorithm.parameters())]
        step(batch, lr=LR, progress=PROGRESS)
        for key, value in terms.items():
            assert float(step.last_metrics[key]) == pytest.approx(float(value.detach()), rel=2e-4, abs=1e-6), key
        assert float(step.last_metrics["utilisation"]) == pytest.approx(utilisation, rel=1e-5)
        after = (*step.classifier.parameters(), *step.objective.algorithm.parameters())
        for old, new, exact in zip(before, after, reference.parameters, strict=True):
            gradient = torch.zeros_like(exact) if exact.grad is None else exact.grad
            torch.testing.assert_close((old - new).double() / LR, gradient, rtol=2e-3, atol=2e-4)
