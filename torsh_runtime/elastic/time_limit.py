"""Reports how much of the job's time is left."""

from __future__ import annotations

import os
import time

from torsh_runtime.contract import ends_at


def time_left() -> float | None:
    """Return the seconds until the job's time on this node is over; None if no end is known.

    The result is never negative. The end is that of the scheduler's allocation, or of torshrun's
    --time-limit, as it was known when torshrun started. Workers are asked to stop (SIGTERM) some
    seconds before it: by --shutdown-timeout and 5 s.

    Raises:
        ConfigError: If TORSH_ENDS_AT is no number.

    Example:
        ```python
        left = tr.elastic.time_left()
        if left is not None and left < 300:
            checkpointer.save(step, state)
        ```
    """
    end = ends_at(os.environ)
    return None if end is None else max(end - time.monotonic(), 0.0)
