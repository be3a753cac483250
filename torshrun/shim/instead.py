"""Runs torshrun in a Python that is torchrun, at the moment at which it would load torch."""

from __future__ import annotations

import os
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

from torshrun.shim.own import tell
from torshrun.shim.served import why_not


def spec_of_torshrun(name: str) -> ModuleSpec | None:
    """Return the spec of a module that runs torshrun.

    Returns None, and prints the reason, if torchrun is to continue.
    """
    reason = why_not(sys.argv[1:], os.environ)
    if reason:
        tell(reason)
        return None
    return ModuleSpec(name, _Run())


class _Run(Loader):
    """Runs torshrun with torchrun's arguments, and ends the process.

    While a finder looks for a module the import lock is held, which torshrun's threads need. While
    a module is created it is not.
    """

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        if not sys.flags.safe_path:
            del sys.path[
                0
            ]  # the directory of the script or of -m must not shadow torshrun's imports
        from torshrun.__main__ import main

        main()
        return None

    def exec_module(self, module: ModuleType) -> None:
        raise AssertionError("torshrun has ended the process")
