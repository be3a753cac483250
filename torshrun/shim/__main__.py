"""python -m torshrun.shim: torchrun's arguments, carried out by torshrun, or by torch's own where
torshrun cannot."""

import os
import sys


def main() -> None:
    from torshrun.shim.served import why_not

    reason = why_not(sys.argv[1:], os.environ)
    if reason:
        from torshrun.shim.own import be_torchs_own

        be_torchs_own(reason, sys.argv[1:])
    from torshrun.__main__ import main as run

    run()


if __name__ == "__main__":
    main()
