"""Reports what torshrun cannot serve, and what torch's own launcher starts therefore."""

from __future__ import annotations

import sys


def tell(reason: str, who: str = "torch's own launcher") -> None:
    """Print a line with the reason on stderr."""
    sys.stderr.write(f"torshrun: {who} starts this, not torshrun: {reason}\n")
    sys.stderr.flush()
