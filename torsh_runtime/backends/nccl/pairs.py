"""Lets two ranks of a group send each other messages while the group has no communicator yet."""

from __future__ import annotations

from typing import Any

from torsh_runtime.backends.library.failure_notifications import FailureNotifications
from torsh_runtime.backends.nccl.library import Communicator, Stream


class PairCommunicator:
    """Stands for NCCL's communicator of two ranks, and numbers them as their group does."""

    def __init__(self, pair: Communicator, rank: int, group_size: int) -> None:
        """Wrap `pair`, of which this process is a member; in the group it is `rank`."""
        self._pair = pair
        self._peer = 1 - pair.rank
        self.rank = rank
        self.nranks = group_size

    def send(self, array: Any, peer: int, *, stream: Stream) -> object:
        return self._pair.send(array, self._peer, stream=stream)

    def recv(self, array: Any, peer: int, *, stream: Stream) -> object:
        return self._pair.recv(array, self._peer, stream=stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pair, name)


class PairNotifications(FailureNotifications):
    """Writes the notes of a rank's group, which hears of what happens in the pair."""

    def __init__(self, of_group: FailureNotifications) -> None:
        """Share the notes of the group's own object."""
        vars(self).update(vars(of_group))

    def leave(self, sequence: int) -> None:
        """Do nothing: ranks leave the group, which notes it, and not their pairs."""
