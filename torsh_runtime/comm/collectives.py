"""Provides the collectives, as methods of a group."""

from __future__ import annotations

from collections.abc import Sequence

from torsh_runtime.backends.operation import Reduce, ReduceOp
from torsh_runtime.backends.work import Work
from torsh_runtime.comm.members import Members


class Collectives(Members):
    """Provides the collectives of a group; see ProcessGroup."""

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
