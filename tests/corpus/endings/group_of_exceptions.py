"""Tasks of rank 1 fail together, as a group of exceptions.

culprit: 1
kind: exception
hint: rank 1 failed first
"""

import asyncio
import os
import time


async def read(shard: int) -> None:
    raise ValueError(f"shard {shard} is empty")


async def read_all() -> None:
    async with asyncio.TaskGroup() as group:
        for shard in range(2):
            group.create_task(read(shard))


if os.environ["RANK"] == "1":
    asyncio.run(read_all())
time.sleep(60)
