"""An asyncio producer dies of an exception that nobody looks at; rank 1 waits for its event.

culprit: 1
kind: stuck | missing | deadlock | exception
hint: asyncio|await|wait
seconds: 60
"""

import asyncio
import os

import numpy as np

import torsh_runtime as tr


class Feed:
    def __init__(self, rank):
        self.rank = rank
        self.ready = asyncio.Event()
        self.batch = None

    async def produce(self):
        await asyncio.sleep(0.1)
        record = {"x": [1.0, 2.0]} if self.rank != 1 else {"features": [1.0, 2.0]}
        self.batch = np.array(record["x"])
        self.ready.set()


async def next_batch(rank):
    feed = Feed(rank)
    task = asyncio.create_task(feed.produce())
    await feed.ready.wait()
    await task
    return feed.batch


def main():
    tr.init_process_group(timeout=30)
    batch = asyncio.run(next_batch(int(os.environ["RANK"])))
    tr.all_reduce(batch)


main()
