"""Sends messages from one rank to another, as in torch.distributed.

`src` and `dst` are ranks of the default group, `group_src` and `group_dst` the group's own.
Messages between two ranks with the same tag arrive in order. Up to 64 KiB of them (less in a node
of more than 32 ranks) leave before anybody receives them; beyond that a send waits for its
receiver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torsh_runtime.backends.base import Envelope
from torsh_runtime.backends.work import Work
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.roots import root_rank


def send(
    tensor: object,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send `tensor` to one rank, and return when it may be changed again.

    Args:
        tensor: The array to send.
        dst: The receiver, as a rank of the default group.
        group: The process group; None is the default group.
        tag: A number that the receiver names, too, from 0 on; with the nccl backend only 0.
        group_dst: The receiver as a rank of `group`, instead of `dst`.

    Raises:
        TypeError: If `tensor` is no array.
        ValueError: If not exactly one of `dst` and `group_dst` is given, if it is this rank itself
            or no rank of the group, or if there is no such tag.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted. The
            group cannot be used afterwards.

    Example:
        ```python
        if tr.get_rank() == 0:
            tr.send(np.arange(4.0), dst=1)
        elif tr.get_rank() == 1:
            tr.recv(values := np.empty(4), src=0)
        ```
    """
    group = group or default_group()
    group.send(tensor, root_rank(group, dst, group_dst, "dst"), tag)


def recv(
    tensor: object,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int | None = 0,
    group_src: int | None = None,
) -> int:
    """Receive a message from one rank, or from any, into `tensor`.

    Args:
        tensor: The array to fill, with the size and dtype of the message.
        src: The sender, as a rank of the default group; without `group_src` either, any rank.
        group: The process group; None is the default group.
        tag: The message's tag; None is any, with the native backend only.
        group_src: The sender as a rank of `group`, instead of `src`.

    Returns:
        The rank that the message came from, as one of the default group.

    Raises:
        TypeError: If `tensor` is no array.
        ValueError: If both `src` and `group_src` are given, if the sender is this rank itself or no
            rank of the group, if there is no such tag, or if the backend cannot receive from any
            rank or with any tag.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted. The
            group cannot be used afterwards.

    Example:
        ```python
        values = np.empty(4)
        sender = tr.recv(values)  # from any rank
        ```
    """
    group = group or default_group()
    work = group.recv(tensor, _source(group, src, group_src), tag)
    return group.global_rank(_came_from(work))


