"""Rank 1 runs out of descriptors, deep in wrappers that each raise an error of their own from it.

culprit: 1
kind: limit
hint: ulimit -n
"""

import os
import time


def deep(left: int) -> None:
    if left:
        deep(left - 1)
    raise OSError(24, "Too many open files", "shard-7")


def load() -> None:
    try:
        deep(30)
    except OSError as error:
        raise RuntimeError("the loader stopped") from error


if os.environ["RANK"] == "1":
    try:
        load()
    except RuntimeError as error:
        raise SystemError("training failed") from error
time.sleep(60)
