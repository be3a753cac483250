"""Protects the default group of torch.distributed, without help of the script: torshrun --recover.

A parked copy of each worker takes its place when it is killed, and repeats what the worker has done
since the copy was made. The others wait within the operation that the worker is missing in.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from torsh_runtime.backends.base import Backend
from torsh_runtime.backends.reconfiguration import Unmet
from torsh_runtime.contract import COPIES, RECOVERY, WorkerEnv
from torsh_runtime.elastic.rounds import Rounds
from torsh_runtime.errors import PeerLost, TorshError
from torsh_runtime.integrations.torch.group import TorshProcessGroup
from torsh_runtime.job import Job
from torsh_runtime.job_group import JobGroup
from torsh_runtime.recover.copies import Copies
from torsh_runtime.recover.page import NEEDS_NONE, CopiesPage
from torsh_runtime.recover.problems import own_bytes, problem
from torsh_runtime.recover.recording import Recorder

SOME_BYTES = 100 << 20
"""Bytes of this process's own memory that may be copied, page by page, for each copy of it; with
more, copies are made as much less often.
"""
MANY_BYTES = 256 << 20
"""Bytes of kept inputs with which a copy is due after the next step of an optimizer, unless the
process has more memory of its own.
"""
MOST_BYTES = 4 << 30
"""Bytes of kept inputs with which a script is given up that has no optimizer step for so long."""
_ADOPTION = 30.0
"""Seconds in which the agent makes a worker of a copy."""


class Protection:
    """Makes copies of this process, and has the one that takes its place meet the others."""

    def __init__(self, group: TorshProcessGroup, env: WorkerEnv) -> None:
        """Stand between the group and its backend from now on. Raises OSError, StoreError."""
        self._env, self._timeout, self._pid = env, group.own_timeout, os.getpid()
        self._page = CopiesPage(env.status_file, env.local_rank, env.local_world_size)
        self._copies = Copies(self._page)
        self._seconds = float(os.environ[COPIES])
        self._made_at, self._own_bytes = 0.0, 0
        self._is_on, self._is_due = True, True
        self._has_joined = False
        self._torchs = group
        self._recorder = Recorder(group.own_backend, self)
        self._job = Job.connect(env, self._timeout)
        self._follow(group.own_backend)
        group.take(self._recorder)
        register_optimizer_step_post_hook(self._after_step)
        atexit.register(self.leave)

    def _follow(self, backend: Backend) -> None:
        self._group = _ConfiguredGroup(self._recorder, backend, self._timeout, self._job)
        self._rounds = Rounds(self._group, self._job)

    # ---- copies

    def _after_step(self, *_: Any) -> None:
        """Make a copy at the end of an optimizer's step, if one is due."""
        pause = self._seconds * max(self._own_bytes / SOME_BYTES, 1.0)
        is_old = time.monotonic() - self._made_at >= pause
        many = min(max(MANY_BYTES, self._own_bytes), MOST_BYTES // 2)
        if is_old or self._recorder.kept_bytes >= many:
            self._is_due = True
            self.prepare()

    def prepare(self) -> None:
        if os.getpid() != self._pid:  # a child of the script's own
            return
        if threading.current_thread() is not threading.main_thread():
            self.give_up("it communicates in other threads than its main one")
        elif self._recorder.kept_bytes > MOST_BYTES:
            self.give_up(f"it takes no step of an optimizer within {MOST_BYTES >> 30} GiB")
        elif self._is_on and self._is_due:
            self._is_due = False
            self._make_copy()

    def _make_copy(self) -> None:
        if self._page.has_left():
            self.leave()
        elif reason := problem(self._copies.pid):
            self.give_up(reason)
        else:
            try:
                is_turn = self._copies.make()
            except OSError as error:
                self.give_up(f"no copy can be made: {error.strerror}")
                return
            if is_turn:
                self._take_place()
            self._made_at, self._own_bytes = time.monotonic(), own_bytes()
            self._page.note_number(self._recorder.number)
            if not self._has_joined:
                self._has_joined = True
                self._rounds.follow()
                self._rounds.join(is_fixed=True)

    def _take_place(self) -> None:
        """Go on in the place of the worker that this is a copy of, once there is a copy of this."""
        _keep_for_ever(self._torchs.get_group_store())  # it has a thread, on rank 0
        _keep_for_ever(self._group)
        is_turn = True
        while is_turn:
            self._adopt()
            is_turn = self._copies.make()
        self._pid = os.getpid()
        self._follow(Unmet(self._env.rank, self._env.world_size))  # type: ignore[arg-type]
        self._recorder.recover(None)
        self._has_joined = True
        self._rounds.join(is_fixed=True)

    def _adopt(self) -> None:
        """Wait until the agent has made a worker of this process, and end if it does not."""
        try:
            job = Job.connect(replace(self._env, is_replacement=True), self._timeout)
            key = f"{RECOVERY}copy/{os.getpid()}"
            number = int(job.client.wait([key], _ADOPTION)[key].value)
        except (TorshError, ValueError):
            os._exit(0)
        self._env = replace(self._env, round=number, is_replacement=True)
        self._job = replace(job, env=self._env)

    # ---- losses

    def await_round(self, lost: TorshError | None) -> None:
        rounds = self._rounds
        if lost is None:
            rounds.enter()
            rounds.follow()
            return
        try:
            rounds.next(lost, self._recorder.longest)
        except PeerLost:  # a rank has ended well: no round follows
            raise lost from None

    def meet(self) -> None:
        rounds = self._rounds
        self._group.meet_again(rounds.number, _nothing, rounds.rank, rounds.world_size)

    def first_needed(self) -> int:
        return self._page.first_needed()

    # ---- the end

    def give_up(self, reason: str) -> None:
        if self._is_on:
            with suppress(TorshError):
                me = f"{self._env.round}/{self._env.local_rank}"
                self._job.client.put(f"{RECOVERY}unprotected/{me}", reason.encode())
        self.leave()

    def leave(self) -> None:
        if not self._is_on or os.getpid() != self._pid:
            return
        self._is_on = False
        self._copies.end()
        self._page.note_number(NEEDS_NONE)
        self._recorder.stop()
        if self._has_joined:
            with suppress(TorshError):
                self._rounds.leave(is_early=False)


class _ConfiguredGroup(JobGroup):
    """Represents the default group for configure(), which gives the recorder its new backend."""

    def __init__(self, recorder: Recorder, backend: Backend, timeout: float, job: Job) -> None:
        self._recorder = recorder
        super().__init__(backend, timeout, job)

    def _put(self, backend: Backend) -> None:
        super()._put(backend)
        self._recorder.take(backend)


def _nothing() -> None:
    """Do nothing: torch's tensors are not in memory of the group."""


def _keep_for_ever(thing: object) -> None:
    """Never destroy what has threads, which do not exist in a copy."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
