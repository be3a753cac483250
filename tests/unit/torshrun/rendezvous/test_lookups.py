"""Lookups that hang."""

from __future__ import annotations

import subprocess
import sys

HANGING = """
import asyncio, time
from torshrun.rendezvous.address import detach

async def main():
    detach()
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, "{}-{}".format, 1, 2) == "1-2"
    found = await loop.getaddrinfo("127.0.0.1", 80)
    assert found[0][4] == ("127.0.0.1", 80)
    try:
        await loop.run_in_executor(None, int, "x")
    except ValueError:
        print("told")
    try:
        async with asyncio.timeout(0.1):
            await loop.run_in_executor(None, time.sleep, 600)
    except TimeoutError:
        print("gave up")

asyncio.run(main())
"""


def test_a_lookup_that_hangs_keeps_no_process_alive() -> None:
    command = [sys.executable, "-c", HANGING]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "told\ngave up\n"
