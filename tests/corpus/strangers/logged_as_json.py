"""Rank 1 catches its exception, writes it to a log of JSON lines, and exits with 1.

nproc: 2
culprit: 1
kind: exception | exit_code
hint: exit code 1|exited with 1|status 1|IndexError
seconds: 30
"""

import json
import logging
import os
import sys
import traceback

import numpy as np

import torsh_runtime as tr


class JsonHandler(logging.FileHandler):
    def emit(self, record):
        line = {"level": record.levelname, "message": record.getMessage()}
        if record.exc_info:
            line["stack"] = traceback.format_exception(*record.exc_info)
        self.stream.write(json.dumps(line) + "\n")
        self.flush()


log = logging.getLogger("service")
log.propagate = False
log.addHandler(JsonHandler(f"train-{os.environ['RANK']}.jsonl"))


def train(rank):
    table = np.arange(10.0)
    for step in range(20):
        index = step if rank == 1 else step % 10
        value = table[index : index + 1] if rank != 1 else np.array([table[index]])
        tr.all_reduce(value)


tr.init_process_group()
try:
    train(tr.get_rank())
except Exception:
    log.exception("training failed")
    sys.exit(1)
tr.destroy_process_group()
