"""Converts the timeouts that users pass."""

from __future__ import annotations

from datetime import timedelta

from torsh_runtime.errors import ConfigError

DEFAULT_TIMEOUT = 1800.0
"""Seconds that an operation may take unless init_process_group gets a timeout, as in torch."""
LONGEST_TIMEOUT = 30 * 86400.0
"""The longest timeout in seconds, 30 days: anything longer is assumed to be a mistake."""

Timeout = float | timedelta | None


def seconds(timeout: Timeout, default: float, name: str = "timeout") -> float:
    """Return the timeout in seconds, or `default` for None.

    Raises ConfigError with the option's `name` if it is no number of seconds, is not positive or
    exceeds LONGEST_TIMEOUT.
    """
    if timeout is None:
        return default
    try:
        value = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} {timeout!r} is no number of seconds") from None
    if not 0 < value <= LONGEST_TIMEOUT:
        raise ConfigError(
            f"{name} must be more than 0 and at most {LONGEST_TIMEOUT:g} s (30 days), not "
            f"{value:g} s"
        )
    return value
