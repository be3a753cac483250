"""A process group: a set of ranks that call collectives together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from torsh_runtime.backends.base import Backend, BackendType, Envelope
from torsh_runtime.backends.intercepting import seen
from torsh_runtime.backends.reconfiguration import Reconfiguration, check_plan
from torsh_runtime.backends.recorder import GroupRecorder
from torsh_runtime.backends.work import Work
from torsh_runtime.comm.functional import Collectives
from torsh_runtime.comm.keys import own_keys
from torsh_runtime.comm.timeouts import Timeout, seconds
from torsh_runtime.errors import ConfigError
from torsh_runtime.monitoring.calls import own_calls

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torsh_runtime.comm.registry import GroupRegistry, GroupResources
    from torsh_runtime.store.user import Store


class ProcessGroup(Collectives):
    """Collectives over one backend. See Backend for what arrays may be and what may be raised.

    Ranks in these methods are the group's own, from 0; the module-level functions take ranks of
    the default group, as torch.distributed does. Without `async_op` an operation is complete when
    its call returns; with it, when the Work says so. Errors name the group's own ranks too.
    """

    def __init__(
        self,
        backend: Backend,
        timeout: float,
        ranks: Sequence[int] | None = None,
        name: str = "",
        session: GroupRegistry | None = None,
    ) -> None:
        """`timeout`: how long, in seconds, an operation may take before it is CommTimeout.

        ranks: its members as ranks of the default group, in order; None if it is that group.
        name: tells the job's groups apart; the same on all members.
        session: what further groups are made from; None if none can be.
        """
        self._timeout = timeout
        self._session = self._maker = session
        self._interceptor = 0
        self._observe: Callable[[Backend], Backend] | None = None
        self._configuring = Reconfiguration()
        self._footing: GroupResources | None = None
        self.key = own_keys().key_for(self)
        self._be(backend, ranks, name)
        own_calls().add(self)

    def _be(self, backend: Backend, ranks: Sequence[int] | None, name: str) -> None:
        self._put(backend)
        self._members = range(backend.world_size)
        self._ranks = self._members if ranks is None else tuple(ranks)
        self._places: dict[object, int] = {rank: at for at, rank in enumerate(self._ranks)}
        self._name = name
        self._rank_names: Sequence[str] = ()
        self._batches: GroupRecorder | None = None

    def _put(self, backend: Backend) -> None:
        self._own_backend = backend
        self._show()

    def _show(self) -> None:
        """Let calls go where they are to go outside of intercepted()."""
        own, observe = self._own_backend, self._observe
        self._backend = seen(own if observe is None else observe(own))

    def show_calls(self) -> None:
        """Who looks at all calls of this process has changed."""
        if not self._interceptor:  # at whose end it is done in any case
            self._show()

    @property
    def ranks(self) -> Sequence[int]:
        """The members as ranks of the default group, in order."""
        return self._ranks

    @property
    def job_ranks(self) -> Sequence[int]:
        """The members as ranks of the launched job, which errors and reports name; -1 for who is of
        another job, () where that is not known."""
        return self._own_backend.job_ranks

    def note_title(self, title: str) -> None:
        """Note in the recording what people call it; "" is nothing."""
        if title:
            self._own_backend.note_title(title)

    @property
    def timeout(self) -> float:
        """Seconds that an operation may take."""
        return self._timeout

    @property
    def backend(self) -> str:
        """The backend's name; of several "cpu:native,cuda:nccl"."""
        return self._backend.type.value

    @property
    def is_in_node(self) -> bool:
        """Whether all its ranks are known to be on one machine."""
        return self._backend.facts.is_in_node

    @property
    def held_bytes(self) -> int:
        """Messages of so many bytes to a rank, all together, leave their sender before they are
        received, without a thread that brings them; 0 where that is not known."""
        return self._backend.facts.held_bytes

    @property
    def name(self) -> str:
        """What tells it from the job's other groups."""
        return self._name

    @property
    def session(self) -> GroupRegistry:
        """What further groups are made from. ConfigError if none can be."""
        if self._session is None:
            raise ConfigError("init_process_group() did not make this group: it has no job")
        return self._session

    def group_rank(self, global_rank: int) -> int:
        """The group's rank of a rank of the default group. ValueError if it is no member."""
        try:
            return self._places[global_rank]
        except (KeyError, TypeError):
            raise ValueError(
                f"rank {global_rank!r} is not in the group of ranks {list(self._ranks)}"
            ) from None

    def global_rank(self, group_rank: int) -> int:
        """The counterpart of group_rank. ValueError if there is no such rank."""
        if group_rank not in range(len(self._ranks)):
            raise ValueError(f"the group has {len(self._ranks)} ranks, and no rank {group_rank!r}")
        return self._ranks[group_rank]

    def name_ranks(self, names: Sequence[str], axis: str = "") -> None:
        """What people call the ranks, such as "rank 3, pp 1, tp 1", and the axis of the mesh that
        they are along: errors of the group say so, too."""
        self._rank_names = tuple(names)
        for backend in self._own_backend.members:
            backend.name_ranks(self._rank_names, axis)

    def called(self, group_rank: int) -> str:
        """How a rank is called for people: by its rank in the default group, and its place in the
        mesh that the group is of."""
        names = self._rank_names
        return names[group_rank] if names else f"rank {self.global_rank(group_rank)}"

    def send(self, tensor: object, dst: int, tag: int = 0, async_op: bool = False) -> Work:
        """Send to rank dst. Messages with the same tag arrive in order; up to 64 KiB of them
        need nobody to receive them yet."""
        return self._backend.send(tensor, self._other(dst, "dst"), tag, self._timeout, async_op)

    def recv(
        self, tensor: object, src: int | None = None, tag: int | None = 0, async_op: bool = False
    ) -> Work:
        """Receive from rank src, or from any rank (None): Work.source tells which it was. With tag
        None a message of any tag: Work.tag."""
        work = self._backend.recv(tensor, self._source(src), tag, self._timeout, async_op)
        return work.giving((tensor,)) if async_op else work

    def probe(
        self, src: int | None = None, tag: int | None = 0, wait: bool = True
    ) -> Envelope | None:
        """The message that recv would get, which stays: when there is one, or without `wait` now,
        None if there is none. Another thread may be faster in receiving it.
        """
        return self._backend.probe(self._source(src), tag, self._timeout, wait)

    def send_object(self, content: object, dst: int, tag: int, async_op: bool = False) -> Work:
        """Send bytes for recv_object; they never meet messages of `send`."""
        peer = self._other(dst, "dst")
        return self._backend.send_object(content, peer, tag, self._timeout, async_op)

    def recv_object(self, src: int | None, tag: int, async_op: bool = False) -> Work:
        """Receive bytes, however many, from rank src or from any (None): Work.content."""
        return self._backend.recv_object(self._source(src), tag, self._timeout, async_op)

    def in_order(self, call: Callable[[], None], async_op: bool = False) -> Work:
        """Call what makes several collectives, in the order of those that were begun."""
        return self._backend.in_order(call, async_op)

    def all_gather_numbers(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """Everyone's numbers, a row for each rank, with any backend. It blocks."""
        return self._backend.all_gather_numbers(own, self._timeout)

    def all_come(self, array: object) -> bool:
        """Whether all ranks are about to call the next operation, on this array: see Backend."""
        return self._backend.all_come(array)

    @contextmanager
    def launching_together(self, count: int) -> Iterator[None]:
        """A block at whose end the operations begun in it, `count`, are launched, where the backend
        gains by that."""
        if self._batches is None and self._own_backend.type is not BackendType.SINGLE:
            self._batches = GroupRecorder.of_batches(self._name, self._own_backend.world_size)
        batch = nullcontext() if self._batches is None else self._batches.batch(count)
        with batch, self._backend.coalescing():
            yield

    @contextmanager
    def intercepted(self, wrap: Callable[[Backend], Backend]) -> Iterator[None]:
        """Within the block all calls go to wrap(backend). RuntimeError in such a block."""
        if self._interceptor:
            raise RuntimeError("the group is coalescing already: coalesce() cannot be nested")
        own = self._backend
        self._backend, self._interceptor = wrap(own), threading.get_ident()
        try:
            yield
        finally:
            self._interceptor = 0
            self._show()

    def observe(self, wrap: Callable[[Backend], Backend] | None) -> None:
        """From now on have all calls go to wrap(backend), whatever the group becomes; None: no
        more. RuntimeError in a coalesce() block."""
        self.check_not_held_back("observe()")
        self._observe = wrap
        self._show()

    def check_not_held_back(self, what: str) -> None:
        """RuntimeError if operations of this thread wait for the end of a coalesce() block, and
        so does what needs their results."""
        if self._interceptor == threading.get_ident():
            raise RuntimeError(
                f"{what} cannot be held back until a coalesce() block ends, for it takes several "
                f"operations, each with the results of the one before: call it outside the block"
            )

    def shared_memory(self, num_bytes: int) -> NDArray[np.uint8]:
        """Memory of this rank that collectives use in place: see empty_shared()."""
        return self._backend.shared_memory(num_bytes, self._timeout)

    def common_memory(self, num_bytes: int) -> memoryview | None:
        """Memory that all ranks have in common, or None: see Backend."""
        return self._backend.common_memory(num_bytes, self._timeout)

    def abort(self) -> None:
        """End all ranks' pending and later operations with CommAborted. From any thread; a
        configure() that is under way in another one ends, too."""
        self._configuring.give_up()
        self._backend.abort()

    def configure(
        self,
        store_addr: Store | str,
        replica_id: str,
        rank: int,
        world_size: int,
        quorum_id: int | None = None,
        timeout: Timeout = None,
    ) -> None:
        """Make this group, alive or dead, one of other members, who all call this with the same
        quorum_id; whoever holds it goes on holding it. Arguments as in torchft.

        store_addr: a Store that all of them reach, or "host:port/prefix" of one (serve_store());
            what was told there under another prefix or quorum_id is not read.
        replica_id: makes no difference. rank, world_size: this process's place in the new group.
        quorum_id: a number that no attempt over this store had; None if the prefix says enough.
        timeout: for meeting the others, in seconds or a timedelta; None: the group's.

        What this rank has under way ends with CommAborted, and what others have that needs it with
        that or PeerLost; messages that nobody received are gone. Groups and meshes that were made
        of the default group refuse all operations when that has become another. The group's own
        ranks are what functions that take ranks of the default group, and split(), count then.

        Raises CommTimeout naming the ranks that did not come, CommAborted if a later configure()
        or an abort() ended this one, and what init_process_group() raises: then the group refuses
        all operations until it is configured again. ConfigError for a quorum_id that was used, and
        for groups without a job. RuntimeError within coalesce(). Any thread may call it, also in a
        callback; not a signal handler.
        """
        from torsh_runtime.comm.registry import ReconfigurePlan

        self.check_not_held_back("configure()")
        connect = self.session.configure
        if connect is None:
            raise ConfigError("init_process_group() did not make this group: it has no job")
        check_plan(rank, world_size)
        kind = self._own_backend.type
        asked = None if kind is BackendType.SINGLE else kind
        plan = ReconfigurePlan(store_addr, rank, world_size, quorum_id, asked)
        self._configuring.change(
            lambda: self._own_backend,
            self._put,
            self._leave_footing,
            lambda turn, left: connect(plan, turn, left),
            self._stand_on,
            seconds(timeout, self._timeout),
        )

    def _leave_footing(self) -> None:
        """Let go of what belongs to this configuration, and to no later one."""
        if self._maker is not None:
            self._maker.seal.forget(self._name)
        footing, self._footing = self._footing, None
        if footing is not None:
            footing.session.close()
            footing.leave()

    def _stand_on(self, footing: GroupResources) -> None:
        self._be(footing.backend, None, footing.name)
        self._session, self._footing = footing.session, footing

    def close(self) -> None:
        """Leave the group; a peer that still needs this rank gets PeerLost."""
        self._configuring.give_up()
        if self._maker is not None:
            self._maker.forget(self)
        self._leave_footing()
        self._backend.close()

    def _other(self, rank: int, what: str) -> int:
        if rank == self.rank:
            raise ValueError(f"{what} is this process's own rank; copy the array instead")
        return self._member(rank)

    def _source(self, src: int | None) -> int | None:
        return None if src is None else self._other(src, "src")
