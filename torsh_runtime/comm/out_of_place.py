"""Reductions whose result does not take the place of their input, and prefix reductions.

What torch.distributed reduces in place has a form here whose name ends in `_into` and which takes
`output` first: an array of the input's dtype and number of elements, which may be the input itself.
Further arguments are those of functional.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from torsh_runtime.arrays import staged
from torsh_runtime.backends.base import PremulSum, Reduce, ReduceOp
from torsh_runtime.backends.library.operands import Array, check_dtype, check_size
from torsh_runtime.backends.library.reductions import combine, prefixes, reduction_of
from torsh_runtime.backends.nccl.device import Operand, is_on_gpu
from torsh_runtime.backends.work import Work
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.functional import all_reduce, reduce
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.roots import root_rank


def all_reduce_into(
    output: object,
    input: object,
    op: Reduce = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce everyone's `input` into everyone's `output`."""
    copy_into(output, input)
    return all_reduce(output, op, group, async_op)


def reduce_into(
    output: object | None,
    input: object,
    dst: int | None = None,
    op: Reduce = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Reduce everyone's `input` into rank dst's `output`; None on the other ranks."""
    members = group or default_group()
    if members.rank != root_rank(members, dst, group_dst, "dst"):
        if output is not None:
            raise ValueError(f"output is for rank dst only; give None on rank {members.rank}")
        return reduce(input, dst, op, group, async_op, group_dst)
    copy_into(output, input)
    return reduce(output, dst, op, group, async_op, group_dst)


def scan(tensor: object, op: Reduce = ReduceOp.SUM, group: ProcessGroup | None = None) -> None:
    """Reduce `tensor` in place over the ranks up to this one, and itself.

    Values are combined in the order of ranks: each rank's result has the same bits in every run.
    It blocks. ValueError for AVG, which has no meaning here; RuntimeError within coalesce().
    """
    _scan(tensor, op, group or default_group(), own=True)


def exscan(tensor: object, op: Reduce = ReduceOp.SUM, group: ProcessGroup | None = None) -> None:
    """The same over the ranks before this one; the first rank's `tensor` keeps its contents."""
    _scan(tensor, op, group or default_group(), own=False)


def scan_into(
    output: object, input: object, op: Reduce = ReduceOp.SUM, group: ProcessGroup | None = None
) -> None:
    """scan() of `input`, whose result is put into `output`."""
    copy_into(output, input)
    scan(output, op, group)


def exscan_into(
    output: object, input: object, op: Reduce = ReduceOp.SUM, group: ProcessGroup | None = None
) -> None:
    """exscan() of `input`, whose result is put into `output`; the first rank's has its input."""
    copy_into(output, input)
    exscan(output, op, group)


def copy_into(output: Any, input: Any) -> None:
    """Copy the elements. ValueError unless both have the same dtype and as many, TypeError unless
    both are in the processor's memory or on GPUs.
    """
    if is_on_gpu(output):
        copied, room = Operand(input), Operand(output)
        check_dtype("output", room, copied)
        check_size("output", room, copied.size, "the input's")
        room.framework.assign(output, copied.flat)  # on the arrays' device
        return
    with staged(input, writable=False) as source, staged(output, writable=True) as target:
        check_dtype("output", target, source)
        check_size("output", target, source.size, "the input's")
        np.copyto(target, source.reshape(target.shape))


def _scan(tensor: object, op: Reduce, group: ProcessGroup, own: bool) -> None:
    group.check_not_held_back("a scan")
    with staged(tensor, writable=True) as array:
        values = array.reshape(-1)
        kind = reduction_of(values.dtype, op)
        if kind is ReduceOp.AVG:
            raise ValueError("a scan has no AVG: take SUM, and divide by rank + 1")
        if isinstance(op, PremulSum):
            values[...] = combine([values], op, 1)
            kind = ReduceOp.SUM
        _exchange_prefixes(values, kind, group, own)


def _exchange_prefixes(values: Array, op: ReduceOp, group: ProcessGroup, own: bool) -> None:
    """Each rank gets one part of everybody's array, makes all prefixes of it and returns them."""
    ranks = group.world_size
    parts = np.array_split(values, ranks)
    everyone = [np.empty_like(parts[group.rank]) for _ in range(ranks)]
    group.all_to_all(everyone, parts)
    results = prefixes(everyone, op, ranks)
    group.all_to_all(parts, results if own else [everyone[0], *results[:-1]])
