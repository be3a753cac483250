"""What a Python that is torchrun does, at the moment in which it would load torch."""

from __future__ import annotations

import os
import sys

from torshrun.shim.own import tell
from torshrun.shim.served import why_not


def run() -> None:
    """Be torshrun, with torchrun's arguments, and end; return where torchrun is to go on, which a
    line says why.
    """
    # Of a script or of -m: torshrun's own imports are not to be found there.
    own = [] if sys.flags.safe_path else sys.path[:1]
    del sys.path[: len(own)]
    reason = why_not(sys.argv[1:], os.environ)
    if reason:
        sys.path[:0] = own
        tell(reason)
        return
    from torshrun.__main__ import main

    main()
