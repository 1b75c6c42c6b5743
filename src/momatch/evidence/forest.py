"""Forests of few labels: the trees of scikit-learn, without what its forests do around each of them.

To clone a tree and to check its parameters and targets takes longer than to fit it to a hundred labels.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64
from sklearn import config_context
from sklearn.tree import DecisionTreeRegressor, ExtraTreeRegressor

#: "random": the best splits of a bootstrap sample; "extra": random splits of all samples. As scikit-learn's defaults.
Kind = Literal["random", "extra"]


@dataclass(frozen=True)
class Forest:
    """Fitted trees; can be pickled.

    The trees regress one-hot targets: the least squared error is the least Gini impurity, and a leaf's mean is its
    class frequencies.
    """

    trees: tuple[DecisionTreeRegressor, ...]

    @classmethod
    def fit(
        cls,
        kind: Kind,
        x: Float64[np.ndarray, "m F"],
        targets: Float64[np.ndarray, "m K"],
        sample_weight: Float64[np.ndarray, " m"],
        *,
        trees: int,
        seed: tuple[int, int],
    ) -> "Forest":
        """Fit all trees; the root of the number of features is tried at each split."""
        rng, m, x = np.random.default_rng(seed), len(x), x.astype(np.float32)
        grown = []
        with config_context(skip_parameter_validation=True, assume_finite=True):
            for _ in range(trees):
                tree_type, weight = ExtraTreeRegressor, sample_weight
                if kind == "random":
                    tree_type = DecisionTreeRegressor
                    weight = sample_weight * np.bincount(rng.integers(m, size=m), minlength=m)
                tree = tree_type(max_features="sqrt", random_state=int(rng.integers(2**31)))
                grown.append(tree.fit(x, targets, sample_weight=weight, check_input=False))
        return cls(tuple(grown))

    def __call__(self, x: Float64[np.ndarray, "n F"]) -> Float64[np.ndarray, "n K"]:
        """Mean class frequencies of the leaves that each row falls into."""
        x = x.astype(np.float32)
        total = self.trees[0].predict(x, check_input=False)
        for tree in self.trees[1:]:
            total += tree.predict(x, check_input=False)
        probability: np.ndarray = total / len(self.trees)
        return probability