def isend(
    tensor: object,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work:
    """Begin to send `tensor` to one rank.

    Args:
        tensor: The array to send. It must not change until the Work is done.
        dst: The receiver, as a rank of the default group.
        group: The process group; None is the default group.
        tag: A number that the receiver names, too, from 0 on; with the nccl backend only 0.
        group_dst: The receiver as a rank of `group`, instead of `dst`.

    Returns:
        A Work, which is done when the array may be changed again.

    Raises:
        TypeError: If `tensor` is no array.
        ValueError: If not exactly one of `dst` and `group_dst` is given, if it is this rank itself
            or no rank of the group, or if there is no such tag.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        works = [tr.isend(edge, right), tr.irecv(halo, left)]
        tr.waitall(works)
        ```
    """
    group = group or default_group()
    return group.send(tensor, root_rank(group, dst, group_dst, "dst"), tag, async_op=True)


def irecv(
    tensor: object,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int | None = 0,
    group_src: int | None = None,
) -> Work:
    """Begin to receive a message from one rank, or from any, into `tensor`.

    Args:
        tensor: The array to fill, with the size and dtype of the message. It belongs to the
            operation until the Work is done.
        src: The sender, as a rank of the default group; without `group_src` either, any rank.
        group: The process group; None is the default group.
        tag: The message's tag; None is any, with the native backend only.
        group_src: The sender as a rank of `group`, instead of `src`.

    Returns:
        A Work, whose result is `[tensor]`. Its `source` is then the sender, as one of the group's
            own ranks, and with `tag=None` its `tag` the message's.

    Raises:
        TypeError: If `tensor` is no array.
        ValueError: If both `src` and `group_src` are given, if the sender is this rank itself or no
            rank of the group, if there is no such tag, or if the backend cannot receive from any
            rank or with any tag.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        work = tr.irecv(values := np.empty(4), src=0)
        prepare()
        work.wait()
        ```
    """
    group = group or default_group()
    return group.recv(tensor, _source(group, src, group_src), tag, async_op=True)


def probe(
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int | None = 0,
    group_src: int | None = None,
) -> Envelope:
    """Wait for a message that recv with the same arguments would get, and leave it in place.

    A different thread may receive it first.

    Args:
        src: The sender, as a rank of the default group; without `group_src` either, any rank.
        group: The process group; None is the default group.
        tag: The message's tag; None is any, with the native backend only.
        group_src: The sender as a rank of `group`, instead of `src`.

    Returns:
        The message's source, as a rank of the default group, its tag and its size in bytes.

    Raises:
        ValueError: With backends other than native and mpi, with mpi if `tag` is None, and if the
            sender is this rank itself or no rank of the group.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the group fails, and CommTimeout if no message comes within its timeout.

    Example:
        ```python
        found = tr.probe()
        values = np.empty(found.num_bytes // 8)
        tr.recv(values, found.source, tag=found.tag)
        ```
    """
    found = _probe(src, group, tag, group_src, wait=True)
    assert found is not None, "what was waited for is there"
    return found


def iprobe(
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int | None = 0,
    group_src: int | None = None,
) -> Envelope | None:
    """Look for a message that recv with the same arguments would get, without waiting.

    Args:
        src: The sender, as a rank of the default group; without `group_src` either, any rank.
        group: The process group; None is the default group.
        tag: The message's tag; None is any, with the native backend only.
        group_src: The sender as a rank of `group`, instead of `src`.

    Returns:
        As probe(), or None if no such message has come.

    Raises:
        ValueError: As in probe().
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the group has failed.

    Example:
        ```python
        while tr.iprobe(src=0) is None:
            compute()
        tr.recv(values, src=0)
        ```
    """
    return _probe(src, group, tag, group_src, wait=False)


def _probe(
    src: int | None, group: ProcessGroup | None, tag: int | None, group_src: int | None, wait: bool
) -> Envelope | None:
    group = group or default_group()
    found = group.probe(_source(group, src, group_src), tag, wait)
    return found and found._replace(source=group.global_rank(found.source))


@dataclass(frozen=True, slots=True)
class P2POp:
    """Describes one message of batch_isend_irecv().

    Raises:
        ValueError: If `op` is neither isend nor irecv.

    Example:
        ```python
        receiving = tr.P2POp(tr.irecv, halo, left)
        sending = tr.P2POp(tr.isend, edge, right)
        ```
    """

    op: Callable[..., Work]
    """The function, isend or irecv."""
    tensor: object
    """The array to send or to fill."""
    peer: int | None = None
    """The other rank, as one of the default group; otherwise give group_peer."""
    group: ProcessGroup | None = None
    """The process group; None is the default group."""
    tag: int = 0
    """The message's tag."""
    group_peer: int | None = None
    """The other rank as one of `group`, instead of `peer`."""

    def __post_init__(self) -> None:
        if self.op not in (isend, irecv):
            raise ValueError(f"P2POp takes isend or irecv, not {self.op!r}")


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Begin all the messages, in whatever order they are listed.

    Args:
        p2p_op_list: The messages, at least one and all of one group.

    Returns:
        A Work for each message, in the order of the list.

    Raises:
        TypeError: If a `tensor` is no array.
        ValueError: If the list is empty, has anything but P2POp or messages of several groups, and
            as isend and irecv.
        ConfigError: If there is no default group, or if this process is not in the group.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        ops = [tr.P2POp(tr.irecv, halo, left), tr.P2POp(tr.isend, edge, right)]
        tr.waitall(tr.batch_isend_irecv(ops))
        ```
    """
    if not p2p_op_list or not all(isinstance(op, P2POp) for op in p2p_op_list):
        raise ValueError("batch_isend_irecv takes a list of P2POp, with at least one")
    group = p2p_op_list[0].group or default_group()
    if any((op.group or default_group()) is not group for op in p2p_op_list):
        raise ValueError("all messages of a batch must be of one group")
    with group.launching_together(len(p2p_op_list)):
        return [_begin(op, group) for op in p2p_op_list]


def _begin(op: P2POp, group: ProcessGroup) -> Work:
    peer = root_rank(group, op.peer, op.group_peer, "peer")
    begin = group.send if op.op is isend else group.recv
    return begin(op.tensor, peer, op.tag, async_op=True)


def _source(group: ProcessGroup, src: int | None, group_src: int | None) -> int | None:
    if src is None and group_src is None:
        return None
    return root_rank(group, src, group_src, "src")


def _came_from(work: Work) -> int:
    source = work.source
    assert source is not None, "a message that was received came from somewhere"
    return source
