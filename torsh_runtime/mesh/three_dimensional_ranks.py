"""Says by arithmetic which ranks are where on the axes of data, tensor and pipeline parallelism."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torsh_runtime.backends.base import CommunicationStrategy
from torsh_runtime.errors import ConfigError
from torsh_runtime.mesh.layout import Layout

NAMES = ("pp", "dp", "tp")


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
        coordinate = Layout.dense(config.shape, NAMES).coordinate(global_rank)
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
        for name, at, size in zip(NAMES, (pp_rank, dp_rank, tp_rank), _known(config), strict=True):
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
