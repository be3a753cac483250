"""Rank 1 fails, and then exit handlers of its tools write tracebacks and warnings of their own.

culprit: 1
kind: file
hint: not where it is looked for
"""

import atexit
import os
import sys
import time
import traceback
import warnings
from pathlib import Path


def finish() -> None:
    try:
        raise ConnectionError("the tracker's server is gone")
    except ConnectionError:
        traceback.print_exc()
    warnings.warn("the run was not finished", stacklevel=1)
    print("tracker: find logs in ./runs", file=sys.stderr)


atexit.register(finish)
if os.environ["RANK"] == "1":
    Path("/no/such/folder/train.idx").read_text()
time.sleep(60)
