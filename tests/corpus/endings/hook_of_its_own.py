"""A hook of rank 1's own shows its exception in a frame, and nothing that looks like a traceback.

culprit: 1
kind: permission
hint: owner and mode
"""

import os
import sys
import time


def show(kind: type, error: BaseException, trace: object) -> None:
    print("+----- oh no -----+\n| something broke |\n+-----------------+", file=sys.stderr)


sys.excepthook = show
if os.environ["RANK"] == "1":
    raise PermissionError(13, "Permission denied", "/data/out")
time.sleep(60)
