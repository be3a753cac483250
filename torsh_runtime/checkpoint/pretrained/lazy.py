"""Defines tensors of torch that are read when needed, and only the required part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch

from torsh_runtime.errors import ConfigError
from torsh_runtime.layout import Piece
from torsh_runtime.parallel.layouts import cut

Spans = tuple[tuple[tuple[int, int], ...], ...]
"""For each dimension the wanted ranges of indices, ascending."""
Pull = Callable[[Spans], torch.Tensor]
_tensor: Any = torch.Tensor


class Lazy(torch.Tensor):
    """Represents a tensor without values. Results of torch's functions on it are lazy, too.

    Attributes: sources (names of the tensors it is computed from).
    """

    sources: frozenset[str]
    _pull: Pull | None

    @classmethod
    def of(cls, shape: Sequence[int], dtype: torch.dtype, name: str, pull: Pull | None) -> Lazy:
        """Create a tensor named `name`. `pull` returns its values; None if none are read."""
        return cls._made(
            torch.empty(tuple(shape), dtype=dtype, device="meta"), frozenset([name]), pull
        )

    @classmethod
    def _made(cls, meta: torch.Tensor, sources: frozenset[str], pull: Pull | None) -> Lazy:
        made = meta.as_subclass(cls)
        made.sources, made._pull = sources, pull
        return made

    def values(self, piece: Piece | None = None) -> torch.Tensor:
        """Read and return all values, or those of a piece."""
        found = Piece.whole(tuple(self.shape)) if piece is None else piece
        return self.pull(tuple(found.spans_of(dim) for dim in range(len(found.shape))))

    def pull(self, spans: Spans) -> torch.Tensor:
        """Read and return the elements whose index along each dimension is in `spans`."""
        if self._pull is None:
            raise ConfigError(f"{', '.join(sorted(self.sources))}: there are no values")
        return self._pull(spans)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Apply a function of torch lazily: see torch.Tensor.

        Raises ConfigError for operations in place.
        """
        named = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name.endswith("_") and not name.endswith("__") and name != "requires_grad_":
            raise ConfigError(f"{name}() would write to a tensor that is not read yet")
        given = [each for each in _leaves([args, named]) if isinstance(each, cls)]
        with torch._C.DisableTorchFunctionSubclass():
            found = (
                func(*args, **_on_meta(named)) if func is not _tensor.to else _cast(*args, **named)
            )
        several = isinstance(found, tuple | list)
        outputs = list(found) if several else [found]
        sources = frozenset[str]().union(*(each.sources for each in given))
        pulls = _pulls(func, args, named, outputs)
        made = [
            cls._made(each, sources, pulls[at]) if _is_new(each) else each
            for at, each in enumerate(outputs)
        ]
        return type(found)(made) if several and not hasattr(found, "_fields") else made[0]


def _is_new(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, Lazy) and value.is_meta


def _on_meta(named: dict[str, Any]) -> dict[str, Any]:
    return {**named, "device": "meta"} if "device" in named else named


