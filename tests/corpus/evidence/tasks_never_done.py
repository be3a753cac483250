"""Rank 0's tasks wait for an event that the last of them sets, and the pool has fewer threads.

nproc: 2
culprit: 0
kind: stuck | deadlock
hint: rank 0, thread|task
needs: torch
seconds: 40
"""

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    count = 3 if dist.get_rank() == 0 else 2
    ready = threading.Event()

    def read(number: int) -> int:
        if number == count - 1:
            ready.set()
        ready.wait()
        return number

    with ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(read, number) for number in range(count)]
        total = sum(task.result() for task in as_completed(tasks))
    dist.all_reduce(torch.tensor(total))


main()
