"""What a network saw: statistics of its layers' outputs at several depths, the stages (docs/method.md, "The judge").

The channels of a feature map are summarised by their mean and the logarithm of their deviation over the pixels. A backbone may
declare its stages as `stage_names`, the names of modules in it; for others `find_stages` chooses them.
"""

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn

#: Name of the stage that is the input itself.
INPUT = "input"
#: What a network returns; the only stage of one that has no others.
_OUTPUT = "output"
#: Most stages that are chosen in a network.
MAX_STAGES = 8
#: Most channels of a stage. Of wider ones every k-th channel is used: the cost of a judge grows with the square of their
#: number.
MAX_CHANNELS = 320
#: Added to each deviation before the logarithm, as a fraction of the mean over the same map's channels of |mean| + deviation:
#: far above the rounding errors that the deviation of a constant map consists of.
_FLOOR = 1e-3
_TINY = 1e-12
#: Values that are summarised at once: they fit in a cache, and the passes over them take a tenth of `torch.var_mean`'s time.
_AT_ONCE = 2**19


def statistics(output: Tensor) -> Float[Tensor, "n S"]:
    """Statistics of a layer's output, in float32 or better. Finite for finite outputs, also where a map is constant.

    For scoring, not for training: the gradient of a constant map's deviation is not finite.

    Args:
        output: (n, C, H, W) or (n, C, D, H, W) a feature map, or (n, T, C) tokens: the mean of each channel, and the log of
            its deviation; (n, C) vectors: themselves.
    """
    if torch.finfo(output.dtype).bits < 32:
        output = output.float()
    if output.ndim == 2:
        # Not the output itself, which the next layer may change in place.
        return output.clone()
    channels = output.transpose(1, 2) if output.ndim == 3 else output.flatten(2)  # (n, C, pixels)
    mean, deviation = _mean_and_deviation(channels)
    floor = _FLOOR * (mean.abs() + deviation).mean(1, keepdim=True) + _TINY
    return torch.cat([mean, (deviation + floor).log()], 1)


