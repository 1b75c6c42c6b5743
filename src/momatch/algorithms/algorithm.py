"""The interface of the algorithms: what each wants of a batch, which pseudo-labels it makes, what it adds to the loss.

A step calls an algorithm in this order (docs/algorithms.md):

1. `Algorithm.wants` tells which views to make and which of them pass through the network, with gradient or without.
2. `Algorithm.label` turns the model's posteriors into pseudo-labels, and updates the algorithm's state.
3. `Algorithm.mix`, of an algorithm with `Wants.mixed`: which samples to mix, and their targets.
4. `Algorithm.supervised_loss` and `Algorithm.losses`, from the network's outputs.
5. `Algorithm.follow`, after the optimiser, of an algorithm with an average of its own parameters.

All tensors are of the global batch: with several processes each of them computes the same, so that state and gradient are those
of one process. State is in buffers, trained parameters are the module's, and nothing is read back to the host.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, Integer
from torch import Tensor, nn


@dataclass(frozen=True)
class Wants:
    """What an algorithm wants of a batch.

    Views of the unlabelled samples are named "weak", "weak_1", ... and "strong", "strong_1", ...; each name is another view.

    Attributes:
        trained: views that pass through the network with gradient.
        guessed: views whose posteriors, averaged, become the pseudo-labels; none for supervised training.
        guess: where these posteriors come from. "trained": the pass with gradient, of which the views must be part; "first": a
            pass without gradient before it; "teacher": the averaged model, likewise.
        splits: with guess "trained", the loss takes no gradient from the guessed views: `forward="split"` may pass them alone.
        labeled: the labelled samples pass through the network as they are.
        mixed: views that are mixed with each other and with the labelled samples. They pass with gradient, as "mixed_labeled",
            "mixed_weak", ... in this order; needs guess "first" or "teacher".
        rotated: a view that also passes turned by 0, 90, 180 or 270 degrees, as "rotated"; None for none.
        features: the outputs have the backbone's features.
    """

    trained: tuple[str, ...] = ("weak", "strong")
    guessed: tuple[str, ...] = ("weak",)
    guess: Literal["trained", "first", "teacher"] = "trained"
    splits: bool = True
    labeled: bool = True
    mixed: tuple[str, ...] = ()
    rotated: str | None = None
    features: bool = False


@dataclass(frozen=True)
class Sizes:
    """The sizes that an algorithm is built for.

    Attributes:
        num_classes: K.
        num_samples: N_u, size of the unlabelled pool.
        num_labeled: size of the labelled set.
        num_features: F, size of the backbone's features.
    """

    num_classes: int
    num_samples: int
    num_labeled: int
    num_features: int


@dataclass(frozen=True)
class Guess:
    """What pseudo-labels are made from; without gradient.

    Attributes:
        posterior: (u, K) of the guessed views.
        indices: (u,) of the samples in the unlabelled pool.
        labels: (b,) of the labelled samples.
        labeled_indices: (b,) of the labelled samples in the labelled set.
        progress: fraction of the training that is done, 0 to 1.
        exclude: (u,) True for outliers, which get no pseudo-label and leave no trace in the state; None for none.
        trust: (u,) P(inlier), by which pseudo-labels count; None for 1.
        features: (u, F) of the first guessed view, if wanted.
        labeled_features: (b, F), if wanted.
    """

    posterior: Float[Tensor, "u K"]
    indices: Integer[Tensor, " u"]
    labels: Integer[Tensor, " b"]
    labeled_indices: Integer[Tensor, " b"]
    progress: float = 0.0
    exclude: Bool[Tensor, " u"] | None = None
    trust: Float[Tensor, " u"] | None = None
    features: Float[Tensor, "u F"] | None = None
    labeled_features: Float[Tensor, "b F"] | None = None

    @property
    def keep(self) -> Float[Tensor, " u"]:
        """How much each sample may count: P(inlier), and 0 for outliers."""
        keep = self.posterior.new_ones(len(self.posterior)) if self.trust is None else self.trust
        return keep if self.exclude is None else keep * ~self.exclude


@dataclass(frozen=True)
class Targets:
    """The pseudo-labels of a batch.

    Attributes:
        target: (u,) classes, or (u, K) probabilities.
        weight: (u,) how much each counts, 0 to 1.
        keep: (u,) how much each sample may count at all (`Guess.keep`).
        notes: whatever else the algorithm's loss needs.
    """

    target: Integer[Tensor, " u"] | Float[Tensor, "u K"]
    weight: Float[Tensor, " u"]
    keep: Float[Tensor, " u"]
    notes: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def classes(self) -> Integer[Tensor, " u"]:
        """The class of each pseudo-label, (u,)."""
        return self.target if self.target.ndim == 1 else self.target.argmax(-1)


@dataclass(frozen=True)
class Mixing:
    """Which samples are mixed: the labelled ones, then those of each of `Wants.mixed`.

    Attributes:
        partner: (N,) the sample that is mixed into each.
        share: what is left of each sample itself, 0 to 1.
        targets: name of the mixed view -> (n, K) mixed target of each sample.
    """

    partner: Int64[Tensor, " N"]
    share: float
    targets: Mapping[str, Float[Tensor, "n K"]]


@dataclass(frozen=True)
class Output:
    """What the network says about one view.

    Attributes:
        log_joint: (n, K).
        features: (n, F) of the backbone, if wanted.
    """

    log_joint: Float[Tensor, "n K"]
    features: Float[Tensor, "n F"] | None = None


@dataclass(frozen=True)
class Outputs:
    """What a loss is made from; with gradient.

    Attributes:
        views: name -> output: "labeled", the trained views, "mixed_..." and "rotated".
        labels: (b,) of the labelled samples.
        progress: fraction of the training that is done, 0 to 1.
        turns: (u,) quarter turns of the view "rotated".
        mixing: the result of `Algorithm.mix`.
    """

    views: Mapping[str, Output]
    labels: Integer[Tensor, " b"]
    progress: float = 0.0
    turns: Integer[Tensor, " u"] | None = None
    mixing: Mixing | None = None

    def __getitem__(self, name: str) -> Output:
        """Output of a view.

        Raises:
            KeyError: if the algorithm does not want it.
        """
        if name not in self.views:
            raise KeyError(
                f"the view {name!r} did not pass through the network with gradient, expected one of {', '.join(self.views)}; "
                "`Wants` says which do"
            )
        return self.views[name]


class Algorithm(nn.Module):
    """Base class of the algorithms.

    The constructor takes `Sizes`, then by keyword the settings of `momatch.TrainConfig` that the algorithm has: whatever it
    names, it is given, unless the setting is None.

    Attributes:
        wants: see `Wants`.
        terms: names of the terms that `losses` returns.
    """

    wants: Wants = Wants()
    terms: ClassVar[tuple[str, ...]] = ("unlabeled_loss",)

    def label(self, guess: Guess) -> Targets:
        """Make the pseudo-labels and update the state; runs without gradient."""
        raise TypeError(f"{type(self).__name__}: an algorithm must define label(guess)")

    def mix(self, labels: Integer[Tensor, " b"], pseudo: Targets, seed: int) -> Mixing:
        """Which samples to mix, and their targets; only with `Wants.mixed`.

        Args:
            labels: (b,) of the labelled samples.
            pseudo: the result of `label`.
            seed: for random choices; the same in all processes.
        """
        raise TypeError(
            f"{type(self).__name__}: an algorithm that wants mixed views must define mix(labels, pseudo, seed)"
        )

    def supervised_loss(self, outputs: Outputs) -> Float[Tensor, ""]:
        """The loss of the labelled samples: cross-entropy, unless an algorithm says otherwise."""
        return F.cross_entropy(outputs["labeled"].log_joint, outputs.labels)

    def losses(self, outputs: Outputs, pseudo: Targets) -> dict[str, Float[Tensor, ""]]:
        """The weighted terms of the loss besides the supervised one, by the names in `terms`."""
        raise TypeError(f"{type(self).__name__}: an algorithm must define losses(outputs, pseudo)")

    def follow(self, share: Float[Tensor, ""]) -> None:
        """Move averages of the algorithm's own parameters towards them, as the averaged model moves.

        Args:
            share: of the way; 0 for a step that was skipped.
        """

    def forget_undrawn(self, is_drawn: Bool[Tensor, " N_u"]) -> None:
        """From now on unlabelled samples are drawn from these alone: forget what the state holds of the others, if anything."""

    def thresholds(self, num_classes: int) -> Float[Tensor, " {num_classes}"] | None:
        """Minimum confidence of a pseudo-label by class, for the log; None if the algorithm has no such thing."""
        return None
