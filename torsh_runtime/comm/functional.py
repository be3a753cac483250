"""The functional API, with torch.distributed's names, argument order and defaults.

`group=None` means the default group, which `init_process_group` made. With `async_op=True` a call
returns a Work, otherwise None.
"""

from __future__ import annotations

from collections.abc import Sequence

from torsh_runtime.backends.base import ReduceOp
from torsh_runtime.backends.work import Work
from torsh_runtime.comm.default import default_group, has_default_group
from torsh_runtime.comm.group import ProcessGroup


def is_initialized() -> bool:
    """Whether there is a default group."""
    return has_default_group()


def get_rank(group: ProcessGroup | None = None) -> int:
    """This process's rank in the group."""
    return (group or default_group()).rank


def get_world_size(group: ProcessGroup | None = None) -> int:
    """Number of ranks in the group."""
    return (group or default_group()).world_size


def all_reduce(
    tensor: object,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce `tensor` in place over all ranks; every rank gets identical bits."""
    work = (group or default_group()).all_reduce(tensor, op)
    return _result(work, async_op)


def broadcast(
    tensor: object, src: int, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """Copy rank src's `tensor` into everyone's."""
    work = (group or default_group()).broadcast(tensor, src)
    return _result(work, async_op)


def all_gather(
    tensor_list: Sequence[object],
    tensor: object,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Copy rank r's `tensor` into tensor_list[r], for each r."""
    work = (group or default_group()).all_gather(tensor_list, tensor)
    return _result(work, async_op)


def all_gather_into_tensor(
    output_tensor: object,
    input_tensor: object,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Gather everyone's input, in order of rank, into output (world_size × its elements)."""
    work = (group or default_group()).all_gather_into_tensor(output_tensor, input_tensor)
    return _result(work, async_op)


def reduce_scatter(
    output: object,
    input_list: Sequence[object],
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce everyone's input_list[r] into rank r's `output`."""
    work = (group or default_group()).reduce_scatter(output, input_list, op)
    return _result(work, async_op)


def reduce_scatter_tensor(
    output: object,
    input: object,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce everyone's `input` (world_size × output's elements); rank r gets part r."""
    work = (group or default_group()).reduce_scatter_tensor(output, input, op)
    return _result(work, async_op)


def barrier(group: ProcessGroup | None = None, async_op: bool = False) -> Work | None:
    """Return when every rank has called it."""
    work = (group or default_group()).barrier()
    return _result(work, async_op)


def _result(work: Work, async_op: bool) -> Work | None:
    if async_op:
        return work
    work.wait()
    return None
