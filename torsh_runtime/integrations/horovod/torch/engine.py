"""Matches the calls of a set of ranks by name, and carries them out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.objects import all_gather_object
from torsh_runtime.errors import CommAborted, CommTimeout, ConfigError
from torsh_runtime.integrations.horovod.torch.calls import (
    Call,
    CallTable,
    Key,
    Matched,
    Message,
)
from torsh_runtime.integrations.horovod.torch.operations import Operations
from torsh_runtime.integrations.horovod.torch.requests import Request

_LONGEST_PAUSE = 0.02
"""Longest time between two turns, in seconds, if no rank has anything new."""
_MOST_NAMED = 5
"""Largest number of calls that an error names."""
_JOIN = Call("join", "")


class Engine:
    """Takes requests from any thread, in any order, and carries out those that all ranks have made.

    While there are requests, a thread exchanges new calls with the other ranks, one turn at a time.
    So ranks may call operations in different orders, and it is noticed at once if ranks wait for
    different operations.
    """

    def __init__(self, group: ProcessGroup, make_gpu_group: Callable[[int], ProcessGroup]) -> None:
        """Take the groups that carry out the operations.

        group: a group of these ranks that has no other user.
        make_gpu_group: makes a group for tensors on the GPU of the given number.
        """
        self._group = group
        self._operations = Operations(group, make_gpu_group)
        self._table = CallTable(group.world_size)
        self._changed = threading.Condition()
        self._new: list[Request] = []
        self._requests: dict[Key, Request] = {}
        self._kept: dict[Call, Any] = {}  # shared memory made by others after this rank joined
        self._callers = {threading.main_thread().ident}
        self._waiting: dict[int, Request] = {}
        self._join: Request | None = None
        self._error: BaseException | None = None
        self._closing = False
        self._idle_since = 0.0
        self._thread: threading.Thread | None = None

    @property
    def is_in_node(self) -> bool:
        """Return whether all ranks are on one node."""
        return self._group.is_in_node

    def submit(self, request: Request) -> Request:
        """Have the request carried out once all ranks have made this call, and return it.

        Raises ConfigError if one with the same key is under way, or the error with which the engine
        ended.
        """
        key = request.call.key
        with self._changed:
            if self._error is not None:
                raise self._error
            if request.call in self._kept:
                request.finish(self._kept.pop(request.call))
                return request
            if key in self._requests:
                raise ConfigError(
                    f"{request.call} is under way already: synchronize() it before the name is "
                    f"used again, or give it another name"
                )
            self._requests[key] = request
            self._new.append(request)
            self._callers.add(threading.get_ident())
            self._start()
            self._changed.notify()
        return request

    def join(self) -> Request:
        """Join: submit nothing more from this rank until all ranks have joined."""
        request = Request(_JOIN, ())
        with self._changed:
            if self._error is not None:
                raise self._error
            self._join = request
            self._start()
            self._changed.notify()
        return request

    def wait(self, request: Request) -> Any:
        """Wait until the request is over, and return its result. Raises the request's error."""
        if not request.done():
            thread = threading.get_ident()
            with self._changed:
                self._waiting[thread] = request
                self._changed.notify()
            try:
                return request.wait()
            finally:
                with self._changed:
                    self._waiting.pop(thread, None)
        return request.wait()

    def close(self) -> None:
        """Stop the engine, and leave the group. Pending requests raise CommAborted."""
        with self._changed:
            self._closing = True
            is_idle = not self._requests and self._join is None
            self._changed.notify()
        if not is_idle:
            self._group.abort()
        if self._thread is not None:
            self._thread.join(5.0)
        self._operations.close()
        self._group.close()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="horovod", daemon=True)
            self._thread.start()

    @torch.no_grad()
    def _serve(self) -> None:
        try:
            while self._has_work():
                self._turn()
            self._end(CommAborted("horovod was shut down"))
        except BaseException as error:
            self._end(error)
            self._group.abort()

    def _has_work(self) -> bool:
        """Wait until there is a request. Return False when the engine must stop."""
        with self._changed:
            while not self._requests and self._join is None and not self._closing:
                self._changed.wait()
            return not self._closing

    def _turn(self) -> None:
        messages: list[Message] = [Message((), False, None)] * self._group.world_size
        own = self._message()
        all_gather_object(messages, own, self._group)
        self._table.add(messages)
        matched = self._table.take()
        for each in matched:
            self._carry_out(each)
        if self._table.all_joined():
            self._finish_join(self._table.clear_joined())
        elif self._table.is_stuck():
            self._fail_all()
        elif not matched and not any(message.calls for message in messages):
            self._pause()
        else:
            self._idle_since = 0.0

    def _message(self) -> Message:
        with self._changed:
            new, self._new = self._new, []
            return Message([each.call for each in new], self._join is not None, self._awaited_key())

    def _awaited_key(self) -> Key | None:
        """Return the key that the main thread waits for, if all threads that made calls are
        waiting.
        """
        waiting = {caller for caller, each in self._waiting.items() if not each.done()}
        alive = {each.ident for each in threading.enumerate()}
        if self._callers & alive - waiting:
            return None
        request = self._waiting.get(threading.main_thread().ident or 0)
        return None if request is None else request.call.key

    def _carry_out(self, matched: Matched) -> None:
        with self._changed:
            request = self._requests.pop(matched.key, None)
        error: BaseException | None = matched.mismatch(self._group.rank)
        if error is None and self._table.joined:
            error = self._operations.refusal(matched, self._table.joined)
        if error is not None:
            if request is not None:
                request.fail(error)
            return
        try:
            result = self._operations.run(matched, request)
        except BaseException as problem:
            if request is not None:
                request.fail(problem)
            if not isinstance(problem, TypeError | ValueError):  # all ranks raise these
                raise
        else:
            if request is not None:
                request.finish(result)
            elif matched.key[0] == "shared_memory":
                self._kept[next(iter(matched.calls.values()))] = result

    def _finish_join(self, last: int) -> None:
        with self._changed:
            request, self._join = self._join, None
        assert request is not None
        request.finish(self._group.global_rank(last))

    def _fail_all(self) -> None:
        """Fail all requests, as every rank waits for another one, and keep the engine running."""
        error = self._table.stuck_error(self._group.rank)
        with self._changed:
            requests = [*self._requests.values(), *([self._join] if self._join else [])]
            self._requests.clear()
            self._new, self._join = [], None
        self._table.clear()
        for request in requests:
            request.fail(error)

    def _pause(self) -> None:
        """Pause while no rank has anything new, longer each time, so that others can compute."""
        now = time.monotonic()
        self._idle_since = self._idle_since or now
        idle = now - self._idle_since
        if idle > self._group.timeout:
            self._raise_timeout()
        with self._changed:
            if not self._new:
                self._changed.wait(min(0.0002 + idle / 4, _LONGEST_PAUSE))

    def _raise_timeout(self) -> None:
        with self._changed:
            call = next((each.call for each in self._requests.values()), _JOIN)
        missing = self._table.missing(call.key)
        raise CommTimeout(str(call), 0, self._group.timeout, missing)

    def _end(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            requests = [*self._requests.values(), *([self._join] if self._join else [])]
            self._requests.clear()
        if requests:
            calls = ", ".join(str(each.call) for each in requests[:_MOST_NAMED])
            error.add_note(f"Horovod's calls that waited for other ranks: {calls}")
        for request in requests:
            request.fail(error)
