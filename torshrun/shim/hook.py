"""Replaces torchrun by torshrun. Imported when Python starts.

A .pth file asks for it: the package's own, if TORSHRUN_AS_TORCHRUN says so, or the one of `torshctl
shim install`.

A Python that is torchrun becomes torshrun before anything of torch is loaded. In any other one
modules that start workers are changed as they are imported, and until then nothing happens. Every
start of Python pays for this, so it imports next to nothing.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

VARIABLE = "TORSHRUN_AS_TORCHRUN"
"""The variable that overrides the installation: 1 turns the shim on, values in OFF turn it off."""
OFF = ("0", "false", "no", "off")
_MODULE = "torch.distributed.run"
_CHANGES = {
    "torch.distributed.launcher.api": "elastic_launch.stand_in",
    _MODULE: "elastic_launch.end_by_code",
}
"""The modules to change once imported, each with the function in this package that does it."""
for _each in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric"):
    _launchers = f"{_each}.strategies.launchers"
    _CHANGES[f"{_launchers}.subprocess_script"] = "lightning.restart_program"
    _CHANGES[f"{_launchers}.multiprocessing"] = "lightning.say_who_starts"


class Watch:
    """Waits as a meta path finder for the modules to change, and finds nothing else."""

    def __init__(self) -> None:
        self._asks = False

    def find_spec(
        self,
        name: str,
        path: "Sequence[str] | None" = None,
        target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        if name not in _CHANGES or self._asks:
            return None
        from torshrun.workers.startup.torsh_start import ImportWatch

        self._asks = True
        try:
            return ImportWatch(name, _change).find_spec(name, path, target)
        finally:
            self._asks = False


class Torchrun:
    """Runs torshrun in place of the module torch, as a meta path finder for a Python that is
    torchrun.

    torch is imported first in torchrun's script, and before torchrun's module.
    """

    def find_spec(
        self,
        name: str,
        path: "Sequence[str] | None" = None,
        target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        if name != "torch" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        from torshrun.shim.instead import spec_of_torshrun

        return spec_of_torshrun(name)


def begin() -> None:
    """Install the finder, unless the variable forbids it."""
    if os.environ.get(VARIABLE, "").lower() not in OFF:
        sys.meta_path.insert(0, Torchrun() if is_torchrun() else Watch())


def _change(module: "ModuleType") -> None:
    from importlib import import_module

    place, name = _CHANGES[module.__name__].split(".")
    getattr(import_module(f"torshrun.shim.{place}"), name)(module)


def is_torchrun() -> bool:
    """Return whether Python was started as `torchrun` or `python -m torch.distributed.run`."""
    given, argv = sys.orig_argv, getattr(sys, "argv", None)
    if not argv or len(given) <= len(argv):
        return False
    word = given[len(given) - len(argv)]  # the script or module among Python's arguments
    if argv[0] == "-m":
        return (word.partition("m")[2] if word.startswith("-") else word) == _MODULE
    return os.path.basename(word) == "torchrun" and _is_torchs(word)  # noqa: PTH119


def _is_torchs(script: str) -> bool:
    """Return whether it is the script that torch's wheel installs, not another of that name."""
    try:
        with open(script, "rb") as file:  # noqa: PTH123
            return _MODULE.encode() in file.read(4096)
    except OSError:
        return False


begin()
