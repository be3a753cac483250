"""Imported when Python starts, where torshrun stands in for torchrun. A .pth file asks for it: the
package's own, if TORSHRUN_AS_TORCHRUN says so, or the one of `torshctl shim install`.

A Python that is torchrun becomes torshrun here, before anything of torch is loaded. In any other
one modules that start workers are changed as they are imported, and until then nothing happens:
this costs every start of Python, so it imports next to nothing.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

VARIABLE = "TORSHRUN_AS_TORCHRUN"
"""1: as if the shim were installed; 0: as if it were not."""
_MODULE = "torch.distributed.run"
_CHANGES = {
    "torch.distributed.launcher.api": "elastic_launch.stand_in",
    _MODULE: "elastic_launch.end_by_code",
}
"""By the module that is changed once it has been imported, what changes it, in this package."""
for _each in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric"):
    _launchers = f"{_each}.strategies.launchers"
    _CHANGES[f"{_launchers}.subprocess_script"] = "lightning.restart_program"
    _CHANGES[f"{_launchers}.multiprocessing"] = "lightning.say_who_starts"


class Watch:
    """A meta path finder that waits for the modules that are changed, and finds nothing else."""

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


def begin() -> None:
    """Do all that, unless the variable forbids it."""
    if os.environ.get(VARIABLE) == "0":
        return
    found = torchrun_here()
    if found is None:
        sys.meta_path.insert(0, Watch())
        return
    options, arguments = found
    command = [sys.executable, *options, "-P", "-m", "torshrun.shim", *arguments]
    os.execv(sys.executable, command)


def _change(module: "ModuleType") -> None:
    from importlib import import_module

    place, name = _CHANGES[module.__name__].split(".")
    getattr(import_module(f"torshrun.shim.{place}"), name)(module)


def torchrun_here() -> "tuple[list[str], list[str]] | None":
    """Python's own options and torchrun's arguments, if this Python has been started as `torchrun`
    or `python -m torch.distributed.run`; else None.
    """
    given, argv = sys.orig_argv, getattr(sys, "argv", None)
    if not argv or len(given) <= len(argv):
        return None
    place = len(given) - len(argv)  # of the script or module among Python's arguments
    word, before = given[place], given[1:place]
    if argv[0] == "-m":
        if word.startswith("-"):  # -mNAME
            letters, _, word = word.partition("m")
        elif before:
            letters = before.pop().removesuffix("m")
        else:
            return None
        options = before if letters == "-" else [*before, letters]
        return (options, argv[1:]) if word == _MODULE else None
    if os.path.basename(word) != "torchrun" or not _is_torchs(word):  # noqa: PTH119
        return None
    return before, argv[1:]


def _is_torchs(script: str) -> bool:
    """Whether that is the script that torch's wheel installs, and not another of its name."""
    try:
        with open(script, "rb") as file:  # noqa: PTH123
            return _MODULE.encode() in file.read(4096)
    except OSError:
        return False


begin()
