"""Connects the processes whose handles were given to torch's reconfigure functions.

They meet in the group's first store, under a prefix that no other attempt has. If all of them are
of one reconfigured group of a node already, they meet in its memory.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch._C import _distributed_c10d

from torsh_runtime.backends.base import Backend, BackendType
from torsh_runtime.backends.bootstrap_store import post_abort, read_abort_reason
from torsh_runtime.backends.reconfiguration import Attempt, AttemptStore
from torsh_runtime.errors import (
    CommError,
    CommTimeout,
    PeerLost,
    StoreError,
    StoreTimeout,
    TorshError,
)
from torsh_runtime.integrations.torch.configuring import Configured, Plan, meet
from torsh_runtime.integrations.torch.handles import Handle, ReconfigureError, named
from torsh_runtime.integrations.torch.store import TimedStore, TorchStore
from torsh_runtime.store.base import Entry

c10d: Any = _distributed_c10d
CALL = "reconfigure"
"""The name of the call, for errors."""
_DIGEST_BYTES = 16


class Generation(NamedTuple):
    """Describes the group that a reconfiguration has made."""

    token: str
    """A text that its members have in common, and no other group."""
    backend: Backend


class ReconfigurePlan(NamedTuple):
    """Describes the group that reconfigure() is to create."""

    home: Any
    """The group's first store."""
    found: Sequence[Handle]
    rank: int
    uuid: int
    token: str
    """A text that all members of this attempt have in common."""
    limit: float
    """Seconds for connecting to the others."""
    before: Generation | None
    """The group that is to be replaced."""

    @property
    def store(self) -> Any:
        """Return the store for this attempt of these members."""
        return self._store_of(self.token)

    def _store_of(self, token: str) -> Any:
        return c10d.PrefixStore(f"reconfigure/{self.uuid}/{token}", self.home)

    def claim(self, deadline: float) -> None:
        """Raise ReconfigureError if the uuid is used with other handles, and tell its users."""
        own = f"{self.token} {len(self.found)} {self.found[self.rank]}"
        claims = TimedStore(self.home, deadline).scoped("reconfigure")
        found = claims.claim(str(self.uuid), own)
        token = found.partition(" ")[0]
        if token != self.token:
            store = TimedStore(self._store_of(token), deadline)
            post_abort(store, self.rank, refusal(self.uuid, f"also used by {_user(own)}"))
            raise refusal(self.uuid, f"already used by {_user(found)}")

    def connect(self, turn: Attempt, timeout: float) -> _Reconfigured:
        """Connect to the other members."""
        deadline = time.monotonic() + timeout
        name = f"reconfigured/{self.found[0].group}/{self.uuid}/{self.token[:8]}"
        given = self.store
        plain = TimedStore(given, deadline)
        store = _WatchedStore(plain, _Watch(self, turn, plain, deadline))
        size = len(self.found)
        with self._naming():
            made = self._from_memory(store, name, timeout)
            if made is None:
                left = max(deadline - time.monotonic(), 0.001)
                made = meet(store, self.rank, size, left, name)
        plan = Plan(given, self.rank, size, self.uuid, None)
        return _Reconfigured(Configured(made, given, plan), self.token)

    def _from_memory(self, store: AttemptStore, name: str, timeout: float) -> Backend | None:
        """Return the new group's backend if it can be made in the memory of the one before."""
        if self.before is None or len(self.found) == 1:
            return None
        token, old = self.before
        ranks = [each.rank for each in self.found]
        are_known = all(each.generation == token for each in self.found)
        if not are_known or len({*ranks}) != len(ranks) or ranks[self.rank] != old.rank:
            return None
        if not {*ranks} <= {*range(old.world_size)}:
            return None
        return old.subgroup(store, name, ranks, timeout)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Have errors name the processes that they are about."""
        try:
            yield
        except StoreError as error:
            raise self._of_store(error) from None
        except CommError as error:
            raise self._told(error) from error.__cause__

    def _of_store(self, error: StoreError) -> TorshError:
        """Return the error about the member because of which the store fails, if it is known."""
        ended = [rank for rank, each in enumerate(self.found) if each.has_ended]
        stopped = [rank for rank, each in enumerate(self.found) if each.is_stopped]
        if ended:
            return PeerLost(ended[0], CALL, 0, name=str(self.found[ended[0]]))
        if stopped and isinstance(error, StoreTimeout):
            who = f" ({named(self.found, stopped)}), and torch's store did not answer"
            return CommTimeout(CALL, 0, self.limit, stopped, who)
        return error

    def _told(self, error: CommError) -> CommError:
        """Return the same error, naming the process as well as its rank."""
        match error:
            case CommTimeout(missing=missing):
                who = named(self.found, missing)
                detail = error.detail + (f" ({who})" if who else "")
                return CommTimeout(CALL, 0, self.limit, missing, detail)
            case PeerLost(rank=rank) if rank in range(len(self.found)):
                return PeerLost(rank, CALL, 0, error.detail, name=str(self.found[rank]))
        return error


class _Reconfigured(NamedTuple):
    """Holds the result of reconfigure()."""

    made: Configured
    token: str

    @property
    def backend(self) -> Backend:
        """Return the new backend of the group."""
        return self.made.backend

    def leave(self) -> None:
        """Do nothing, as torch's stores end with the objects that hold them."""

    def give(self, group: Any) -> None:
        """Set the new backend and what its members have in common."""
        self.made.give(group)
        group._generation = Generation(self.token, self.backend)


class _Watch:
    """Tells an attempt that it is to give up: by another thread, or as a member has ended."""

    def __init__(
        self, plan: ReconfigurePlan, turn: Attempt, store: TorchStore, deadline: float
    ) -> None:
        self._plan = plan
        self._deadline = deadline
        self._turn = turn
        self._store = store
        self._is_over = False
        self._is_claimed = False

    def check(self) -> None:
        """Raise CommAborted, PeerLost, the error for which a process gave up before it ended, or
        ReconfigureError if others passed other handles.

        It raises only once, as the store is then used to tell the others.
        """
        if self._is_over:
            return
        try:
            self._look()
        except (CommError, ReconfigureError):
            self._is_over = True
            raise

    def _look(self) -> None:
        self._turn.check()
        if not self._is_claimed:
            self._plan.claim(self._deadline)
            self._is_claimed = True
        for peer, process in enumerate(self._plan.found):
            if peer != self._plan.rank and process.has_ended:
                read_abort_reason(self._store, self._plan.rank, BackendType.NATIVE)
                raise PeerLost(peer, CALL, 0)


class _WatchedStore(AttemptStore):
    """A store whose reads raise too, as members that meet in memory look at it now and then."""

    def get(self, key: str) -> Entry | None:
        """Return the key's current entry, or None."""
        self._turn.check()
        found: Entry | None = self._store.get(key)
        return found


def token_of(found: Sequence[Handle], uuid: int) -> str:
    """Return what an attempt of these members has, and no other one."""
    facts = [found[0].group, str(uuid), *(each.identity for each in found)]
    return hashlib.blake2b("\0".join(facts).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _user(claim: str) -> str:
    """Return who has claimed a uuid, and how."""
    _, count, who = claim.split(" ", 2)
    return f"{who}, which passed other handles ({count}), or in another order"


def refusal(uuid: int, what: str) -> ReconfigureError:
    """Return the error for a uuid that cannot be used, as `what` says."""
    return ReconfigureError(
        f"uuid {uuid} was {what}. Every reconfiguration, also one after a failed attempt, takes a "
        f"new uuid, and all its members pass the same handles in the same order"
    )
