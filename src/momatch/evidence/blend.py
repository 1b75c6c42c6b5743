"""The final answer: supervised views and network, blended (docs/method.md, "Evidence").

    p(y | x) ∝ (views(y | x)^(1 - s) network(y | x)^s)^(1 / T)

The graph has no say on new samples, but the network has learned from it, and goes further than it. So the network's share s is
the trust in the graph, or the graph's weight among all views: where it counted nothing, neither does the network. The
temperature T makes the answer as confident on the pool as all evidence is, which is calibrated to hidden labels.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from momatch.evidence.evidence import GRAPH, Evidence
from momatch.evidence.pooling import log_linear
from momatch.evidence.temperature import matched_temperature

#: Least probability, before the logarithm.
_LEAST = 1e-3


@dataclass(frozen=True)
class Blend:
    """Supervised views and network; can be pickled.

    Attributes:
        evidence: the supervised views.
        weights: (1 - s) / T and s / T.
    """

    evidence: Evidence
    weights: Float64[np.ndarray, "2"]

    @classmethod
    def fit(
        cls,
        evidence: Evidence,
        x: Float64[np.ndarray, "n F"],
        network: Float64[np.ndarray, "n K"],
        confidence: float,
    ) -> "Blend":
        """Fit the temperature.

        Args:
            evidence: gathered on a pool.
            x: scaled features of samples of the pool.
            network: the trained network's posterior of them.
            confidence: mean confidence of all evidence about them.
        """
        if len(x) == 0:
            return cls(evidence, np.array([1.0, 0.0]))
        share = max(evidence.graph_share, evidence.trust)
        weights = np.array([1.0 - share, share])
        logarithm = np.einsum("v,vnk->nk", weights, np.stack([_log(evidence(x)), _log(network)]))
        return cls(evidence, weights / matched_temperature(logarithm, confidence))

    def shares(self) -> dict[str, float]:
        """Shares of the supervised views and the network in the answer, which sum to 1, and the trust in clusters."""
        of_views, of_network = self.weights / self.weights.sum()
        shares = self.evidence.shares()
        graph = shares.pop(GRAPH)
        views = {name: float(of_views) * share / max(1.0 - graph, 1e-12) for name, share in shares.items()}
        return {**views, "network": float(of_network), "trust": self.evidence.trust}

    def __call__(
        self, x: Float64[np.ndarray, "n F"], network: Float64[np.ndarray, "n K"]
    ) -> Float64[np.ndarray, "n K"]:
        """Posterior of new samples.

        Args:
            x: scaled features.
            network: the network's posterior.
        """
        return log_linear(np.stack([_log(self.evidence(x)), _log(network)]), self.weights)


def _log(probability: Float64[np.ndarray, "n K"]) -> Float64[np.ndarray, "n K"]:
    logarithm: np.ndarray = np.log(np.maximum(probability, _LEAST))
    return logarithm
