"""The algorithms sample by sample in float64, written from docs/algorithms.md alone."""

import copy
import random
from types import SimpleNamespace

import torch

TINY = 1e-6  # added to shares of classes, of which one may be 0


def log_softmax(row):
    return row - row.logsumexp(0)


def cross_entropy(log_joint, target):
    """Of one sample against a distribution."""
    return -sum(t * lp for t, lp in zip(target, log_softmax(log_joint), strict=True))


def one_hot(c, K):
    return torch.eye(K, dtype=torch.float64)[int(c)]


def sharpened(p, temperature):
    powers = torch.stack([value ** (1 / temperature) for value in p])
    return powers / powers.sum()


def rise(progress, length):
    return 1.0 if length == 0 else min(1.0, progress / length)


def unit(vector):
    return vector / vector.square().sum().sqrt()


def similarities(query, memory, temperature):
    """Softmax over the memory, a list of vectors."""
    return torch.stack([(query @ vector) / temperature for vector in memory]).softmax(0)


class Naive:
    """What all share: settings by name; `targets` -> (u, K) and weights, then `terms` of the loss."""

    views = ("strong",)

    def __init__(self, options, sizes):
        self.o, self.sizes, self.K = SimpleNamespace(**options), sizes, sizes.num_classes

    def supervised(self, out, labels):
        return sum(cross_entropy(x, one_hot(c, self.K)) for x, c in zip(out["labeled"], labels, strict=True)) / len(
            labels
        )

    def mean(self, weights, losses):
        """Over the whole batch, samples of weight 0 included."""
        return sum(w * loss for w, loss in zip(weights, losses, strict=True)) / len(weights)


class PseudoLabel(Naive):
    def targets(self, g):
        self.weights = [k * float(max(p) >= self.o.cutoff) for k, p in zip(g.keep, g.p, strict=True)]
        self.q = [one_hot(p.argmax(), self.K) for p in g.p]
        return self.q, self.weights

    def terms(self, out, progress):
        loss = self.mean(self.weights, [cross_entropy(x, q) for x, q in zip(out["weak"], self.q, strict=True)])
        return {"unlabeled_loss": self.o.unlabeled_weight * rise(progress, self.o.ramp_up) * loss}


class MeanTeacher(Naive):
    def targets(self, g):
        self.q, self.weights = list(g.p), list(g.keep)
        return self.q, self.weights

    def terms(self, out, progress):
        errors = [((log_softmax(x).exp() - q) ** 2).sum() / self.K for x, q in zip(out["weak_1"], self.q, strict=True)]
        return {
            "unlabeled_loss": self.o.unlabeled_weight * rise(progress, self.o.ramp_up) * self.mean(self.weights, errors)
        }


class UDA(Naive):
    def targets(self, g):
        self.weights = [k * float(max(p) >= self.o.cutoff) for k, p in zip(g.keep, g.p, strict=True)]
        self.q = [sharpened(p, self.o.temperature) for p in g.p]
        return self.q, self.weights

    def terms(self, out, progress):
        losses = [cross_entropy(x, q) for x, q in zip(out["strong"], self.q, strict=True)]
        return {"unlabeled_loss": self.o.unlabeled_weight * self.mean(self.weights, losses)}


class MixMatch(Naive):
    mixed = ("weak", "weak_1")

    def targets(self, g):
        self.q, self.weights = [sharpened(p, self.o.temperature) for p in g.p], list(g.keep)
        return self.q, self.weights

    def mix(self, labels, seed):
        """Partner and share; the target of each mixed sample by view."""
        u, b = len(self.q), len(labels)
        share = random.Random(seed).betavariate(self.o.mix_alpha, self.o.mix_alpha) if self.o.mix_alpha else 1.0
        self.share = max(share, 1 - share)
        partner = torch.randperm(b + u * len(self.mixed), generator=torch.Generator().manual_seed(seed)).tolist()
        targets = [one_hot(c, self.K) for c in labels] + self.q * len(self.mixed)
        counts = [1.0] * b + self.weights * len(self.mixed)
        self.partner = [j if counts[j] > 0 else i for i, j in enumerate(partner)]
        mixed = [self.share * t + (1 - self.share) * targets[j] for t, j in zip(targets, self.partner, strict=True)]
        self.y = {"labeled": mixed[:b]}
        for number, view in enumerate(self.mixed):
            self.y[view] = mixed[b + number * u : b + (number + 1) * u]

    def supervised(self, out, labels):
        losses = [cross_entropy(x, y) for x, y in zip(out["mixed_labeled"], self.y["labeled"], strict=True)]
        return sum(losses) / len(losses)

    def of_mixed(self, out, loss):
        means = [
            self.mean(self.weights, [loss(x, y) for x, y in zip(out[f"mixed_{view}"], self.y[view], strict=True)])
            for view in self.mixed
        ]
        return sum(means) / len(means)

    def terms(self, out, progress):
        loss = self.of_mixed(out, lambda x, y: ((log_softmax(x).exp() - y) ** 2).sum() / self.K)
        return {"unlabeled_loss": self.o.unlabeled_weight * rise(progress, self.o.ramp_up) * loss}


