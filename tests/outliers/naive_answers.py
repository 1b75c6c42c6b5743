"""How unusual an answer is, by the definition, in numpy and scikit-learn."""

import numpy as np
from sklearn.covariance import LedoitWolf

WEIGHT = 0.25


def centered(posterior):
    logarithm = np.log(np.maximum(np.asarray(posterior, float), 1e-13))
    return logarithm - logarithm.mean(1, keepdims=True)


class Gaussians:
    """Class means, and scikit-learn's covariance of the deviations from them in units of their own deviation."""

    def __init__(self, x, labels):
        self.means = {k: x[labels == k].mean(0) for k in np.unique(labels)}
        deviation = x - np.stack([self.means[k] for k in labels])
        self.scale = np.sqrt((deviation**2).mean(0))
        self.scale[self.scale < 1e-12] = 1.0
        estimate = LedoitWolf(assume_centered=True).fit(deviation / self.scale)
        self.covariance, self.shrinkage, self.n = estimate.covariance_, estimate.shrinkage_, len(x)

    def squared(self, row, mean):
        white = (row - mean) / self.scale
        return white @ np.linalg.solve(self.covariance, white)

    def nearest(self, x):
        return np.array([min(self.squared(row, mean) for mean in self.means.values()) for row in x])

    def left_out(self, x, labels):
        counts = {k: (labels == k).sum() for k in self.means}
        found = []
        for row, k in zip(x, labels, strict=True):
            squared, factor = self.squared(row, self.means[k]), counts[k] / max(counts[k] - 1, 1)
            leverage = min(factor * (1 - self.shrinkage) * squared / self.n, 0.95)
            found.append(factor**2 * squared * (self.n - 1) / self.n / (1 - leverage))
        return np.array(found)


def naive_unusual(posterior, labels, new):
    """Relative distance of new answers, in deviations of those of the fit."""
    answers, labels = centered(posterior), np.asarray(labels)
    of_class, of_all = Gaussians(answers, labels), Gaussians(answers, np.zeros_like(labels))
    counts = np.bincount(labels)[labels]
    usual = (of_class.left_out(answers, labels) - of_all.left_out(answers, np.zeros_like(labels)))[counts > 1]
    relative = of_class.nearest(centered(new)) - of_all.nearest(centered(new))
    return (relative - usual.mean()) / usual.std()


def unusual_by(answers, posterior):
    """The same by the buffers of fitted `Answers`, row by row."""

    def nearest(model, row):
        white = (row - model.shift.numpy()) / model.scale.numpy() @ model.whitening.numpy()
        return min(((white - center) ** 2).sum() for center in model.centers.numpy())

    found = [nearest(answers.of_class, row) - nearest(answers.of_all, row) for row in centered(posterior)]
    return (np.array(found) - float(answers.typical)) / float(answers.deviation)
