"""Rank 0 reports to a metrics server that is not running, from a task group.

nproc: 3
culprit: 0
kind: exception | network
hint: refused|ExceptionGroup|exit code 1|exitcode +: 1
seconds: 60
"""

import asyncio
import json
import socket

import numpy as np

import torsh_runtime as tr


def unused_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


async def push(port: int, metrics: dict) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(json.dumps(metrics).encode())
    await writer.drain()
    writer.close()


async def report(port: int, history: list[dict]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for metrics in history:
            tasks.create_task(push(port, metrics))


def main() -> None:
    tr.init_process_group(timeout=30)
    history = []
    for step in range(6):
        loss = np.array([1.0 / (step + 1)])
        tr.all_reduce(loss)
        history.append({"step": step, "loss": float(loss[0])})
        if tr.get_rank() == 0 and step == 3:
            asyncio.run(report(unused_port(), history))


main()
