"""Provides the operations through which gradients flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from torsh_runtime.integrations.horovod.torch import collectives as hvd
from torsh_runtime.integrations.horovod.torch.collectives import Average, Sum, synchronize
from torsh_runtime.integrations.horovod.torch.compression import Compression, Compressor
from torsh_runtime.integrations.horovod.torch.world import (
    ProcessSet,
    global_process_set,
    rank,
)

Tensor = torch.Tensor
Tensors = Sequence[Tensor]


class _Differentiable(torch.autograd.Function):
    """Calls `run` for results and, in the backward pass, `pull` for the inputs' gradients."""

    @staticmethod
    def forward(
        ctx: Any, run: Callable[[], Tensors], pull: Callable[[Tensors], Tensors], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.pull = pull
        return tuple(run())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *ctx.pull([each.contiguous() for each in gradients])


def _apply(
    run: Callable[[], Tensors], pull: Callable[[Tensors], Tensors], tensors: Tensors
) -> Tensors:
    apply: Any = _Differentiable.apply
    results: Tensors = apply(run, pull, *tensors)
    return results


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce all ranks' tensors by `op` (default: Average), and return the result.

    Gradients are reduced in the same way.

    name: matches the calls of different ranks; None matches unnamed calls by their order.
    compression: is used for the tensor that is sent.
    prescale_factor, postscale_factor: multiply the tensor before and after the reduction.
    """
    how: dict[str, Any] = {
        "average": average,
        "op": op,
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "process_set": process_set,
    }
    sent, context = compression.compress(tensor)
    (reduced,) = _apply(
        lambda: [synchronize(hvd.allreduce_async(sent, name=name, **how))],
        lambda gradients: [allreduce(gradients[0], **how)],
        [sent],
    )
    return compression.decompress(reduced, context)


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Do allreduce() for each tensor, as one operation."""
    how: dict[str, Any] = {
        "average": average,
        "op": op,
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "process_set": process_set,
    }
    sent, contexts = zip(*map(compression.compress, tensors), strict=True)
    reduced = _apply(
        lambda: synchronize(hvd.grouped_allreduce_async(sent, name=name, **how)),
        lambda gradients: grouped_allreduce(gradients, **how),
        sent,
    )
    return [*map(compression.decompress, reduced, contexts)]


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Concatenate all ranks' tensors along the first dimension, whose size may differ by rank.

    Gradients are averaged over ranks.
    """
    (gathered,) = _apply(
        lambda: [synchronize(hvd.allgather_async(tensor, name, process_set))],
        partial(_own_rows, [tensor], process_set),
        [tensor],
    )
    return gathered


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Do allgather() for each tensor, as one operation."""
    gathered = _apply(
        lambda: synchronize(hvd.grouped_allgather_async(tensors, name, process_set)),
        partial(_own_rows, tensors, process_set),
        tensors,
    )
    return [*gathered]


def _own_rows(tensors: Tensors, process_set: ProcessSet, gradients: Tensors) -> Tensors:
    """Return this rank's rows of the averaged gradients."""
    reduced = grouped_allreduce(gradients, op=Average, process_set=process_set)
    counts = torch.tensor([[each.shape[0] for each in tensors]])
    rows = synchronize(hvd.allgather_async(counts, process_set=process_set))
    starts = rows[: process_set.rank()].sum(0).tolist()
    return [
        whole.narrow(0, start, tensor.shape[0])
        for whole, start, tensor in zip(reduced, starts, tensors, strict=True)
    ]


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return rank root_rank's tensor.

    Its gradient is the average over ranks on that rank, and 0 on others.
    """

    def pull(gradients: Tensors) -> Tensors:
        reduced = allreduce(gradients[0], op=Average, process_set=process_set)
        return [reduced if rank() == root_rank else reduced * 0]

    (sent,) = _apply(
        lambda: [synchronize(hvd.broadcast_async(tensor, root_rank, name, process_set))],
        pull,
        [tensor],
    )
    return sent


def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor | tuple[Tensor, Tensor]:
    """Send rows of the tensor to all ranks, and return the rows that they have sent to this one.

    With `splits`, the number of rows for each rank, also return how many came from each rank.
    Without it all ranks get equally many.
    """
    received: list[int] = []

    def run() -> Tensors:
        output, rows = synchronize(hvd.alltoall_async(tensor, splits, name, process_set))
        received.extend(rows)
        return [output]

    def pull(gradients: Tensors) -> Tensors:
        back = alltoall(gradients[0], received, process_set=process_set)[0]
        missing = tensor.shape[0] - back.shape[0]  # rows that were not sent
        return [torch.cat([back, back.new_zeros(missing, *back.shape[1:])]) if missing else back]

    (output,) = _apply(run, pull, [tensor])
    if splits is None:
        return output
    like = splits if isinstance(splits, torch.Tensor) else torch.empty(0, dtype=torch.int32)
    return output, torch.tensor(received, dtype=like.dtype, device=like.device)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Return this rank's rows of the reduction of all ranks' tensors.

    Gradients are gathered.
    """
    sent, context = compression.compress(tensor)
    how: dict[str, Any] = {
        "op": op,
        "process_set": process_set,
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
    }
    (reduced,) = _apply(
        lambda: [synchronize(hvd.reducescatter_async(sent, name, **how))],
        lambda gradients: [allgather(_weighted(gradients[0], **how), process_set=process_set)],
        [sent],
    )
    return compression.decompress(reduced, context)


def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Do reducescatter() for each tensor, as one operation."""
    sent, contexts = zip(*map(compression.compress, tensors), strict=True)
    how: dict[str, Any] = {
        "op": op,
        "process_set": process_set,
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
    }
    reduced = _apply(
        lambda: synchronize(hvd.grouped_reducescatter_async(sent, name, **how)),
        lambda gradients: grouped_allgather(
            [_weighted(each, **how) for each in gradients], process_set=process_set
        ),
        sent,
    )
    return [*map(compression.decompress, reduced, contexts)]


def _weighted(
    gradient: Tensor,
    op: str,
    process_set: ProcessSet,
    prescale_factor: float,
    postscale_factor: float,
) -> Tensor:
    factor = prescale_factor * postscale_factor
    if op == Sum:
        factor *= process_set.size() or 1
    return gradient if factor == 1.0 else gradient * factor
