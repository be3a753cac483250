"""Provides the process group: a set of ranks that call collectives together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from torsh_runtime.backends.base import Backend, BackendType, Registration
from torsh_runtime.backends.intercepting import seen
from torsh_runtime.backends.reconfiguration import Reconfiguration, Unmet, check_plan
from torsh_runtime.backends.recorder import GroupRecorder
from torsh_runtime.backends.work import Work
from torsh_runtime.comm.barriers import Barriers
from torsh_runtime.comm.data_movement import DataMovement
from torsh_runtime.comm.keys import own_keys
from torsh_runtime.comm.point_to_point import PointToPoint
from torsh_runtime.comm.reductions import Reductions
from torsh_runtime.comm.rooted import Rooted
from torsh_runtime.comm.timeouts import Timeout, seconds
from torsh_runtime.errors import ConfigError
from torsh_runtime.monitoring.calls import own_calls

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torsh_runtime.comm.registry import GroupRegistry, GroupResources
    from torsh_runtime.store.user import Store


class ProcessGroup(Reductions, DataMovement, Rooted, Barriers, PointToPoint):
    """Carries out collectives and messages among its ranks, over one backend.

    See Backend for what arrays may be and what may be raised. Ranks in these methods are the
    group's own, from 0; the module-level functions take ranks of the default group, as
    torch.distributed does. Without `async_op` an operation is complete when its call returns; with
    it, when the Work says so. Errors name the group's own ranks too.

    `init_process_group`, `new_group`, `split` and DeviceMesh create groups.

    Example:
        ```python
        evens = tr.new_group(range(0, tr.get_world_size(), 2))
        if evens.rank >= 0:
            evens.all_reduce(gradient, tr.ReduceOp.AVG)
            evens.close()
        ```
    """

    def __init__(
        self,
        backend: Backend,
        timeout: float,
        ranks: Sequence[int] | None = None,
        name: str = "",
        session: GroupRegistry | None = None,
    ) -> None:
        """Create a group over a connected backend.

        Args:
            backend: This rank's end of the group.
            timeout: Seconds that an operation may take before it raises CommTimeout.
            ranks: The members as ranks of the default group, in order; None if it is that group.
            name: The name that distinguishes the job's groups; the same on all members.
            session: The registry that further groups are made from; None if none can be.
        """
        self._timeout = timeout
        self._session = self._maker = session
        self._interceptor = 0
        self._observe: Callable[[Backend], Backend] | None = None
        self._configuring = Reconfiguration()
        self._footing: GroupResources | None = None
        self.wrappers: WeakSet[Any] = WeakSet()
        """The wrappers of this process that average over the group, wherever they are held."""
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

    def renew(self, backend: Backend, name: str, maker: GroupRegistry) -> None:
        """Become the same ranks' group over another backend, made from another registry."""
        self._be(backend, self._ranks, name)
        self._session = self._maker = maker

    def _put(self, backend: Backend) -> None:
        self._own_backend = backend
        self._show()

    def _show(self) -> None:
        """Route calls to where they go outside of intercepted()."""
        own, observe = self._own_backend, self._observe
        self._backend = seen(own if observe is None else observe(own))

    def show_calls(self) -> None:
        """Update the group after the observers of this process's calls have changed."""
        if not self._interceptor:  # at whose end it is done in any case
            self._show()

    def note_title(self, title: str) -> None:
        """Note in the recording what people call the group; an empty `title` changes nothing."""
        if title:
            self._own_backend.note_title(title)

    @property
    def is_unmet(self) -> bool:
        """Return whether this rank replaces a lost one and has not met the others yet."""
        return isinstance(self._own_backend, Unmet)

    @property
    def timeout(self) -> float:
        """Return the seconds that an operation may take."""
        return self._timeout

    @property
    def backend(self) -> str:
        """Return the backend's name, or "cpu:native,cuda:nccl" if there are several."""
        return self._backend.type.value

    @property
    def is_in_node(self) -> bool:
        """Return whether all ranks are known to be on one machine."""
        return self._backend.facts.is_in_node

    @property
    def held_bytes(self) -> int:
        """Return how many bytes of messages to one rank are sent before they are received.

        That is the total for all such messages, which leave their sender without a thread that
        moves them. It is 0 if the number is not known.
        """
        return self._backend.facts.held_bytes

    @property
    def session(self) -> GroupRegistry:
        """Return the registry that further groups are made from.

        Raises:
            ConfigError: If no groups can be made from this one, because it has no job.
        """
        if self._session is None:
            raise ConfigError("init_process_group() did not make this group: it has no job")
        return self._session

    def in_order(self, call: Callable[[], None], async_op: bool = False) -> Work:
        """Call a function that makes several collectives, in the order of the operations that were
        begun.

        Args:
            call: The function.
            async_op: Whether it may be called on a thread of the group's.

        Returns:
            A Work, whose `wait()` raises what `call` raises on such a thread.
        """
        return self._backend.in_order(call, async_op)

    def all_gather_numbers(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of all ranks, as an int64 array with a row for each rank.

        It blocks and works with any backend. `own` has shape (n,), with the same n on all ranks.
        """
        return self._backend.all_gather_numbers(own, self._timeout)

    def all_come(self, array: object) -> bool:
        """Return whether all ranks are about to call the next operation, on this array; see
        Backend.
        """
        return self._backend.all_come(array)

    @contextmanager
    def launching_together(self, count: int) -> Iterator[None]:
        """Launch the operations begun in the block together at its end, if the backend gains by
        that.

        `count` is the number of these operations.
        """
        if self._batches is None and self._own_backend.type is not BackendType.SINGLE:
            self._batches = GroupRecorder.of_batches(self._name, self._own_backend.world_size)
        batch = nullcontext() if self._batches is None else self._batches.batch(count)
        with batch, self._backend.coalescing(self._timeout):
            yield

    @contextmanager
    def intercepted(self, wrap: Callable[[Backend], Backend]) -> Iterator[None]:
        """Route all calls within the block to wrap(backend).

        Raises:
            RuntimeError: If the group is in such a block already.
        """
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
        """Route all calls from now on to wrap(backend), whatever the group becomes; None ends that.

        Raises:
            RuntimeError: If it is called in a coalesce() block.
        """
        self.check_not_held_back("observe()")
        self._observe = wrap
        self._show()

    def check_not_held_back(self, what: str) -> None:
        """Raise RuntimeError if operations of this thread are held back until a coalesce() block
        ends.

        `what`, which the error names, needs their results, so it would be held back as well.
        """
        if self._interceptor == threading.get_ident():
            raise RuntimeError(
                f"{what} cannot be held back until a coalesce() block ends, for it takes several "
                f"operations, each with the results of the one before: call it outside the block"
            )

    def shared_memory(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return `num_bytes` bytes of this rank's own that collectives use in place; see
        empty_shared().
        """
        return self._backend.shared_memory(num_bytes, self._timeout)

    def common_memory(self, num_bytes: int) -> memoryview | None:
        """Return `num_bytes` bytes that all ranks share, or None if there are none; see Backend."""
        return self._backend.common_memory(num_bytes, self._timeout)

    def register_memory(self, address: int, num_bytes: int, owner: object) -> Registration | None:
        """Tell the backend of memory on a GPU that operations will use again and again; see
        Backend."""
        return self._backend.register_memory(address, num_bytes, owner)

    def suspend(self) -> None:
        """Give back memory that the group holds beyond its connections, until its next operation.

        All ranks call it at the same time. It waits until what was begun is over. With NCCL the
        communicator's buffers go back to the GPU, as ncclCommSuspend() does.

        Raises:
            CommError: If a rank does not come within the group's timeout, or has failed.
            RuntimeError: If it is called within coalesce().

        Example:
            ```python
            group.suspend()  # the GPU is for generation now
            generate(prompts)
            group.resume()  # or the next operation of all ranks does it
            ```
        """
        self.check_not_held_back("suspend()")
        self._backend.suspend(self._timeout)

    def resume(self) -> None:
        """Take the memory again that suspend() gave back. All ranks call it.

        The group's next operation does it, too, and then needs all ranks: call this first if that
        is a message.

        Raises:
            CommError: If a rank does not come within the group's timeout, or the group has ended.

        Example:
            ```python
            group.resume()
            ```
        """
        self._backend.resume(self._timeout)

    def abort(self) -> None:
        """End all ranks' pending and later operations with CommAborted.

        Any thread may call it. A configure() that is in progress in a different thread ends, too.

        Example:
            ```python
            timer = threading.Timer(60, tr.group.WORLD.abort)
            timer.start()
            tr.all_reduce(gradient)  # raises CommAborted if it takes more than a minute
            timer.cancel()
            ```
        """
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
        """Turn this group, alive or dead, into one of other members, who all call this, too.

        All call it with the same quorum_id. Whoever holds the group keeps it. The arguments are
        torchft's.

        What this rank has in progress ends with CommAborted, and what others have that needs it
        with that or PeerLost; messages that nobody received are lost. Groups and meshes that were
        made of the default group refuse all operations when that has been reconfigured. From then
        on functions that take ranks of the default group, and split(), take the group's own ranks.

        Any thread may call it, also in a callback; not a signal handler. If the members
        cannot connect, the group refuses all operations until it is configured again.

        Args:
            store_addr: A Store that all members reach, or "host:port/prefix" of one
                (serve_store()). What was written there under a different prefix or quorum_id is not
                read.
            replica_id: Makes no difference.
            rank: This process's rank in the new group.
            world_size: The number of ranks of the new group.
            quorum_id: A number that no attempt over this store had; None if the prefix is enough.
            timeout: Seconds or a timedelta for the rendezvous of the members; None is the group's
                timeout.

        Raises:
            CommTimeout: If members did not come in time; it names their ranks.
            CommAborted: If a later configure() or an abort() ended this call.
            ConfigError: For a quorum_id that was used, for groups without a job, and as
                init_process_group().
            BackendUnavailable: As init_process_group().
            StoreError: If the store cannot be reached.
            RuntimeError: If it is called within coalesce().

        Example:
            ```python
            rank, survivors = tr.get_rank(), [0, 2, 3]
            if rank in survivors:
                place = survivors.index(rank)
                tr.group.WORLD.configure(tr.get_store(), "", place, len(survivors), quorum_id=1)
            ```
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
        """Release what belongs to this configuration and to no later one."""
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
        """Leave the group; a peer that still needs this rank gets PeerLost.

        Example:
            ```python
            group = tr.new_group([0, 1])
            group.close()
            ```
        """
        self._configuring.give_up()
        if self._maker is not None:
            self._maker.forget(self)
        self._leave_footing()
        self._backend.close()
