"""Carries out operations that all ranks of a set have called, in their process group."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.objects import all_gather_object, broadcast_object_list
from torsh_runtime.comm.shared import empty_shared
from torsh_runtime.errors import CommMismatch
from torsh_runtime.integrations.horovod.torch.adasum import adasum
from torsh_runtime.integrations.horovod.torch.calls import Call, Matched, Operand
from torsh_runtime.integrations.horovod.torch.requests import Request

Tensor = torch.Tensor

_REDUCTIONS = {
    "Average": ReduceOp.AVG,
    "Sum": ReduceOp.SUM,
    "Min": ReduceOp.MIN,
    "Max": ReduceOp.MAX,
    "Product": ReduceOp.PRODUCT,
}
_WITH_JOINED = ("allreduce", "barrier", "shared_memory")
"""Operations that can be carried out even if some ranks have joined."""


class Operations:
    """Carries out operations one after the other. All ranks call it with the same operations."""

    def __init__(self, group: ProcessGroup, make_gpu_group: Callable[[int], ProcessGroup]) -> None:
        """Take the groups of Engine.__init__()."""
        self._host_group = group
        self._make_gpu_group = make_gpu_group
        self._gpu_group: ProcessGroup | None = None

    def close(self) -> None:
        """Leave the group for GPUs, if there is one."""
        if self._gpu_group is not None:
            self._gpu_group.close()

    def refusal(self, matched: Matched, joined: Sequence[int]) -> CommMismatch | None:
        """Return the error if the operation cannot be carried out without the joined ranks, or
        None.
        """
        rank, call = next(iter(matched.calls.items()))
        if call.kind in _WITH_JOINED and call.op in ("", "Sum", "Average"):
            return None
        return CommMismatch(0, rank, str(call), joined[0], "join()")

    def run(self, matched: Matched, request: Request | None) -> Any:
        """Carry out an operation, and return its result.

        request: this rank's request; None if it has joined.
        """
        call = next(iter(matched.calls.values()))
        if call.kind == "barrier":
            return None
        if call.kind == "shared_memory":
            return _shared(call.operands[0], self._host_group)
        if request is not None and call.kind.endswith("_object"):
            return self._exchange_objects(request)
        if request is None:
            tensors: Sequence[Tensor] = [_zeros(each) for each in call.operands]
        else:
            request.wait_for_tensors()
            tensors = request.tensors
        if not tensors:
            return []
        group = self._group_of(tensors[0])
        in_place = request is None or request.in_place
        run = getattr(self, f"_{call.kind}")
        results = [
            run(group, each, number, matched.calls, in_place) for number, each in enumerate(tensors)
        ]
        if tensors[0].is_cuda:
            torch.cuda.current_stream(tensors[0].device).synchronize()
        return results[0] if request is None or request.single else results

    def _exchange_objects(self, request: Request) -> Any:
        """Return the pickled object of the root, or the list of all ranks' pickled objects."""
        group, root = self._host_group, request.call.root
        contents: list[Any] = [request.content] * (1 if root >= 0 else group.world_size)
        if root >= 0:
            broadcast_object_list(contents, group=group, group_src=root)
            return contents[0]
        all_gather_object(contents, request.content, group)
        return contents

    def _group_of(self, tensor: Tensor) -> ProcessGroup:
        if not tensor.is_cuda:
            return self._host_group
        torch.cuda.set_device(tensor.device)  # for this thread
        if self._gpu_group is None:
            self._gpu_group = self._make_gpu_group(tensor.device.index)
        return self._gpu_group

    def _allreduce(
        self, group: ProcessGroup, tensor: Tensor, _: int, calls: dict[int, Call], in_place: bool
    ) -> Tensor:
        call = next(iter(calls.values()))
        output = tensor if in_place else tensor.detach().clone()
        _scale(output, call.prescale)
        if call.op == "Adasum":
            adasum(output, group)
        else:
            group.all_reduce(output, _REDUCTIONS[call.op])
        _scale(output, call.postscale)
        return output

    def _reducescatter(
        self, group: ProcessGroup, tensor: Tensor, _: int, calls: dict[int, Call], __: bool
    ) -> Tensor:
        call = next(iter(calls.values()))
        source = tensor.detach()
        if call.prescale != 1.0:
            source = source.clone()
            _scale(source, call.prescale)
        parts = [part.contiguous() for part in source.tensor_split(group.world_size)]
        output = torch.empty_like(parts[group.rank])
        group.reduce_scatter(output, parts, _REDUCTIONS[call.op])
        _scale(output, call.postscale)
        return output

    def _broadcast(
        self, group: ProcessGroup, tensor: Tensor, _: int, calls: dict[int, Call], in_place: bool
    ) -> Tensor:
        output = tensor if in_place else tensor.detach().clone()
        group.broadcast(output, next(iter(calls.values())).root)
        return output

    def _allgather(
        self, group: ProcessGroup, tensor: Tensor, number: int, calls: dict[int, Call], _: bool
    ) -> Tensor:
        rows = [calls[rank].operands[number].shape[0] for rank in range(group.world_size)]
        output = tensor.new_empty((sum(rows), *tensor.shape[1:]))
        group.all_gather([*torch.split(output, rows)], tensor.contiguous())
        return output

    def _alltoall(
        self, group: ProcessGroup, tensor: Tensor, _: int, calls: dict[int, Call], __: bool
    ) -> tuple[Tensor, list[int]]:
        """Return the received rows, and how many came from each rank."""
        sent = calls[group.rank].splits
        received = [calls[rank].splits[group.rank] for rank in range(group.world_size)]
        output = tensor.new_empty((sum(received), *tensor.shape[1:]))
        source = tensor.detach()[: sum(sent)].contiguous()
        group.all_to_all([*torch.split(output, received)], [*torch.split(source, [*sent])])
        return output, received


def _shared(operand: Operand, group: ProcessGroup) -> Tensor:
    """Return a tensor like `operand` in memory that the group's ranks share."""
    dtype = getattr(torch, operand.dtype)
    nbytes = math.prod(operand.shape) * dtype.itemsize
    return torch.from_numpy(empty_shared(nbytes, "uint8", group)).view(dtype)


def _zeros(operand: Operand) -> Tensor:
    """Return the contribution of a rank that has joined."""
    dtype = getattr(torch, operand.dtype)
    return torch.zeros(operand.shape, dtype=dtype, device=operand.device)


def _scale(tensor: Tensor, factor: float) -> None:
    """Multiply in place. Products of integers are truncated to integers."""
    if factor == 1.0:
        return
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.mul_(factor)
    else:
        tensor.copy_(tensor.double().mul_(factor))
