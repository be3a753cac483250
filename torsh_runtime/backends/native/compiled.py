"""The door to the compiled library."""

from __future__ import annotations

from pathlib import Path

from torsh_runtime.errors import BackendUnavailable

try:
    from torsh_runtime.backends.native import _native
except ImportError as error:
    raise BackendUnavailable(
        "the native backend",
        f"{Path(__file__).parents[2]} is a source tree without the compiled library ({error}): run "
        f"`pip install -e .` in it, or start from another directory to use the installed package.",
    ) from error

__all__ = ["_native"]