class ReMixMatch(MixMatch):
    mixed = ("strong", "strong_1", "weak")

    def __init__(self, options, sizes):
        super().__init__(options, sizes)
        self.average, self.counts = None, torch.zeros(self.K, dtype=torch.float64)

    def targets(self, g):
        for c in g.labels:
            self.counts[int(c)] += 1
        kept = [p for p, k in zip(g.p, g.keep, strict=True) if k > 0]
        if kept:
            mean = sum(kept) / len(kept)
            self.average = mean if self.average is None else 0.999 * self.average + 0.001 * mean
        expected = self.counts / self.counts.sum()
        average = torch.full((self.K,), 1 / self.K, dtype=torch.float64) if self.average is None else self.average
        aligned = [p * (expected + TINY) / (average + TINY) for p in g.p]
        self.q = [sharpened(a / a.sum(), self.o.temperature) for a in aligned]
        self.weights = list(g.keep)
        return self.q, self.weights

    def terms(self, out, progress):
        ramp = rise(progress, self.o.ramp_up)
        anchor = self.mean(self.weights, [cross_entropy(x, q) for x, q in zip(out["strong"], self.q, strict=True)])
        turned = [self.turn(f).log_softmax(0) for f in out["features"]["rotated"]]
        rotation = self.mean(self.weights, [-lp[int(t)] for lp, t in zip(turned, out["turns"], strict=True)])
        return {
            "unlabeled_loss": self.o.unlabeled_weight * ramp * self.of_mixed(out, cross_entropy),
            "anchor_loss": self.o.anchor_weight * ramp * anchor,
            "rotation_loss": self.o.rotation_weight * rotation,
        }


class Contrast(Naive):
    """`project` maps one sample's features to a unit vector; set by the test, since its weights are the algorithm's."""

    def __init__(self, options, sizes):
        super().__init__(options, sizes)
        self.means, self.memory = [], []

    def aligned(self, g):
        kept = [p for p, k in zip(g.p, g.keep, strict=True) if k > 0]
        if kept:
            self.means = [*self.means, sum(kept) / len(kept)][-self.o.alignment_steps :]
        mean = (
            sum(self.means) / len(self.means) if self.means else torch.full((self.K,), 1 / self.K, dtype=torch.float64)
        )
        scaled = [p * (1 / self.K + TINY) / (mean + TINY) for p in g.p]
        return [s / s.sum() for s in scaled]

    def smoothed(self, own, z, entries):
        """Posterior of each sample, smoothed by (vector, distribution) entries."""
        if not entries:
            return own
        a, result = self.o.smoothing, []
        for p, query in zip(own, z, strict=True):
            similar = similarities(query, [vector for vector, _ in entries], self.o.contrast_temperature)
            result.append(a * p + (1 - a) * sum(s * q for s, (_, q) in zip(similar, entries, strict=True)))
        return result

    def remember(self, g, own, z):
        """The samples that count, then the labelled ones."""
        new = [(v, p) for v, p, k in zip(z, own, g.keep, strict=True) if k > 0]
        new += [
            (self.project(f).detach(), one_hot(c, self.K)) for f, c in zip(g.labeled_features, g.labels, strict=True)
        ]
        self.memory = [*self.memory, *new][-self.o.memory_size :]

    def confident(self, q, keep):
        return [k * float(max(p) >= self.o.cutoff) for k, p in zip(keep, q, strict=True)]


