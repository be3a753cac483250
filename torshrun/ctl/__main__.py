"""Starts torshctl, for the command `torshctl` and for `python -m torshrun.ctl`."""

import signal
import sys


def main() -> None:
    # Let an interrupt end this process by the signal. Requests already made remain in the store.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from torshrun.ctl.command import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
