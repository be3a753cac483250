"""Attention modules of torch of any class, of whose heads each rank has some."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from torsh_runtime.errors import ConfigError
from torsh_runtime.layout import Shard
from torsh_runtime.parallel.streams import random_stream
from torsh_runtime.parallel.tensor.anyone import AnyLayer, on_argument
from torsh_runtime.parallel.tensor.axis import Axis
from torsh_runtime.parallel.tensor.cuts import QueryHeads
from torsh_runtime.parallel.tensor.parts import Layouts
from torsh_runtime.parallel.tensor.plan import Heads, Own


class AttentionOfAny(AnyLayer):
    """Gives a module that counts its heads this rank's numbers."""

    entry: Heads

    @classmethod
    def shards(cls, plain: Any, entry: Own, axis: Axis) -> dict[str, Shard]:
        for name, _ in _numbers(plain, entry.entry, axis):
            _attribute(plain, name)
        return super().shards(plain, entry, axis)

    def become(self, entry: Own, axis: Axis, where: str, lie: Layouts) -> None:
        numbers = _numbers(self, entry.entry, axis)
        super().become(entry, axis, where, lie)
        for name, number in numbers:
            _set(self, name, number)
        self._dropouts = [*_dropouts(self)]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the module's own forward() for this rank's heads."""
        entry = self.entry
        for name, dim in entry.inputs.items():
            inputs, named = on_argument(self, name, inputs, named, partial(self._of_own, name, dim))
        if entry.sequence_dim is not None:
            for name in entry.sequence_inputs or ("",):
                inputs, named = on_argument(self, name, inputs, named, self._gathered)
        for each in named.values():
            self._keep_own(each)
        if torch.compiler.is_compiling():  # which would break its graph within a try
            return self._computed(inputs, named)
        try:
            return self._computed(inputs, named)
        except (RuntimeError, ValueError, TypeError) as error:
            if type(error) not in (RuntimeError, ValueError, TypeError):  # as of a lost rank
                raise
            raise self._unfit(error) from error

    def _computed(self, inputs: Any, named: Any) -> Any:
        with self._drawing():
            return super().forward(*inputs, **named)

    def _unfit(self, error: Exception) -> ConfigError:
        return ConfigError(
            f"{self.where}: the forward() of a {type(self).__name__} does not compute with this "
            f"rank's heads: {error}. If it counts by more than Heads() says, as by the number of "
            f"all features, name these attributes in cut=(…); where it counts by the size of what "
            f"it is given, leave Heads() out, and say Column(gather_output=True) and "
            f"Row(input_is_parallel=False) of its layers, with which ranks compute all heads"
        )

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Let dropout draw for this rank's heads in this block, until these are summed."""
        if not self.training or not any(getattr(*place) for place in self._dropouts):
            yield
            return
        number = int(torch.randint(1 << 62, ()))  # which checkpointing draws again
        with ExitStack() as held:
            held.enter_context(random_stream(number, self.axis.index))
            drawing = self.axis.enter.drawing
            drawing.append(held)
            try:
                yield
            finally:
                if held in drawing:
                    drawing.remove(held)

    def _keep_own(self, cache: Any) -> None:
        """Let a cache that has memory for all heads already, as transformers before 4.57 make
        some, have it for this rank's."""
        layer = getattr(self, "layer_idx", None)
        for name in ("key_cache", "value_cache"):
            tensors = getattr(cache, name, None)
            if not isinstance(tensors, list) or layer is None or layer >= len(tensors):
                continue
            tensor = tensors[layer]
            if isinstance(tensor, torch.Tensor) and tensor.dim() == 4:
                own = len(self._heads.own_keys(self.axis.size, self.axis.index))
                if tensor.shape[1] == self._heads.keys != own:
                    tensors[layer] = tensor[:, :own].contiguous()

    def _gathered(self, tensor: Any) -> Any:
        return self._entered(tensor, self.entry.sequence_dim)

    def _of_own(self, name: str, dim: int, tensor: Any) -> Any:
        """Return this rank's heads of an input."""
        own, heads = self._heads.own_queries(self.axis.size, self.axis.index), self._heads.queries
        if not -tensor.dim() <= dim < tensor.dim() or tensor.shape[dim] == 1:
            return tensor
        if tensor.shape[dim] % heads:
            raise ConfigError(
                f"{self.where}: dimension {dim} of {name!r} of shape {tuple(tensor.shape)} is not "
                f"of {heads} heads"
            )
        by_head = tensor.unflatten(dim, (-1, heads))
        dim %= tensor.dim()
        return by_head.narrow(dim + 1, own.start, len(own)).flatten(dim, dim + 1)

    @property
    def _heads(self) -> QueryHeads:
        return _query_heads(self.entry)


def _dropouts(module: Any) -> Iterator[tuple[Any, str]]:
    """Yield the attributes of a module that are probabilities of dropping something."""
    for each in module.children():
        if isinstance(each, nn.modules.dropout._DropoutNd):
            yield each, "p"
    config = getattr(module, "config", None)
    for holder in (module, config._told if isinstance(config, OtherAttributes) else config):
        for name, value in vars(holder).items() if hasattr(holder, "__dict__") else ():
            if "drop" in name and isinstance(value, float) and not name.startswith(_BEHIND):
                yield holder, name


_BEHIND = ("classifier", "cls", "summary")
"""Beginnings of the names of probabilities with which a model drops behind its last layer."""


class OtherAttributes:
    """An object with other values of some attributes."""

    def __init__(self, told: Any, values: dict[str, Any]) -> None:
        vars(self).update(_told=told, _values=values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_told", "_values"):
            raise AttributeError(name)
        values = self._values
        return values[name] if name in values else getattr(self._told, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._told, name, value)


def _query_heads(entry: Heads) -> QueryHeads:
    return QueryHeads(entry.query_heads, entry.key_value_heads or entry.query_heads)


def _numbers(module: Any, entry: Heads, axis: Axis) -> list[tuple[str, int]]:
    """Return the new values of attributes. Raises ConfigError for those that are not what the
    entry says."""
    heads, ranks, index = _query_heads(entry), axis.size, axis.index
    queries, keys = len(heads.own_queries(ranks, index)), len(heads.own_keys(ranks, index))
    found = []
    for names, whole, own in (
        (entry.cut, heads.queries, queries),
        (entry.key_value_cut, heads.keys, keys),
    ):
        for name in names:
            count = _attribute(module, name)
            if not isinstance(count, int) or count % whole:
                raise ConfigError(f"its {name} is {count!r}, and no multiple of {whole} heads")
            found.append((name, count // whole * own))
    for name in entry.groups:
        if _attribute(module, name) != heads.share:
            raise ConfigError(
                f"its {name} is {_attribute(module, name)!r}, and {heads.share} heads of queries "
                f"look at each of keys and values"
            )
        found.append((name, queries // keys))
    return found


def _attribute(module: Any, name: str) -> Any:
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"it has no attribute {name!r}")
        found = getattr(found, part)
    return found


def _set(module: Any, name: str, value: Any) -> None:
    first, _, rest = name.partition(".")
    if not rest:
        setattr(module, first, value)
        return
    held = getattr(module, first)
    known = dict(held._values) if isinstance(held, OtherAttributes) else {}
    told = held._told if isinstance(held, OtherAttributes) else held
    setattr(module, first, OtherAttributes(told, known | {rest: value}))
