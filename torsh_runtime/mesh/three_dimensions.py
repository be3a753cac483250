"""Provides data, tensor and pipeline parallelism under fixed names, over a DeviceMesh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.backends.base import CommunicationStrategy
from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.mesh.layout import Layout
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.numpy_or_cupy import array_module

_NAMES = ("pp", "dp", "tp")
"""The axes in order: neighbouring ranks are in one tensor parallel group."""


@dataclass(frozen=True, slots=True)
class ThreeDParallelismConfig:
    """Configures the sizes of the three axes and how their ranks communicate.

    Raises:
        ConfigError: For sizes other than -1 or 1 and more, and if several are -1.

    Example:
        ```python
        config = tr.ThreeDParallelismConfig(dp_size=-1, tp_size=2, pp_size=2)
        manager = tr.ProcessGroupManager(config)
        ```
    """

    dp_size: int = 1
    """The number of data parallel ranks; -1 is what remains."""
    tp_size: int = 1
    """The number of tensor parallel ranks; -1 is what remains."""
    pp_size: int = 1
    """The number of stages of the pipeline; -1 is what remains."""
    comm_strategy: str = CommunicationStrategy.ADAPTIVE
    """A member of CommunicationStrategy, or its value."""

    def __post_init__(self) -> None:
        if any(size < 1 and size != -1 for size in self.shape) or self.shape.count(-1) > 1:
            raise ConfigError(
                f"sizes of pp, dp and tp are {self.shape}: each is 1 or more, and one may be -1"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the sizes in the order of the mesh: pp, dp, tp."""
        return self.pp_size, self.dp_size, self.tp_size


class RankMapping:
    """Holds a rank's index along each of the three axes.

    Attributes:
        global_rank: The rank.
        pp_rank: The stage of the pipeline.
        dp_rank: The index along the data parallel axis.
        tp_rank: The index along the tensor parallel axis.

    Raises:
        ConfigError: For a rank that does not exist, and if a size is -1: use the config of a
            ProcessGroupManager then.

    Example:
        ```python
        config = tr.ThreeDParallelismConfig(dp_size=2, tp_size=2, pp_size=2)
        place = tr.RankMapping(config, global_rank=5)
        place.pp_rank, place.dp_rank, place.tp_rank  # 1, 0, 1
        ```
    """

    def __init__(self, config: ThreeDParallelismConfig, global_rank: int) -> None:
        """Compute the indices.

        Args:
            config: The sizes of the axes.
            global_rank: The rank.
        """
        _check_within(global_rank, math.prod(_known(config)), "rank")
        self.global_rank = global_rank
        coordinate = Layout.dense(config.shape, _NAMES).coordinate(global_rank)
        self.pp_rank, self.dp_rank, self.tp_rank = coordinate

    @staticmethod
    def from_3d_coords(
        config: ThreeDParallelismConfig, dp_rank: int, tp_rank: int, pp_rank: int
    ) -> int:
        """Return the rank at these indices.

        Args:
            config: The sizes of the axes.
            dp_rank: The index along the data parallel axis.
            tp_rank: The index along the tensor parallel axis.
            pp_rank: The stage of the pipeline.

        Raises:
            ConfigError: If an index is out of range, or if a size is -1.

        Example:
            ```python
            config = tr.ThreeDParallelismConfig(dp_size=2, tp_size=2, pp_size=2)
            tr.RankMapping.from_3d_coords(config, dp_rank=0, tp_rank=1, pp_rank=1)  # 5
            ```
        """
        for name, at, size in zip(_NAMES, (pp_rank, dp_rank, tp_rank), _known(config), strict=True):
            _check_within(at, size, f"{name}_rank")
        return (pp_rank * config.dp_size + dp_rank) * config.tp_size + tp_rank


class ProcessGroupIds:
    """Names the groups along each axis by their indices along the others.

    The names are None for indices out of range.

    Args:
        config: The sizes of the axes.

    Raises:
        ConfigError: If a size is -1.

    Example:
        ```python
        ids = tr.ProcessGroupIds(tr.ThreeDParallelismConfig(dp_size=2, tp_size=2))
        ids.get_dp_group_id(tp_rank=1, pp_rank=0)  # "dp_group_tp1_pp0"
        ```
    """

    def __init__(self, config: ThreeDParallelismConfig) -> None:
        _known(config)
        self._sizes = {"pp": config.pp_size, "dp": config.dp_size, "tp": config.tp_size}

    def get_dp_group_id(self, tp_rank: int, pp_rank: int) -> str | None:
        """Return the name of a data parallel group.

        Args:
            tp_rank: The index along the tensor parallel axis.
            pp_rank: The stage of the pipeline.
        """
        return self._name("dp", tp=tp_rank, pp=pp_rank)

    def get_tp_group_id(self, dp_rank: int, pp_rank: int) -> str | None:
        """Return the name of a tensor parallel group.

        Args:
            dp_rank: The index along the data parallel axis.
            pp_rank: The stage of the pipeline.
        """
        return self._name("tp", dp=dp_rank, pp=pp_rank)

    def get_pp_group_id(self, dp_rank: int, tp_rank: int) -> str | None:
        """Return the name of a pipeline's group.

        Args:
            dp_rank: The index along the data parallel axis.
            tp_rank: The index along the tensor parallel axis.
        """
        return self._name("pp", dp=dp_rank, tp=tp_rank)

    def _name(self, axis: str, **at: int) -> str | None:
        if any(rank not in range(self._sizes[other]) for other, rank in at.items()):
            return None
        return "_".join([f"{axis}_group", *(f"{other}{rank}" for other, rank in at.items())])


def _known(config: ThreeDParallelismConfig) -> tuple[int, int, int]:
    if -1 in config.shape:
        raise ConfigError(
            f"{config} has a size that depends on the ranks: take the config of a "
            f"ProcessGroupManager that was made of it"
        )
    return config.shape


def _check_within(at: int, size: int, what: str) -> None:
    if at not in range(size):
        raise ConfigError(f"{what} {at}: there are {size}, from 0 on")


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
        self.mesh = DeviceMesh(config.shape, _NAMES, group, comm_strategy=config.comm_strategy)
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
