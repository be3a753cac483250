"""A task of rank 1's event loop dies of an exception that nobody retrieves, and its queue stays empty.

nproc: 2
culprit: 1
kind: stuck | exception | missing
hint: all_reduce|epoll|select|event loop|asyncio
seconds: 40
"""

import asyncio

import numpy as np

import torsh_runtime as tr

RECORDS = {0: [{"x": 1.0}] * 8, 1: [{"x": 1.0}] * 4 + [{"x": None}] + [{"x": 1.0}] * 3}


async def fetch(queue, records):
    for record in records:
        await asyncio.sleep(0.02)
        await queue.put(np.full(4, record["x"] * 2))


async def train():
    queue = asyncio.Queue(maxsize=2)
    fetcher = asyncio.create_task(fetch(queue, RECORDS[tr.get_rank()]))
    for _ in range(8):
        batch = await queue.get()
        tr.all_reduce(batch)
    await fetcher


tr.init_process_group(timeout=10)
asyncio.run(train())
tr.destroy_process_group()
