"""Makes the groups of a process, all of which belong to its job."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from torsh_runtime.backends.base import Backend, BackendKind, BackendType
from torsh_runtime.backends.reconfiguration import Attempt
from torsh_runtime.comm.authenticated_pickle import AuthenticatedPickle
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.non_member import NonMember
from torsh_runtime.errors import CommAborted, ConfigError
from torsh_runtime.store.user import Store

Connect = Callable[..., Backend]
"""A function (kind, name, rank in the group, members, timeout) -> this rank's end of a new group;
strategy by name, if there is one.
"""


class ReconfigurePlan(NamedTuple):
    """Describes the group that configure() is to create."""

    store: Store | str
    rank: int
    world_size: int
    quorum_id: int | None
    kind: BackendKind | None
    """The backend; None is the first rank's choice."""


class GroupResources(NamedTuple):
    """Holds what a configured group uses."""

    backend: Backend
    name: str
    session: GroupRegistry
    """The registry that further groups are made from."""
    leave: Callable[[], None]
    """A function that releases the store."""


Configure = Callable[[ReconfigurePlan, Attempt, float], GroupResources]
"""A function (plan, the call, timeout) -> the group that the ranks make whose plans are the same.
"""


class GroupRegistry:
    """Makes groups out of the ranks of the default group, and closes them with it."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        connect: Connect,
        seal: AuthenticatedPickle,
        local_world_size: int = 1,
        configure: Configure | None = None,
    ) -> None:
        """Create the registry of a process with this `rank` in the default group of `world_size`
        ranks.

        `local_world_size` of these are on its node; 0 if that is not known.
        """
        self.rank = rank
        self.world_size = world_size
        self.local_world_size = local_world_size
        self.seal = seal
        self.configure = configure
        self._connect = connect
        self._lock = threading.Lock()
        self._made: Counter[str] = Counter()
        self._open: list[ProcessGroup] = []
        self._is_closed = False

    @property
    def count(self) -> int:
        """Return the number of groups that were made and not left."""
        return len(self._open)

    def group(
        self,
        parent: str,
        ranks: Sequence[int],
        kind: BackendKind,
        timeout: float,
        strategy: str | None = None,
    ) -> ProcessGroup:
        """Create a group of these ranks of the default group.

        Only its members need to call it, and each of them as often as the others with the same
        `parent`, ranks and strategy, which only native groups have. Returns a NonMember if this
        process is not in it.

        Raises ConfigError for ranks that make no group, CommAborted after close(), and whatever
        connecting the backend raises.
        """
        self.check_open()
        self._check(ranks)
        name = self.name(parent, ranks)
        if self.rank not in ranks:
            return NonMember(self.rank, ranks, timeout, name)
        options = {} if strategy is None else {"strategy": strategy}
        backend = self._connect(kind, name, ranks.index(self.rank), ranks, timeout, **options)
        group = ProcessGroup(backend, timeout, ranks, name, self)
        self._open.append(group)
        return group

    def renew(self, group: ProcessGroup, parent: str) -> None:
        """Connect the ranks of a group anew that another registry has made, and keep the object.

        All of its members call it, as they call group().
        """
        self.check_open()
        name = self.name(parent, group.ranks)
        kind = BackendType.NATIVE
        rank = group.ranks.index(self.rank)
        backend = self._connect(kind, name, rank, group.ranks, group.timeout)
        group.renew(backend, name, self)
        self._open.append(group)

    @property
    def is_closed(self) -> bool:
        """Return whether no more groups can be made."""
        return self._is_closed

    def check_open(self) -> None:
        """Raise CommAborted after close()."""
        if self._is_closed:
            raise CommAborted(
                "the default group that this one belongs to is closed, or was configured: make "
                "another with init_process_group() if it is closed, and then what is made of it"
            )

    def close(self) -> None:
        """Leave all groups that were made, the youngest first; no more can be made."""
        self._is_closed = True
        with ExitStack() as closing:  # all of them, also when one raises
            for group in tuple(self._open):
                closing.callback(group.close)
        self._open.clear()

    def abort(self) -> None:
        """Abort all groups that were made."""
        for group in tuple(self._open):
            group.abort()

    def forget(self, group: ProcessGroup) -> None:
        """Forget a group that was left. No group will have its name again."""
        self.seal.forget(group.name)
        if group in self._open:
            self._open.remove(group)

    def name(self, parent: str, ranks: Sequence[int]) -> str:
        """Return a new group's name, the same on all members, whatever other groups they made."""
        members = ",".join(map(str, ranks))
        digest = hashlib.sha256(members.encode()).hexdigest()[:16]
        with self._lock:
            self._made[f"{parent}/{digest}"] += 1
            return f"{parent}/{digest}.{self._made[f'{parent}/{digest}']}"

    def _check(self, ranks: Sequence[int]) -> None:
        strangers = [rank for rank in ranks if rank not in range(self.world_size)]
        if strangers or not ranks or len(set(ranks)) != len(ranks):
            raise ConfigError(
                f"ranks {list(ranks)} make no group: it takes different ranks of the default "
                f"group, 0 to {self.world_size - 1}"
            )
