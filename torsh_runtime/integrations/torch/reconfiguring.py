"""Gives a process group other members by torch's own functions, which it has from version 2.14 on.

Each process has a handle, which the program carries to the others. The members of the new group
are the processes whose handles are given (see `attempts`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

from torch._C import _distributed_c10d

from torsh_runtime.backends.base import Backend
from torsh_runtime.backends.reconfiguration import Refusing, refusing
from torsh_runtime.errors import CommAborted
from torsh_runtime.integrations.torch import aborting
from torsh_runtime.integrations.torch.attempts import (
    CALL,
    Generation,
    ReconfigurePlan,
    refusal,
    token_of,
)
from torsh_runtime.integrations.torch.configuring import Configurable, Connect
from torsh_runtime.integrations.torch.handles import Handle, members
from torsh_runtime.integrations.torch.work import DONE, TorshWork

c10d: Any = _distributed_c10d


class Reconfigurable(Configurable):
    """Represents a process group with torch's functions for tolerating faults."""

    supports_reconfigure = True

    def __init__(self, store: Any, backend: Backend, timeout: float) -> None:
        self._hooks = aborting.AbortHooks()
        self._ended = aborting.SUCCESS
        self._home = store
        self._identity = secrets.token_hex(8)
        self._uuids: set[int] = set()
        super().__init__(store, backend, timeout)

    def get_reconfigure_handle(self) -> str:
        """Return what the others need to make this process a member of a group.

        It changes whenever the group is reconfigured. Older ones also work, but more slowly.
        """
        return self._handle().pack()

    def reconfigure(self, opts: Any) -> TorshWork:
        """Make the processes of opts.handles this group's members; all of them call it.

        The handles are a list in order of the new ranks, or a set. All members pass the same ones,
        and the same opts.uuid, a number that no attempt of this group has used. opts.timeout is a
        timedelta, or None for the group's. opts.hints have no effect. The group is ready when this
        returns; the Work is complete.

        DDP, meshes and other objects keep the group, as with configure(), whose errors this raises
        too: CommTimeout naming the processes that did not come, PeerLost naming one that has ended.
        Raises ReconfigureError, and leaves the group as it is, for handles that are wrong and for a
        uuid that this process has used. It also raises it if it has to wait, and other handles have
        been passed with the uuid.
        """
        self._check_configurable()
        found, rank = members(opts.handles, self._handle())
        limit = self._timeout if opts.timeout is None else opts.timeout.total_seconds()
        if opts.uuid in self._uuids:
            raise refusal(opts.uuid, "already used by this process")
        token = token_of(found, opts.uuid)
        plan = ReconfigurePlan(self._home, found, rank, opts.uuid, token, limit, self._generation)
        self._uuids.add(opts.uuid)
        self._change(plan.connect, limit, CALL)
        return DONE

    def get_error(self) -> Any:
        """Return torch's ErrorType of what ended the group, or why it could not be configured.

        TIMEOUT is for CommTimeout, REMOTE_ERROR for PeerLost, COMM_ERROR for all else. It is
        SUCCESS if nothing has failed, and, as with gloo, after this process's own abort().
        """
        return getattr(c10d.ErrorType, self._error())

    def register_abort_hook(self, hook_id: int, hook: Callable[[], None]) -> None:
        """Call `hook` before this process aborts the group, or once an operation finds it failed.

        It is called once, and once more after each reconfiguration; on some thread. A later one of
        the same hook_id takes its place.
        """
        self._hooks.add(hook_id, hook)
        self.show_calls()

    def unregister_abort_hook(self, hook_id: int) -> None:
        """Do not call that hook any more."""
        self._hooks.remove(hook_id)
        self.show_calls()

    def abort(self) -> None:
        """End all ranks' operations, as Configurable.abort() does, after calling the hooks."""
        self._has_aborted = True
        if not isinstance(self._own, Refusing):
            self._hooks.run()
        super().abort()

    def show_calls(self) -> None:
        """Update the backend after the observers of calls or the hooks have changed."""
        super().show_calls()
        self._torsh = aborting.hooked(self._torsh, self._hooks)

    def _put(self, backend: Backend) -> None:
        self._has_aborted = False
        self._generation: Generation | None = None
        super()._put(backend)
        self._hooks.arm()

    def _change(self, connect: Connect, limit: float, call: str) -> None:
        self._ended = aborting.SUCCESS
        try:
            super()._change(connect, limit, call)
        except BaseException as error:
            self._ended = aborting.kind_of(error)
            raise

    def _handle(self) -> Handle:
        group: Any = self
        token = "" if self._generation is None else self._generation.token
        identity = f"{self._identity}-{os.getpid()}"  # a fork has another one
        return Handle.here(identity, group.getGroupName(), token, self.rank())

    def _error(self) -> str:
        if isinstance(self._own, Refusing):
            return self._ended
        error = aborting.failure_of(self._own)
        if error is None or (self._has_aborted and isinstance(error, CommAborted)):
            return aborting.SUCCESS
        return aborting.kind_of(error)


class _NoBackend(NamedTuple):
    """Has the place of a group that is not connected."""

    rank: int
    world_size: int
    type: str = "native"


def unconnected(rank: int, world_size: int) -> Any:
    """Return the backend of a group that is to be reconfigured before it is used."""
    words = "has no members yet: call torch.distributed._reconfigure() with their handles first"
    return refusing(_NoBackend(rank, world_size), words)
