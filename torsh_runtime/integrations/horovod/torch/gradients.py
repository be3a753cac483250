"""The operations that gradients flow through."""

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
    """`run` gives results, and `pull` the inputs' gradients from those of the results."""

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
    """The reduction of all ranks' tensors, by op (default: their average). Gradients are reduced
    in the same way.

    name: what ranks' calls are matched by; None is the how-manieth call without a name.
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
    """allreduce() of each of the tensors, as one operation."""
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
    """All ranks' tensors one behind the other along the first dimension, whose size may differ
    from rank to rank. Gradients are averaged over ranks."""
    (gathered,) = _apply(
        lambda: [synchronize(hvd.allgather_async(tensor, name, process_set))],
        partial(_own_rows, [tensor], process_set),
        [tensor],
    )
    return gathered


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """allgather() of each of the tensors, as one operation."""
    gathered = _apply(
        lambda: synchronize(hvd.grouped_allgather_async(tensors, name, process_set)),
        partial(_own_rows, tensors, process_set),
        tensors,
    )
    return [*gathered]


def _own_rows(tensors: Tensors, process_set: ProcessSet, gradients: Tensors) -> Tensors:
    """This rank's rows of the gradients' averages."""
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
    """Rank root_rank's tensor. Its gradient there is the average over ranks, elsewhere 0."""

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
    """The rows that all ranks have sent to this one. With `splits`, how many of the tensor's rows
    go to each rank, it returns how many came from each, too."""
    received: list[int] = []

    def run() -> Tensors:
        output, rows = synchronize(hvd.alltoall_async(tensor, splits, name, process_set))
        received.extend(rows)
        return [output]

    def pull(gradients: Tensors) -> Tensors:
        back = alltoall(gradients[0], received, process_set=process_set)[0]
        missing = tensor.shape[0] - back.shape[0]  # rows that were sent to nobody
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
    """This rank's rows of the reduction of all ranks' tensors. Gradients are gathered."""
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
    """reducescatter() of each of the tensors, as one operation."""
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
