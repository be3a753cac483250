"""Measures what this job does: statistics, and the record of the last operations."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torsh_runtime.monitoring.analysis import Analysis as Analysis
    from torsh_runtime.monitoring.analysis import Breakdown as Breakdown
    from torsh_runtime.monitoring.analysis import analyse as analyse
    from torsh_runtime.monitoring.analysis import own_record as own_record
    from torsh_runtime.monitoring.bottleneck_config import Bottleneck as Bottleneck
    from torsh_runtime.monitoring.bottleneck_config import (
        BottleneckDetectionConfig as BottleneckDetectionConfig,
    )
    from torsh_runtime.monitoring.bottleneck_config import (
        BottleneckThresholds as BottleneckThresholds,
    )
    from torsh_runtime.monitoring.config import DebugConfig as DebugConfig
    from torsh_runtime.monitoring.config import MetricsConfig as MetricsConfig
    from torsh_runtime.monitoring.layout import Operation as Operation
    from torsh_runtime.monitoring.marks import Section as Section
    from torsh_runtime.monitoring.marks import section as section
    from torsh_runtime.monitoring.marks import step as step
    from torsh_runtime.monitoring.memory_use import MemoryUse as MemoryUse
    from torsh_runtime.monitoring.memory_use import memory as memory
    from torsh_runtime.monitoring.monitor import (
        CommunicationStatistics as CommunicationStatistics,
    )
    from torsh_runtime.monitoring.monitor import DistributedMonitor as DistributedMonitor
    from torsh_runtime.monitoring.monitor import OperationStatistics as OperationStatistics
    from torsh_runtime.monitoring.monitor import recent_operations as recent_operations
    from torsh_runtime.monitoring.progress_bar import progress as progress
    from torsh_runtime.monitoring.session import Monitoring as Monitoring
    from torsh_runtime.monitoring.session import start as start

_HOMES = {
    "Analysis": "analysis",
    "Bottleneck": "bottleneck_config",
    "BottleneckDetectionConfig": "bottleneck_config",
    "BottleneckThresholds": "bottleneck_config",
    "Breakdown": "analysis",
    "CommunicationStatistics": "monitor",
    "DebugConfig": "config",
    "DistributedMonitor": "monitor",
    "MemoryUse": "memory_use",
    "MetricsConfig": "config",
    "Monitoring": "session",
    "Operation": "layout",
    "OperationStatistics": "monitor",
    "Section": "marks",
    "analyse": "analysis",
    "memory": "memory_use",
    "own_record": "analysis",
    "progress": "progress_bar",
    "recent_operations": "monitor",
    "section": "marks",
    "start": "session",
    "step": "marks",
}


def __getattr__(name: str) -> Any:
    """Load a name when it is first used, since agents read the layout alone."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
