"""python -m torsh_runtime.elastic.tied PID COMMAND...: runs a command that ends with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the command in this process, with SIGTERM when the thread that started it ends."""
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() == int(parent):  # else it has ended already
        os.execv(command[0], command)


if __name__ == "__main__":
    main()
