"""How much of the job's time is left."""

from __future__ import annotations

import os
import time

from torsh_runtime.contract import ends_at


def time_left() -> float | None:
    """Seconds until the job's time on this node is over, 0 at least; None if no end is known.

    The end is that of the scheduler's allocation, or of torshrun's --time-limit, as it was known
    when torshrun started. Workers are asked to stop (SIGTERM) some seconds before it: by
    --shutdown-timeout and 5 s. ConfigError if TORSH_ENDS_AT is no number.
    """
    end = ends_at(os.environ)
    return None if end is None else max(end - time.monotonic(), 0.0)
