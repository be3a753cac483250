"""Provides the collectives that copy arrays between ranks, as functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torsh_runtime.backends.work import Work
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.roots import root_rank
from torsh_runtime.comm.splitting import cut

if TYPE_CHECKING:
    from torsh_runtime.comm.group import ProcessGroup


def broadcast(
    tensor: object,
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy rank src's `tensor` into the tensors of all other ranks.

    Args:
        tensor: The array to send or to fill, with the same number of elements and dtype on all
            ranks.
        src: The rank that sends, as one of the default group.
        group: The process group; None is the default group.
        async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
            operation until the Work is done.
        group_src: That rank as one of `group`, instead of `src`.

    Returns:
        With `async_op` a Work, whose result is `[tensor]`; otherwise None, when `tensor` may be
            used.

    Raises:
        TypeError: If `tensor` is no array.
        ValueError: If not exactly one of `src` and `group_src` is given, if it names no rank of the
            group, or if `tensor` is read-only where it is to be filled.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        weights = np.random.rand(10) if tr.get_rank() == 0 else np.empty(10)
        tr.broadcast(weights, src=0)
        ```
    """
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
    """Copy rank r's `tensor` into tensor_list[r], for each r.

    Args:
        tensor_list: An array for each rank, in order of rank, of the same dtype. Sizes may differ,
            but that of element r must be that of rank r's `tensor`.
        tensor: This rank's array.
        group: The process group; None is the default group.
        async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
            operation until the Work is done.

    Returns:
        With `async_op` a Work, whose result is `tensor_list`; otherwise None, when the list is
            filled.

    Raises:
        TypeError: If an argument is no array.
        ValueError: If there is not one output for each rank, or if sizes or dtypes do not fit
            together.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        ranks = [np.empty(1, np.int64) for _ in range(tr.get_world_size())]
        tr.all_gather(ranks, np.array([tr.get_rank()]))  # [0], [1], ...
        ```
    """
    work = (group or default_group()).all_gather(tensor_list, tensor, async_op)
    return work.giving(tensor_list) if async_op else None


def all_gather_into_tensor(
    output_tensor: object,
    input_tensor: object,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Gather the inputs of all ranks, in order of rank, into one array.

    `all_gather_single` is a different name of it.

    Args:
        output_tensor: The array to fill, with world_size times as many elements as `input_tensor`,
            and of its dtype.
        input_tensor: This rank's part, of the same size and dtype on all ranks.
        group: The process group; None is the default group.
        async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
            operation until the Work is done.

    Returns:
        With `async_op` a Work, whose result is `[output_tensor]`; otherwise None, when that is
            filled.

    Raises:
        TypeError: If an argument is no array.
        ValueError: If the sizes or dtypes do not fit together, or if the output is read-only.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        rows = np.empty((tr.get_world_size(), 2))
        tr.all_gather_into_tensor(rows, np.array([tr.get_rank(), 1.0]))
        ```
    """
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
    """Copy rank r's `tensor` into rank dst's gather_list[r], for each r.

    Args:
        tensor: This rank's array; sizes may differ from rank to rank.
        gather_list: On rank dst an array for each rank, in order of rank, of the sizes of their
            tensors; None on the other ranks.
        dst: The rank that gets the arrays, as one of the default group; 0 without `group_dst`.
        group: The process group; None is the default group.
        async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
            operation until the Work is done.
        group_dst: That rank as one of `group`, instead of `dst`.

    Returns:
        With `async_op` a Work, whose result is `gather_list` (empty on the other ranks); otherwise
            None, when this rank's part is done.

    Raises:
        TypeError: If an argument is no array.
        ValueError: If both `dst` and `group_dst` are given or the rank is not in the group, if
            `gather_list` has not one array for each rank or is given on a different rank, or if
            sizes or dtypes do not fit together.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        own, is_root = np.array([tr.get_rank()]), tr.get_rank() == 0
        rows = [np.empty_like(own) for _ in range(tr.get_world_size())] if is_root else None
        tr.gather(own, rows, dst=0)
        ```
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
    """Copy rank src's scatter_list[r] into rank r's `tensor`, for each r.

    Args:
        tensor: The array to fill; sizes may differ from rank to rank.
        scatter_list: On rank src an array for each rank, in order of rank, of the sizes of their
            tensors; None on the other ranks.
        src: The rank that sends, as one of the default group; 0 without `group_src`.
        group: The process group; None is the default group.
        async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
            operation until the Work is done.
        group_src: That rank as one of `group`, instead of `src`.

    Returns:
        With `async_op` a Work, whose result is `[tensor]`; otherwise None, when `tensor` may be
            used.

    Raises:
        TypeError: If an argument is no array.
        ValueError: If both `src` and `group_src` are given or the rank is not in the group, if
            `scatter_list` has not one array for each rank or is given on a different rank, or if
            sizes or dtypes do not fit together.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        part = np.empty(2)
        rows = np.arange(2.0 * tr.get_world_size()).reshape(-1, 2)
        tr.scatter(part, list(rows) if tr.get_rank() == 0 else None, src=0)
        ```
    """
    group = group or default_group()
    root = root_rank(group, src, group_src, "src", 0)
    work = group.scatter(tensor, scatter_list, root, async_op)
    return work.giving((tensor,)) if async_op else None


def all_to_all(
    output_tensor_list: Sequence[object],
    input_tensor_list: Sequence[object],
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Send input_tensor_list[r] to rank r, and put what it sent into output_tensor_list[r].

    Args:
        output_tensor_list: An array to fill for each rank, in order of rank. Sizes may differ; that
            of element r is the size of what rank r sends here.
        input_tensor_list: An array to send to each rank, in order of rank.
        group: The process group; None is the default group.
        async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
            operation until the Work is done.

    Returns:
        With `async_op` a Work, whose result is `output_tensor_list`; otherwise None, when the list
            is filled.

    Raises:
        TypeError: If an argument is no array.
        ValueError: If there is not one array for each rank, or if sizes or dtypes do not fit
            together.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        sent = [np.array([tr.get_rank(), r]) for r in range(tr.get_world_size())]
        received = [np.empty(2, np.int64) for _ in sent]
        tr.all_to_all(received, sent)
        ```
    """
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

    The parts are cut along dim 0, in order of rank: with as many rows as the split sizes say, or of
    equal size.

    Args:
        output: The array to fill.
        input: The array to send.
        output_split_sizes: The rows that come from each rank; None is equal parts.
        input_split_sizes: The rows that go to each rank; None is equal parts.
        group: The process group; None is the default group.
        async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
            operation until the Work is done.

    Returns:
        With `async_op` a Work, whose result is `[output]`; otherwise None, when `output` is filled.

    Raises:
        TypeError: If an argument is no array.
        ValueError: If the split sizes are not one for each rank or do not add up to the rows, if
            the array does not divide equally without them, or if sizes or dtypes do not fit
            together.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        tokens = np.arange(2 * tr.get_world_size())
        received = np.empty_like(tokens)
        tr.all_to_all_single(received, tokens)  # two from each rank
        ```
    """
    group = group or default_group()
    if output_split_sizes is None and input_split_sizes is None:
        work = group.all_to_all_single(output, input, async_op)
    else:
        outputs = cut("output", output, output_split_sizes, group.world_size)
        inputs = cut("input", input, input_split_sizes, group.world_size)
        work = group.all_to_all(outputs, inputs, async_op)
    return work.giving((output,)) if async_op else None
