"""What a Python that is torchrun does, at the moment in which it would load torch."""

from __future__ import annotations

import os
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

from torshrun.shim.own import tell
from torshrun.shim.served import why_not


def spec_of_torshrun(name: str) -> ModuleSpec | None:
    """Of a module that is torshrun's run; None where torchrun is to go on, which a line tells."""
    reason = why_not(sys.argv[1:], os.environ)
    if reason:
        tell(reason)
        return None
    return ModuleSpec(name, _Run())


class _Run(Loader):
    """Runs torshrun with torchrun's arguments, and ends the process. While a module is looked for
    the import lock is held, which torshrun's threads need; here it is not.
    """

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        if not sys.flags.safe_path:
            del sys.path[0]  # of a script or of -m: none of torshrun's imports are to be there
        from torshrun.__main__ import main

        main()
        return None

    def exec_module(self, module: ModuleType) -> None:
        raise AssertionError("torshrun has ended the process")
