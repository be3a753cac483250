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
    from types import ModuleType

VARIABLE = "TORSHRUN_AS_TORCHRUN"
"""1: as if the shim were installed; 0: as if it were not."""
_MODULE = "torch.distributed.run"


def begin() -> None:
    """Do all that, unless the variable forbids it."""
    if os.environ.get(VARIABLE) == "0":
        return
    found = torchrun_here()
    if found is not None:
        options, arguments = found
        command = [sys.executable, *options, "-P", "-m", "torshrun.shim", *arguments]
        os.execv(sys.executable, command)
    from torshrun.workers.startup.torsh_start import ImportWatch

    wanted = {"torch.distributed.launcher.api": _stand_in, _MODULE: _end_by_code}
    for package in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric"):
        wanted[f"{package}.strategies.launchers.subprocess_script"] = _restart_program
        wanted[f"{package}.strategies.launchers.multiprocessing"] = _say_who_starts
    sys.meta_path.insert(0, ImportWatch(wanted))


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


def _stand_in(module: "ModuleType") -> None:
    from torshrun.shim.elastic_launch import stand_in

    stand_in(module)


def _end_by_code(module: "ModuleType") -> None:
    from torshrun.shim.elastic_launch import end_by_code

    end_by_code(module)


def _restart_program(module: "ModuleType") -> None:
    from torshrun.shim.lightning import restart_program

    restart_program(module)


def _say_who_starts(module: "ModuleType") -> None:
    from torshrun.shim.lightning import say_who_starts

    say_who_starts(module)


begin()
