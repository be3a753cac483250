"""Provides data, tensor and pipeline parallelism under fixed names, over a DeviceMesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.mesh.three_dimensional_ranks import (
    NAMES,
    ProcessGroupIds,
    RankMapping,
    ThreeDParallelismConfig,
)
from torsh_runtime.numpy_or_cupy import array_module

"""The axes in order: neighbouring ranks are in one tensor parallel group."""


@dataclass(frozen=True, slots=True)
class CommunicationStats:
    """Sums up what a rank has done in the groups of all axes.

    Example:
        ```python
        stats = manager.get_communication_stats()
        print(f"{stats.total_communications} calls, {stats.bandwidth_gbps:.1f} Gbit/s")
        ```
    """

    total_communications: int
    """Number of operations."""
    total_bytes_communicated: int
    """Number of bytes."""
    average_latency_ms: float
    """Milliseconds that an operation took on average."""
    bandwidth_gbps: float
    """Gigabits per second."""


class ProcessGroupManager:
    """Provides the groups of the three axes and collectives in them, for ProcessGroup's arrays.

    Attributes:
        mesh: The DeviceMesh with the axes "pp", "dp" and "tp".
        config: The sizes, without -1.
        group_ids: The groups' names.
        rank_mapping: This rank's index along each axis.

    Raises:
        CommError: From all methods that communicate, as ProcessGroup.

    Example:
        ```python
        config = tr.ThreeDParallelismConfig(dp_size=-1, tp_size=2)
        manager = tr.ProcessGroupManager(config)
        manager.all_reduce_dp(gradient)
        ```
    """

    def __init__(
        self, config: ThreeDParallelismConfig, main_process_group: ProcessGroup | None = None
    ) -> None:
        """Create the mesh of the group's ranks and start to measure its operations.

        Args:
            config: The sizes of the axes.
            main_process_group: The ranks; None is the default group.

        Raises:
            ConfigError: As DeviceMesh.
            CommError: As DeviceMesh.
        """
        group = main_process_group or default_group()
        self.mesh = DeviceMesh(config.shape, NAMES, group, comm_strategy=config.comm_strategy)
        self.mesh.measure()
        pp_size, dp_size, tp_size = self.mesh.shape
        made = ThreeDParallelismConfig(dp_size, tp_size, pp_size, config.comm_strategy)
        self.config, self.group_ids = made, ProcessGroupIds(made)
        self.rank_mapping = RankMapping(made, group.rank)

    def get_dp_process_group(self) -> ProcessGroup:
        """Return this rank's data parallel group, which is created on first use."""
        return self.mesh.get_group("dp")

    def get_tp_process_group(self) -> ProcessGroup:
        """Return this rank's tensor parallel group, which is created on first use."""
        return self.mesh.get_group("tp")

    def get_pp_process_group(self) -> ProcessGroup:
        """Return the group of this rank's pipeline, which is created on first use."""
        return self.mesh.get_group("pp")

    def send_to_next_stage(self, tensor: object, next_rank: int, micro_batch_id: int) -> None:
        """Send an activation to the next stage.

        Args:
            tensor: The array to send.
            next_rank: The receiver, a rank in the pipeline's group.
            micro_batch_id: The microbatch's number, which the receiver gives, too.

        Example:
            ```python
            stage = manager.rank_mapping.pp_rank
            manager.send_to_next_stage(activation, stage + 1, micro_batch_id=0)
            ```
        """
        self.get_pp_process_group().send(tensor, next_rank, _forward(micro_batch_id))

    def send_to_prev_stage(self, tensor: object, prev_rank: int, micro_batch_id: int) -> None:
        """Send a gradient to the previous stage.

        Args:
            tensor: The array to send.
            prev_rank: The receiver, a rank in the pipeline's group.
            micro_batch_id: The microbatch's number, which the receiver gives, too.

        Example:
            ```python
            stage = manager.rank_mapping.pp_rank
            manager.send_to_prev_stage(gradient, stage - 1, micro_batch_id=0)
            ```
        """
        self.get_pp_process_group().send(tensor, prev_rank, _backward(micro_batch_id))

    def receive_from_prev_stage(
        self, shape: Sequence[int], prev_rank: int, micro_batch_id: int, dtype: Any = np.float32
    ) -> NDArray[Any]:
        """Receive an activation from the previous stage and return it.

        Args:
            shape: Its shape.
            prev_rank: The sender, a rank in the pipeline's group.
            micro_batch_id: The microbatch's number.
            dtype: Its dtype.

        Example:
            ```python
            stage = manager.rank_mapping.pp_rank
            activation = manager.receive_from_prev_stage((32, 512), stage - 1, micro_batch_id=0)
            ```
        """
        return self._receive(shape, prev_rank, _forward(micro_batch_id), dtype)

    def receive_from_next_stage(
        self, shape: Sequence[int], next_rank: int, micro_batch_id: int, dtype: Any = np.float32
    ) -> NDArray[Any]:
        """Receive a gradient from the next stage and return it.

        Args:
            shape: Its shape.
            next_rank: The sender, a rank in the pipeline's group.
            micro_batch_id: The microbatch's number.
            dtype: Its dtype.

        Example:
            ```python
            stage = manager.rank_mapping.pp_rank
            gradient = manager.receive_from_next_stage((32, 512), stage + 1, micro_batch_id=0)
            ```
        """
        return self._receive(shape, next_rank, _backward(micro_batch_id), dtype)

    def all_reduce_dp(self, tensor: object) -> None:
        """Sum the tensor in place over the data parallel group.

        Example:
            ```python
            manager.all_reduce_dp(gradient)
            gradient /= manager.config.dp_size
            ```
        """
        self.get_dp_process_group().all_reduce(tensor)

    def all_reduce_tp(self, tensor: object) -> None:
        """Sum the tensor in place over the tensor parallel group.

        Example:
            ```python
            manager.all_reduce_tp(partial_sums)
            ```
        """
        self.get_tp_process_group().all_reduce(tensor)

    def all_gather_tp(self, tensor: Any) -> Any:
        """Return the tensors of all tensor parallel ranks, concatenated along dimension 0.

        Args:
            tensor: An array or a tensor, of the same shape and dtype on all these ranks.

        Example:
            ```python
            rows = manager.all_gather_tp(own_rows)
            ```
        """
        group = self.get_tp_process_group()
        rows, *rest = tensor.shape
        gathered = _empty(tensor, (rows * group.world_size, *rest))
        group.all_gather_into_tensor(gathered, tensor)
        return gathered

    def reduce_scatter_tp(self, tensor: Any) -> Any:
        """Return this rank's rows of the sum over the tensor parallel group.

        Args:
            tensor: An array or a tensor, of the same shape and dtype on all these ranks.

        Raises:
            ConfigError: If the group's size does not divide the number of rows.

        Example:
            ```python
            own_rows = manager.reduce_scatter_tp(partial_sums)
            ```
        """
        group = self.get_tp_process_group()
        rows, *rest = tensor.shape
        if rows % group.world_size:
            raise ConfigError(f"{rows} rows cannot be cut evenly for {group.world_size} ranks")
        own = _empty(tensor, (rows // group.world_size, *rest))
        group.reduce_scatter_tensor(own, tensor)
        return own

    def get_communication_stats(self) -> CommunicationStats:
        """Return the measurements of all operations of this rank in the three groups so far."""
        found = [each for axis in self.mesh.stats().values() for each in axis.values()]
        calls, num_bytes = sum(each.calls for each in found), sum(each.bytes for each in found)
        seconds = sum(each.seconds for each in found)
        latency = seconds / calls * 1e3 if calls else 0.0
        bandwidth = num_bytes * 8 / seconds / 1e9 if seconds else 0.0
        return CommunicationStats(calls, num_bytes, latency, bandwidth)

    def _receive(self, shape: Sequence[int], src: int, tag: int, dtype: Any) -> NDArray[Any]:
        received = np.empty(tuple(shape), dtype)
        self.get_pp_process_group().recv(received, src, tag)
        return received


def _empty(like: Any, shape: tuple[int, ...]) -> Any:
    """Return an uninitialized array or tensor of the same kind, dtype and device."""
    if hasattr(like, "new_empty"):
        return like.new_empty(shape)
    return array_module(like).empty(shape, like.dtype)


def _forward(micro_batch_id: int) -> int:
    return 2 * micro_batch_id


def _backward(micro_batch_id: int) -> int:
    return 2 * micro_batch_id + 1
