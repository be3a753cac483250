"""Runs a script with runpy.run_path, for --run-path: python run_path.py SCRIPT [ARGUMENT ...]

It is started by its path and imports nothing of torshrun, so any interpreter can run it.
"""

import os.path
import runpy
import sys


def run() -> None:
    """Make sys.argv and sys.path what they are for a script of its own, and run it."""
    script = sys.argv[1]
    del sys.argv[0]
    if not sys.flags.safe_path:
        del sys.path[0]  # this file's directory
        if not os.path.isdir(script):  # noqa: PTH112  # whose entry is made by runpy
            sys.path.insert(0, os.path.dirname(os.path.realpath(script)))  # noqa: PTH120
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    run()
