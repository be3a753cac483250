"""Defines the process group that torch.distributed, DDP, FSDP and DTensor call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d

from torsh_runtime.backends.base import Backend
from torsh_runtime.backends.work import FailedWork, Work
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import CommError
from torsh_runtime.integrations.torch import NAME, sparse
from torsh_runtime.integrations.torch.compiling import not_compiled
from torsh_runtime.integrations.torch.observing import shown
from torsh_runtime.integrations.torch.options import asynchronous, reduction, seconds, spellings
from torsh_runtime.integrations.torch.reconfiguring import Reconfigurable
from torsh_runtime.integrations.torch.tensors import movable, only
from torsh_runtime.integrations.torch.work import DONE, TorshWork, in_backward

_CPU = torch.device("cpu")
_UNDESCRIBED, _DEFAULT_DESC = "undefined", "default_pg"  # torch's own
c10d: Any = _distributed_c10d  # its stubs lack much of it
Tensors = Sequence[torch.Tensor]


@not_compiled
class TorshProcessGroup(Reconfigurable, c10d.ProcessGroup):  # type: ignore[misc]
    """Implements torch's ProcessGroup over a Backend. Ranks are the group's own.

    Operations take their arguments in all the ways that torch's own do. If the options say
    asyncOp=False, an operation is complete when it returns. They raise what Backend raises:
    CommError, which is a RuntimeError, if a collective failed; TypeError, ValueError and
    NotImplementedError for invalid arguments, before any communication.
    """

    def __init__(
        self, store: Any, backend: Backend, timeout: float, *, overlap_backward: bool = False
    ) -> None:
        """Wrap the backend, whose ranks have connected through the store.

        timeout: seconds that an operation may take if it does not say otherwise.
        overlap_backward: whether asynchronous operations in a backward pass, where DDP's reducer is
            the caller, always run beside it. Otherwise those that all ranks call at about the same
            time are complete when their calls return, as the pass needs the processors.
        """
        c10d.ProcessGroup.__init__(self, backend.rank, backend.world_size)
        Reconfigurable.__init__(self, store, backend, timeout)
        self._overlap_backward = overlap_backward
        self._name = self._desc = ""
        self._collectives = self._splits = 0
        self._ours: tuple[Backend, ProcessGroup] | None = None

    @spellings(c10d.AllreduceOptions, "op", "timeout")
    def allreduce(self, tensors: Tensors, opts: Any) -> TorshWork:
        """Reduce in place. Sparse tensors are summed, and complete when this returns."""
        # Written out, as the shortest operations take no longer than the code around them.
        self._collectives += 1
        tensor, op, limit = only(tensors), reduction(opts), seconds(opts, self._timeout)
        if tensor.layout is not torch.strided:
            sparse.all_reduce(self._torsh, tensor, op, limit)
            return TorshWork((), tensors)
        if not asynchronous(opts):
            self._torsh.all_reduce(tensor, op, limit)
            return DONE
        try:
            work = self._torsh.all_reduce(tensor, op, limit, self._may_overlap(tensors))
        except CommError as error:
            work = _failed(error)
        return TorshWork((work,), tensors)

    @spellings(c10d.AllreduceCoalescedOptions, "op", "timeout")
    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> TorshWork:
        """Reduce each tensor in place."""
        op = reduction(opts)
        limit, background = self._collective(opts, tensors)
        works = self._torsh.all_reduce_coalesced(tensors, op, limit, background)
        return TorshWork(works, tensors) if asynchronous(opts) else DONE

    @spellings(c10d.ReduceOptions, "root", "op", "timeout")
    def reduce(self, tensors: Tensors, opts: Any) -> TorshWork:
        """Reduce into the root's tensor. The other ranks' tensors are not changed."""
        tensor = only(tensors)
        operation = self._torsh.reduce
        return self._begin(opts, tensors, operation, tensor, opts.rootRank, reduction(opts))

    @spellings(c10d.BroadcastOptions, "root", "timeout")
    def broadcast(self, tensors: Tensors, opts: Any) -> TorshWork:
        """Copy the root's tensor to all ranks."""
        tensor = movable(only(tensors))
        return self._begin(opts, tensors, self._torsh.broadcast, tensor, opts.rootRank)

    @spellings(c10d.AllgatherOptions, "timeout", tensors=2)
    def allgather(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any) -> TorshWork:
        """Copy rank r's tensor into outputs[0][r]. Sizes may differ between ranks."""
        tensor, targets = movable(only(tensors)), _one_list(outputs)
        operation = self._torsh.all_gather
        return self._begin(opts, targets, operation, [movable(part) for part in targets], tensor)

    @spellings(c10d.AllgatherOptions, "timeout", tensors=2, wrapped=False)
    def allgather_coalesced(
        self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any
    ) -> TorshWork:
        """Copy rank r's tensors[i] into outputs[r][i]."""
        targets = list(zip(*outputs, strict=True))
        calls = [
            ([movable(part) for part in parts], movable(tensor))
            for parts, tensor in zip(targets, tensors, strict=True)
        ]
        written = [part for parts in targets for part in parts]
        return self._begin_all(opts, written, self._torsh.all_gather, calls)

    @spellings(c10d.AllgatherOptions, "timeout", tensors=2, wrapped=False)
    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> TorshWork:
        """Concatenate all ranks' tensors, in rank order, into output."""
        operation = self._torsh.all_gather
        return self._begin(opts, [output], operation, movable(output), movable(tensor))

    @spellings(c10d.AllgatherOptions, "timeout", tensors=2, wrapped=False)
    def all_gather_single_coalesced(
        self, outputs: Tensors, tensors: Tensors, opts: Any
    ) -> TorshWork:
        """Do all_gather_single() for each pair."""
        pairs = zip(outputs, tensors, strict=True)
        calls = [(movable(output), movable(tensor)) for output, tensor in pairs]
        return self._begin_all(opts, outputs, self._torsh.all_gather, calls)

    @spellings(c10d.GatherOptions, "root", "timeout", tensors=2)
    def gather(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any) -> TorshWork:
        """Copy rank r's tensor into the root's outputs[0][r]. Other ranks pass []."""
        targets = self._of_root(outputs, opts.rootRank)
        tensor, parts = movable(only(tensors)), _all_movable(targets)
        operation = self._torsh.gather
        return self._begin(opts, targets or [], operation, parts, tensor, opts.rootRank)

    @spellings(c10d.ScatterOptions, "root", "timeout", tensors=2)
    def scatter(self, tensors: Tensors, inputs: Sequence[Tensors], opts: Any) -> TorshWork:
        """Copy the root's inputs[0][r] into rank r's tensor. Other ranks pass []."""
        parts = _all_movable(self._of_root(inputs, opts.rootRank))
        tensor = movable(only(tensors))
        return self._begin(opts, tensors, self._torsh.scatter, tensor, parts, opts.rootRank)

    @spellings(c10d.ReduceScatterOptions, "op", "timeout", tensors=2)
    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> TorshWork:
        """Reduce all ranks' inputs[0][r] into rank r's output. Sizes may differ with r."""
        output, parts = only(outputs), _one_list(inputs)
        operation = self._torsh.reduce_scatter
        return self._begin(opts, outputs, operation, output, parts, reduction(opts))

    @spellings(c10d.ReduceScatterOptions, "op", "timeout", tensors=2, wrapped=False)
    def reduce_scatter_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any
    ) -> TorshWork:
        """Reduce all ranks' tensors, and give rank r the r-th part."""
        operation, op = self._torsh.reduce_scatter, reduction(opts)
        return self._begin(opts, [output], operation, output, tensor, op)

    @spellings(c10d.ReduceScatterOptions, "op", "timeout", tensors=2, wrapped=False)
    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, tensors: Tensors, opts: Any
    ) -> TorshWork:
        """Do reduce_scatter_single() for each pair."""
        op, pairs = reduction(opts), zip(outputs, tensors, strict=True)
        calls = [(output, tensor, op) for output, tensor in pairs]
        return self._begin_all(opts, outputs, self._torsh.reduce_scatter, calls)

    @spellings(c10d.AllToAllOptions, "timeout", tensors=2, wrapped=False)
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any) -> TorshWork:
        """Send inputs[r] to rank r's outputs[own rank]."""
        targets, parts = [movable(out) for out in outputs], [movable(part) for part in inputs]
        return self._begin(opts, outputs, self._torsh.all_to_all, targets, parts)

    @spellings(c10d.AllToAllOptions, "timeout", tensors=4, wrapped=False)
    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any,
    ) -> TorshWork:
        """Send the r-th part along dimension 0 to rank r.

        Splits are the sizes of the parts along dimension 0; [] means equal sizes.
        """
        targets = _parts(output, output_splits, self.size())
        parts = _parts(tensor, input_splits, self.size())
        return self._begin(opts, [output], self._torsh.all_to_all, targets, parts)

    @spellings(c10d.BarrierOptions, "timeout", tensors=0)
    def barrier(self, opts: Any) -> TorshWork:
        """Wait until every rank has called it, or return a Work that does."""
        return self._begin(opts, [], self._torsh.barrier)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Do a barrier within `timeout`.

        Raises CommTimeout naming all the ranks that did not call it, on every rank and with either
        `wait_all_ranks`.
        """
        limit = self._timeout if timeout is None else timeout.total_seconds()
        self._torsh.barrier(limit)

    @shown
    def send(self, tensors: Tensors, dst: int, tag: int) -> TorshWork:
        """Send to one rank. The Work is complete when the tensor may be changed."""
        tensor = movable(only(tensors))
        return TorshWork((self._torsh.send(tensor, dst, tag, self._timeout, True),), tensors)

    @shown
    def recv(self, tensors: Tensors, src: int, tag: int) -> TorshWork:
        """Receive from one rank."""
        tensor = movable(only(tensors))
        return TorshWork((self._torsh.recv(tensor, src, tag, self._timeout, True),), tensors)

    @shown
    def recv_anysource(self, tensors: Tensors, tag: int) -> TorshWork:
        """Receive from any rank that sends first. The Work's source_rank() returns that rank."""
        tensor = movable(only(tensors))
        return TorshWork((self._torsh.recv(tensor, None, tag, self._timeout, True),), tensors)

    # Older names
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of operations that start from now on."""
        self._timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: object = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> TorshProcessGroup | None:
        """Return a group of the `ranks` of this one, sorted; None if this rank is not in it.

        All ranks call it at the same time. Some may ask for different groups than others.

        timeout: of its operations; None: this group's. group_name: unique, and the same on its
            ranks. Raises ValueError for invalid or repeated ranks.
        """
        from torsh_runtime.integrations.torch.creation import split

        self._splits += 1
        given = group_name or f"{self._name}:split:{self._splits}:{min(ranks, default=0)}"
        return split(self, sorted(ranks), timeout or self.options._timeout, given, group_desc or "")

    # Properties that torch asks a backend or a group for

    is_torsh = True
    is_alone = False
    """True if no groups can be made of this one, since tr.elastic.join() protects it."""
    supports_splitting = True
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False
    supports_window = False

    def _get_sequence_number_for_group(self) -> int:
        """Return how many collectives this rank has started."""
        return self._collectives

    def _set_sequence_number_for_group(self) -> None:
        """Count collectives from 0 again. Every rank does so."""
        self._collectives = 0

    @property
    def options(self) -> Any:
        """Return options with the backend's name and the timeout."""
        return c10d.Backend.Options(NAME, timedelta(seconds=self._timeout))

    def get_group_store(self) -> Any:
        """Return the store through which the ranks connected."""
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [_CPU]

    def _get_backend(self, device: torch.device) -> Any:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"the torsh backend is for CPU tensors; it has none for {device}")
        return self

    def runtime_group(self) -> ProcessGroup:
        """Return a torsh_runtime group over the same backend, which keeps both groups' order."""
        if self._ours is None or self._ours[0] is not self._own:  # the group was reconfigured
            self._ours = self._own, ProcessGroup(self._own, self._timeout, name=self._name)
        return self._ours[1]

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        self._desc = desc
        if desc not in ("", _UNDESCRIBED, _DEFAULT_DESC):
            self._torsh.note_title(desc)

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def _begin(
        self, opts: Any, outputs: Tensors, operation: Callable[..., Work], *arguments: object
    ) -> TorshWork:
        self._collectives += 1
        asked = asynchronous(opts)
        limit = seconds(opts, self._timeout)
        work = operation(*arguments, limit, asked and self._may_overlap(outputs))
        return TorshWork((work,), outputs) if asked else DONE

    def _begin_all(
        self,
        opts: Any,
        outputs: Tensors,
        operation: Callable[..., Work],
        calls: Iterable[tuple[object, ...]],
    ) -> TorshWork:
        limit, background = self._collective(opts, outputs)
        works = [operation(*arguments, limit, background) for arguments in calls]
        return TorshWork(works, outputs) if asynchronous(opts) else DONE

    def _collective(self, opts: Any, tensors: Tensors) -> tuple[float, bool]:
        """Count a collective, and return its timeout in seconds and whether it is in the
        background.
        """
        self._collectives += 1
        return seconds(opts, self._timeout), asynchronous(opts) and self._may_overlap(tensors)

    def _may_overlap(self, tensors: Tensors) -> bool:
        if self._overlap_backward or not in_backward():
            return True
        return not self._torsh.all_come(tensors[0] if tensors else None)

    def _of_root(self, lists: Sequence[Tensors], root: int) -> Tensors | None:
        """Return the root's list of tensors; None on the other ranks, which must not pass any."""
        if self.rank() == root:
            return _one_list(lists)
        if any(len(given) for given in lists):
            raise ValueError(f"rank {self.rank()} is not the root, {root}: it gives no list")
        return None


def _failed(error: CommError) -> Work:
    """Raise the error, except in a backward pass, where a Work that fails is returned instead."""
    if not in_backward():
        raise error
    return FailedWork(error)


def _one_list(lists: Sequence[Tensors]) -> Tensors:
    if len(lists) != 1:
        raise ValueError(f"the torsh backend takes one list of tensors, not {len(lists)}")
    return list(lists[0])


def _all_movable(tensors: Tensors | None) -> Tensors | None:
    return None if tensors is None else [movable(tensor) for tensor in tensors]


def _parts(tensor: torch.Tensor, splits: Sequence[int], ranks: int) -> Tensors:
    """Return the tensor's parts along dimension 0, one for each rank."""
    if len(splits) not in (0, ranks):
        raise ValueError(f"{len(splits)} split sizes for {ranks} ranks; give one for each")
    length = tensor.shape[0] if tensor.dim() else 0
    if not splits and length % ranks:
        raise ValueError(f"dimension 0 has {length} elements, which {ranks} ranks cannot share")
    return [
        movable(part) for part in torch.split(tensor, list(splits) or [length // ranks] * ranks)
    ]
