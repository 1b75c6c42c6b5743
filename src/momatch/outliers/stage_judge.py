"""The judge of any classifier network, for your own training loop (docs/method.md, "The judge").

Joins the parts: `StageReader` runs the network and reads its stages, `Judge` models them.
"""

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor, nn

from momatch.heads import log_density, log_posterior
from momatch.numerics.checks import check_fraction, check_positive_int
from momatch.outliers.judge import Judge
from momatch.outliers.stages import StageReader, evaluating, find_stages

#: Samples with their classes, -1 for unlabelled, in batches of any size. Iterated several times.
Loader = Iterable[Any]

#: Most inputs that the network gets at once in scoring.
_CHUNK = 256
#: Inputs that the stages are found with.
_PROBE = 8
_UNLABELED = -1


class StageJudge(nn.Module):
    """Judges the inputs of a classifier network by what the network sees at several depths.

    The network runs in evaluation mode and without gradient, and has its modes back afterwards. It is not part of the judge's
    state. Fit again when it has changed.

    Args:
        network: maps inputs (n, ...) to logits, or to the log joint of a momatch head, (n, K).
        num_classes: K; None for as many as the network returns.
        backbone: the part of the network whose stages are read. None for `network.backbone` if there is one, as in
            `momatch.Classifier`, otherwise the network itself.
        stage_names: modules of the backbone that are its stages; None for those that it declares or that are found
            (`momatch.outliers.find_stages`). An empty sequence stands for the backbone's output.

    Attributes:
        judge: the `Judge` of the statistics; None before `fit`.

    Raises:
        ValueError: if `network` is no module, the backbone is not part of it, or `num_classes` is not a positive integer.

    Example:
        >>> judge = StageJudge(model).fit(loader)
        >>> judge.score(x_new)
        >>> OutlierDetector(judge).calibrate(x_held_out).p_value(x_new)
    """

    judge: Judge | None

    def __init__(
        self,
        network: nn.Module,
        num_classes: int | None = None,
        *,
        backbone: nn.Module | None = None,
        stage_names: Iterable[str] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise ValueError(
                f"network: got a {type(network).__name__}, expected an nn.Module that returns logits (n, K)"
            )
        if backbone is None:
            inner = getattr(network, "backbone", None)
            # TorchScript takes no hooks.
            if not isinstance(inner, nn.Module) or isinstance(inner, torch.jit.ScriptModule):
                inner = network
            backbone = inner
        # In tuples, so that nn.Module does not register them as children.
        self._network, self._backbone = (network,), (backbone,)
        self._num_classes = None if num_classes is None else check_positive_int("num_classes", num_classes)
        self._stage_names = None if stage_names is None else tuple(stage_names)
        self._reader(self._stage_names or ())  # checks the names
        self.register_module("judge", None)

    @property
    def network(self) -> nn.Module:
        """The network whose inputs are judged."""
        return self._network[0]

    def fit(self, loader: Loader, *, cutoff: float = 0.95) -> "StageJudge":
        """Fit the judge to labelled samples, and to unlabelled ones by their prediction if it is confident.

        Memory does not grow with the number of samples: the network passes over the loader three times, as `Judge.fit` does.
        Every confident sample counts as an inlier, so leave out what you know to be an outlier.

        Args:
            loader: pairs of inputs (n, ...) and classes (n,), -1 for unlabelled. The same samples in each pass, in any order:
                a list or a data loader without random augmentation, no generator.
            cutoff: lowest posterior of a prediction that is trusted, 0 to 1.

        Raises:
            ValueError: if the loader cannot be read repeatedly, there are no samples to trust, or shapes, classes or values are
                not as expected. A judge that was fitted before stays as it is.
        """
        check_fraction("cutoff", cutoff)
        if isinstance(loader, Iterator):
            raise ValueError(
                f"loader: got a {type(loader).__name__}, which can be read once, expected to read it three times: pass a list "
                "or a data loader"
            )
        x, _ = next(self._pairs(loader), (None, None))
        if x is None:
            raise ValueError("loader: got no samples, expected at least one")
        names, probe = self._stage_names, x[:_PROBE]
        if names is None:
            names = find_stages(self._backbone[0], probe, network=self.network)
        reader = self._reader(names)
        with evaluating(self.network):
            output, stages = self._observe(reader, probe)
            if self._stage_names is None and stages.shape[1] <= output.shape[1]:
                warnings.warn(
                    f"StageJudge: found no layers inside {type(self.network).__name__} that it can read, so its output "
                    "alone is judged, which shows less; with stage_names, name modules that return one tensor for each input",
                    stacklevel=2,
                )
            K = self._num_classes or output.shape[1]
            judge = Judge(stages.shape[1], K, names, judges_answers=True).to(stages)
            self.judge = judge.fit(_Trusted(self, reader, loader, cutoff))
        return self

    def score(self, x: Shaped[Tensor, "n *size"]) -> Float[Tensor, " n"]:
        """Outlier score: distance to the nearest class in deviations from what is usual, plus how unusual the answer is.

        Returns:
            Higher for outliers; +inf where anything is NaN. See `Judge.score`.

        Raises:
            ValueError: if `fit` was not called, there are no samples, or the network does not return (n, K).
        """
        output, distance = self._judged(x)
        return self._fitted().score(distance.amin(1), log_posterior(output).exp())

    def mahalanobis(self, x: Shaped[Tensor, "n *size"]) -> Float[Tensor, "n K"]:
        """Distance to each class; infinite for a class without samples.

        Raises:
            ValueError: as `score`.
        """
        return self._judged(x)[1]

    def forward(self, x: Shaped[Tensor, "n *size"]) -> Float[Tensor, "n K"]:
        """The judge's log joint log p(y=k, x) of the statistics.

        Raises:
            ValueError: as `score`.
        """
        return self._fitted().log_joint(self.mahalanobis(x))

    def log_density(self, x: Shaped[Tensor, "n *size"]) -> Float[Tensor, " n"]:
        """log p(x) of the statistics.

        Raises:
            ValueError: as `score`.
        """
        return log_density(self(x))

    def _judged(self, x: Tensor) -> tuple[Float[Tensor, "n K"], Float[Tensor, "n K"]]:
        """The network's output in the judge's dtype, and the distance to each class."""
        judge = self._fitted()
        if not isinstance(x, Tensor) or x.ndim < 2 or x.shape[0] == 0:
            got = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise ValueError(f"x: got {got}, expected a tensor (n, ...) with at least one sample")
        reader, outputs, distances = self._reader(judge.stage_names), [], []
        with evaluating(self.network):
            for chunk in x.split(_CHUNK):
                output, stages = self._observe(reader, chunk)
                outputs.append(output.to(judge.scale))
                distances.append(judge.mahalanobis(stages.to(judge.scale)))
        return torch.cat(outputs), torch.cat(distances)

    def _observe(self, reader: StageReader, x: Tensor) -> tuple[Float[Tensor, "n K"], Float[Tensor, "n S"]]:
        """The network's output and the statistics of its stages, for a batch from any device."""
        parameter = next(self.network.parameters(), x)
        output, stages = reader(x.to(parameter.device))
        K = self._num_classes
        if (
            not isinstance(output, Tensor)
            or output.ndim != 2
            or len(output) != len(x)
            or K not in (None, output.shape[1])
        ):
            got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
            raise ValueError(
                f"network: returned {got} for {len(x)} inputs, expected logits or a log joint ({len(x)}, {K or 'K'})"
            )
        return output, stages

    def _pairs(self, loader: Loader) -> Iterator[tuple[Tensor, Int64[Tensor, " n"]]]:
        """The batches that are not empty, with checked shapes."""
        for pair in loader:
            if (
                not isinstance(pair, tuple | list)
                or len(pair) != 2
                or not all(isinstance(part, Tensor) for part in pair)
            ):
                raise ValueError(
                    f"loader: got a batch that is a {type(pair).__name__}, expected pairs of tensors (x, y)"
                )
            x, y = pair
            if x.ndim < 2 or y.shape != x.shape[:1] or y.is_floating_point() or y.dtype == torch.bool:
                raise ValueError(
                    f"loader: got x {tuple(x.shape)} with y {tuple(y.shape)} of {y.dtype}, expected (n, ...) with class "
                    "numbers (n,) of integer dtype, -1 for unlabelled"
                )
            if len(x):
                yield x, y.long()

    def _reader(self, names: Iterable[str]) -> StageReader:
        return StageReader(self._backbone[0], tuple(names), network=self.network)

    def _fitted(self) -> Judge:
        if self.judge is None:
            raise ValueError("judge: got no fit, expected fit(loader) to be called first")
        return self.judge

    def get_extra_state(self) -> dict[str, list[str]]:
        """The names of the stages, which belong to the statistics."""
        return {"stage_names": [] if self.judge is None else list(self.judge.stage_names)}

    def set_extra_state(self, state: dict[str, list[str]]) -> None:
        """Nothing to do: the names are read together with the sizes."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The judge gets the sizes and stages of the checkpoint.
        centers = state_dict.get(f"{prefix}judge.centers")
        if isinstance(centers, Tensor) and centers.ndim == 2:
            K, F = centers.shape
            names = state_dict.get(f"{prefix}_extra_state", {"stage_names": ()})["stage_names"]
            self._reader(names)  # checks that this network has them
            device = next(self.network.parameters(), centers).device
            # Judges of older versions count the answer's entropy.
            judges_answers = any(key.startswith(f"{prefix}judge.answers.") for key in state_dict)
            judge = Judge(F, self._num_classes or K, names, judges_answers=judges_answers)
            self.judge = judge.to(device, centers.dtype)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """The network, for ``repr``."""
        return f"network={type(self.network).__name__}"


class _Trusted:
    """Statistics, classes and posteriors of a loader's labelled and confidently predicted samples, in each pass over it."""

    def __init__(self, owner: StageJudge, reader: StageReader, loader: Loader, cutoff: float) -> None:
        self._owner, self._reader, self._loader, self._cutoff = owner, reader, loader, cutoff
        self._count: int | None = None

    def __iter__(self) -> Iterator[tuple[Float[Tensor, "m S"], Int64[Tensor, " m"], Float[Tensor, "m K"]]]:
        count = 0
        for x, y in self._owner._pairs(self._loader):
            output, stages = self._owner._observe(self._reader, x)
            labels, K = y.to(output.device), output.shape[1]
            if not bool(((labels >= _UNLABELED) & (labels < K)).all()):
                raise ValueError(
                    f"loader: got class numbers from {int(y.min())} to {int(y.max())}, expected 0 to {K - 1}, and -1 for "
                    "unlabelled"
                )
            posterior = log_posterior(output.double()).exp()
            confidence, predicted = posterior.max(1)
            is_labeled = labels != _UNLABELED
            trusted = is_labeled | (confidence >= self._cutoff)
            count += int(trusted.sum())
            yield stages[trusted], torch.where(is_labeled, labels, predicted)[trusted], posterior[trusted]
        self._check(count)

    def _check(self, count: int) -> None:
        if count == 0:
            raise ValueError(
                f"loader: got no labelled sample and no prediction with a posterior of at least {self._cutoff}, expected some: "
                "pass labelled samples, or lower the cutoff"
            )
        if self._count not in (None, count):
            raise ValueError(
                f"loader: got {self._count} samples to trust in the first pass and {count} in a later one, expected the same: "
                "pass a loader without random augmentation that does not drop its last batch"
            )
        self._count = count
