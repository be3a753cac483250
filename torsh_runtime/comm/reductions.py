"""Provides the collectives that reduce, as methods of a group and as functions.

The functions here and in `data_movement`, `rooted` and `barriers` have torch.distributed's names,
argument order and defaults. `group=None` means the default group, which `init_process_group` made.
`src` and `dst` are ranks of the default group, `group_src` and `group_dst` the group's own: give
one of the two. With `async_op=True` a call returns a Work at once and the arrays are the
operation's until that is done; otherwise it returns None when the operation is complete. Examples
in docstrings assume `import numpy as np` and `import torsh_runtime as tr`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torsh_runtime.backends.operation import PremulSum, Reduce, ReduceOp
from torsh_runtime.backends.work import Work
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.members import Members
from torsh_runtime.comm.roots import root_rank

if TYPE_CHECKING:
    from torsh_runtime.comm.group import ProcessGroup


class Reductions(Members):
    """Provides the reductions of a group; see ProcessGroup."""

    _timeout: float

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
