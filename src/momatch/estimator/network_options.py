"""Options of the estimator's network, which need no tuning."""

from collections.abc import Sequence

from sklearn.base import BaseEstimator


class NetworkOptions(BaseEstimator):  # type: ignore[misc]
    """Options of the network of a `MoMatchClassifier`; in a grid they are `network__NAME`.

    Args:
        encoder: "mlp", or "none" to use the scaled features as the embedding and train only the head.
        hidden_sizes: width of each hidden layer of the MLP.
        embedding_dim: size of the embedding; ignored with encoder "none".
        head: "aagmm" (Gaussians with learned variances), "kmeans" (unit variances) or "linear" (no Gaussians, so no outlier
            score "nearest").
        moment_order: highest moment constrained to be Gaussian, 1 to 4, including all lower ones; 0 disables the constraint.
            None means 1, or 0 for the linear head.
        moment_weight: weight of the constraint in the loss.
        algorithm: how the unlabelled samples are used, as in `momatch train --algorithm`; "supervised" uses none.
        cutoff: minimum confidence for a pseudo-label to count, if the algorithm has one.
        unlabeled_weight: weight of the pseudo-label loss; None for the algorithm's own.
        scale: "feature" divides each feature by its standard deviation, "global" divides all by the same number. "auto" uses
            "global" if features seem to share a unit (median standard deviation at least 0.3 of the largest).
        graph_neighbors: number of nearest neighbours in the graph that labels are spread over; 0 disables it.
        neighbors: number of nearest neighbours that an augmented sample may move towards; 0 disables moves.
        weak_move: maximum move in weak augmentation, as a fraction of the distance to the neighbour.
        strong_move: the same for strong augmentation.
        weak_noise: norm of the noise in weak augmentation, in units of the typical distance between neighbours (median
            distance to the 10th nearest).
        strong_noise: the same for strong augmentation.
        mask: maximum fraction of features that strong augmentation sets to their mean; limited so that a sample moves no
            farther than neighbours are apart.
        labeled_batch_size: labelled samples per step.
        unlabeled_batch_size: samples per step drawn from all samples, labelled or not.
        lr: initial learning rate of AdamW, with a cosine schedule.
        weight_decay: weight decay of the encoder's weights.
        ema_decay: decay of the weight average (EMA) used for prediction.
        policy: former name of `algorithm`.

    Example:
        >>> MoMatchClassifier(network=NetworkOptions(head="kmeans", embedding_dim=8))
    """

    def __init__(
        self,
        *,
        encoder: str = "mlp",
        hidden_sizes: Sequence[int] = (512,),
        embedding_dim: int = 32,
        head: str = "aagmm",
        moment_order: int | None = None,
        moment_weight: float = 1.0,
        algorithm: str = "flexmatch",
        cutoff: float = 0.95,
        unlabeled_weight: float | None = None,
        scale: str = "auto",
        graph_neighbors: int = 6,
        neighbors: int = 10,
        weak_move: float = 0.2,
        strong_move: float = 0.6,
        weak_noise: float = 0.15,
        strong_noise: float = 0.45,
        mask: float = 0.2,
        labeled_batch_size: int = 64,
        unlabeled_batch_size: int = 192,
        lr: float = 3e-3,
        weight_decay: float = 1e-2,
        ema_decay: float = 0.99,
        policy: str | None = None,
    ) -> None:
        self.encoder = encoder
        self.hidden_sizes = hidden_sizes
        self.embedding_dim = embedding_dim
        self.head = head
        self.moment_order = moment_order
        self.moment_weight = moment_weight
        self.algorithm = algorithm
        self.cutoff = cutoff
        self.unlabeled_weight = unlabeled_weight
        self.scale = scale
        self.graph_neighbors = graph_neighbors
        self.neighbors = neighbors
        self.weak_move = weak_move
        self.strong_move = strong_move
        self.weak_noise = weak_noise
        self.strong_noise = strong_noise
        self.mask = mask
        self.labeled_batch_size = labeled_batch_size
        self.unlabeled_batch_size = unlabeled_batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.ema_decay = ema_decay
        self.policy = policy
