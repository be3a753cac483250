"""The entry point: `torshctl` and `python -m torshrun.ctl`."""

import signal
import sys


def main() -> None:
    # An interrupt ends this process as it would any other: what was asked for stands.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from torshrun.ctl.command import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
