"""torshrun, killed at a point of its own work: `killed_at.py MODULE NAME PYTHON -m torshrun ...`.

NAME is a function of the module, or a method like Class.method. The process is killed as soon as
its first call is done.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import signal
import sys
from typing import Any

from torshrun.__main__ import main


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _fatal(work: Any) -> Any:
    """The same, which nobody survives."""

    @functools.wraps(work)
    def call(*given: Any, **named: Any) -> Any:
        work(*given, **named)
        _die()

    @functools.wraps(work)
    async def wait(*given: Any, **named: Any) -> Any:
        await work(*given, **named)
        _die()

    return wait if inspect.iscoroutinefunction(work) else call


def _arm(module: str, name: str) -> None:
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    setattr(owner, last, _fatal(getattr(owner, last)))


if __name__ == "__main__":
    _arm(*sys.argv[1:3])
    del sys.argv[1:6]  # and the ordinary command, up to its arguments
    main()
