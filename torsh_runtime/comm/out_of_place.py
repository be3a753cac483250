"""Provides reductions whose result does not take the place of their input, and prefix reductions.

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
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.reductions import all_reduce, reduce
from torsh_runtime.comm.roots import root_rank


def all_reduce_into(
    output: object,
    input: object,
    op: Reduce = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce the `input` of all ranks into the `output` of each.

    Args:
        output: The array to fill, of the input's dtype and number of elements. It may be the input.
        input: The array to reduce, which keeps its contents.
        op: The reduction: a ReduceOp, or premul_sum(factor).
        group: The process group; None is the default group.
        async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
            operation until the Work is done.

    Returns:
        With `async_op` a Work, whose result is `[output]`; otherwise None, when `output` has the
            result.

    Raises:
        TypeError: If an argument is no array, if one is on a GPU and one is not, or if `op` is not
            defined for the dtype.
        ValueError: If dtypes or sizes differ, or if `output` is read-only.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        total = np.empty_like(values)
        tr.all_reduce_into(total, values)
        ```
    """
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
    """Reduce the `input` of all ranks into rank dst's `output`.

    Args:
        output: On rank dst the array to fill, of the input's dtype and number of elements; None on
            the other ranks.
        input: The array to reduce, which keeps its contents.
        dst: The rank that gets the result, as one of the default group.
        op: The reduction: a ReduceOp, or premul_sum(factor).
        group: The process group; None is the default group.
        async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
            operation until the Work is done.
        group_dst: That rank as one of `group`, instead of `dst`.

    Returns:
        With `async_op` a Work, whose result is `[output]` on rank dst; otherwise None, when this
            rank's part is done.

    Raises:
        TypeError: If an argument is no array, if one is on a GPU and one is not, or if `op` is not
            defined for the dtype.
        ValueError: If not exactly one of `dst` and `group_dst` is given, if it is no rank of the
            group, if `output` is given on a different rank, or if dtypes or sizes differ.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        total = np.empty_like(values) if tr.get_rank() == 0 else None
        tr.reduce_into(total, values, dst=0)
        ```
    """
    members = group or default_group()
    if members.rank != root_rank(members, dst, group_dst, "dst"):
        if output is not None:
            raise ValueError(f"output is for rank dst only; give None on rank {members.rank}")
        return reduce(input, dst, op, group, async_op, group_dst)
    copy_into(output, input)
    return reduce(output, dst, op, group, async_op, group_dst)


def scan(tensor: object, op: Reduce = ReduceOp.SUM, group: ProcessGroup | None = None) -> None:
    """Reduce `tensor` in place over the ranks up to this one, including this one.

    Values are combined in the order of ranks: each rank's result has the same bits in every run. It
    blocks.

    Args:
        tensor: The array to reduce, in the processor's memory, of the same size and dtype on all
            ranks.
        op: The reduction: a ReduceOp, or premul_sum(factor).
        group: The process group; None is the default group.

    Raises:
        TypeError: If `tensor` is no such array, or if `op` is not defined for its dtype.
        ValueError: For ReduceOp.AVG, which has no meaning here, and if `tensor` is read-only.
        RuntimeError: If it is called within coalesce().
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted. The
            group cannot be used afterwards.

    Example:
        ```python
        place = np.array([tr.get_rank()])
        tr.scan(place)  # [0], [1], [3], [6], ...
        ```
    """
    _scan(tensor, op, group or default_group(), own=True)


def exscan(tensor: object, op: Reduce = ReduceOp.SUM, group: ProcessGroup | None = None) -> None:
    """Reduce `tensor` in place over the ranks before this one.

    The first rank's `tensor` keeps its contents. It blocks, and combines values in the order of
    ranks, as scan().

    Args:
        tensor: The array to reduce, in the processor's memory, of the same size and dtype on all
            ranks.
        op: The reduction: a ReduceOp, or premul_sum(factor).
        group: The process group; None is the default group.

    Raises:
        TypeError: If `tensor` is no such array, or if `op` is not defined for its dtype.
        ValueError: For ReduceOp.AVG, which has no meaning here, and if `tensor` is read-only.
        RuntimeError: If it is called within coalesce().
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted. The
            group cannot be used afterwards.

    Example:
        ```python
        begin = np.array([len(rows)])
        tr.exscan(begin)
        offset = 0 if tr.get_rank() == 0 else begin[0]
        ```
    """
    _scan(tensor, op, group or default_group(), own=False)


def scan_into(
    output: object, input: object, op: Reduce = ReduceOp.SUM, group: ProcessGroup | None = None
) -> None:
    """Put the scan() of `input` into `output`.

    Args:
        output: The array to fill, of the input's dtype and number of elements. It may be the input.
        input: The array to reduce, which keeps its contents.
        op: The reduction: a ReduceOp, or premul_sum(factor).
        group: The process group; None is the default group.

    Raises:
        TypeError: If an argument is no array in the processor's memory, or if `op` is not defined
            for its dtype.
        ValueError: If dtypes or sizes differ, for ReduceOp.AVG, and if `output` is read-only.
        RuntimeError: If it is called within coalesce().
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted. The
            group cannot be used afterwards.

    Example:
        ```python
        sums = np.empty_like(values)
        tr.scan_into(sums, values)
        ```
    """
    copy_into(output, input)
    scan(output, op, group)


def exscan_into(
    output: object, input: object, op: Reduce = ReduceOp.SUM, group: ProcessGroup | None = None
) -> None:
    """Put the exscan() of `input` into `output`; the first rank's gets its input.

    Args:
        output: The array to fill, of the input's dtype and number of elements. It may be the input.
        input: The array to reduce, which keeps its contents.
        op: The reduction: a ReduceOp, or premul_sum(factor).
        group: The process group; None is the default group.

    Raises:
        TypeError: If an argument is no array in the processor's memory, or if `op` is not defined
            for its dtype.
        ValueError: If dtypes or sizes differ, for ReduceOp.AVG, and if `output` is read-only.
        RuntimeError: If it is called within coalesce().
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted. The
            group cannot be used afterwards.

    Example:
        ```python
        sums = np.empty_like(values)
        tr.exscan_into(sums, values)  # without this rank's own
        ```
    """
    copy_into(output, input)
    exscan(output, op, group)


def copy_into(output: Any, input: Any) -> None:
    """Copy the elements of one array into another.

    Raises:
        ValueError: Unless both have the same dtype and number of elements.
        TypeError: Unless both are in the processor's memory or both on GPUs.
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
    """Give each rank one part of all arrays; it returns all prefixes of that part."""
    ranks = group.world_size
    parts = np.array_split(values, ranks)
    everyone = [np.empty_like(parts[group.rank]) for _ in range(ranks)]
    group.all_to_all(everyone, parts)
    results = prefixes(everyone, op, ranks)
    group.all_to_all(parts, results if own else [everyone[0], *results[:-1]])
