"""Provides the collectives in which one rank has what others get or give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torsh_runtime.backends.work import Work
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.members import Members
from torsh_runtime.comm.roots import root_rank

if TYPE_CHECKING:
    from torsh_runtime.comm.group import ProcessGroup


class Rooted(Members):
    """Provides the copies from and to one rank of a group; see ProcessGroup."""

    _timeout: float

    def broadcast(self, tensor: object, src: int, async_op: bool = False) -> Work:
        """Copy rank src's `tensor` into the tensors of all other ranks.

        Args:
            tensor: The array to send or to fill, with the same number of elements and dtype on all
                ranks.
            src: The rank in the group that sends.
            async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
                operation until the Work is done.

        Returns:
            A Work, which is complete already unless `async_op` is given.

        Raises:
            TypeError: If `tensor` is no array.
            ValueError: If `src` is not a rank of the group.
            ConfigError: If this process is not in the group.
            CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted,
                from this call or from the Work's `wait()`. The group cannot be used afterwards.

        Example:
            ```python
            tr.group.WORLD.broadcast(weights, src=0)
            ```
        """
        if src not in self._members:  # a call of its own would cost as much as a small copy
            self._member(src)  # raises
        return self._backend.broadcast(tensor, src, self._timeout, async_op)

    def gather(
        self,
        tensor: object,
        gather_list: Sequence[object] | None,
        dst: int,
        async_op: bool = False,
    ) -> Work:
        """Copy rank r's `tensor` into rank dst's gather_list[r], for each r.

        Args:
            tensor: This rank's array; sizes may differ from rank to rank.
            gather_list: An array for each rank on rank `dst`, and None on the others.
            dst: The rank in the group that gets the arrays.
            async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
                operation until the Work is done.

        Returns:
            A Work, which is complete already unless `async_op` is given.

        Raises:
            TypeError: If an argument is no array.
            ValueError: If `dst` is not a rank of the group, if `gather_list` has not one array for
                each rank or is given on a different rank, or if sizes or dtypes do not fit
                together.
            ConfigError: If this process is not in the group.
            CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted,
                from this call or from the Work's `wait()`. The group cannot be used afterwards.

        Example:
            ```python
            group, own = tr.group.WORLD, np.ones(2)
            rows = [np.empty(2) for _ in range(group.world_size)] if group.rank == 0 else None
            group.gather(own, rows, dst=0)
            ```
        """
        outputs = self._only_at("gather_list", gather_list, dst)
        return self._backend.gather(outputs, tensor, self._member(dst), self._timeout, async_op)

    def scatter(
        self,
        tensor: object,
        scatter_list: Sequence[object] | None,
        src: int,
        async_op: bool = False,
    ) -> Work:
        """Copy rank src's scatter_list[r] into rank r's `tensor`, for each r.

        Args:
            tensor: The array to fill; sizes may differ from rank to rank.
            scatter_list: An array for each rank on rank `src`, and None on the others.
            src: The rank in the group that sends.
            async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
                operation until the Work is done.

        Returns:
            A Work, which is complete already unless `async_op` is given.

        Raises:
            TypeError: If an argument is no array.
            ValueError: If `src` is not a rank of the group, if `scatter_list` has not one array for
                each rank or is given on a different rank, or if sizes or dtypes do not fit
                together.
            ConfigError: If this process is not in the group.
            CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted,
                from this call or from the Work's `wait()`. The group cannot be used afterwards.

        Example:
            ```python
            group, part = tr.group.WORLD, np.empty(2)
            rows = [np.ones(2) for _ in range(group.world_size)] if group.rank == 0 else None
            group.scatter(part, rows, src=0)
            ```
        """
        inputs = self._only_at("scatter_list", scatter_list, src)
        return self._backend.scatter(tensor, inputs, self._member(src), self._timeout, async_op)


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
