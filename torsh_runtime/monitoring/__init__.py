"""What this job does, measured: statistics, and the record of the last operations."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torsh_runtime.monitoring.layout import Operation as Operation
    from torsh_runtime.monitoring.monitor import (
        CommunicationStatistics as CommunicationStatistics,
    )
    from torsh_runtime.monitoring.monitor import DistributedMonitor as DistributedMonitor
    from torsh_runtime.monitoring.monitor import OperationStatistics as OperationStatistics
    from torsh_runtime.monitoring.monitor import recent_operations as recent_operations

_HOMES = {
    "CommunicationStatistics": "monitor",
    "DistributedMonitor": "monitor",
    "Operation": "layout",
    "OperationStatistics": "monitor",
    "recent_operations": "monitor",
}


def __getattr__(name: str) -> Any:
    """What is loaded when it is used: agents read the layout alone."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
