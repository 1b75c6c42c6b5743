"""The final answer: supervised views and network, blended (docs/method.md, "Evidence").

    p(y | x) ∝ (views(y | x)^(1 - s) (network(y | x) neighbours(y | x))^(s / T_n))^(1 / T)

New samples are not in the graph. But the network has learned from it, and their nearest neighbours are in it: these two speak
as one. Their share s is the one with which the blend best reproduces what all evidence, the graph included, says of the pool.
Where classes are clusters the network goes further than its teachers: then s is at least the trust in the graph, as far as the
network learned what it was taught.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import minimize

from momatch.evidence.evidence import GRAPH, Evidence
from momatch.evidence.neighborhood import Neighborhood
from momatch.evidence.pooling import log_linear, log_smoothed
from momatch.evidence.temperature import matched_temperature

#: Least probability of the views and of the network, before the logarithm.
_LEAST = np.array([1e-3, 1e-12])[:, None, None]
#: The odds of the trust count by this power of the share of the pool of which the network says what it was taught: one that
#: differs on 10 % has missed something, unless the graph is better by far; one that differs on 1 % has not.
_FIDELITY = 60


@dataclass(frozen=True)
class Blend:
    """Supervised views, network and neighbours; can be pickled.

    Attributes:
        evidence: the supervised views.
        neighborhood: None to do without the neighbours.
        weights: (1 - s) / T and s / (T_n T).
        share: s, of the network and the neighbours together.
    """

    evidence: Evidence
    neighborhood: Neighborhood | None
    weights: Float64[np.ndarray, "2"]
    share: float

    @classmethod
    def fit(
        cls,
        evidence: Evidence,
        x: Float64[np.ndarray, "n F"],
        network: Float64[np.ndarray, "n K"],
        target: Float64[np.ndarray, "n K"],
        taught: Float64[np.ndarray, "n K"],
        *,
        neighborhood: Neighborhood | None = None,
        rows: Int64[np.ndarray, " n"] | None = None,
    ) -> "Blend":
        """Fit share and temperatures.

        Args:
            evidence: gathered on a pool.
            x: scaled features of samples of the pool.
            network: the trained network's posterior of them.
            target: posterior of them by all evidence.
            taught: the guide that the network was trained with.
            neighborhood: of samples of the pool; None to do without.
            rows: which of the neighbourhood's rows the samples are.
        """
        if len(x) == 0:
            return cls(evidence, None, np.array([1.0, 0.0]), 0.0)
        confidence = float(target.max(1).mean())
        logarithm = _log(evidence(x), network)
        if neighborhood is not None:
            logarithm[1] += log_smoothed(neighborhood(x, rows))
        of_network = matched_temperature(logarithm[1], confidence)
        logarithm[1] /= of_network
        share = max(_reproducing_share(logarithm, target), _trust_in_network(evidence.trust, network, taught))
        weights = np.array([1.0 - share, share])
        weights /= matched_temperature(np.einsum("v,vnk->nk", weights, logarithm), confidence)
        return cls(evidence, neighborhood, weights / np.array([1.0, of_network]), share)

    def shares(self) -> dict[str, float]:
        """Shares of all views in the answer, which sum to 1, and the trust in clusters."""
        shares = self.evidence.shares()
        graph = shares.pop(GRAPH)
        views = {name: (1.0 - self.share) * share / max(1.0 - graph, 1e-12) for name, share in shares.items()}
        joint = ("network",) if self.neighborhood is None else ("network", "neighbours")
        return {**views, **dict.fromkeys(joint, self.share / len(joint)), "trust": self.evidence.trust}

    def __call__(
        self, x: Float64[np.ndarray, "n F"], network: Float64[np.ndarray, "n K"]
    ) -> Float64[np.ndarray, "n K"]:
        """Posterior of new samples.

        Args:
            x: scaled features.
            network: the network's posterior.
        """
        logarithm = _log(self.evidence(x), network)
        if self.neighborhood is not None:
            logarithm[1] += log_smoothed(self.neighborhood(x))
        return log_linear(logarithm, self.weights)


def _trust_in_network(trust: float, network: Float64[np.ndarray, "n K"], taught: Float64[np.ndarray, "n K"]) -> float:
    """The trust in the graph, as far as the network learned what it was taught."""
    agreement = float((network.argmax(1) == taught.argmax(1)).mean())
    learned = trust * agreement**_FIDELITY
    return learned / max(learned + 1.0 - trust, np.finfo(float).tiny)


def _reproducing_share(logarithm: Float64[np.ndarray, "2 n K"], target: Float64[np.ndarray, "n K"]) -> float:
    """The second view's share in the log-linear pool that has the least cross-entropy to the target."""
    of_target = (target * logarithm).sum((1, 2))

    def cross_entropy(weights: Float64[np.ndarray, "2"]) -> tuple[float, Float64[np.ndarray, "2"]]:
        posterior = log_linear(logarithm, weights)
        likelihood = float((target * np.log(np.maximum(posterior, np.finfo(float).tiny))).sum())
        return -likelihood / len(target), ((posterior * logarithm).sum((1, 2)) - of_target) / len(target)

    found = minimize(cross_entropy, np.full(2, 0.5), jac=True, bounds=[(0.0, None)] * 2, method="L-BFGS-B").x
    return float(found[1] / max(found.sum(), np.finfo(float).tiny))


def _log(views: Float64[np.ndarray, "n K"], network: Float64[np.ndarray, "n K"]) -> Float64[np.ndarray, "2 n K"]:
    logarithm: np.ndarray = np.log(np.maximum(np.stack([views, network]), _LEAST))
    return logarithm
