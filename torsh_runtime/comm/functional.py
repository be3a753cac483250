"""The collectives: as methods of a group, and with torch.distributed's names, argument order and
defaults.

`group=None` means the default group, which `init_process_group` made. `src` and `dst` are ranks of
the default group, `group_src` and `group_dst` the group's own: give one of the two. With
`async_op=True` a call returns a Work at once and the arrays are the operation's until that is
done; otherwise it returns None when the operation is complete. See Backend for what arrays may be
and what may be raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torsh_runtime.backends.base import Backend
from torsh_runtime.backends.operation import PremulSum, Reduce, ReduceOp
from torsh_runtime.backends.work import Work
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.roots import root_rank
from torsh_runtime.comm.splitting import cut
from torsh_runtime.comm.timeouts import Timeout, seconds

if TYPE_CHECKING:
    from torsh_runtime.comm.group import ProcessGroup


class Collectives:
    """What a group can do; see ProcessGroup."""

    _backend: Backend
    _timeout: float
    _members: Sequence[int]

    @property
    def rank(self) -> int:
        """This process's rank in the group; -1 if it is no member."""
        return self._backend.rank

    @property
    def world_size(self) -> int:
        """Number of ranks in the group; -1 for a process that is no member."""
        return self._backend.world_size

    def all_reduce(self, tensor: object, op: Reduce = ReduceOp.SUM, async_op: bool = False) -> Work:
        """Reduce in place over all ranks. Same shape and dtype everywhere."""
        return self._backend.all_reduce(tensor, op, self._timeout, async_op)

    def reduce(
        self, tensor: object, dst: int, op: Reduce = ReduceOp.SUM, async_op: bool = False
    ) -> Work:
        """Reduce into rank dst's tensor; the others' keep their contents."""
        return self._backend.reduce(tensor, self._member(dst), op, self._timeout, async_op)

    def broadcast(self, tensor: object, src: int, async_op: bool = False) -> Work:
        """Copy rank src's tensor into everyone's. Same shape and dtype everywhere."""
        if src not in self._members:  # a call of its own would cost as much as a small copy
            self._member(src)  # raises
        return self._backend.broadcast(tensor, src, self._timeout, async_op)

    def all_gather_into_tensor(
        self, output_tensor: object, input_tensor: object, async_op: bool = False
    ) -> Work:
        """Gather everyone's input, in order of rank, into output: world_size × its elements."""
        return self._backend.all_gather(output_tensor, input_tensor, self._timeout, async_op)

    def all_gather(
        self, tensor_list: Sequence[object], tensor: object, async_op: bool = False
    ) -> Work:
        """Copy rank r's tensor into tensor_list[r], for each r; sizes may differ with r."""
        outputs = self._one_per_rank("tensor_list", tensor_list)
        return self._backend.all_gather(outputs, tensor, self._timeout, async_op)

    def gather(
        self,
        tensor: object,
        gather_list: Sequence[object] | None,
        dst: int,
        async_op: bool = False,
    ) -> Work:
        """Copy rank r's tensor into rank dst's gather_list[r], for each r; sizes may differ."""
        outputs = self._only_at("gather_list", gather_list, dst)
        return self._backend.gather(outputs, tensor, self._member(dst), self._timeout, async_op)

    def scatter(
        self,
        tensor: object,
        scatter_list: Sequence[object] | None,
        src: int,
        async_op: bool = False,
    ) -> Work:
        """Copy rank src's scatter_list[r] into rank r's tensor, for each r; sizes may differ."""
        inputs = self._only_at("scatter_list", scatter_list, src)
        return self._backend.scatter(tensor, inputs, self._member(src), self._timeout, async_op)

    def reduce_scatter_tensor(
        self, output: object, input: object, op: Reduce = ReduceOp.SUM, async_op: bool = False
    ) -> Work:
        """Reduce everyone's input, world_size × output's elements; rank r gets part r."""
        return self._backend.reduce_scatter(output, input, op, self._timeout, async_op)

    def reduce_scatter(
        self,
        output: object,
        input_list: Sequence[object],
        op: Reduce = ReduceOp.SUM,
        async_op: bool = False,
    ) -> Work:
        """Reduce everyone's input_list[r] into rank r's output; sizes may differ with r."""
        inputs = self._one_per_rank("input_list", input_list)
        return self._backend.reduce_scatter(output, inputs, op, self._timeout, async_op)

    def all_to_all_single(self, output: object, input: object, async_op: bool = False) -> Work:
        """Send the r-th of world_size equal parts of input to rank r, and put what rank r sent
        into the r-th part of output."""
        return self._backend.all_to_all(output, input, self._timeout, async_op)

    def all_to_all(
        self,
        output_tensor_list: Sequence[object],
        input_tensor_list: Sequence[object],
        async_op: bool = False,
    ) -> Work:
        """Send input_tensor_list[r] to rank r's output_tensor_list[own rank]."""
        outputs = self._one_per_rank("output_tensor_list", output_tensor_list)
        inputs = self._one_per_rank("input_tensor_list", input_tensor_list)
        return self._backend.all_to_all(outputs, inputs, self._timeout, async_op)

    def barrier(self, async_op: bool = False, timeout: float | None = None) -> Work:
        """Return when every rank has called it. `timeout`: seconds; None: the group's."""
        seconds = self._timeout if timeout is None else timeout
        return self._backend.barrier(seconds, async_op)

    def _member(self, rank: int) -> int:
        if rank not in self._members:
            raise ValueError(f"{rank!r} is not a rank of the group (0 to {self.world_size - 1})")
        return rank

    def _one_per_rank(self, name: str, arrays: Sequence[object]) -> list[object]:
        if len(arrays) != self.world_size:
            raise ValueError(
                f"{name} has {len(arrays)} arrays; it needs one per rank, {self.world_size}"
            )
        return [*arrays]

    def _only_at(
        self, name: str, arrays: Sequence[object] | None, root: int
    ) -> list[object] | None:
        if self.rank == root:
            return self._one_per_rank(name, arrays or ())
        if arrays:
            raise ValueError(f"{name} is for rank {root} only; give None on rank {self.rank}")
        return None