def _cast(tensor: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
    """Cast a tensor as Tensor.to() does, without moving it to another device."""
    kinds = [each for each in (*args, *named.values()) if isinstance(each, torch.dtype)]
    return tensor.to(kinds[0]) if kinds else tensor.detach()


def _pulls(func: Any, args: Any, named: dict[str, Any], outputs: list[Any]) -> list[Pull]:
    """Return how each output gets its values."""
    known = _KNOWN.get(func)
    found = None if known is None else known(func, args, named, outputs)
    if found is not None:
        return found

    def computed(at: int) -> Pull:
        def pull(spans: Spans) -> torch.Tensor:
            found = func(*_real(args), **_real(named))
            return selected(found if not isinstance(found, tuple | list) else found[at], spans)

        return pull

    return [computed(at) for at in range(len(outputs))]


def selected(tensor: torch.Tensor, spans: Spans) -> torch.Tensor:
    """Return these elements of a tensor, as a view if they form one box."""
    found: torch.Tensor = cut(tensor, Piece.of_spans(tuple(tensor.shape), spans))
    return found


def _real(values: Any) -> Any:
    if isinstance(values, Lazy):
        return values.values()
    if isinstance(values, dict):
        return {key: _real(each) for key, each in values.items()}
    if isinstance(values, tuple | list):
        return type(values)(_real(each) for each in values)
    return values


def _leaves(values: Any) -> list[Any]:
    if isinstance(values, dict):
        values = [*values.values()]
    if isinstance(values, list | tuple):
        return [leaf for each in values for leaf in _leaves(each)]
    return [values]


def _same(func: Any, args: Any, named: Any, outputs: Any) -> list[Pull] | None:
    """Pull the result of an elementwise operation from the same elements of its input."""
    tensor, *rest = args
    return [lambda spans: func(tensor.pull(spans), *rest, **named)]


def _indexed(func: Any, args: Any, named: Any, outputs: Any) -> list[Pull] | None:
    return [args[0].pull] if args[1] is Ellipsis else None


def _cat(func: Any, args: Any, named: Any, outputs: Any) -> list[Pull] | None:
    """Pull from each of the concatenated tensors only the requested part."""
    tensors, dim = _of_list(args, named, outputs[0].dim())
    if not all(isinstance(each, Lazy) for each in tensors):
        return None
    places = [*pairwise(accumulate((each.shape[dim] for each in tensors), initial=0))]

    def pull(spans: Spans) -> torch.Tensor:
        found = []
        for (start, end), each in zip(places, tensors, strict=True):
            own = _within(spans[dim], start, end)
            if own:
                found.append(each.pull((*spans[:dim], own, *spans[dim + 1 :])))
        return torch.cat(found, dim)

    return [pull]


def _stack(func: Any, args: Any, named: Any, outputs: Any) -> list[Pull] | None:
    """Pull from each of the stacked tensors only the requested part."""
    tensors, dim = _of_list(args, named, outputs[0].dim())
    if not all(isinstance(each, Lazy) for each in tensors):
        return None

    def pull(spans: Spans) -> torch.Tensor:
        rest = (*spans[:dim], *spans[dim + 1 :])
        rows = [at for first, last in spans[dim] for at in range(first, last)]
        shape = [sum(last - first for first, last in own) for own in spans]
        found = torch.empty(shape, dtype=outputs[0].dtype)
        for place, row in enumerate(rows):
            found.select(dim, place).copy_(tensors[row].pull(rest))
        return found

    return [pull]


def _of_list(args: Any, named: Any, ndim: int) -> tuple[list[Any], int]:
    tensors = [*(args[0] if args else named["tensors"])]
    return tensors, (args[1] if len(args) > 1 else named.get("dim", 0)) % ndim


def _split(func: Any, args: Any, named: Any, outputs: Any) -> list[Pull] | None:
    """Pull parts along a dimension from the matching range of the input."""
    tensor = args[0]
    dim = (args[2] if len(args) > 2 else named.get("dim", 0)) % tensor.dim()
    starts = accumulate((each.shape[dim] for each in outputs), initial=0)

    def part(start: int) -> Pull:
        def pull(spans: Spans) -> torch.Tensor:
            moved = tuple((first + start, last + start) for first, last in spans[dim])
            found: torch.Tensor = tensor.pull((*spans[:dim], moved, *spans[dim + 1 :]))
            return found

        return pull

    return [part(start) for start, _ in zip(starts, outputs, strict=False)]


def _transposed(func: Any, args: Any, named: Any, outputs: Any) -> list[Pull] | None:
    tensor = args[0]
    ndim = tensor.dim()
    one, other = (args[1] % ndim, args[2] % ndim) if len(args) > 2 else (ndim - 2, ndim - 1)
    if named or ndim < 2 or (ndim > 2 and len(args) < 3 and func != _tensor.mT.__get__):
        return None

    def pull(spans: Spans) -> torch.Tensor:
        swapped = list(spans)
        swapped[one], swapped[other] = spans[other], spans[one]
        found: torch.Tensor = tensor.pull(tuple(swapped)).transpose(one, other)
        return found

    return [pull]


def _within(spans: Sequence[tuple[int, int]], start: int, end: int) -> tuple[tuple[int, int], ...]:
    """Return the intersection of the spans with [start, end), counted from `start`."""
    pairs = ((max(first, start) - start, min(last, end) - start) for first, last in spans)
    return tuple((first, last) for first, last in pairs if first < last)


_KNOWN: dict[Any, Callable[..., list[Pull] | None]] = {
    _tensor.contiguous: _same,
    _tensor.clone: _same,
    _tensor.detach: _same,
    _tensor.to: _same,
    _tensor.float: _same,
    _tensor.half: _same,
    _tensor.bfloat16: _same,
    _tensor.data.__get__: _same,
    _tensor.__getitem__: _indexed,
    torch.cat: _cat,
    torch.concat: _cat,
    torch.stack: _stack,
    torch.chunk: _split,
    torch.split: _split,
    _tensor.chunk: _split,
    _tensor.split: _split,
    torch.transpose: _transposed,
    _tensor.transpose: _transposed,
    _tensor.t: _transposed,
    _tensor.T.__get__: _transposed,
    _tensor.mT.__get__: _transposed,
}
"""Operations whose parts need only parts of their inputs; others read all of their inputs."""
