"""Announces which workers had a corrupt state, and suspects hosts where that happens repeatedly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Self

from torshrun.agent.announcer import Announcer
from torshrun.text import printable


class Corrupted(NamedTuple):
    """Holds what a worker tells of a state that differs between ranks."""

    step: int
    ranks: Sequence[int]
    hosts: Sequence[str]
    part: str
    sequel: str
    certain: bool

    @classmethod
    def from_json(cls, text: bytes) -> Self | None:
        """Return what a worker has written; None if it is not as it should be."""
        import json

        try:
            told = cls(**json.loads(text))
            ranks, hosts = [int(rank) for rank in told.ranks], [str(host) for host in told.hosts]
            texts = {"part": str(told.part), "sequel": str(told.sequel)}
            certain = bool(told.certain)
            return told._replace(
                step=int(told.step), ranks=ranks, hosts=hosts, certain=certain, **texts
            )
        except (ValueError, TypeError):
            return None


class Corruption:
    """Counts the times that the state of a host's workers was corrupt."""

    def __init__(self, announcer: Announcer) -> None:
        """Begin with hosts that nobody suspects."""
        self._tell, self._times = announcer, Counter[str]()

    def take(self, text: bytes) -> None:
        """Announce what a worker has written."""
        told = Corrupted.from_json(text)
        if told is None:
            return
        if told.certain:
            self._times.update({*told.hosts})
        suspects = [host for host in dict.fromkeys(told.hosts) if self._times[host] > 1]
        self._tell.say(printable(describe(told) + "".join(map(self._suspicion, suspects))))
        self._tell.emit("state_corrupted", **told._asdict(), suspects=suspects)

    def _suspicion(self, host: str) -> str:
        return (
            f". Host {host} is suspect, with {self._times[host]} times: take it out of service, "
            f"and test its memory and processors"
        )


def describe(told: Corrupted) -> str:
    """Return in a sentence which ranks have other bits, and what is done about it."""
    pairs = zip(told.ranks, told.hosts, strict=False)
    who = ", ".join(f"rank {rank} (host {host})" for rank, host in pairs)
    have = "has" if len(told.ranks) == 1 else "have"
    bits = "other bits than most ranks" if told.certain else "different bits"
    sequel = {
        "healed": "healed from the others",
        "ended": "the training ends, to be resumed from a checkpoint of before",
    }
    return (
        f"corrupt state: {who} {have} {bits} at step {told.step}, first in {told.part}: "
        f"{sequel.get(told.sequel, told.sequel)}"
    )
