"""Collectives for picklable Python objects, as in torch.distributed.

Nothing is unpickled that no rank of this job has sent (see seal.py), and in a job of several
machines without a secret these raise ConfigError. `src`, `dst`, `group_src` and `group_dst` are as
in functional.py. Objects are pickled when the call is made. Without `async_op` a call returns when
its objects are there; with it, on the native backend, they are when the Work that it returns is
done, and other backends may block all the same. Within coalesce() all raise RuntimeError. What goes
over the nccl backend must be on a GPU, so there they raise ConfigError: make a group with
new_group(backend="native") for them, or all groups with "cpu:native,cuda:nccl".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from torsh_runtime.backends.work import Work
from torsh_runtime.comm.authenticated_pickle import ALL, AuthenticatedMessage, Bytes
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.roots import root_rank
from torsh_runtime.errors import ConfigError


def all_gather_object(
    object_list: list[Any], obj: object, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """Put rank r's `obj` into object_list[r], for each r; one element for each rank."""
    group = _for_objects(group)
    _check_length("object_list", object_list, group.world_size)
    letters = [
        AuthenticatedMessage(group.name, "all_gather_object", r, ALL)
        for r in range(group.world_size)
    ]
    packed = group.session.seal.pack(obj, letters[group.rank])

    def exchange() -> None:
        parts = _room(_all_sizes(group, packed))
        group.all_gather(parts, packed)
        object_list[:] = group.session.seal.unpack_all(parts, letters)

    return _in_order(group, exchange, async_op)


def gather_object(
    obj: object,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    group_dst: int | None = None,
    async_op: bool = False,
) -> Work | None:
    """Put rank r's `obj` into rank dst's object_gather_list[r], for each r.

    object_gather_list: None on the other ranks. Without dst and group_dst, dst is 0.
    """
    group = _for_objects(group)
    root = root_rank(group, dst, group_dst, "dst", 0)
    if group.rank == root:
        _check_length("object_gather_list", object_gather_list, group.world_size)
    letters = [
        AuthenticatedMessage(group.name, "gather_object", r, root) for r in range(group.world_size)
    ]
    packed = group.session.seal.pack(obj, letters[group.rank])

    def exchange() -> None:
        sizes = _all_sizes(group, packed)
        parts = _room(sizes) if group.rank == root else None
        group.gather(packed, parts, root)
        if parts is not None and object_gather_list is not None:
            object_gather_list[:] = group.session.seal.unpack_all(parts, letters)

    return _in_order(group, exchange, async_op)


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: ProcessGroup | None = None,
    device: object = None,
    group_src: int | None = None,
    async_op: bool = False,
) -> Work | None:
    """Put rank src's objects into everyone's object_list, which is as long on all ranks.

    Without src and group_src, src is 0. device: for programs written for torch; makes no
    difference.
    """
    group = _for_objects(group)
    root = root_rank(group, src, group_src, "src", 0)
    letter = AuthenticatedMessage(group.name, "broadcast_object_list", root, ALL)
    packed = group.session.seal.pack(object_list, letter) if group.rank == root else None

    def exchange() -> None:
        size = np.array([0 if packed is None else packed.size], np.int64)
        group.broadcast(size, root)
        content = np.empty(size[0], np.uint8) if packed is None else packed
        group.broadcast(content, root)
        if packed is None:
            _fill(object_list, group.session.seal.unpack(content, letter))

    return _in_order(group, exchange, async_op)


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: ProcessGroup | None = None,
    group_src: int | None = None,
    async_op: bool = False,
) -> Work | None:
    """Put rank src's scatter_object_input_list[r] into rank r's scatter_object_output_list[0].

    scatter_object_input_list: None on the other ranks. Without src and group_src, src is 0.
    """
    group = _for_objects(group)
    root = root_rank(group, src, group_src, "src", 0)
    if not scatter_object_output_list:
        raise ValueError("scatter_object_output_list needs an element for the object to be put in")
    parts = None
    if group.rank == root:
        _check_length("scatter_object_input_list", scatter_object_input_list, group.world_size)
        parts = [
            group.session.seal.pack(each, _scattered(group, root, rank))
            for rank, each in enumerate(scatter_object_input_list or ())
        ]

    def exchange() -> None:
        size = np.empty(1, np.int64)
        sizes = None if parts is None else [np.array([part.size], np.int64) for part in parts]
        group.scatter(size, sizes, root)
        content = np.empty(size[0], np.uint8)
        group.scatter(content, parts, root)
        letter = _scattered(group, root, group.rank)
        scatter_object_output_list[0] = group.session.seal.unpack(content, letter)

    return _in_order(group, exchange, async_op)


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: ProcessGroup | None = None,
    device: object = None,
    group_dst: int | None = None,
    use_batch: bool = False,
) -> None:
    """Send the objects to one rank. They never meet the messages of `send`, whatever their tags.

    device, use_batch: for programs written for torch; they make no difference.
    """
    group = _for_objects(group)
    receiver = root_rank(group, dst, group_dst, "dst")
    packed = group.session.seal.pack(object_list, _message(group, group.rank, receiver))
    group.send_object(packed, receiver, _LISTS)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: ProcessGroup | None = None,
    device: object = None,
    group_src: int | None = None,
    use_batch: bool = False,
) -> int:
    """Receive objects from one rank, or from any, into object_list, which is as long as the
    sender's; the rank they came from, as one of the default group. Otherwise as send_object_list.
    """
    group = _for_objects(group)
    anyone = src is None and group_src is None
    sender = None if anyone else root_rank(group, src, group_src, "src")
    work = group.recv_object(sender, _LISTS)
    source = work.source
    assert source is not None, "what was received came from somewhere"
    letter = _message(group, source, group.rank)
    _fill(object_list, group.session.seal.unpack(work.content, letter))
    return group.global_rank(source)


