"""Refuses plans by which features are mixed that are on different ranks, in the first forward pass.

Between a Column and its Row each rank has some features, so a softmax, a norm or a sort over them
is another one than in one process. Which operations mix features is measured: a module that holds
both layers runs once with copies of what its Columns return, with one feature changed in each.
Features that differ in the input of the Row have been mixed with the changed one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from torsh_runtime.comm.agreement import agree
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework.trees import leaves, mapped
from torsh_runtime.integrations.torch.modes import has_modes
from torsh_runtime.parallel.tensor.axis import Axis
from torsh_runtime.parallel.tensor.layer import Layer
from torsh_runtime.parallel.tensor.layers import ColumnParallelLinear, RowParallelLinear
from torsh_runtime.parallel.tensor.plan import Row
from torsh_runtime.parallel.tensor.watching import is_watched

_COPIES = 4
"""The number of copies: one without a change, and three in which the first, the middle or the last
one of the rank's features is changed."""
_LARGE = 64
"""The change, in units of the largest value: features have effect even on a mean of thousands."""

_FUNCTIONS = FunctionType, BuiltinFunctionType
_SWITCHES: tuple[type, ...] = (str, bool, partial, MethodType, *_FUNCTIONS)


def watch_features(model: nn.Module, axis: Axis) -> None:
    """Make the first call of each kind of module that holds Columns and their Row raise
    ConfigError, on all ranks, if it mixes features that are on different ranks. If that call is in
    evaluation, the first one in training is watched, too."""
    begin = _Begin(axis)
    for module in _holders(model):
        known = module._forward_pre_hooks.values()
        if not any(isinstance(each, _Begin | _BeginInTraining) for each in known):
            module.register_forward_pre_hook(begin, prepend=True)


def _holders(model: nn.Module) -> list[nn.Module]:
    """Return the innermost modules around each Row that hold Columns too."""
    modules = dict(model.named_modules())
    columns = [name for name, each in modules.items() if _is_cut(each)]
    found: dict[str, nn.Module] = {}
    for name, module in modules.items():
        if not _sums_features(module):
            continue
        above = name
        while above:
            above = above.rpartition(".")[0]
            if any(not above or each.startswith(f"{above}.") for each in columns):
                found[above] = modules[above]
                break
    return [*found.values()]


def _is_cut(module: Any) -> bool:
    return isinstance(module, ColumnParallelLinear) and not module.entry.gather_output


def _sums_features(module: Any) -> bool:
    if not isinstance(module, RowParallelLinear):
        return False
    entry: Row = module.entry
    return entry.input_is_parallel and not entry.output_is_spread


class _Begin:
    """Watches a module in its first call. All modules of a model share it."""

    def __init__(self, axis: Axis) -> None:
        self._axis = axis
        self._known = set[Any]()
        self._is_watching = False
        self._later = _BeginInTraining(self)

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        """Begin to watch, unless such a module is known, or cannot be watched now."""
        if torch.compiler.is_compiling() or self._is_watching or not is_watched.get():
            return
        if has_modes() or torch._C._is_tracing():  # these record what is computed
            return
        kind = _kind_of(module)
        if kind in self._known:
            self._forget(module)
            return
        mixing = _Mixing()
        handles = [*_watched_layers(module, mixing)]

        def end(module: nn.Module, inputs: Any, outputs: Any) -> None:
            mixing.stop()
            self._is_watching = False
            for each in handles:
                each.remove()
            if mixing.has_seen_rows and outputs is not None:  # None: it has raised
                self._known.add(kind)
                self._forget(module)
                what = f"the first forward pass of a {type(module).__name__}"
                agree(self._axis.group, what, problem=mixing.problem)

        handles.append(module.register_forward_hook(end, always_call=True))
        self._is_watching = True
        mixing.start()

    def _forget(self, module: nn.Module) -> None:
        for each in module.modules():
            hooks = each._forward_pre_hooks
            for number in [key for key, hook in hooks.items() if hook in (self, self._later)]:
                if each.training:
                    del hooks[number]
                else:
                    hooks[number] = self._later


class _BeginInTraining:
    """Watches a module in its first call in training, after one in evaluation."""

    def __init__(self, begin: _Begin) -> None:
        self._begin = begin

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        """Begin to watch in training."""
        if module.training:
            self._begin(module, inputs)


