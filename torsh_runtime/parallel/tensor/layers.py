"""Layers of which each rank has a part, without a framework: torch.py and nn.py make layers of it.

After Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019, and, where each rank has a part of the sequence only, Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models", 2022.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Tensor
from torsh_runtime.layout import Shard
from torsh_runtime.parallel import regions
from torsh_runtime.parallel.tensor.axis import Axis
from torsh_runtime.parallel.tensor.cuts import (
    QueryHeads,
    sharded,
    sharded_heads,
    sizes,
    unit_of,
)
from torsh_runtime.parallel.tensor.layer import Layer
from torsh_runtime.parallel.tensor.parts import (
    Layouts,
)
from torsh_runtime.parallel.tensor.plan import Column, Row


class ColumnParallelLinear(Layer):
    """Computes a Linear layer of which each rank has some output features.

    Its input is the same on all ranks; its output has this rank's features, or, with gather_output,
    all.

    Attributes:
        weight: The weight (own features, in_features).
        bias: The bias (own features).

    Example:
        ```python
        up = tr.ColumnParallelLinear(512, 2048, gather_output=False, mesh=mesh)
        down = tr.RowParallelLinear(2048, 512, mesh=mesh)
        output = down(torch.relu(up(input)))
        ```
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        gather_output: bool = True,
        *,
        mesh: Any = None,
        unit: int = 1,
        sequence_dim: int | None = None,
        query_heads: int | None = None,
        key_value_heads: int | None = None,
        dtype: Any = None,
        framework: str | None = None,
    ) -> None:
        """Create the layer.

        All ranks make the whole first and keep their parts, so they are seeded alike.

        Args:
            in_features: The width of the input.
            out_features: The width of the output, of all ranks together.
            bias: Whether there is a bias.
            gather_output: Whether to give all ranks all outputs.
            mesh: A mesh with one axis, or with one called "tp", or a group; None is the default
                group.
            unit: See Column.
            sequence_dim: See Column.
            query_heads: See Column.
            key_value_heads: See Column.
            dtype: The dtype of the parameters; None is the framework's default.
            framework: "torch" or "nn"; None is torch if it is loaded.

        Raises:
            ConfigError: On all ranks if they were not seeded alike, and for features that cannot be
                cut.
        """
        super().__init__(in_features, out_features, bias, dtype=dtype)
        entry = Column(gather_output, unit, (), sequence_dim, query_heads, key_value_heads)
        self._divide(entry, mesh)

    @classmethod
    def shards(cls, plain: Any, entry: Column, axis: Axis) -> dict[str, Shard]:
        size = plain.weight.shape[cls.output_dim]
        heads = _query_heads(entry, size)
        if entry.gather_output and (entry.sections or heads):
            raise ConfigError("outputs that are cut in sections or by heads cannot be gathered")
        if heads is None:
            unit = unit_of(entry, size, axis.size)
            found = sharded(size, axis.size, unit, entry.sections)
        elif heads.are_cut(axis.size):
            found = sharded_heads(size, axis.size, heads, entry.sections)
        else:
            return {}
        return {"weight": replace(found, dim=cls.output_dim), "bias": found}

    def become(self, entry: Column, axis: Axis, where: str, lie: Layouts) -> None:
        super().become(entry, axis, where, lie)
        whole = lie["weight"].shape if lie else tuple(self.weight.shape)
        self.in_features, self.out_features = whole[1 - self.output_dim], whole[self.output_dim]
        heads = _query_heads(entry, self.out_features)
        self.own = None if lie or heads is None else _own_features(heads, entry, axis)
        shard: Any = lie["weight"].axes[0][2] if lie else None
        self.sizes = sizes(shard) if lie else ()

    def forward(self, input: Tensor) -> Any:
        """Return this rank's output features, or all of them if they are gathered.

        Args:
            input: The input (…, in_features).

        Raises:
            ConfigError: For an input of a different width.
            CommError: If an exchange among the ranks fails.
        """
        self._check(input, self.in_features, "all input features")
        weight = self.weight if self.output_dim == 0 else self.weight.T
        later = None
        if self.deferred is not None and self.own is None and self.axis.size > 1:
            later = self.deferred(input, weight)
        entered = self._entered(input, self.entry.sequence_dim, later)
        bias = getattr(self, "bias", None)
        if self.own is not None:
            weight = regions.copy(weight, self.axis.group)[self.own]
            bias = None if bias is None else regions.copy(bias, self.axis.group)[self.own]
        linear = self.functional.linear if later is None else later.linear
        result = linear(entered, weight, bias)
        if not self.entry.gather_output:
            return result
        return regions.gather(result, self.axis.group, -1, self.sizes)


