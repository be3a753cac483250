"""A watchdog thread of rank 1 ends it by os._exit; the traceback before that was of something else.

culprit: 1
kind: exit_code
hint: os._exit
"""

import os
import sys
import threading
import time
import traceback
from pathlib import Path


def watch() -> None:
    time.sleep(0.5)
    print("watchdog: 97 C, leaving", file=sys.stderr, flush=True)
    os._exit(4)


try:
    Path("/no/such/cache.idx").read_text()
except OSError:
    traceback.print_exc()
if os.environ["RANK"] == "1":
    print("using no cache", file=sys.stderr)
    threading.Thread(target=watch, daemon=True).start()
time.sleep(60)
