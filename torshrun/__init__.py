"""The launcher: starts, watches and restarts the worker processes of a training job.

`torshrun.launch(function, ...)` runs a function in workers, from a program or a notebook.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing would have to be imported
if TYPE_CHECKING:
    from typing import Any

    from torshrun.functions.launching import (
        LaunchFailed as LaunchFailed,
    )
    from torshrun.functions.launching import (
        launch as launch,
    )

__all__ = ["LaunchFailed", "launch"]


def __getattr__(name: str) -> Any:
    """Load what runs functions only when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torshrun.functions import launching

    return getattr(launching, name)