class CoMatch(Contrast):
    def targets(self, g):
        own, z = self.aligned(g), [self.project(f).detach() for f in g.features]
        self.q, self.keep = self.smoothed(own, z, self.memory), list(g.keep)
        self.remember(g, own, z)
        self.weights = self.confident(self.q, self.keep)
        return self.q, self.weights

    def terms(self, out, progress):
        losses = [cross_entropy(x, q) for x, q in zip(out["strong"], self.q, strict=True)]
        first, second = ([self.project(f) for f in out["features"][view]] for view in ("strong", "strong_1"))
        contrast = []
        for i, z in enumerate(first):
            agree = [1.0 if i == j else float(self.q[i] @ q) for j, q in enumerate(self.q)]
            agree = [a if a >= self.o.contrast_cutoff else 0.0 for a in agree]
            # An outlier is neither like nor unlike others.
            among = [j for j in range(len(second)) if self.keep[j] > 0 or j == i]
            agree, others = [agree[j] for j in among], [second[j] for j in among]
            similar = similarities(z, others, self.o.contrast_temperature)
            contrast.append(-sum(a / sum(agree) * s.log() for a, s in zip(agree, similar, strict=True)))
        return {
            "unlabeled_loss": self.o.unlabeled_weight * self.mean(self.weights, losses),
            "contrast_loss": self.o.contrast_weight * self.mean(self.keep, contrast),
        }


class SimMatch(Contrast):
    def __init__(self, options, sizes):
        super().__init__(options, sizes)
        self.rows = {}

    def targets(self, g):
        own, z = self.aligned(g), [self.project(f).detach() for f in g.features]
        self.keep = list(g.keep)
        self.entries = [(vector, one_hot(c, self.K)) for vector, c in self.rows.values()]
        self.q = self.smoothed(own, z, self.entries)
        self.similar = []
        for p, query in zip(own, z, strict=True):
            if self.entries:
                similar = similarities(query, [v for v, _ in self.entries], self.o.contrast_temperature)
                corrected = torch.stack([s * (p @ y) for s, (_, y) in zip(similar, self.entries, strict=True)])
                self.similar.append(corrected / corrected.sum())
        batch = {}
        for f, c, row in zip(g.labeled_features, g.labels, g.rows, strict=True):
            batch.setdefault(int(row), ([], int(c)))[0].append(self.project(f).detach())
        for row, (vectors, c) in batch.items():
            old = self.rows.get(row, (torch.zeros_like(vectors[0]), c))[0]
            self.rows[row] = (unit(0.7 * old + 0.3 * unit(sum(vectors))), c)
        self.weights = self.confident(self.q, self.keep)
        return self.q, self.weights

    def terms(self, out, progress):
        losses = [cross_entropy(x, q) for x, q in zip(out["strong"], self.q, strict=True)]
        contrast = [torch.zeros((), dtype=torch.float64)] * len(self.q)
        if self.entries:
            memory = [v for v, _ in self.entries]
            contrast = []
            for f, target in zip(out["features"]["strong"], self.similar, strict=True):
                similar = similarities(self.project(f), memory, self.o.contrast_temperature)
                contrast.append(-sum(t * s.log() for t, s in zip(target, similar, strict=True)))
        return {
            "unlabeled_loss": self.o.unlabeled_weight * self.mean(self.weights, losses),
            "contrast_loss": self.o.contrast_weight * self.mean(self.keep, contrast),
        }


