"""Registers memory with NCCL, which then moves it with fewer copies."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

from torsh_runtime.backends.library.failure_notifications import (
    Call,
    FailureNotifications,
)
from torsh_runtime.backends.nccl.device import loaded_framework
from torsh_runtime.backends.nccl.launching import LONGEST, NcclLaunching
from torsh_runtime.backends.nccl.library import Communicator, Cuda, Nccl


class Region:
    """Describes memory on a GPU by the CUDA array interface."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
            "stream": None,
        }


class Registration:
    """Represents memory that is registered until close(), or the group is suspended or ends.

    Its owner, which keeps the memory, is kept until then.
    """

    def __init__(self, group: NcclRegistering, handle: Any, owner: object) -> None:
        self._group = group
        self.handle = handle
        self.owner = owner

    @property
    def is_valid(self) -> bool:
        """Return whether the memory is registered."""
        return bool(self.handle.is_valid)

    def close(self) -> None:
        """Give it up when the group has nothing to do. Any thread may call it, finalizers too."""
        self._group.give_up(self)


class NcclRegistering(NcclLaunching):
    """A group over an NCCL communicator, with which memory is registered."""

    def __init__(
        self, nccl: Nccl, cuda: Cuda, communicator: Communicator, news: FailureNotifications
    ) -> None:
        super().__init__(nccl, cuda, communicator, news)
        self._registered: WeakSet[Registration] = WeakSet()
        self._given_up: deque[tuple[Registration, object]] = deque()
        """Registrations to end, with the owners of their memory."""

    def register_memory(self, address: int, num_bytes: int, owner: object) -> Registration | None:
        with self._in_turn("register_memory", LONGEST):
            self._check_usable()
            if self._is_suspended:
                return None
            self._sweep()
            try:
                with self._on_device():
                    handle = self._communicator.register_buffer(Region(address, num_bytes))
            except Exception as error:  # others have registered theirs, and mixtures are undefined
                cause = self.broke(Call("register_memory", self._sequence), error)
                self.told()
                raise cause.error() from error
            made = Registration(self, handle, owner)
            self._registered.add(made)
            return made

    def give_up(self, registration: Registration) -> None:
        """End the registration as soon as nothing is under way, and keep the memory until then."""
        if registration.is_valid:  # else NCCL has forgotten it, as when the group was aborted
            self._given_up.append((registration, registration.owner))

    def _sweep(self) -> None:
        super()._sweep()
        if self._given_up and not self._flights and self._turn.acquire(blocking=False):
            try:  # another thread, which may have a block open, is not waited for
                with self._on_device():
                    while self._given_up and not self._flights:
                        registration, _ = self._given_up.popleft()
                        self._deregister(registration)
            finally:
                self._turn.release()

    def _deregister_all(self) -> None:
        """End all registrations. Nothing is under way."""
        with self._on_device():
            for each in [*self._registered]:
                self._deregister(each)
        self._given_up.clear()

    def _deregister(self, registration: Registration) -> None:
        with suppress(Exception):  # the communicator closes it at the latest
            registration.handle.close()

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """Make the group's device the calling thread's current one within the block."""
        with loaded_framework().on_device(self._device):
            self._own.make_current()
            yield
