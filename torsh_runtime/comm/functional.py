"""Provides the collectives, as methods of a group and as functions.

The functions have torch.distributed's names, argument order and defaults. Examples in their
docstrings assume `import numpy as np` and `import torsh_runtime as tr`.

`group=None` means the default group, which `init_process_group` made. `src` and `dst` are ranks of
the default group, `group_src` and `group_dst` the group's own: give one of the two. With
`async_op=True` a call returns a Work at once and the arrays are the operation's until that is done;
otherwise it returns None when the operation is complete. See Backend for what arrays may be and
what may be raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torsh_runtime.backends.base import Backend
from torsh_runtime.backends.operation import PremulSum, Reduce, ReduceOp
from torsh_runtime.backends.work import Work
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.roots import root_rank
from torsh_runtime.comm.splitting import cut
from torsh_runtime.comm.timeouts import Timeout, seconds

if TYPE_CHECKING:
    from torsh_runtime.comm.group import ProcessGroup


class Collectives:
    """Provides the collectives of a group; see ProcessGroup."""

    _backend: Backend
    _timeout: float
    _members: Sequence[int]

    @property
    def rank(self) -> int:
        """Return this process's rank in the group, or -1 if it is no member."""
        return self._backend.rank

    @property
    def world_size(self) -> int:
        """Return the number of ranks in the group, or -1 if this process is no member."""
        return self._backend.world_size

    def all_reduce(self, tensor: object, op: Reduce = ReduceOp.SUM, async_op: bool = False) -> Work:
        """Reduce `tensor` in place over all ranks.

        All ranks give the same number of elements and the same dtype, and get identical bits.

        Args:
            tensor: The array to reduce, of any shape.
            op: The reduction: a ReduceOp, or premul_sum(factor).
            async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
                operation until the Work is done.

        Returns:
            A Work, which is complete already unless `async_op` is given.

        Raises:
            TypeError: If `tensor` is no array, or if `op` is not defined for its dtype.
            ValueError: If `tensor` is read-only.
            ConfigError: If this process is not in the group.
            CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted,
                from this call or from the Work's `wait()`. The group cannot be used afterwards.

        Example:
            ```python
            group = tr.new_group([0, 1])
            if group.rank >= 0:
                group.all_reduce(gradient, tr.ReduceOp.AVG)
            ```
        """
        return self._backend.all_reduce(tensor, op, self._timeout, async_op)

    def reduce(
        self, tensor: object, dst: int, op: Reduce = ReduceOp.SUM, async_op: bool = False
    ) -> Work:
        """Reduce over all ranks into rank dst's `tensor`; the others' keep their contents.

        Args:
            tensor: The array to reduce, with the same number of elements and dtype on all ranks.
            dst: The rank in the group that gets the result.
            op: The reduction: a ReduceOp, or premul_sum(factor).
            async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
                operation until the Work is done.

        Returns:
            A Work, which is complete already unless `async_op` is given.

        Raises:
            TypeError: If `tensor` is no array, or if `op` is not defined for its dtype.
            ValueError: If `dst` is not a rank of the group.
            ConfigError: If this process is not in the group.
            CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted,
                from this call or from the Work's `wait()`. The group cannot be used afterwards.

        Example:
            ```python
            group = tr.group.WORLD
            group.reduce(loss, dst=0, op=tr.ReduceOp.AVG)
            ```
        """
        return self._backend.reduce(tensor, self._member(dst), op, self._timeout, async_op)

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

    def all_gather_into_tensor(
        self, output_tensor: object, input_tensor: object, async_op: bool = False
    ) -> Work:
        """Gather the inputs of all ranks, in order of rank, into one array.

        Args:
            output_tensor: The array to fill, with world_size times as many elements as
                `input_tensor`.
            input_tensor: This rank's part, of the same size and dtype on all ranks.
            async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
                operation until the Work is done.

        Returns:
            A Work, which is complete already unless `async_op` is given.

        Raises:
            TypeError: If an argument is no array.
            ValueError: If the sizes or dtypes do not fit together, or if the output is read-only.
            ConfigError: If this process is not in the group.
            CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted,
                from this call or from the Work's `wait()`. The group cannot be used afterwards.

        Example:
            ```python
            group = tr.group.WORLD
            rows = np.empty((group.world_size, 2))
            group.all_gather_into_tensor(rows, np.array([group.rank, 1.0]))
            ```
        """
        return self._backend.all_gather(output_tensor, input_tensor, self._timeout, async_op)

    def all_gather(
        self, tensor_list: Sequence[object], tensor: object, async_op: bool = False
    ) -> Work:
        """Copy rank r's `tensor` into tensor_list[r], for each r.

        Args:
            tensor_list: An array for each rank, in order of rank. Their sizes may differ, but that
                of element r must be that of rank r's `tensor`.
            tensor: This rank's array.
            async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
                operation until the Work is done.

        Returns:
            A Work, which is complete already unless `async_op` is given.

        Raises:
            TypeError: If an argument is no array.
            ValueError: If there is not one output for each rank, or if sizes or dtypes do not fit
                together.
            ConfigError: If this process is not in the group.
            CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted,
                from this call or from the Work's `wait()`. The group cannot be used afterwards.

        Example:
            ```python
            group = tr.group.WORLD
            ranks = [np.empty(1, np.int64) for _ in range(group.world_size)]
            group.all_gather(ranks, np.array([group.rank]))
            ```
        """
        outputs = self._one_per_rank("tensor_list", tensor_list)
        return self._backend.all_gather(outputs, tensor, self._timeout, async_op)

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

    def reduce_scatter_tensor(
        self, output: object, input: object, op: Reduce = ReduceOp.SUM, async_op: bool = False
    ) -> Work:
        """Reduce the inputs of all ranks; rank r gets part r of the result.

        Args:
            output: The array for this rank's part.
            input: The array to reduce, with world_size times as many elements as `output`.
            op: The reduction: a ReduceOp, or premul_sum(factor).
            async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
                operation until the Work is done.

        Returns:
            A Work, which is complete already unless `async_op` is given.

        Raises:
            TypeError: If an argument is no array, or if `op` is not defined for its dtype.
            ValueError: If the sizes or dtypes do not fit together, or if the output is read-only.
            ConfigError: If this process is not in the group.
            CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted,
                from this call or from the Work's `wait()`. The group cannot be used afterwards.

        Example:
            ```python
            group, own = tr.group.WORLD, np.empty(4, np.float32)
            group.reduce_scatter_tensor(own, np.ones(4 * group.world_size, np.float32))
            ```
        """
        return self._backend.reduce_scatter(output, input, op, self._timeout, async_op)

    def reduce_scatter(
        self,
        output: object,
        input_list: Sequence[object],
        op: Reduce = ReduceOp.SUM,
        async_op: bool = False,
    ) -> Work:
        """Reduce input_list[r] of all ranks into rank r's output; sizes may differ with r.

        Args:
            output: The array for this rank's part.
            input_list: An array for each rank, in order of rank.
            op: The reduction: a ReduceOp, or premul_sum(factor).
            async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
                operation until the Work is done.

        Returns:
            A Work, which is complete already unless `async_op` is given.

        Raises:
            TypeError: If an argument is no array, or if `op` is not defined for its dtype.
            ValueError: If there is not one input for each rank, or if sizes or dtypes do not fit
                together.
            ConfigError: If this process is not in the group.
            CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted,
                from this call or from the Work's `wait()`. The group cannot be used afterwards.

        Example:
            ```python
            group, own = tr.group.WORLD, np.empty(4)
            group.reduce_scatter(own, [np.ones(4) for _ in range(group.world_size)])
            ```
        """
        inputs = self._one_per_rank("input_list", input_list)
        return self._backend.reduce_scatter(output, inputs, op, self._timeout, async_op)

    def all_to_all_single(self, output: object, input: object, async_op: bool = False) -> Work:
        """Send part r of `input` to rank r, and put what rank r sent into part r of `output`.

        Args:
            output: The array to fill, of world_size equal parts.
            input: The array to send, of world_size equal parts.
            async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
                operation until the Work is done.

        Returns:
            A Work, which is complete already unless `async_op` is given.

        Raises:
            TypeError: If an argument is no array.
            ValueError: If the arrays have no such parts, if their sizes or dtypes differ, or if the
                output is read-only.
            ConfigError: If this process is not in the group.
            CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted,
                from this call or from the Work's `wait()`. The group cannot be used afterwards.

        Example:
            ```python
            group = tr.group.WORLD
            tokens = np.arange(2 * group.world_size)
            group.all_to_all_single(received := np.empty_like(tokens), tokens)
            ```
        """
        return self._backend.all_to_all(output, input, self._timeout, async_op)

    def all_to_all(
        self,
        output_tensor_list: Sequence[object],
        input_tensor_list: Sequence[object],
        async_op: bool = False,
    ) -> Work:
        """Send input_tensor_list[r] to rank r's output_tensor_list[own rank].

        Args:
            output_tensor_list: An array to fill for each rank, in order of rank. Sizes may differ.
            input_tensor_list: An array to send to each rank, in order of rank.
            async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
                operation until the Work is done.

        Returns:
            A Work, which is complete already unless `async_op` is given.

        Raises:
            TypeError: If an argument is no array.
            ValueError: If there is not one array for each rank, or if sizes or dtypes do not fit
                together.
            ConfigError: If this process is not in the group.
            CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted,
                from this call or from the Work's `wait()`. The group cannot be used afterwards.

        Example:
            ```python
            group = tr.group.WORLD
            sent = [np.array([group.rank, r]) for r in range(group.world_size)]
            group.all_to_all(received := [np.empty(2, np.int64) for _ in sent], sent)
            ```
        """
        outputs = self._one_per_rank("output_tensor_list", output_tensor_list)
        inputs = self._one_per_rank("input_tensor_list", input_tensor_list)
        return self._backend.all_to_all(outputs, inputs, self._timeout, async_op)

    def barrier(self, async_op: bool = False, timeout: float | None = None) -> Work:
        """Wait until every rank has called it.

        Args:
            async_op: Whether to return a Work at once, which is done when every rank has come.
            timeout: Seconds that this may take; None is the group's timeout.

        Returns:
            A Work, which is complete already unless `async_op` is given.

        Raises:
            ConfigError: If this process is not in the group.
            CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted,
                from this call or from the Work's `wait()`. The group cannot be used afterwards.

        Example:
            ```python
            tr.group.WORLD.barrier(timeout=600)  # seconds
            ```
        """
        seconds = self._timeout if timeout is None else timeout
        return self._backend.barrier(seconds, async_op)

    def _member(self, rank: int) -> int:
        if rank not in self._members:
            raise ValueError(f"{rank!r} is not a rank of the group (0 to {self.world_size - 1})")
        return rank

    def _one_per_rank(self, name: str, arrays: Sequence[object]) -> list[object]:
        if len(arrays) != self.world_size:
            raise ValueError(
                f"{name} has {len(arrays)} arrays; it needs one per rank, {self.world_size}"
            )
        return [*arrays]

    def _only_at(
        self, name: str, arrays: Sequence[object] | None, root: int
    ) -> list[object] | None:
        if self.rank == root:
            return self._one_per_rank(name, arrays or ())
        if arrays:
            raise ValueError(f"{name} is for rank {root} only; give None on rank {self.rank}")
        return None