class SimMatchV2(Contrast):
    """`teach` is `project` by the averaged weights, likewise set by the test."""

    neighbors = 128

    def __init__(self, options, sizes):
        super().__init__(options, sizes)
        self.mean_posterior, self.rows = torch.full((self.K,), 1 / self.K, dtype=torch.float64), {}

    def targets(self, g):
        scaled = [p * (1 / self.K + TINY) / (self.mean_posterior + TINY) for p in g.p]
        self.own, z = [s / s.sum() for s in scaled], [self.teach(f).detach() for f in g.features]
        self.keep, self.entries = list(g.keep), self.memory
        self.q = [self.propagated(p, query) for p, query in zip(self.own, z, strict=True)]
        vectors = [v for v, _ in self.entries]
        self.edges = [similarities(query, vectors, self.o.contrast_temperature) for query in z] if vectors else []
        kept = [i for i, k in enumerate(g.keep) if k > 0]
        if kept:
            self.mean_posterior = 0.9 * self.mean_posterior + 0.1 * sum(g.p[i] for i in kept) / len(kept)
        self.memory = [*self.memory, *[(z[i], self.own[i]) for i in kept]][-self.o.memory_size :]
        batch = {}
        for f, c, row in zip(g.labeled_features, g.labels, g.rows, strict=True):
            batch.setdefault(int(row), ([], int(c)))[0].append(self.teach(f).detach())
        self.rows |= {row: (unit(sum(vectors)), c) for row, (vectors, c) in batch.items()}
        self.weights = self.confident(self.own, self.keep)
        return self.q, self.weights

    def propagated(self, p, query):
        """Of the node itself: what the walk that ends with probability s at each node finds there."""
        if not self.rows:
            return p
        near = sorted(self.rows.values(), key=lambda entry: -float(query @ entry[0]))[: self.neighbors]
        vectors, labels = [query, *[v for v, _ in near]], [p, *[one_hot(c, self.K) for _, c in near]]
        n, s = len(vectors), self.o.smoothing
        walk = torch.zeros(n, n, dtype=torch.float64)
        for i in range(n):
            others = [j for j in range(n) if j != i]
            walk[i, others] = similarities(vectors[i], [vectors[j] for j in others], self.o.contrast_temperature)
        shares = s * torch.linalg.inv(torch.eye(n, dtype=torch.float64) - (1 - s) * walk)[0]
        return sum(share * y for share, y in zip(shares, labels, strict=True))

    def terms(self, out, progress):
        node_node = [cross_entropy(x, q) for x, q in zip(out["strong"], self.q, strict=True)]
        edge_edge = node_edge = [torch.zeros((), dtype=torch.float64)] * len(self.q)
        if self.entries:
            edge_edge, node_edge = [], []
            for f, edges, p in zip(out["features"]["strong"], self.edges, self.own, strict=True):
                strong = similarities(self.project(f), [v for v, _ in self.entries], self.o.contrast_temperature)
                edge_edge.append(-sum(e * s.log() for e, s in zip(edges, strong, strict=True)))
                by_edges = TINY + sum(s * y for s, (_, y) in zip(strong, self.entries, strict=True))
                shares = by_edges / sum(by_edges)
                node_edge.append(-sum(t * share.log() for t, share in zip(p, shares, strict=True)))
        return {
            "unlabeled_loss": self.o.unlabeled_weight * self.mean(self.weights, node_node),
            "contrast_loss": self.o.contrast_weight * self.mean(self.keep, edge_edge),
            "node_edge_loss": self.o.contrast_weight * self.mean(self.keep, node_edge),
        }


NAIVE = {
    "pseudolabel": PseudoLabel,
    "meanteacher": MeanTeacher,
    "uda": UDA,
    "mixmatch": MixMatch,
    "remixmatch": ReMixMatch,
    "comatch": CoMatch,
    "simmatch": SimMatch,
    "simmatchv2": SimMatchV2,
}


def projection(module):
    """One sample's features to a unit vector, by the weights of a `Projector`; with gradient into copies of them."""
    first, last = module.layers[0], module.layers[2]

    def project(features):
        if isinstance(module.norm, torch.nn.LayerNorm):
            centered = features - features.mean()
            features = centered / (centered.square().mean() + module.norm.eps).sqrt()
            features = features * module.norm.weight + module.norm.bias
        return unit(last.weight @ (first.weight @ features + first.bias).clamp_min(0) + last.bias)

    return project


class AveragedProjection:
    """`projection` by a moving average of the weights."""

    def __init__(self):
        self.count = 0

    def follow(self, module):
        """Before each step: what the step before has made of the module."""
        if self.count == 0:
            self.module = copy.deepcopy(module)
        decay = min(0.999, self.count / (9 + self.count))
        with torch.no_grad():
            for average, value in zip(self.module.parameters(), module.parameters(), strict=True):
                average.copy_(decay * average + (1 - decay) * value)
        self.count += 1

    def __call__(self, features):
        return projection(self.module)(features)