def _query_heads(entry: Column, size: int) -> QueryHeads | None:
    """Return the heads of a layer for keys and values, or None for other layers. Raises
    ConfigError if features or sections do not fit the heads."""
    if entry.query_heads is None:
        return None
    width = entry.unit
    keys = entry.sections[-1] if entry.sections else size
    if entry.sections and (len(entry.sections) < 2 or len({*entry.sections[1:]}) > 1):
        raise ConfigError(f"sections of {entry.sections} are not those of queries, keys and values")
    if keys % width:
        raise ConfigError(f"{keys} features are no whole number of heads of {width} each")
    if entry.sections and entry.sections[0] != entry.query_heads * width:
        raise ConfigError(
            f"a first section of {entry.sections[0]} is not {entry.query_heads} heads of {width}"
        )
    return QueryHeads(entry.query_heads, keys // width, width)


def _own_features(heads: QueryHeads, entry: Column, axis: Axis) -> slice | list[int]:
    """Return which output features this rank computes, if there are fewer heads of keys than
    ranks."""
    found = [*heads.own_keys(axis.size, axis.index)]
    own = [found] * max(1, len(entry.sections) - 1)
    if entry.sections:
        own = [[*heads.own_queries(axis.size, axis.index)], *own]
    starts = accumulate(entry.sections or (0,), initial=0)
    at = [
        start + head * heads.width + each
        for start, section in zip(starts, own, strict=False)
        for head in section
        for each in range(heads.width)
    ]
    return slice(at[0], at[-1] + 1) if at == [*range(at[0], at[-1] + 1)] else at


class RowParallelLinear(Layer):
    """Computes a Linear layer of which each rank has some input features; all get the sum.

    Its input has this rank's features, as a ColumnParallelLinear left them, or, without
    input_is_parallel, all.

    Attributes:
        weight: The weight (out_features, own features).
        bias: The bias (out_features).

    Example:
        ```python
        up = tr.ColumnParallelLinear(512, 2048, gather_output=False, mesh=mesh)
        down = tr.RowParallelLinear(2048, 512, mesh=mesh)
        output = down(torch.relu(up(input)))
        ```
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        input_is_parallel: bool = True,
        *,
        mesh: Any = None,
        unit: int = 1,
        sequence_dim: int | None = None,
        key_value_heads: int | None = None,
        dtype: Any = None,
        framework: str | None = None,
    ) -> None:
        """Create the layer.

        All ranks make the whole first and keep their parts, so they are seeded alike.

        Args:
            in_features: The width of the input, of all ranks together.
            out_features: The width of the output.
            bias: Whether there is a bias.
            input_is_parallel: Whether the input has only this rank's features.
            mesh: A mesh with one axis, or with one called "tp", or a group; None is the default
                group.
            unit: See Row.
            sequence_dim: See Row.
            key_value_heads: See Row.
            dtype: The dtype of the parameters; None is the framework's default.
            framework: "torch" or "nn"; None is torch if it is loaded.

        Raises:
            ConfigError: On all ranks if they were not seeded alike, and for features that cannot be
                cut.
        """
        super().__init__(in_features, out_features, bias, dtype=dtype)
        self._divide(Row(input_is_parallel, unit, sequence_dim, key_value_heads), mesh)

    @classmethod
    def shards(cls, plain: Any, entry: Row, axis: Axis) -> dict[str, Shard]:
        dim = 1 - cls.output_dim
        size = plain.weight.shape[dim]
        unit = unit_of(entry, size, axis.size)
        return {"weight": sharded(size, axis.size, unit, dim=dim)}

    def become(self, entry: Row, axis: Axis, where: str, lie: Layouts) -> None:
        super().become(entry, axis, where, lie)
        whole = lie["weight"].shape
        self.in_features, self.out_features = whole[1 - self.output_dim], whole[self.output_dim]
        shard: Any = lie["weight"].axes[0][2]
        self.sizes, self.was_called = sizes(shard), False

    def forward(self, input: Tensor) -> Any:
        """Return the sum over ranks.

        Args:
            input: The input (…, own features), or all features if input_is_parallel is False.

        Raises:
            ConfigError: For an input of a different width.
            CommError: If an exchange among the ranks fails.
        """
        self.axis.enter.end_drawing()
        if not self.entry.input_is_parallel:
            self._check(input, self.in_features, "all input features")
            input = regions.scatter(input, self.axis.group, -1, self.sizes)
        self._check(input, self.sizes[self.axis.index], "this rank's features")
        weight = self.weight if self.output_dim == 0 else self.weight.T
        dim, bias = self.entry.sequence_dim, getattr(self, "bias", None)
        summed = self._summed(self.functional.linear(input, weight), dim)
        if self.entry.output_is_spread:
            self.was_called = True
            summed = regions.copy(summed, self.axis.group)
            return summed if bias is None else summed + bias
        if bias is None:
            return summed
        if dim is not None:
            bias = regions.copy(bias, self.axis.group)
        if bias.dtype != summed.dtype:
            bias = bias.to(summed.dtype)
        return self.added(summed, bias) if dim is None else summed + bias
