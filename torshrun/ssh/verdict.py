"""Decides what follows when hosts have ended, and the job's exit code. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Literal, NamedTuple

from torshrun import exit_codes

_CONSEQUENCES = (exit_codes.RENDEZVOUS, exit_codes.LOST, exit_codes.PREEMPTED)
"""Exit codes of agents that may have ended because others had."""


class Ended(NamedTuple):
    """Describes a host from which nothing more will come."""

    label: str
    code: int | None
    """The agent's exit code, or None if the connection was lost before."""
    begun: bool
    """True if its agent had begun."""
    why: str = ""
    """The known reason why a connection was lost."""


def follows(endings: Sequence[Ended], running: int, fewest: int) -> Literal["", "stop", "wait"]:
    """Return what to do with the `running` hosts, now that the last of `endings` has ended.

    "": nothing, as the job continues. "stop": stop them, as they are too few. "wait": wait for
    their end, which is due. An agent has ended in order, so the others know the verdict, or notice
    that it is gone.
    """
    if running == 0 or running >= fewest:
        return ""
    return "wait" if any(_in_order(ended) for ended in endings) else "stop"


def code_of(endings: Sequence[Ended], stopped: int | None, signo: int = 0) -> int:
    """Return the job's exit code.

    `stopped` is the code for which hosts were stopped, if they were, and `signo` the first signal
    that asked for the end. No agent ends with 0 unless the job has succeeded.
    """
    codes = [ended.code for ended in endings if _in_order(ended) and ended.code is not None]
    if 0 in codes:
        return 0
    if stopped is not None:
        return stopped
    causes = [code for code in codes if code not in _CONSEQUENCES]
    unknown = code_of_signal(signo) if signo else exit_codes.LOST
    return next(iter(causes or codes), unknown)


def code_of_signal(signo: int) -> int:
    """Return the exit code of a job that this signal has ended."""
    return exit_codes.PREEMPTED if signo == signal.SIGTERM else exit_codes.SIGNALLED + signo


def _in_order(ended: Ended) -> bool:
    return ended.begun and ended.code is not None
