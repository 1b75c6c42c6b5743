"""How unusual an answer is, by the definition, in numpy and scikit-learn."""

import numpy as np
from sklearn.covariance import LedoitWolf

WEIGHT, NOISE, MOST = 0.25, 2.0, 10.0


def centered(posterior):
    logarithm = np.log(np.maximum(np.asarray(posterior, float), 1e-13))
    return logarithm - logarithm.mean(1, keepdims=True)


def squared(row, mean, covariance):
    return (row - mean) @ np.linalg.solve(covariance, row - mean)


def exchanged(means, missing):
    """Mean answer of a class without samples: those of the others, with the two classes in each other's place."""
    swapped = []
    for k, mean in means.items():
        swapped.append(mean.copy())
        swapped[-1][[k, missing]] = mean[[missing, k]]
    return np.mean(swapped, 0)


def naive_unusual(posterior, labels, new):
    """Relative distance of new answers, in deviations of those of the fit."""
    answers, labels = centered(posterior), np.asarray(labels)
    means = {k: answers[labels == k].mean(0) for k in np.unique(labels)}
    counts = {k: int((labels == k).sum()) for k in means}
    deviation = answers - np.stack([means[k] for k in labels])
    estimate, n, K = LedoitWolf(assume_centered=True).fit(deviation), len(answers), answers.shape[1]
    of_class = estimate.covariance_ + NOISE**2 * np.eye(K)
    everywhere = [*means.values(), *(exchanged(means, k) for k in range(K) if k not in means)]
    middle = np.mean(everywhere, 0)
    of_all = of_class + np.mean([np.outer(mean - middle, mean - middle) for mean in everywhere], 0)
    usual = []
    for row, own in zip(answers, labels, strict=True):
        distances = {k: squared(row, mean, of_class) for k, mean in means.items()}
        factor = counts[own] / max(counts[own] - 1, 1)
        leverage = min(factor * (1 - estimate.shrinkage_) * distances[own] / n, 0.95)
        distances[own] = factor**2 * distances[own] * (n - 1) / n / (1 - leverage)
        if counts[own] > 1:
            usual.append(min(distances.values()) - squared(row, middle, of_all))
    relative = [
        min(squared(row, mean, of_class) for mean in means.values()) - squared(row, middle, of_all)
        for row in centered(new)
    ]
    return np.minimum((np.array(relative) - np.mean(usual)) / max(np.std(usual), 1.0), MOST)


def unusual_by(answers, posterior):
    """The same by the buffers of fitted `Answers`, row by row."""
    model, found = answers.of_class, []
    for row in centered(posterior):
        white = (row - model.shift.numpy()) @ model.whitening.numpy()
        nearest = min(((white - center) ** 2).sum() for center in model.centers.numpy())
        found.append(nearest - (((white - answers.middle.numpy()) @ answers.root.numpy()) ** 2).sum())
    return np.minimum((np.array(found) - float(answers.typical)) / float(answers.deviation), MOST)