def premul_sum(factor: float) -> PremulSum:
    """A reduction: each rank's values times its own factor, summed. Floating point only."""
    return PremulSum(factor)


def all_reduce(
    tensor: object,
    op: Reduce = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce `tensor` in place over all ranks; every rank gets identical bits."""
    group = group or default_group()
    work = group._backend.all_reduce(tensor, op, group._timeout, async_op)  # see broadcast()
    return work.giving((tensor,)) if async_op else None


def reduce(
    tensor: object,
    dst: int | None = None,
    op: Reduce = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Reduce over all ranks into rank dst's `tensor`; the others' keep their contents."""
    group = group or default_group()
    work = group.reduce(tensor, root_rank(group, dst, group_dst, "dst"), op, async_op)
    return work.giving((tensor,)) if async_op else None


def broadcast(
    tensor: object,
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy rank src's `tensor` into everyone's."""
    group = group or default_group()
    # Not by group.broadcast: each call more costs a tenth of what a small broadcast takes.
    try:
        if group_src is None:
            root = group._places[src]
        else:
            root = group._member(root_rank(group, src, group_src, "src"))
    except (KeyError, TypeError):
        root = root_rank(group, src, None, "src")  # says what is wrong with src
    work = group._backend.broadcast(tensor, root, group._timeout, async_op)
    return work.giving((tensor,)) if async_op else None


def all_gather(
    tensor_list: Sequence[object],
    tensor: object,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Copy rank r's `tensor` into tensor_list[r], for each r; sizes may differ with r."""
    work = (group or default_group()).all_gather(tensor_list, tensor, async_op)
    return work.giving(tensor_list) if async_op else None


def all_gather_into_tensor(
    output_tensor: object,
    input_tensor: object,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Gather everyone's input, in order of rank, into output (world_size × its elements)."""
    work = (group or default_group()).all_gather_into_tensor(output_tensor, input_tensor, async_op)
    return work.giving((output_tensor,)) if async_op else None


all_gather_single = all_gather_into_tensor


def gather(
    tensor: object,
    gather_list: Sequence[object] | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Copy rank r's `tensor` into rank dst's gather_list[r], for each r; sizes may differ.

    gather_list: None on the other ranks. Without dst and group_dst, dst is 0.
    """
    group = group or default_group()
    work = group.gather(tensor, gather_list, root_rank(group, dst, group_dst, "dst", 0), async_op)
    return work.giving(gather_list or ()) if async_op else None


def scatter(
    tensor: object,
    scatter_list: Sequence[object] | None = None,
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy rank src's scatter_list[r] into rank r's `tensor`, for each r; sizes may differ.

    scatter_list: None on the other ranks. Without src and group_src, src is 0.
    """
    group = group or default_group()
    root = root_rank(group, src, group_src, "src", 0)
    work = group.scatter(tensor, scatter_list, root, async_op)
    return work.giving((tensor,)) if async_op else None


def reduce_scatter(
    output: object,
    input_list: Sequence[object],
    op: Reduce = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce everyone's input_list[r] into rank r's `output`; sizes may differ with r."""
    work = (group or default_group()).reduce_scatter(output, input_list, op, async_op)
    return work.giving((output,)) if async_op else None


def reduce_scatter_tensor(
    output: object,
    input: object,
    op: Reduce = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce everyone's `input` (world_size × output's elements); rank r gets part r."""
    work = (group or default_group()).reduce_scatter_tensor(output, input, op, async_op)
    return work.giving((output,)) if async_op else None


reduce_scatter_single = reduce_scatter_tensor


def all_to_all(
    output_tensor_list: Sequence[object],
    input_tensor_list: Sequence[object],
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Send input_tensor_list[r] to rank r, and put what it sent into output_tensor_list[r]."""
    group = group or default_group()
    work = group.all_to_all(output_tensor_list, input_tensor_list, async_op)
    return work.giving(output_tensor_list) if async_op else None


def all_to_all_single(
    output: object,
    input: object,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Send a part of `input` to each rank, and put what they sent into parts of `output`.

    The parts are cut along dim 0, in order of rank: of as many rows as the split sizes say, or
    of equal size. ValueError where sizes do not add up.
    """
    group = group or default_group()
    if output_split_sizes is None and input_split_sizes is None:
        work = group.all_to_all_single(output, input, async_op)
    else:
        outputs = cut("output", output, output_split_sizes, group.world_size)
        inputs = cut("input", input, input_split_sizes, group.world_size)
        work = group.all_to_all(outputs, inputs, async_op)
    return work.giving((output,)) if async_op else None


def barrier(
    group: ProcessGroup | None = None,
    async_op: bool = False,
    device_ids: object = None,
    timeout: Timeout = None,
) -> Work | None:
    """Return when every rank has called it.

    device_ids: for programs written for torch; makes no difference. timeout: seconds or a
    timedelta; None is the group's.
    """
    group = group or default_group()
    work = group.barrier(async_op, seconds(timeout, group.timeout))
    return work if async_op else None


def monitored_barrier(
    group: ProcessGroup | None = None, timeout: Timeout = None, wait_all_ranks: bool = False
) -> None:
    """A barrier whose CommTimeout names the ranks that did not come, on every rank.

    timeout: seconds or a timedelta; None is the group's. wait_all_ranks: for programs written for
    torch, where False names one of them only; here all are always named.
    """
    group = group or default_group()
    group.barrier(timeout=seconds(timeout, group.timeout))
