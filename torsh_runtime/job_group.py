"""The default group, and the configuration of a job's groups by configure()."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, cast

from torsh_runtime.backends.base import Backend
from torsh_runtime.backends.native.network import secret_of
from torsh_runtime.backends.reconfiguration import Attempt, AttemptStore, check_first
from torsh_runtime.backends.spares import Spares
from torsh_runtime.comm.choosing import backend_type
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.registry import GroupResources, ReconfigurePlan
from torsh_runtime.comm.timeouts import LONGEST_TIMEOUT
from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import ConfigError
from torsh_runtime.job import REQUEST, Job, LateJob, key_by_hand, store_client
from torsh_runtime.monitoring.notes import DEFAULT
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.keys import KEY_BYTES, derive
from torsh_runtime.store.user import Store


class JobGroup(ProcessGroup):
    """Represents the default group, which owns the job."""

    def __init__(
        self, backend: Backend, timeout: float, job: Job | LateJob, name: str | None = None
    ) -> None:
        """Create the group. `name` as for ProcessGroup; None for the job's name."""
        own = job.name if name is None else name
        session = job.session(backend, partial(configured, job))
        super().__init__(backend, timeout, name=own, session=session)
        self._job = job
        self._spares = Spares()
        self._when_left: Callable[[], None] | None = None
        self.note_title(DEFAULT)

    @property
    def job(self) -> Job | LateJob:
        """Return the job whose default group this is."""
        return self._job

    def store(self) -> Store:
        """Return the job's store for the program's own keys. Raises StoreError if it is gone."""
        return self._job.store(self.timeout)

    def protect(self) -> None:
        """Raise ConfigError if the group could not go on after the loss of a worker."""

    def replicas(self) -> list[Any]:
        """Return the models that average gradients over the group, wherever they are held."""
        return [*self.wrappers]

    def shrunk(self, staying: Sequence[int]) -> JobGroup:
        """Create a default group of the ranks `staying` in the same job, and leave this one.

        Returns the new group. Raises ConfigError if this group was configured, or the rank that
        serves the store does not stay.
        """
        if self._footing is not None:
            raise ConfigError("this group was configured: exclude ranks by configure(), too")
        assert isinstance(self._job, Job), "of one rank none can be excluded"
        job = self._job.shrunk(staying)
        name = self.session.name(f"{self.name}/shrunk", staying)
        kind = backend_type(self.backend)
        rank = staying.index(self.rank)
        backend = job.make_backend(kind, name, rank, staying, self.timeout)
        self._leave()
        return JobGroup(backend, self.timeout, job, name)

    def recovers(self) -> None:
        """Prepare to meet_again()."""
        self._spares = Spares()
        self._own_backend.take_from(self._spares)

    def meet_again(
        self, number: int, leave: Callable[[], None], rank: int, world_size: int
    ) -> None:
        """Configure the group anew, with ranks of which some may have been replaced, or be new.

        It waits for replacements as long as it takes. What the ranks that are left had in shared
        memory and give up in `leave`, which is called when no operation is under way any more, is
        used again.

        Args:
            number: A number that no configure() had.
            leave: Drops arrays of the group.
            rank: This process's rank from now on.
            world_size: The number of ranks from now on.

        Raises:
            CommError, ConfigError and so on: As configure().
        """
        self._spares.keep()
        self._when_left = leave
        try:
            self.configure(self.store(), "", rank, world_size, number, LONGEST_TIMEOUT)
        finally:
            self._when_left = None
            self._spares.close()
        self._own_backend.take_from(self._spares)

    def settle(self) -> None:
        """Give up the memory that nobody uses again since meet_again()."""
        self._spares.forget()

    def close(self) -> None:
        # A group that was configured does not know which peers to wait for.
        wait_for_peers = not self._backend.failed and self._footing is None
        try:
            self._leave()
        finally:
            self._job.close(wait_for_peers)

    def _leave(self) -> None:
        """Leave this group and those created from it, but not the job."""
        try:
            self.session.close()
        finally:
            super().close()

    def _leave_footing(self) -> None:
        self.session.close()  # groups of its former ranks do not belong to its next ones
        if self._when_left is not None:
            self._when_left()
        super()._leave_footing()


def configured(
    home: Job | LateJob, plan: ReconfigurePlan, turn: Attempt, timeout: float
) -> GroupResources:
    """Create the resources of a group for ProcessGroup.configure() and return them.

    `home` is the job of this process. Only the job's ranks have its Store; at an address processes
    of other jobs may connect, too.

    All keys in the store begin with the prefix and the quorum_id, under which each rank may come
    only once. A key of this configuration alone authenticates Python objects.
    """
    deadline = time.monotonic() + timeout
    quorum = "" if plan.quorum_id is None else str(plan.quorum_id)
    with ExitStack() as held:
        base, prefix = _base(plan.store, home.env, timeout, held)
        store, name = base.scoped(f"{quorum}/"), f"configured/{prefix}{quorum}"
        check_first(store.add(f"turn/{plan.rank}", 1), plan.rank, f"quorum_id {plan.quorum_id}")
        if plan.rank == 0:
            store.put("nonce", secrets.token_bytes(KEY_BYTES))
        ranks = range(plan.world_size)
        place = replace(
            home.env,
            rank=plan.rank,
            world_size=len(ranks),
            local_world_size=0,
            store_endpoint=store.endpoint,
        )
        client = cast(StoreClient, AttemptStore(store, turn))
        job = Job(place, client, None, 1, b"", ranks, is_whole=False)
        left = max(deadline - time.monotonic(), 0.001)
        backend = job.make_backend(plan.kind, name, plan.rank, ranks, left)
        held.push(lambda kind, *_: backend.close() if kind else None)
        nonce = store.wait(["nonce"], REQUEST)["nonce"].value
        known = home.secret if isinstance(plan.store, Store) else secret_of(home.env.secret)
        job = replace(job, client=store, secret=derive(known, "configuration", name, nonce))
        session = job.session(backend, partial(configured, home))
        return GroupResources(backend, name, session, held.pop_all().close)


def _base(
    store: Store | str, env: WorkerEnv, timeout: float, held: ExitStack
) -> tuple[StoreClient, str]:
    """Return the part of the store for configure(), and the prefix that the user gave.

    `held` closes a connection that is opened here. Raises ConfigError if `store` is invalid.
    """
    if isinstance(store, Store):
        return store.apart("configure")
    if not isinstance(store, str):
        raise ConfigError(f"store_addr is {store!r}; it must be a Store, or host:port/prefix")
    place, _, prefix = store.removeprefix("tcp://").partition("/")
    client = store_client(f"tcp:{place}", key_by_hand(env), timeout)
    held.callback(client.close)
    return client.scoped(f"configure/{prefix}/"), f"{prefix}/"
