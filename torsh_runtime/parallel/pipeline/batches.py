"""Divides batches into microbatches."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Tensor

MOST = 1 << 12
"""Upper limit of the number of microbatches, which tags of messages can tell apart."""
IGNORED = -100
"""A label that losses leave out."""
DIVISOR = "num_items_in_batch"
"""An argument of transformers' models, by which their loss divides a sum: the loss is no mean then.
"""


class Call(NamedTuple):
    """Holds the arguments with which a whole model is called."""

    arguments: tuple[Any, ...]
    named: dict[str, Any]


def arguments(batch: Any) -> tuple[Any, ...]:
    """Return a module's arguments: the members of a tuple, or the batch itself."""
    return batch if isinstance(batch, tuple) else (batch,)


def microbatches(batch: Any, count: int) -> list[tuple[Any, ...]]:
    """Cut a batch along dimension 0 into `count` microbatches.

    Their sizes are equal, or the first ones have one row more. A list holds microbatches already,
    of any shapes. Raises ConfigError for fewer rows than microbatches, a list of another length,
    and tensors with different numbers of rows.
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
    """Cut the arguments of a whole model into `count` calls.

    The batch is a dict of arguments by name, or as arguments() takes it. All microbatches get
    arguments with one row or without rows. ConfigError as microbatches().
    """
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
    """Return the arguments of a whole model, positional and by name."""
    return Call((), dict(batch)) if isinstance(batch, Mapping) else Call(arguments(batch), {})


def _members(batch: Any) -> list[Any]:
    given, named = call_of(batch)
    return [*given, *named.values()]


def _ends(size: int, count: int) -> list[int]:
    return [number * (size // count) + min(number, size % count) for number in range(count + 1)]


def shapes_of_call(call: Call) -> str:
    """Return the shapes and dtypes of all tensors, and the other arguments, as text."""
    return ", ".join(
        f"{name} {tuple(each.shape)} {each.dtype}" if hasattr(each, "shape") else f"{name}={each!r}"
        for name, each in (*enumerate(call.arguments), *sorted(call.named.items()))
    )


def contents(calls: Sequence[Call]) -> str:
    """Return sums over rows of all tensors as text, which differ where contents differ."""
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


def rows(tensor: Tensor) -> int:
    """Return the size of dimension 0. ConfigError for values without one."""
    shape: Sequence[int] = getattr(tensor, "shape", ())
    if not len(shape):
        raise ConfigError(
            f"a batch has a {type(tensor).__qualname__} without rows: give tensors or arrays that "
            f"can be cut along dimension 0, or a list of microbatches"
        )
    return int(shape[0])


def count_of(batch: Any, most: int) -> int:
    """Return how many microbatches the batch makes: a list's length, or `most` at most."""
    if isinstance(batch, list):
        return len(batch)
    size = dealt(batch) if isinstance(batch, Mapping) else rows(arguments(batch)[0])
    if not size:
        raise ConfigError("a batch without rows: there is nothing to compute")
    return min(most, size)


def dealt(batch: Any) -> int:
    """Return how many rows are divided into microbatches; 0 if the batch is not, or cannot be."""
    if batch is None or isinstance(batch, list):
        return 0
    shapes: list[Sequence[int]] = [getattr(each, "shape", ()) for each in _members(batch)]
    return int(max((shape[0] for shape in shapes if len(shape)), default=0))


def check_together(inputs: int, targets: int, count: int) -> None:
    """Raise ConfigError if a batch and its targets are not divided alike into `count` microbatches.

    inputs, targets: numbers of rows; 0 if unknown. Each row may have several targets.
    """
    if not inputs or not targets or inputs == targets:
        return
    if targets % inputs or inputs % count:
        raise ConfigError(
            f"a batch of {inputs} rows has targets of {targets}, which {count} microbatches do not "
            f"get together: give as many, or lists of microbatches"
        )


def shapes(parts: Sequence[tuple[Any, ...]]) -> str:
    """Return the shapes and dtypes of all tensors as text."""
    return "; ".join(
        ", ".join(f"{tuple(each.shape)} {each.dtype}" for each in part if hasattr(each, "shape"))
        for part in parts
    )


def digest(text: str) -> int:
    """Return 63 bits of the text's SHA-256."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def counts(targets: Sequence[Any], tokens: Callable[[Any], Any] | None) -> list[float]:
    """Return of how many items each microbatch's loss is the mean: rows, or as `tokens` counts."""
    if tokens is not None:
        return [float(tokens(target)) for target in targets]
    return [float(rows(arguments(target)[0])) for target in targets]


def is_uneven(targets: Sequence[Any]) -> bool:
    """Return whether losses leave out different shares of the microbatches' labels.

    The number of rows then does not tell of how many items a loss is the mean.
    """
    kept = [_share_kept(each) for each in targets]
    return len({*kept}) > 1


def _share_kept(target: Any) -> Fraction:
    if "int" not in str(getattr(target, "dtype", "")):
        return Fraction(1)
    is_kept = target != IGNORED
    return Fraction(int(is_kept.sum()), max(1, math.prod(target.shape)))


def has_divisor(batch: Any) -> bool:
    """Return whether the model gets the number by which it is to divide a sum."""
    parts = batch if isinstance(batch, list) else [batch]
    return any(isinstance(each, Mapping) and DIVISOR in each for each in parts)
