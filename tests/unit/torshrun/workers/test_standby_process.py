"""The agent's end of a process that waits, which may say what it likes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from torsh_runtime.framing import frame
from torshrun.workers.standby_process import StandbyProcess


class Listener:
    def __init__(self) -> None:
        self.heard: list[Mapping[str, Any]] = []
        self.is_lost = False
        self.parked = StandbyProcess(0, asyncio.get_running_loop(), self.hear, self.lose)
        self.parked.end.setblocking(False)

    def hear(self, _: StandbyProcess, message: Mapping[str, Any]) -> None:
        self.heard.append(message)

    def lose(self, _: StandbyProcess) -> None:
        self.is_lost = True

    def say(self, *texts: str) -> None:
        frames = (frame(text.encode()) for text in texts)
        self.parked.end.send(b"".join(frames))


async def turns_until(is_over: Callable[[], bool]) -> AsyncIterator[None]:
    """Of the loop."""
    async with asyncio.timeout(10):
        while not is_over():
            yield await asyncio.sleep(0)


def test_who_says_much_leaves_others_their_turn() -> None:
    async def body() -> list[int]:
        listener = Listener()
        text = json.dumps({"text": "x" * 8192})
        count = 0
        try:
            while True:
                listener.say(text)
                count += 1
        except BlockingIOError:
            pass
        is_over = lambda: len(listener.heard) == count  # noqa: E731
        turns = [len(listener.heard) async for _ in turns_until(is_over)]
        listener.parked.close()
        return turns

    turns = asyncio.run(body())
    assert any(0 < heard < turns[-1] for heard in turns), turns


def test_several_messages_come_at_once_and_those_of_another_kind_are_empty() -> None:
    async def body() -> list[Mapping[str, Any]]:
        listener = Listener()
        listener.say("[1]", '{"a": 1}', "2", '{"b": 2}')
        async for _ in turns_until(lambda: len(listener.heard) == 4):
            pass
        listener.parked.close()
        return listener.heard

    assert asyncio.run(body()) == [{}, {"a": 1}, {}, {"b": 2}]


@pytest.mark.parametrize("text", ["", "{", "\x00", "[" * 100000])
def test_what_is_no_message_ends_the_talk(text: str) -> None:
    async def body() -> bool:
        listener = Listener()
        listener.say(text, "{}")
        async for _ in turns_until(lambda: listener.is_lost):
            pass
        listener.parked.close()
        return not listener.heard

    assert asyncio.run(body())
