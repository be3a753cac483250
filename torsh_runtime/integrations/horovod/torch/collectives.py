"""Provides the operations under Horovod's names: synchronous or with handles, in place or not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.horovod.torch.adasum import check_adasum
from torsh_runtime.integrations.horovod.torch.calls import Call
from torsh_runtime.integrations.horovod.torch.requests import Request, operand
from torsh_runtime.integrations.horovod.torch.world import ProcessSet, global_process_set

Tensor = torch.Tensor

Average = "Average"
Sum = "Sum"
Adasum = "Adasum"
Min = "Min"
Max = "Max"
Product = "Product"
_OPS = (Average, Sum, Adasum, Min, Max, Product)


def poll(handle: Request) -> bool:
    """Return whether the operation is over, so that synchronize() would not wait."""
    return handle.done()


def synchronize(handle: Any) -> Any:
    """Wait for the operation, and return its result. Raises the operation's error."""
    return handle() if callable(handle) else handle.engine.wait(handle)


class Handle(Request):
    """Represents a submitted request, and knows its engine."""

    def __init__(
        self, process_set: ProcessSet, call: Call, tensors: Sequence[Tensor], **how: Any
    ) -> None:
        """Submit a request to the engine of `process_set`. `how`: further arguments of Request."""
        super().__init__(call, tensors, **how)
        self.engine = process_set.engine
        self.engine.submit(self)


def allreduce_async(tensor: Tensor, *arguments: Any, **named: Any) -> Request:
    """Start allreduce() without compression, and return a handle."""
    return _reduce([tensor], False, True, *arguments, **named)


def allreduce_async_(tensor: Tensor, *arguments: Any, **named: Any) -> Request:
    """Start allreduce() without compression in place, and return a handle."""
    return _reduce([tensor], True, True, *arguments, **named)


def allreduce_(tensor: Tensor, *arguments: Any, **named: Any) -> Tensor:
    """Do allreduce() without compression in place, and return the tensor."""
    reduced: Tensor = synchronize(allreduce_async_(tensor, *arguments, **named))
    return reduced


def grouped_allreduce_async(tensors: Sequence[Tensor], *arguments: Any, **named: Any) -> Request:
    """Start grouped_allreduce() without compression, and return a handle."""
    return _reduce([*tensors], False, False, *arguments, **named)


def grouped_allreduce_async_(tensors: Sequence[Tensor], *arguments: Any, **named: Any) -> Request:
    """Start grouped_allreduce() without compression in place, and return a handle."""
    return _reduce([*tensors], True, False, *arguments, **named)


def grouped_allreduce_(tensors: Sequence[Tensor], *arguments: Any, **named: Any) -> list[Tensor]:
    """Do grouped_allreduce() without compression in place, and return the tensors."""
    reduced: list[Tensor] = synchronize(grouped_allreduce_async_(tensors, *arguments, **named))
    return reduced


