"""A message there and another one here at the same time."""

from __future__ import annotations

from torsh_runtime.comm.apart import copy_into
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.group import ProcessGroup
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
    """Send `input` to one rank and receive `output` from one, or without src and group_src from
    any; the rank that it came from, as one of the default group. Nobody has to go first.

    Ranks and tag are as in send and recv. To and from this rank itself it is a copy, so that a ring
    may have one rank.
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
    sending = group.send(input, there, tag, async_op=True)
    source = group.recv(output, here, tag).source
    sending.wait()
    assert source is not None, "a message that was received came from somewhere"
    return group.global_rank(source)
