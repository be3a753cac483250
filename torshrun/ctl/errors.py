"""Why a command of torshctl did not end well."""

from __future__ import annotations

from torsh_runtime.errors import TorshError


class NotDone(TorshError):
    """What was asked for is not so: there is no such run or node, or it did not happen in time."""
