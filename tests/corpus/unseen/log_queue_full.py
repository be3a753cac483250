"""The thread that writes rank 1's log dies, its queue fills up, and the next line of log waits forever.

nproc: 2
culprit: 1
kind: stuck | deadlock
hint: rank 1, queue|log|put|thread
needs: torch
seconds: 60
"""

import logging
import queue
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

lines: queue.Queue = queue.Queue(maxsize=16)


class Patient(logging.Handler):
    """Loses no line: waits while the writer is behind."""

    def emit(self, record: logging.LogRecord) -> None:
        lines.put(self.format(record))


def writer(path: str, columns: int) -> None:
    with open(path, "w") as file:
        while True:
            line = lines.get()
            step, loss = line.split(" ")[-columns:]
            file.write(f"{step},{float(loss):.3f}\n")


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=12))
    rank = dist.get_rank()
    threading.Thread(target=writer, args=(f"log{rank}.csv", 2), daemon=True).start()
    log = logging.getLogger("train")
    log.setLevel(logging.INFO)
    log.addHandler(Patient())
    log.propagate = False
    loss = torch.ones(1)
    for step in range(60):
        dist.all_reduce(loss)
        loss /= 2
        if rank == 1 and step == 5:
            log.info("%d %s", step, "n/a")
        log.info("%d %.4f", step, loss.item())


main()