def _mean_and_deviation(channels: Float[Tensor, "n C pixels"]) -> tuple[Float[Tensor, "n C"], Float[Tensor, "n C"]]:
    if torch.compiler.is_compiling() or len(channels) == 1 or channels.numel() <= _AT_ONCE:
        mean = channels.mean(2, keepdim=True)
        # Difference and square in one pass, without the difference in memory.
        squared = nn.functional.mse_loss(channels, mean.expand_as(channels), reduction="none")
        return mean.squeeze(2), squared.mean(2).sqrt()
    parts = [_mean_and_deviation(part) for part in channels.split(max(1, _AT_ONCE // channels[0].numel()))]
    mean, deviation = (torch.cat(values) for values in zip(*parts, strict=True))
    return mean, deviation


class StageReader:
    """Reads a backbone's stages while it computes its features.

    Args:
        backbone: the network.
        names: its modules whose outputs are the stages, and `INPUT`; none for the features that it returns.
        network: the network to run, of which the backbone is a part; None for the backbone alone.

    Raises:
        ValueError: if there is no module of such a name, or the backbone is not part of the network.
    """

    def __init__(self, backbone: nn.Module, names: Sequence[str], *, network: nn.Module | None = None) -> None:
        backbone, network = _inside(backbone, network)
        modules = dict(backbone.named_modules())
        unknown = [name for name in names if name != INPUT and name not in modules]
        if unknown:
            inside = ", ".join(list(modules)[1:4])
            known = (
                f"names of modules in {type(backbone).__name__}, such as {inside}"
                if inside
                else (f"{INPUT!r} or no names: {type(backbone).__name__} has no modules inside")
            )
            raise ValueError(f"stage_names: got {unknown[0]!r}, expected {known}")
        self.names = tuple(names)
        self._backbone, self._network = backbone, network
        self._modules = {name: modules[name] for name in names if name != INPUT}
        self._attached = 0
        # Several threads may run one network, each with its own batch.
        self._batch = threading.local()

    def __call__(self, x: Tensor) -> tuple[Tensor, Float[Tensor, "n S"]]:
        """The network's output for `x`, and the statistics of the backbone's stages side by side.

        Raises:
            ValueError: if a stage was not run, or did not return one tensor per sample.
        """
        seen: dict[str, Tensor] = {}
        self._batch.seen, self._batch.size = seen, x.shape[0]
        try:
            if self._network is self._backbone and INPUT in self.names:
                self._read(INPUT, x)
            with self.attached() if not self._attached else nullcontext():
                output = _run(self._network, x)
            if self._network is self._backbone and not self.names:
                self._read(_OUTPUT, output)
        finally:
            del self._batch.seen
        names = self.names or (_OUTPUT,)
        missing = [name for name in names if name not in seen]
        if missing:
            raise ValueError(
                f"stage_names: got {missing[0]!r}, which the network did not run, expected modules that it runs"
            )
        return output, torch.cat([seen[name] for name in names], 1)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Stay attached to the network between batches: needed where several threads read at the same time."""
        with _hooked(self._modules, self._read), self._around_backbone():
            self._attached += 1
            try:
                yield
            finally:
                self._attached -= 1

    @contextmanager
    def _around_backbone(self) -> Iterator[None]:
        """Read what the backbone gets or returns inside a larger network, if that is a stage."""
        if self._network is self._backbone or (self.names and INPUT not in self.names):
            yield
        elif not self.names:
            with _hooked({_OUTPUT: self._backbone}, self._read):
                yield
        else:
            handle = self._backbone.register_forward_pre_hook(lambda _module, inputs: self._read(INPUT, *inputs[:1]))
            try:
                yield
            finally:
                handle.remove()

    def _read(self, name: str, output: object = None) -> None:
        seen = getattr(self._batch, "seen", None)
        if seen is None:
            return
        if not _is_stage(output, self._batch.size):
            got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
            raise ValueError(
                f"stage {name!r}: got {got}, expected a tensor (n, C), (n, T, C), (n, C, H, W) or (n, C, D, H, W)"
            )
        # Now, because the next layer may work in place.
        seen[name] = statistics(thinned(output, MAX_CHANNELS))


def find_stages(backbone: nn.Module, x: Tensor, *, network: nn.Module | None = None) -> tuple[str, ...]:
    """The stages of a backbone: those that it declares, or the last module of each image size, by a pass in evaluation mode.

    A network that keeps one size, such as a transformer, gives evenly spaced modules; one without maps and tokens, such as
    an MLP, its linear layers. Empty if there are none: then its features are the only stage.

    Args:
        backbone: with the attribute `stage_names`, or any network.
        x: input for the pass; a few samples.
        network: the network that gets `x`, of which the backbone is a part; None for the backbone.

    Raises:
        ValueError: if the backbone is not part of the network.
    """
    declared = getattr(backbone, "stage_names", None)
    if declared is not None:
        return tuple(declared)
    backbone, network = _inside(backbone, network)
    # "" is the network itself, and a module called as the input could not be told from it. TorchScript takes no hooks.
    modules = {
        name: module
        for name, module in backbone.named_modules()
        if name not in ("", INPUT) and not isinstance(module, torch.jit.ScriptModule)
    }
    shapes: dict[str, torch.Size] = {}
    unfit: set[str] = set()

    def note(name: str, output: object) -> None:
        # A module that is run several times counts where it was run last, and has to be a stage each time.
        shapes.pop(name, None)
        if not _is_stage(output, x.shape[0]):
            unfit.add(name)
        elif name not in unfit:
            shapes[name] = output.shape

    with (
        evaluating(network),
        torch.random.fork_rng([x.device.index] if x.device.type == "cuda" else []),
        _hooked(modules, note),
    ):
        _run(network, x)
    found = choose_maps(shapes, _ends_block)
    return found or _spaced([name for name in shapes if isinstance(modules[name], nn.Linear)])


def choose_maps(shapes: Mapping[str, Sequence[int]], ends_block: Callable[[str], bool]) -> tuple[str, ...]:
    """The stages among a network's outputs: the last of each image size, or evenly spaced ends of blocks; none without maps.

    Args:
        shapes: name -> shape of each output, in the order in which they are computed.
        ends_block: whether the output of that name ends a block.
    """
    maps = [name for name, shape in shapes.items() if len(shape) > 2 and _positions(shape) > 1]
    tokens = [name for name in maps if len(shapes[name]) == 3]
    if 2 * len(tokens) > len(maps):  # a transformer: its attention weights (n, heads, T, T) are no maps
        maps = tokens
    last_of_size = {_positions(shapes[name]): name for name in maps}
    if len(last_of_size) >= 3:
        return _spaced(list(last_of_size.values()))
    return _spaced([name for name in maps if ends_block(name)] or maps)


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradient; afterwards each module is in its mode of before."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def _positions(shape: Sequence[int]) -> int:
    return shape[1] if len(shape) == 3 else math.prod(shape[2:])


def _ends_block(name: str) -> bool:
    """Whether a module is an element of a list of blocks: its name ends in a number, and it is not inside another one."""
    parts = name.split(".")
    return parts[-1].isdigit() and not any(part.isdigit() for part in parts[:-1])


def _spaced(names: Sequence[str]) -> tuple[str, ...]:
    """At most `MAX_STAGES` of the names, evenly spaced, with the last."""
    step = max(1, -(-len(names) // MAX_STAGES))
    return tuple(reversed(names[::-1][::step]))


def thinned(output: Tensor, most: int) -> Tensor:
    """Every k-th channel of a layer's output, or every k-th statistic, so that there are at most so many."""
    axis = 2 if output.ndim == 3 else 1
    step = -(-output.shape[axis] // most)
    return output if step == 1 else output[(slice(None),) * axis + (slice(None, None, step),)]


def _is_stage(output: object, n: int | torch.SymInt) -> TypeGuard[Tensor]:
    # Not len(), which fixes the size of an exported batch; in one, the comparison is a SymBool.
    return (
        isinstance(output, Tensor)
        and output.is_floating_point()
        and output.ndim in (2, 3, 4, 5)
        and bool(output.shape[0] == n)
    )


def _run(network: nn.Module, x: Tensor) -> Tensor:
    """Call a network without compiled code, which would ignore the hooks."""
    nested = any(
        part is not network and (part._compiled_call_impl is not None or _uncompiled(part) is not part)
        for part in network.modules()
    )
    # The stance belongs to the whole process, so it is changed only if needed; it cannot be traced, nor need it be.
    eager = torch.compiler.set_stance("force_eager") if nested and not torch.compiler.is_compiling() else nullcontext()
    with eager:
        output: Tensor = network._call_impl(x)
    return output


def _inside(backbone: nn.Module, network: nn.Module | None) -> tuple[nn.Module, nn.Module]:
    """The backbone, and the network to run with it inside, both as `torch.compile` found them."""
    backbone = _uncompiled(backbone)
    network = backbone if network is None else _uncompiled(network)
    if all(module is not backbone for module in network.modules()):
        raise ValueError(
            f"backbone: got a {type(backbone).__name__} that is not in the {type(network).__name__}, expected one of its "
            "modules"
        )
    return backbone, network


def _uncompiled(network: nn.Module) -> nn.Module:
    """The network that `torch.compile` wrapped, or the network itself."""
    inner = getattr(network, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else network


@contextmanager
def _hooked(modules: dict[str, nn.Module], receive: Callable[[str, object], object]) -> Iterator[None]:
    """Call `receive` with the name and output of each module that is run."""

    def hook(name: str) -> Callable[..., None]:
        def forward_hook(module: nn.Module, _inputs: object, output: Any) -> None:
            # Recurrent layers return their last states as well.
            receive(name, output[0] if isinstance(module, nn.RNNBase) else output)

        return forward_hook

    handles = [module.register_forward_hook(hook(name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
