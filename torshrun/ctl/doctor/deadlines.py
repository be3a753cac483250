"""Makes calls that may hang in threads that are abandoned after a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def all_within(seconds: float, calls: Mapping[K, Callable[[], T]]) -> dict[K, T | Exception]:
    """Make all calls at once and return what each returned or raised.

    Calls not done within `seconds` give a TimeoutError. Their threads stay until the calls return,
    or the process ends.
    """
    answers: SimpleQueue[tuple[K, T | Exception]] = SimpleQueue()
    for key, call in calls.items():
        Thread(target=_answer, args=(answers, key, call), name="doctor", daemon=True).start()
    found: dict[K, T | Exception] = {}
    deadline = time.monotonic() + seconds
    while len(found) < len(calls):
        try:
            key, answer = answers.get(timeout=max(deadline - time.monotonic(), 0.0))
        except Empty:
            break
        found[key] = answer
    late = TimeoutError(f"no answer within {seconds:g} s")
    return {key: found.get(key, late) for key in calls}


def _answer(answers: SimpleQueue[tuple[K, T | Exception]], key: K, call: Callable[[], T]) -> None:
    try:
        answers.put((key, call()))
    except Exception as error:
        answers.put((key, error))
