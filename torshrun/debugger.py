"""The debugger that runs torshrun itself, if one does, and how it reaches the workers.

VS Code's debugpy and PyCharm's debugger are both pydevd, which follows the processes that are
started by Python's os and subprocess by changing their command lines. The keeper starts workers, so
the agent has to ask for the changed command line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

WITHOUT_FROZEN_MODULES = "-Xfrozen_modules=off"
"""For a Python that is debugged: without it breakpoints may be missed, and pydevd says so."""


def follows_processes() -> bool:
    """Return whether torshrun runs in a debugger that also wants to debug the processes it
    starts.
    """
    return _pydevd() is not None


def followed(argv: Sequence[str]) -> Sequence[str]:
    """Return the command by which such a debugger reaches the process that is started next."""
    pydevd = _pydevd()
    if pydevd is None:
        return argv
    changed: list[str] = pydevd.patch_args([*argv])
    if changed == [*argv]:  # no Python
        return argv
    pydevd.send_process_created_message()  # PyCharm expects one more connection
    return [changed[0], WITHOUT_FROZEN_MODULES, *changed[1:]]


def _pydevd() -> ModuleType | None:
    """Return the part of the debugger that changes command lines; None if it does not change them.

    With "subProcess": false, or without PyCharm's "Attach to subprocess automatically", the
    function in it only warns.
    """
    import _posixsubprocess

    is_on = getattr(_posixsubprocess.fork_exec, "__name__", "") == "new_fork_exec"
    return sys.modules.get("_pydev_bundle.pydev_monkey") if is_on else None
