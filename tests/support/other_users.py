"""Code that runs as another user of this host, in a forked process."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, Pipe
from typing import Any

import pytest

STRANGER = 65534
"""Nobody's uid."""
GUARD = 60.0

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


class Stranger:
    """The process; it ends with the `with` of `stranger`."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def says(self) -> Any:
        """What it said next, or returned. Raises what it raised."""
        assert self._pipe.poll(GUARD), "the other user's process says nothing"
        kind, what = self._pipe.recv()
        assert kind == "said", f"the other user's process failed:\n{what}"
        return what

    def tell(self, what: object) -> None:
        """What it waits for in `pipe.recv()`."""
        self._pipe.send(what)


@contextmanager
def stranger(body: Callable[[Connection], Any], uid: int = STRANGER) -> Iterator[Stranger]:
    """body(pipe) as the user `uid`; pipe.send(("said", x)) says x, as returning it does. It finds
    no modules that this process has not imported.
    """
    here, there = Pipe()
    child = os.fork()
    if child == 0:
        _be_stranger(body, there, uid)
    there.close()
    try:
        yield Stranger(here)
    finally:
        here.close()
        os.kill(child, 9)
        os.waitpid(child, 0)


def _be_stranger(body: Callable[[Connection], Any], pipe: Connection, uid: int) -> None:
    try:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        pipe.send(("said", body(pipe)))
        pipe.poll(GUARD)  # what it holds stays until the test is over
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))
    os._exit(0)