def _reduce(
    tensors: list[Tensor],
    in_place: bool,
    single: bool,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Request:
    kind = "allreduce" if single else "grouped_allreduce"
    call = _call(process_set, "allreduce", kind, tensors, name, _reduction(op, average))
    call = _scaled(call, prescale_factor, postscale_factor)
    if call.op == Adasum:
        check_adasum(process_set.size() or 1, tensors)
    return Handle(process_set, call, tensors, in_place=in_place, single=single)


def sparse_allreduce_async(
    tensor: Tensor, name: str, op: str, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Start to sum or average sparse tensors, and return a function for synchronize().

    op: Average or Sum; ConfigError for others.
    """
    if op not in (Average, Sum):
        raise ConfigError(f"sparse tensors can be reduced with op=Average or Sum, not {op}")
    indices = tensor._indices().t().contiguous()
    gathering = [
        allgather_async(each, f"{name}.{what}", process_set)
        for what, each in (("indices", indices), ("values", tensor._values()))
    ]

    def result() -> Tensor:
        all_indices, values = map(synchronize, gathering)
        if op == Average:
            values = values / process_set.size()
        return torch.sparse_coo_tensor(all_indices.t(), values, tensor.shape)

    return result


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Request:
    """Start allgather(), and return a handle."""
    return _gather([tensor], name, process_set, single=True)


def grouped_allgather_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Request:
    """Start grouped_allgather(), and return a handle."""
    return _gather([*tensors], name, process_set, single=False)


def _gather(
    tensors: list[Tensor], name: str | None, process_set: ProcessSet, *, single: bool
) -> Request:
    _check_rows("allgather", tensors)
    kind = "allgather" if single else "grouped_allgather"
    call = _call(process_set, "allgather", kind, tensors, name)
    return Handle(process_set, call, tensors, single=single)


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Request:
    """Start broadcast(), and return a handle."""
    return _broadcast(tensor, root_rank, name, process_set, in_place=False)


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Request:
    """Start broadcast() in place, and return a handle."""
    return _broadcast(tensor, root_rank, name, process_set, in_place=True)


def broadcast_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Do broadcast() in place, and return the tensor."""
    sent: Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return sent


def _broadcast(
    tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet, *, in_place: bool
) -> Request:
    root = process_set.place(root_rank)
    call = _call(process_set, "broadcast", "broadcast", [tensor], name, root=root)
    return Handle(process_set, call, [tensor], in_place=in_place)


def alltoall_async(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Request:
    """Start alltoall(), and return a handle. Its result always includes the received splits."""
    _check_rows("alltoall", [tensor])
    rows = _splits(splits, tensor.shape[0], process_set.size() or 1)
    call = _call(process_set, "alltoall", "alltoall", [tensor], name, splits=rows)
    return Handle(process_set, call, [tensor])


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Request:
    """Start reducescatter() without compression, and return a handle."""
    factors = prescale_factor, postscale_factor
    return _reduce_scatter([tensor], name, op, process_set, factors, single=True)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Request:
    """Start grouped_reducescatter() without compression, and return a handle."""
    factors = prescale_factor, postscale_factor
    return _reduce_scatter([*tensors], name, op, process_set, factors, single=False)


def _reduce_scatter(
    tensors: list[Tensor],
    name: str | None,
    op: str,
    process_set: ProcessSet,
    factors: tuple[float, float],
    *,
    single: bool,
) -> Request:
    if op == Adasum:
        raise ConfigError("reducescatter() has no op=Adasum: use op=Average or Sum")
    _check_rows("reducescatter", tensors)
    kind = "reducescatter" if single else "grouped_reducescatter"
    call = _scaled(
        _call(process_set, "reducescatter", kind, tensors, name, _reduction(op, None)), *factors
    )
    return Handle(process_set, call, tensors, single=single)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the set have called it."""
    synchronize(Handle(process_set, Call("barrier", process_set.name("barrier")), ()))


def join(device: int = -1) -> int:
    """Take part in other ranks' allreduces with zeros until all ranks have called join().

    device: has no effect. Returns the rank that joined last. Operations other than sums, averages
        and barriers meanwhile raise CommMismatch on the ranks that call them.
    """
    engine = global_process_set.engine
    last: int = engine.wait(engine.join())
    return last


def _call(
    process_set: ProcessSet,
    kind: str,
    naming: str,
    tensors: Sequence[Tensor],
    name: str | None,
    op: str = "",
    root: int = -1,
    splits: tuple[int, ...] = (),
) -> Call:
    name = process_set.name(naming) if name is None else name
    return Call(kind, name, tuple(map(operand, tensors)), op, root=root, splits=splits)


def _scaled(call: Call, prescale: float, postscale: float) -> Call:
    return Call(call.kind, call.name, call.operands, call.op, prescale, postscale)


def _reduction(op: str | None, average: bool | None) -> str:
    if average is not None:
        if op is not None:
            raise ConfigError("give `op` or `average`, and not both: `average` is the older name")
        warnings.warn("`average` is deprecated: use `op`", DeprecationWarning, stacklevel=4)
        return Average if average else Sum
    if op is None:
        return Average
    if op not in _OPS:
        raise ConfigError(f"op={op!r} is no reduction; there are {', '.join(_OPS)}")
    return op


def _check_rows(what: str, tensors: Sequence[Tensor]) -> None:
    for each in tensors:
        if not each.dim():
            raise ConfigError(f"{what} takes tensors with at least one dimension, not a number")


def _splits(splits: Any, rows: int, world_size: int) -> tuple[int, ...]:
    if splits is None:
        if rows % world_size:
            raise ConfigError(f"alltoall of {rows} rows among {world_size} ranks: give `splits`")
        return (rows // world_size,) * world_size
    rows_of_each = torch.as_tensor(splits)
    if rows_of_each.is_floating_point() or rows_of_each.is_complex():
        raise ConfigError(f"splits are numbers of rows, not {rows_of_each.dtype}")
    given = tuple(map(int, rows_of_each.tolist()))
    if len(given) != world_size or min(given) < 0 or sum(given) > rows:
        raise ConfigError(
            f"splits={list(given)} must say for each of {world_size} ranks how many of {rows} rows "
            f"it gets"
        )
    return given
