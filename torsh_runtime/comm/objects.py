"""Provides collectives for picklable Python objects, as in torch.distributed.

Nothing is unpickled unless a rank of this job has sent it (see authenticated_pickle.py), and in a
job of several machines without a secret these raise ConfigError. `src`, `dst`, `group_src` and
`group_dst` are as in functional.py. Objects are pickled when the call is made. Without `async_op` a
call returns when its objects have arrived; with it, on the native backend, they have when the Work
that it returns is done, and other backends may block all the same. Within coalesce() all raise
RuntimeError. What goes over the nccl backend must be on a GPU, so there they raise ConfigError:
make a group with new_group(backend="native") for them, or all groups with "cpu:native,cuda:nccl".
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
    """Put rank r's `obj` into object_list[r], for each r.

    Args:
        object_list: A list with one element for each rank, which are replaced.
        obj: This rank's object, which can be pickled.
        group: The process group; None is the default group.
        async_op: Whether to return a Work instead of waiting. Backends other than native may block
            all the same.

    Returns:
        With `async_op` a Work; otherwise None, when the list is filled.

    Raises:
        ValueError: If `object_list` has not one element for each rank.
        ConfigError: If there is no default group, if this process is not in `group`, if the group's
            backend is nccl, or if the job has no secret although other machines can reach its
            store.
        RuntimeError: If it is called within coalesce().
        CommError: If the exchange fails, or if a received object has no valid proof of its sender.

    Example:
        ```python
        hosts = [None] * tr.get_world_size()
        tr.all_gather_object(hosts, socket.gethostname())
        ```
    """
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

    Args:
        obj: This rank's object, which can be pickled.
        object_gather_list: On rank dst a list with one element for each rank, which are replaced;
            None on the other ranks.
        dst: The rank that gets the objects, as one of the default group; 0 without `group_dst`.
        group: The process group; None is the default group.
        group_dst: That rank as one of `group`, instead of `dst`.
        async_op: Whether to return a Work instead of waiting. Backends other than native may block
            all the same.

    Returns:
        With `async_op` a Work; otherwise None, when this rank's part is done.

    Raises:
        ValueError: If both `dst` and `group_dst` are given or the rank is not in the group, and on
            rank dst if `object_gather_list` has not one element for each rank.
        ConfigError: If there is no default group, if this process is not in `group`, if the group's
            backend is nccl, or if the job has no secret although other machines can reach its
            store.
        RuntimeError: If it is called within coalesce().
        CommError: If the exchange fails, or if a received object has no valid proof of its sender.

    Example:
        ```python
        reports = [None] * tr.get_world_size() if tr.get_rank() == 0 else None
        tr.gather_object({"loss": 0.5}, reports, dst=0)
        ```
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
    """Put rank src's objects into object_list on all ranks.

    Args:
        object_list: The objects to send, or the list to fill, which is as long on all ranks.
        src: The rank that sends, as one of the default group; 0 without `group_src`.
        group: The process group; None is the default group.
        device: For programs written for torch; makes no difference.
        group_src: That rank as one of `group`, instead of `src`.
        async_op: Whether to return a Work instead of waiting. Backends other than native may block
            all the same.

    Returns:
        With `async_op` a Work; otherwise None, when the list is filled.

    Raises:
        ValueError: If both `src` and `group_src` are given or the rank is not in the group, or if
            `object_list` is not as long as the sender's.
        ConfigError: If there is no default group, if this process is not in `group`, if the group's
            backend is nccl, or if the job has no secret although other machines can reach its
            store.
        RuntimeError: If it is called within coalesce().
        CommError: If the exchange fails, or if a received object has no valid proof of its sender.

    Example:
        ```python
        settings = [{"lr": 0.1}] if tr.get_rank() == 0 else [None]
        tr.broadcast_object_list(settings, src=0)
        print(settings[0]["lr"])
        ```
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

    Args:
        scatter_object_output_list: A list with at least one element, of which the first is
            replaced.
        scatter_object_input_list: On rank src one object for each rank; None on the other ranks.
        src: The rank that sends, as one of the default group; 0 without `group_src`.
        group: The process group; None is the default group.
        group_src: That rank as one of `group`, instead of `src`.
        async_op: Whether to return a Work instead of waiting. Backends other than native may block
            all the same.

    Returns:
        With `async_op` a Work; otherwise None, when the object has arrived.

    Raises:
        ValueError: If both `src` and `group_src` are given or the rank is not in the group, if the
            output list is empty, and on rank src if there is not one object for each rank.
        ConfigError: If there is no default group, if this process is not in `group`, if the group's
            backend is nccl, or if the job has no secret although other machines can reach its
            store.
        RuntimeError: If it is called within coalesce().
        CommError: If the exchange fails, or if a received object has no valid proof of its sender.

    Example:
        ```python
        own, files = [None], ["a.bin", "b.bin"]  # with two ranks
        tr.scatter_object_list(own, files if tr.get_rank() == 0 else None, src=0)
        ```
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
    """Send objects to one rank. They never meet the messages of `send`, whatever their tags.

    Args:
        object_list: The objects, which can be pickled.
        dst: The receiver, as a rank of the default group.
        group: The process group; None is the default group.
        device: For programs written for torch; makes no difference.
        group_dst: The receiver as a rank of `group`, instead of `dst`.
        use_batch: For programs written for torch; makes no difference.

    Raises:
        ValueError: If not exactly one of `dst` and `group_dst` is given, or if it is this rank
            itself or no rank of the group.
        ConfigError: If there is no default group, if this process is not in `group`, if the group's
            backend is nccl, or if the job has no secret although other machines can reach its
            store.
        RuntimeError: If it is called within coalesce().
        CommError: If the exchange fails, or if a received object has no valid proof of its sender.

    Example:
        ```python
        if tr.get_rank() == 0:
            tr.send_object_list(["step", 7], dst=1)
        elif tr.get_rank() == 1:
            tr.recv_object_list(received := [None, None], src=0)
        ```
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
    """Receive objects that a rank has sent with send_object_list().

    Args:
        object_list: The list to fill, as long as the sender's.
        src: The sender, as a rank of the default group; without `group_src` either, any rank.
        group: The process group; None is the default group.
        device: For programs written for torch; makes no difference.
        group_src: The sender as a rank of `group`, instead of `src`.
        use_batch: For programs written for torch; makes no difference.

    Returns:
        The rank that the objects came from, as one of the default group.

    Raises:
        ValueError: If both `src` and `group_src` are given, if the sender is this rank itself or no
            rank of the group, or if `object_list` is not as long as the sender's.
        ConfigError: If there is no default group, if this process is not in `group`, if the group's
            backend is nccl, or if the job has no secret although other machines can reach its
            store.
        RuntimeError: If it is called within coalesce().
        CommError: If the exchange fails, or if a received object has no valid proof of its sender.

    Example:
        ```python
        received = [None, None]
        sender = tr.recv_object_list(received)  # from any rank
        ```
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
    """Return the number of bytes that each rank has to give."""
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