_LISTS = 0
"""The tag of the messages of send_object_list."""


def _for_objects(group: ProcessGroup | None) -> ProcessGroup:
    group = group or default_group()
    group.session.seal.check()
    group.check_not_held_back("an exchange of Python objects")
    if group.backend == "nccl":
        raise ConfigError(
            "the nccl backend takes arrays on GPUs only, so it cannot carry Python objects: make "
            "a group for them with new_group(backend='native'), or one for both with "
            "'cpu:native,cuda:nccl'"
        )
    return group


def _in_order(group: ProcessGroup, exchange: Callable[[], None], async_op: bool) -> Work | None:
    work = group.in_order(exchange, async_op)
    return work if async_op else None


def _scattered(group: ProcessGroup, root: int, rank: int) -> AuthenticatedMessage:
    return AuthenticatedMessage(group.name, "scatter_object_list", root, rank)


def _message(group: ProcessGroup, sender: int, receiver: int) -> AuthenticatedMessage:
    return AuthenticatedMessage(group.name, "send_object_list", sender, receiver)


def _all_sizes(group: ProcessGroup, packed: Bytes) -> list[int]:
    """The number of bytes that each rank has to give."""
    sizes = np.empty(group.world_size, np.int64)
    group.all_gather_into_tensor(sizes, np.array([packed.size], np.int64))
    found: list[int] = sizes.tolist()
    return found


def _room(sizes: list[int]) -> list[Bytes]:
    return [np.empty(size, np.uint8) for size in sizes]


def _check_length(name: str, objects: list[Any] | None, wanted: int) -> None:
    if objects is None or len(objects) != wanted:
        has = "is None" if objects is None else f"has {len(objects)} elements"
        raise ValueError(f"{name} {has}; it needs one per rank, {wanted}")


def _fill(objects: list[Any], received: list[Any]) -> None:
    if len(objects) != len(received):
        raise ValueError(
            f"{len(received)} objects were received, and object_list has {len(objects)} elements: "
            f"make it as long as the sender's"
        )
    objects[:] = received
