"""Rank 1 logs the traceback of an import that it can do without, and stops later, by a message.

culprit: 1
kind: exit_code
hint: sys.exit
"""

import logging
import os
import sys
import time

logging.basicConfig(level=logging.INFO)
try:
    import no_such_kernels  # noqa: F401
except ImportError:
    logging.exception("the fast kernels are not there, using the slow ones")
for step in range(40):
    logging.info("step %d loss 0.5", step)
if os.environ["RANK"] == "1":
    sys.exit("the loss diverged at step 40: stopping")
time.sleep(60)
