"""Rank 1 logs the exception that its training ends with, as many frameworks do, and exits with 1.

culprit: 1
kind: disk | exception
hint: df -h
"""

import logging
import os
import sys
import time

logging.basicConfig(format="%(asctime)s - %(levelname)s - %(message)s", level=logging.INFO)


def train() -> None:
    if os.environ["RANK"] == "1":
        raise OSError(28, "No space left on device", "/data/out/step-40.pt")
    time.sleep(60)


try:
    train()
except Exception:
    logging.exception("training failed")
    logging.info("uploading logs")
    sys.exit(1)
