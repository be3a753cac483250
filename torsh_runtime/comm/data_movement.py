"""Provides the collectives that copy arrays between all ranks; see `reductions` for arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torsh_runtime.backends.work import Work
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.members import Members
from torsh_runtime.comm.splitting import cut

if TYPE_CHECKING:
    from torsh_runtime.comm.group import ProcessGroup


class DataMovement(Members):
    """Provides the copies between all ranks of a group; see ProcessGroup."""

    _timeout: float

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
