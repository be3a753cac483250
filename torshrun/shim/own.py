"""What torshrun cannot serve goes to torch's own launcher, and a line says why."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from torshrun.shim.hook import VARIABLE


def tell(reason: str, who: str = "torch's own launcher") -> None:
    """The line."""
    sys.stderr.write(f"torshrun: {who} starts this, and not torshrun: {reason}\n")
    sys.stderr.flush()


def be_torchs_own(reason: str, arguments: Sequence[str]) -> NoReturn:
    """Become torchrun, with these arguments."""
    tell(reason)
    command = [sys.executable, "-P", "-m", "torch.distributed.run", *arguments]
    os.execve(sys.executable, command, {**os.environ, VARIABLE: "0"})
