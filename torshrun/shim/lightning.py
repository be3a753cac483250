"""Replaces Lightning's own starts of ranks.

A program whose Trainer or Fabric would start the other ranks as copies of the program becomes
torshrun, with the program in all ranks.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from torshrun.shim.own import tell


def restart_program(launchers: ModuleType) -> None:
    """Change the module lightning.*.strategies.launchers.subprocess_script in memory.

    Where ranks are about to be started, the program ends and begins again under torshrun.
    """
    kind: Any = getattr(launchers, "_SubprocessScriptLauncher", None)
    own: Callable[[Any], None] | None = getattr(kind, "_call_children_scripts", None)
    if own is None:
        return

    @wraps(own)
    def _call_children_scripts(self: Any) -> None:
        reason = _why_not(self)
        if not reason:
            _restart(self.num_processes)
        tell(reason, "Lightning")
        own(self)

    kind._call_children_scripts = _call_children_scripts


def say_who_starts(launchers: ModuleType) -> None:
    """Print a line when Lightning forks or spawns ranks, which torshrun does not start."""
    kind: Any = getattr(launchers, "_MultiProcessingLauncher", None)
    own: Callable[..., Any] | None = getattr(kind, "launch", None)
    if own is None:
        return

    @wraps(own)
    def launch(self: Any, *args: Any, **named: Any) -> Any:
        tell(
            "its strategy forks or spawns ranks from within the program; ddp does not", "Lightning"
        )
        return own(self, *args, **named)

    kind.launch = launch


def _why_not(launcher: Any) -> str:
    if launcher.num_nodes != 1:
        return "with several nodes call torshrun, or `fabric run`, on each"
    if "hydra" in sys.modules:
        from importlib import import_module

        if import_module("hydra.core.hydra_config").HydraConfig.initialized():
            return "Hydra has given this run a directory of its own"
    command = _command()
    where = f"there is no file {sys.argv[0]!r} in {Path.cwd()}"
    return "" if command else f"the program cannot be run again, as {where}"


def _command() -> list[str]:
    """Return the program's words as torshrun takes them, or [] if it cannot be started again."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name:
        name = spec.name.removesuffix(".__main__")
        return ["-m", "--", name, *sys.argv[1:]]
    return ["--", *sys.argv] if Path(sys.argv[0]).is_file() else []


def _restart(workers: int) -> NoReturn:
    atexit._run_exitfuncs()  # the program ends here, so close its temporary directories and loggers
    sys.stdout.flush()
    sys.stderr.flush()
    torshrun = [sys.executable, "-P", "-m", "torshrun", f"--nproc-per-node={workers}"]
    os.execv(sys.executable, [*torshrun, "--standalone", *_command()])
