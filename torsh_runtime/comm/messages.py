"""Messages from one rank to another, as in torch.distributed.

`src` and `dst` are ranks of the default group, `group_src` and `group_dst` the group's own.
Messages between two ranks with the same tag arrive in order. Up to 64 KiB of them (less in a node
of more than 32 ranks) need nobody who receives them yet; beyond that send waits for its receiver.
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
    """Send to one rank; returns when `tensor` may be changed again."""
    group = group or default_group()
    group.send(tensor, root_rank(group, dst, group_dst, "dst"), tag)


def recv(
    tensor: object,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int | None = 0,
    group_src: int | None = None,
) -> int:
    """Receive from one rank, or without src and group_src from any; the rank it came from, as one
    of the default group. tag: None is any.
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
    """Begin to send; `tensor` must stay as it is until the Work is done."""
    group = group or default_group()
    return group.send(tensor, root_rank(group, dst, group_dst, "dst"), tag, async_op=True)


def irecv(
    tensor: object,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int | None = 0,
    group_src: int | None = None,
) -> Work:
    """Begin to receive; Work.source is then the rank it came from, as one of the group's own.
    tag: None is any, and Work.tag tells which it was.
    """
    group = group or default_group()
    return group.recv(tensor, _source(group, src, group_src), tag, async_op=True)


def probe(
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int | None = 0,
    group_src: int | None = None,
) -> Envelope:
    """Wait for a message that recv with the same arguments would get, and leave it there: its
    source, as a rank of the default group, its tag and its size in bytes.

    Another thread may be faster in receiving it. ValueError with backends other than native and
    mpi, and with mpi if tag is None.
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
    """As probe, but None if no such message has come by now."""
    return _probe(src, group, tag, group_src, wait=False)


def _probe(
    src: int | None, group: ProcessGroup | None, tag: int | None, group_src: int | None, wait: bool
) -> Envelope | None:
    group = group or default_group()
    found = group.probe(_source(group, src, group_src), tag, wait)
    return found and found._replace(source=group.global_rank(found.source))


@dataclass(frozen=True, slots=True)
class P2POp:
    """One message of a batch_isend_irecv."""

    op: Callable[..., Work]
    """isend or irecv."""
    tensor: object
    peer: int | None = None
    """The other rank, as one of the default group; else give group_peer."""
    group: ProcessGroup | None = None
    tag: int = 0
    group_peer: int | None = None

    def __post_init__(self) -> None:
        if self.op not in (isend, irecv):
            raise ValueError(f"P2POp takes isend or irecv, not {self.op!r}")


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Begin all the messages, in whatever order they stand; a Work for each.

    Raises ValueError unless there is at least one and all are of one group.
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
