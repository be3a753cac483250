"""The entry point: `torshrun` and `python -m torshrun`."""

import gc
import signal


def main() -> None:
    # Until the agent listens itself an interrupt ends this process as it would any other.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()  # what is imported stays: collecting it again and again costs a tenth of the start
    from torshrun.cli import main as run

    run()


if __name__ == "__main__":
    main()
