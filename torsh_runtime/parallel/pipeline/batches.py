"""Batches and their microbatches."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

from torsh_runtime.errors import ConfigError

MOST = 1 << 12
"""More microbatches than anybody has: tags of messages tell so many apart."""
IGNORED = -100
"""A label that losses leave out."""
DIVISOR = "num_items_in_batch"
"""An argument of transformers' models, by which their loss divides a sum: no mean is left."""


class Call(NamedTuple):
    """What a whole model is called with."""

    arguments: tuple[Any, ...]
    named: dict[str, Any]


def arguments(batch: Any) -> tuple[Any, ...]:
    """What a module is called with: the members of a tuple, or the batch itself."""
    return batch if isinstance(batch, tuple) else (batch,)


def microbatches(batch: Any, count: int) -> list[tuple[Any, ...]]:
    """A batch cut along dimension 0 into parts of equal size; the first ones have one row more
    where that cannot be. A list is of microbatches already, of any shapes. ConfigError for fewer
    rows than microbatches, a list of another length, and tensors with different numbers of rows.
    """
    if isinstance(batch, list):
        if len(batch) != count:
            raise ConfigError(f"a list of {len(batch)} microbatches, and num_microbatches={count}")
        return [arguments(each) for each in batch]
    inputs = arguments(batch)
    sizes = {rows(each) for each in inputs}
    if len(sizes) != 1:
        raise ConfigError(f"tensors of a batch have {sorted(sizes)} rows: they must have as many")
    (size,) = sizes
    if size < count:
        raise ConfigError(
            f"a batch of {size} rows does not make num_microbatches={count}: take a larger batch, "
            f"or fewer microbatches"
        )
    ends = pairwise(_ends(size, count))
    return [tuple(each[start:end] for each in inputs) for start, end in ends]


def calls(batch: Any, count: int) -> list[Call]:
    """The same for what a whole model is called with: a dict of its arguments by name, or as
    arguments() has it. What has one row, or none, all microbatches get. ConfigError as above."""
    if isinstance(batch, list):
        if len(batch) != count:
            raise ConfigError(f"a list of {len(batch)} microbatches, and num_microbatches={count}")
        return [call_of(each) for each in batch]
    given, named = call_of(batch)
    size = dealt(batch)
    for name, each in (*enumerate(given), *named.items()):
        if len(getattr(each, "shape", ())) and each.shape[0] not in (1, size):
            raise ConfigError(
                f"{name!r} of a batch has {each.shape[0]} rows, and others have {size}: give as "
                f"many, or a list of microbatches"
            )

    def part(value: Any, start: int, end: int) -> Any:
        has_rows = len(getattr(value, "shape", ())) and value.shape[0] == size
        return value[start:end] if has_rows else value

    return [
        Call(
            tuple(part(each, *ends) for each in given),
            {name: part(each, *ends) for name, each in named.items()},
        )
        for ends in pairwise(_ends(size, count))
    ]


def call_of(batch: Any) -> Call:
    """What a whole model is called with: arguments, and arguments by name."""
    return Call((), dict(batch)) if isinstance(batch, Mapping) else Call(arguments(batch), {})


def _members(batch: Any) -> list[Any]:
    given, named = call_of(batch)
    return [*given, *named.values()]


def _ends(size: int, count: int) -> list[int]:
    return [number * (size // count) + min(number, size % count) for number in range(count + 1)]


def shapes_of_call(call: Call) -> str:
    """Of all tensors, as text, and other arguments."""
    return ", ".join(
        f"{name} {tuple(each.shape)} {each.dtype}" if hasattr(each, "shape") else f"{name}={each!r}"
        for name, each in (*enumerate(call.arguments), *sorted(call.named.items()))
    )


def contents(calls: Sequence[Call]) -> str:
    """What differs where tensors of whole models' microbatches do, by rows."""
    return str([[_sums(each) for each in (*given, *named.values())] for given, named in calls])


def _sums(tensor: Any) -> list[int]:
    if not hasattr(tensor, "view") or not tensor.numel():
        return []
    flat = tensor.detach().contiguous().reshape(len(tensor) if tensor.ndim else 1, -1)
    held = flat.view(sys.modules["torch"].uint8)
    if held.shape[1] % 8 == 0:
        held = held.view(sys.modules["torch"].int64)
    found: list[int] = held.sum(1).tolist()
    return found


def rows(tensor: Any) -> int:
    """Along dimension 0. ConfigError for what has none."""
    shape: Sequence[int] = getattr(tensor, "shape", ())
    if not len(shape):
        raise ConfigError(
            f"a batch has a {type(tensor).__qualname__} without rows: give tensors or arrays that "
            f"can be cut along dimension 0, or a list of microbatches"
        )
    return int(shape[0])


def count_of(batch: Any, most: int) -> int:
    """How many microbatches it makes."""
    if isinstance(batch, list):
        return len(batch)
    size = dealt(batch) if isinstance(batch, Mapping) else rows(arguments(batch)[0])
    if not size:
        raise ConfigError("a batch without rows: there is nothing to compute")
    return min(most, size)


def dealt(batch: Any) -> int:
    """How many rows are dealt to microbatches; 0 if that is not done, or cannot be."""
    if batch is None or isinstance(batch, list):
        return 0
    sizes = {each.shape[0] for each in _members(batch) if len(getattr(each, "shape", ()))}
    return int(max(sizes, default=0))


def check_together(inputs: int, targets: int, count: int) -> None:
    """ConfigError if a batch and its targets are not dealt alike to so many microbatches;
    0 of either: that is not known. Each row may have several of the targets'."""
    if not inputs or not targets or inputs == targets:
        return
    if targets % inputs or inputs % count:
        raise ConfigError(
            f"a batch of {inputs} rows has targets of {targets}, which {count} microbatches do not "
            f"get together: give as many, or lists of microbatches"
        )


def shapes(parts: Sequence[tuple[Any, ...]]) -> str:
    """Of all tensors, as text."""
    return "; ".join(
        ", ".join(f"{tuple(each.shape)} {each.dtype}" for each in part if hasattr(each, "shape"))
        for part in parts
    )


def digest(text: str) -> int:
    """63 bits that differ where texts do."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def counts(targets: Sequence[Any], tokens: Callable[[Any], Any] | None) -> list[float]:
    """What each microbatch's loss is the mean of: rows, or what `tokens` says."""
    if tokens is not None:
        return [float(tokens(target)) for target in targets]
    return [float(rows(arguments(target)[0])) for target in targets]


def is_uneven(targets: Sequence[Any]) -> bool:
    """Whether microbatches' targets have labels that losses leave out, of some more than of others,
    so that rows do not tell what a loss is the mean of."""
    kept = [_share_kept(each) for each in targets]
    return len({*kept}) > 1


def _share_kept(target: Any) -> Fraction:
    if "int" not in str(getattr(target, "dtype", "")):
        return Fraction(1)
    is_kept = target != IGNORED
    return Fraction(int(is_kept.sum()), max(1, math.prod(target.shape)))


def has_divisor(batch: Any) -> bool:
    """Whether the model is told what to divide a sum by."""
    parts = batch if isinstance(batch, list) else [batch]
    return any(isinstance(each, Mapping) and DIVISOR in each for each in parts)
