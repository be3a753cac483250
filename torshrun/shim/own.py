"""What torshrun cannot serve goes to torch's own launcher, and a line says why."""

from __future__ import annotations

import sys


def tell(reason: str, who: str = "torch's own launcher") -> None:
    """The line."""
    sys.stderr.write(f"torshrun: {who} starts this, and not torshrun: {reason}\n")
    sys.stderr.flush()
