"""Sends and receives messages at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from torsh_runtime.backends.nccl.device import is_on_gpu
from torsh_runtime.backends.work import Work
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.out_of_place import copy_into
from torsh_runtime.comm.roots import root_rank


def sendrecv(
    output: object,
    input: object,
    dst: int | None = None,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
    group_src: int | None = None,
) -> int:
    """Send `input` to one rank and receive `output` from one; no rank has to go first.

    To and from this rank itself it is a copy, so that a ring may have one rank.

    Args:
        output: The array to fill, with the size and dtype of the message.
        input: The array to send.
        dst: The receiver, as a rank of the default group.
        src: The sender, as a rank of the default group; without `group_src` either, any rank.
        group: The process group; None is the default group.
        tag: The tag of both messages, as in send.
        group_dst: The receiver as a rank of `group`, instead of `dst`.
        group_src: The sender as a rank of `group`, instead of `src`.

    Returns:
        The rank that the message came from, as one of the default group.

    Raises:
        TypeError: If an argument is no array.
        ValueError: If not exactly one of `dst` and `group_dst` is given, if both `src` and
            `group_src` are, if a rank is not in the group, if there is no such tag, or if sizes or
            dtypes do not fit.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted. The
            group cannot be used afterwards.

    Example:
        ```python
        rank, size = tr.get_rank(), tr.get_world_size()
        left = np.empty(1)
        tr.sendrecv(left, np.array([float(rank)]), (rank + 1) % size, (rank - 1) % size)
        ```
    """
    group = group or default_group()
    there = root_rank(group, dst, group_dst, "dst")
    anyone = src is None and group_src is None
    here = there if anyone and group.world_size == 1 else None
    if not anyone:
        here = root_rank(group, src, group_src, "src")
    if there == here == group.rank:
        copy_into(output, input)
        return group.global_rank(here)
    is_together = is_on_gpu(output)
    with group.launching_together(2) if is_together else nullcontext():
        sending = group.send(input, there, tag, async_op=True)
        coming = group.recv(output, here, tag, async_op=is_together)
    coming.wait()
    sending.wait()
    source = coming.source if here is None else here
    assert source is not None, "a message that was received came from somewhere"
    return group.global_rank(source)


def crossing(
    group: ProcessGroup,
    sent: Sequence[object],
    there: int,
    received: Sequence[object],
    here: int | None,
    tag: int,
) -> list[Work]:
    """Begin to receive arrays from one rank of the group and to send others to one.

    The results are their Works, in this order. No rank has to go first: on GPUs, where a message
    waits for the one before, all are launched together.
    """
    are_on_gpu = any(map(is_on_gpu, (*sent, *received)))
    count = len(received) + len(sent)
    with group.launching_together(count) if are_on_gpu else nullcontext():
        works = [group.recv(each, here, tag, async_op=True) for each in received]
        works += [group.send(each, there, tag, async_op=True) for each in sent]
    return works


def usual_tag(array: object, tag: int) -> int:
    """Return a tag unlike those of other messages, or 0 on GPUs, where there are no tags."""
    return 0 if is_on_gpu(array) else tag
