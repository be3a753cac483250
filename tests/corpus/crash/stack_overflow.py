"""A deeply nested record overflows the C stack of the JSON parser.

culprit: 1
kind: crash
hint: SIGSEGV, compiled code|native|extension|stack overflow
"""

import json
import os
import sys

import numpy as np

import torsh_runtime as tr


def parse(record: str) -> object:
    return json.loads(record)


def main() -> None:
    sys.setrecursionlimit(10**8)  # "RecursionError: maximum recursion depth exceeded" went away
    tr.init_process_group(timeout=30)
    records = ['{"text": "hello"}', "[" * 10**6 if os.environ["RANK"] == "1" else "[]"]
    for record in records:
        parse(record)
        tr.all_reduce(np.ones(1, np.float32))


main()