def premul_sum(factor: float) -> PremulSum:
    """Return the reduction that sums each rank's values times that rank's factor.

    Args:
        factor: This rank's factor, which may differ from rank to rank.

    Returns:
        The reduction, to be passed as `op`.

    Raises:
        TypeError: From an operation, for arrays that are not of a floating-point dtype.

    Example:
        ```python
        mean = tr.premul_sum(1 / tr.get_world_size())
        tr.all_reduce(gradient, mean)
        ```
    """
    return PremulSum(factor)


def all_reduce(
    tensor: object,
    op: Reduce = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce `tensor` in place over all ranks.

    Every rank gives the same number of elements and the same dtype, and gets identical bits.

    Args:
        tensor: The array to reduce, of any shape and of a dtype that `op` is defined for.
        op: The reduction: a ReduceOp, or premul_sum(factor).
        group: The process group; None is the default group.
        async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
            operation until the Work is done.

    Returns:
        With `async_op` a Work, whose result is `[tensor]`; otherwise None, when `tensor` has the
            result.

    Raises:
        TypeError: If `tensor` is no array, or if `op` is not defined for its dtype.
        ValueError: If `tensor` is read-only.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        largest = np.full(3, tr.get_rank(), np.float32)
        tr.all_reduce(largest, tr.ReduceOp.MAX)  # world size - 1 on all ranks
        work = tr.all_reduce(gradient, async_op=True)
        work.wait()
        ```
    """
    group = group or default_group()
    work = group._backend.all_reduce(tensor, op, group._timeout, async_op)  # see broadcast()
    return work.giving((tensor,)) if async_op else None


def reduce(
    tensor: object,
    dst: int | None = None,
    op: Reduce = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Reduce over all ranks into rank dst's `tensor`; the others' keep their contents.

    Args:
        tensor: The array to reduce, with the same number of elements and dtype on all ranks.
        dst: The rank that gets the result, as one of the default group.
        op: The reduction: a ReduceOp, or premul_sum(factor).
        group: The process group; None is the default group.
        async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
            operation until the Work is done.
        group_dst: That rank as one of `group`, instead of `dst`.

    Returns:
        With `async_op` a Work, whose result is `[tensor]`; otherwise None, when this rank's part is
            done.

    Raises:
        TypeError: If `tensor` is no array, or if `op` is not defined for its dtype.
        ValueError: If not exactly one of `dst` and `group_dst` is given, or if it names no rank of
            the group.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        loss = np.array([0.5], np.float64)
        tr.reduce(loss, dst=0, op=tr.ReduceOp.AVG)
        if tr.get_rank() == 0:
            print(loss[0])
        ```
    """
    group = group or default_group()
    work = group.reduce(tensor, root_rank(group, dst, group_dst, "dst"), op, async_op)
    return work.giving((tensor,)) if async_op else None


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


def reduce_scatter(
    output: object,
    input_list: Sequence[object],
    op: Reduce = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce input_list[r] of all ranks into rank r's `output`; sizes may differ with r.

    Args:
        output: The array for this rank's part.
        input_list: An array for each rank, in order of rank, of the sizes of their outputs and of
            the same dtype.
        op: The reduction: a ReduceOp, or premul_sum(factor).
        group: The process group; None is the default group.
        async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
            operation until the Work is done.

    Returns:
        With `async_op` a Work, whose result is `[output]`; otherwise None, when `output` has the
            result.

    Raises:
        TypeError: If an argument is no array, or if `op` is not defined for its dtype.
        ValueError: If there is not one input for each rank, or if sizes or dtypes do not fit
            together.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        own = np.empty(4, np.float32)
        tr.reduce_scatter(own, [np.ones(4, np.float32) for _ in range(tr.get_world_size())])
        ```
    """
    work = (group or default_group()).reduce_scatter(output, input_list, op, async_op)
    return work.giving((output,)) if async_op else None


def reduce_scatter_tensor(
    output: object,
    input: object,
    op: Reduce = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce the inputs of all ranks; rank r gets part r of the result.

    `reduce_scatter_single` is a different name of it.

    Args:
        output: The array for this rank's part.
        input: The array to reduce, with world_size times as many elements as `output`, and of its
            dtype.
        op: The reduction: a ReduceOp, or premul_sum(factor).
        group: The process group; None is the default group.
        async_op: Whether to return a Work at once instead of waiting. The arrays belong to the
            operation until the Work is done.

    Returns:
        With `async_op` a Work, whose result is `[output]`; otherwise None, when `output` has the
            result.

    Raises:
        TypeError: If an argument is no array, or if `op` is not defined for its dtype.
        ValueError: If the sizes or dtypes do not fit together, or if the output is read-only.
        ConfigError: If there is no default group, or if this process is not in `group`.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        gradient = np.ones(4 * tr.get_world_size(), np.float32)
        own = np.empty(4, np.float32)
        tr.reduce_scatter_tensor(own, gradient, tr.ReduceOp.AVG)
        ```
    """
    work = (group or default_group()).reduce_scatter_tensor(output, input, op, async_op)
    return work.giving((output,)) if async_op else None


reduce_scatter_single = reduce_scatter_tensor


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


def barrier(
    group: ProcessGroup | None = None,
    async_op: bool = False,
    device_ids: object = None,
    timeout: Timeout = None,
) -> Work | None:
    """Wait until every rank of the group has called it.

    Args:
        group: The process group; None is the default group.
        async_op: Whether to return a Work at once, which is done when every rank has come.
        device_ids: For programs written for torch; makes no difference.
        timeout: Seconds or a timedelta that this may take, at most 30 days; None is the group's
            timeout.

    Returns:
        With `async_op` a Work; otherwise None, when every rank has come.

    Raises:
        ConfigError: If there is no default group, if this process is not in `group`, or if
            `timeout` is no positive number of seconds up to 30 days.
        CommError: If the operation fails: PeerLost, CommTimeout, CommMismatch or CommAborted, from
            this call or from the Work's `wait()`. The group cannot be used afterwards.

    Example:
        ```python
        if tr.get_rank() == 0:
            download(path)
        tr.barrier(timeout=600)  # seconds
        ```
    """
    group = group or default_group()
    work = group.barrier(async_op, seconds(timeout, group.timeout))
    return work if async_op else None


def monitored_barrier(
    group: ProcessGroup | None = None, timeout: Timeout = None, wait_all_ranks: bool = False
) -> None:
    """Wait until every rank has called it; the error names the ranks that did not come.

    Args:
        group: The process group; None is the default group.
        timeout: Seconds or a timedelta that this may take, at most 30 days; None is the group's
            timeout.
        wait_all_ranks: For programs written for torch, where False names one missing rank only.
            Here all are always named.

    Raises:
        ConfigError: As in `barrier`.
        CommTimeout: If ranks did not come in time; on every rank, with these in `missing`.
        CommError: If the barrier fails in a different way. The group cannot be used afterwards.

    Example:
        ```python
        try:
            tr.monitored_barrier(timeout=60)
        except tr.CommTimeout as error:
            print("missing ranks:", error.missing)
            raise
        ```
    """
    group = group or default_group()
    group.barrier(timeout=seconds(timeout, group.timeout))