def _kind_of(module: nn.Module) -> Any:
    """Return what is equal for modules that compute alike: classes, functions and switches, such as
    that of training."""
    return tuple((name, type(each), *_switches(each)) for name, each in module.named_modules())


def _switches(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that may decide what a module computes. Numbers count in modules without
    others, as the dim of a softmax, and not the numbers of layers that blocks have. Those of layers
    that are cut depend on the rank, and all ranks must tell the same modules apart."""
    has_numbers = not module._modules and not isinstance(module, Layer)
    for name, value in vars(module).items():
        is_switch = isinstance(value, _SWITCHES) or (has_numbers and isinstance(value, int))
        if is_switch and name != "where":  # of a layer that is cut: its name
            yield name, _comparable(value)


def _comparable(value: Any) -> Any:
    """Return what is equal for values by which modules compute alike."""
    if isinstance(value, partial):
        return partial, *map(_comparable, (value.func, value.args, value.keywords))
    if isinstance(value, dict):
        return tuple((key, _comparable(each)) for key, each in value.items())
    if isinstance(value, tuple | list):
        return tuple(map(_comparable, value))
    if isinstance(value, MethodType):
        return value.__func__
    if isinstance(value, (int, float, str, *_FUNCTIONS)):
        return type(value), value
    return type(value)  # not its id(), which may be another object's later, on some ranks only


def _watched_layers(module: nn.Module, mixing: _Mixing) -> Iterator[Any]:
    """Yield the handles of hooks by which layers tell what they return and take."""

    def pause(layer: Any, inputs: Any) -> None:
        mixing.pauses += 1

    def resume(layer: Any, inputs: Any, outputs: Any) -> None:
        mixing.pauses -= 1

    def let_out(layer: Any, inputs: Any, outputs: Any) -> None:
        mixing.pauses -= 1
        if isinstance(outputs, Tensor):
            mixing.let_out(layer, outputs)

    def let_in(layer: Any, inputs: Any, named: Any) -> None:
        mixing.pauses += 1
        mixing.let_in(layer, next(iter((*inputs, *named.values())), None))

    for each in module.modules():
        if _is_cut(each):
            yield each.register_forward_pre_hook(pause)
            yield each.register_forward_hook(let_out, prepend=True)
        elif _sums_features(each):
            yield each.register_forward_pre_hook(let_in, with_kwargs=True)
            yield each.register_forward_hook(resume, prepend=True)


class _Mixing(TorchFunctionMode):
    """Computes everything that depends on Columns' outputs from changed copies of these, too.

    Attributes: pauses (how many layers compute now, within which nothing is watched),
    has_seen_rows, problem (what was found).
    """

    def __init__(self) -> None:
        super().__init__()
        self.pauses = 0
        self.has_seen_rows = False
        self.problem: ConfigError | None = None
        self._columns: list[str] = []
        self._copies: Any = WeakTensorKeyDictionary()

    def start(self) -> None:
        """Begin to watch functions of torch."""
        super().__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """End watching."""
        super().__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, and once more for each copy of what it depends on."""
        named = kwargs or {}
        if self.pauses or isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            return func(*args, **named)
        known = [each for each in leaves((args, named)) if self._is_known(each)]
        if not known:
            return func(*args, **named)
        for each in _written(func, args, named):
            if not self._is_known(each):
                self._copies[each] = [each.detach().clone() for _ in range(_COPIES)]
        drawing = _Drawing(known[0])
        found = func(*args, **named)
        drawing.note_end()
        if any(isinstance(each, Tensor) for each in leaves(found)):
            self._repeat(found, func, args, named, drawing)
        drawing.go_on()
        return found

    def _is_known(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value in self._copies

    def _repeat(self, found: Any, func: Any, args: Any, named: Any, drawing: _Drawing) -> None:
        """Keep what the function returns for the copies."""
        results = []
        try:
            with torch.no_grad():
                for number in range(_COPIES):
                    drawing.begin_anew()
                    given = mapped(partial(self._copy, number), (args, named))
                    results.append([*leaves(func(*given[0], **given[1]))])
        except Exception:  # of whatever values that a function does not expect
            return
        for number, each in enumerate(leaves(found)):
            if isinstance(each, Tensor):
                copies = [result[number] for result in results if number < len(result)]
                if len(copies) == _COPIES and all(_is_alike(each, copy) for copy in copies):
                    self._copies[each] = copies

    def _copy(self, number: int, value: Any) -> Any:
        return self._copies[value][number] if self._is_known(value) else value

    def let_out(self, column: Any, output: Tensor) -> None:
        """Make copies of a Column's output."""
        places = _places(column)
        if type(output) is not Tensor or output.is_meta or not output.numel() or not places:
            return
        copies = [output.detach().clone() for _ in range(_COPIES)]
        change = copies[0].abs().amax() * _LARGE + 1
        for copy, at in zip(copies[1:], zip(*places, strict=True), strict=True):
            copy[..., list(at)] += change
        self._copies[output] = copies
        self._columns.append(column.where)

    def let_in(self, row: Any, tensor: Any) -> None:
        """Compare the copies of a Row's input."""
        self.has_seen_rows = True
        if not self._is_known(tensor) or self.problem is not None:
            return
        as_it_is, *changed = self._copies[tensor]
        width = tensor.shape[-1]
        for place, each in zip((0, width // 2, width - 1), changed, strict=True):
            if not _are_apart({place, *_differing(as_it_is, each)}, width):
                names = ", ".join(map(repr, dict.fromkeys(self._columns)))
                self.problem = ConfigError(
                    f"features are mixed between {names} and {row.where!r}, as a softmax, a norm "
                    f"or a sort over them would, and each rank has only some of them: the results "
                    f"would not be those of one process. For heads say how wide they are, as "
                    f"Column(unit=64) and Row(unit=64); for layers that are one weight say "
                    f"Column(sections=(…)); else let all ranks compute with all features, by "
                    f"Column(gather_output=True) and Row(input_is_parallel=False)"
                )


def _places(column: Any) -> list[tuple[int, ...]]:
    """Return the first, the middle and the last one of this rank's features, of each section. Heads
    of keys and values that several queries share are left out, and so is a section of one head."""
    entry = column.entry
    if not column.parameter_layouts or (entry.query_heads and not entry.sections):
        return []
    pieces = column.parameter_layouts["weight"].axes[0][2].parts[column.axis.index]
    found: list[tuple[int, ...]] = []
    start = 0
    for first, last in pieces[:1] if entry.query_heads else pieces:
        size = last - first
        if size > entry.unit:
            found.append((start, start + size // 2, start + size - 1))
        start += size
    return found


def _differing(one: Tensor, other: Tensor) -> list[int]:
    """Return the features that differ by more than rounding."""
    rounding = 4 * torch.finfo(one.dtype).eps
    with torch.no_grad():
        is_same = (one == other) | (one.isnan() & other.isnan())
        is_same |= (one - other).abs() <= rounding * one.abs()
        found: list[int] = (~is_same).reshape(-1, one.shape[-1]).any(0).nonzero()[:, 0].tolist()
    return found


def _are_apart(places: set[int], width: int) -> bool:
    """Return whether features lie in one of several equal parts, such as one head."""
    sizes = (size for size in range(1, width // 2 + 1) if not width % size)
    return width == 1 or any(len({place // size for place in places}) == 1 for size in sizes)


def _written(func: Any, args: Sequence[Any], named: Any) -> list[Tensor]:
    """Return the tensors that a function writes to."""
    name = getattr(func, "__name__", "")
    is_written = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    is_written |= name.startswith("__i") and name.endswith("__") and name != "__invert__"
    found = [named.get("out"), args[0] if is_written and args else None]
    return [each for each in found if isinstance(each, Tensor)]


def _is_alike(one: Tensor, other: Any) -> bool:
    return isinstance(other, Tensor) and one.shape == other.shape and one.dtype == other.dtype


class _Drawing:
    """Lets functions that draw random numbers draw the same ones for each copy."""

    def __init__(self, like: Tensor) -> None:
        self._is_cuda, self._device = like.is_cuda, like.device
        self._first = self._last = self._state()

    def _state(self) -> tuple[Tensor, ...]:
        on_device = (torch.cuda.get_rng_state(self._device),) if self._is_cuda else ()
        return torch.get_rng_state(), *on_device

    def note_end(self) -> None:
        """Note how far the function has drawn."""
        self._last = self._state()

    def begin_anew(self) -> None:
        """Draw what the function has drawn."""
        self._set(self._first)

    def go_on(self) -> None:
        """Draw what follows upon the function."""
        self._set(self._last)

    def _set(self, state: tuple[Tensor, ...]) -> None:
        torch.set_rng_state(state[0])
        if self._is_cuda:
            torch.cuda.set_rng_state(state[1], self._device)
