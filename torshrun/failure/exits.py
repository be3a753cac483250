"""Holds how a worker ended: the facts from which everything else here is derived. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from torshrun.failure.account import NO_ACCOUNT, Account
from torshrun.failure.blocked_at import BlockedAt
from torshrun.failure.ending import NO_ENDING, Ending
from torshrun.signals import exit_code, signal_name


@dataclass(frozen=True, slots=True, kw_only=True)
class OomEvidence:
    """Signs that the kernel killed processes for lack of memory while the workers ran."""

    ours: bool
    """True if they were in the launcher's own cgroup; otherwise anywhere on this machine."""
    cgroup: str = ""
    """The cgroup whose limit was hit; "" if it was none: the machine's memory was used up."""
    limit: int = 0
    """The limit of `cgroup` in bytes; 0 is unknown or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """Holds how one worker ended."""

    rank: int
    host: str
    pid: int
    status: int
    """The status as waitpid gives it."""
    seconds: float
    """Seconds that it ran."""
    at: float = 0.0
    """The time when it ended, on the node's monotonic clock, in seconds; 0 is unknown."""
    stopped: bool
    """True if it had been asked to stop before it ended."""
    stderr: bytes = b""
    """The end of its stderr."""
    has_stdout: bool = False
    """True if `stderr` is the end of both its streams, which were one."""
    account: Account = NO_ACCOUNT
    """The account that it left in its error file."""
    ending: Ending = NO_ENDING
    """The way in which its Python ended."""
    standing: BlockedAt | None = None
    """The collectives that it had noted when it ended or was asked to stop; None is nothing."""
    stack: str = ""
    """The stack when it was asked to stop, as faulthandler or py-spy shows it."""
    spied: str = ""
    """The stack as py-spy showed it when it hung, perhaps with arguments."""
    state: str = ""
    """The state of its process, as in /proc, when it was asked to stop; "" is unknown."""
    child: str = ""
    """The bad end of a process that it had started, if it took no notice, or what that process
    waits for; "" is none.
    """
    awaits: str = ""
    """The kernel object that its main thread waited for when asked to stop; "" is unknown."""
    holder: int = -1
    """The rank that had that, or whose process had; -1 is none that is known."""
    is_left: bool = False
    """True if it has not ended, even of SIGKILL; then status says nothing."""
    raised: bool = False
    """True if an exception had ended its program before it was asked to stop, or before a signal
    ended it. The exception is what counts then.
    """
    conditions: str = ""
    """The conditions of the `if`s under which its program raised that exception; "" is unknown."""
    log: str = ""
    """The place where its output was kept; "" is nowhere."""
    program: str = ""
    """Path of the program it ran, which is Python for scripts and modules; "" is unknown."""
    peak_rss_kib: int = 0
    """The most memory it had at a time, in KiB; 0 is unknown."""
    oom: OomEvidence | None = None
    """Out-of-memory kills by the kernel's counters for the time that it ran; None is nothing."""
    facts: str = ""
    """The machine's facts about a resource that it could not have, in a sentence; "" is nothing."""
    rival: int = -1
    """The rank that holds the port or the lock that it could not have; -1 is none that is known."""
    ranks: int = 0
    """The number of ranks of the job; 0 is unknown."""
    hung: str = ""
    """The hang in one line, for the worker that seems to be its cause; "" for all others."""

    @property
    def signo(self) -> int:
        """Return the signal that killed it; 0 if none did."""
        return self.status & 0x7F

    @property
    def gave_reason(self) -> bool:
        """Return whether its program ended the process itself, after it had written why."""
        return self.account.is_end and self.status in (signal.SIGABRT, 1 << 8)

    @property
    def failed(self) -> bool:
        """Return whether it ended badly; one that hung did even if it then ended with 0."""
        return self.status != 0 or bool(self.hung)

    @property
    def code(self) -> int:
        """Return its exit code as a shell gives it: 128 + n for signal n; 1 if it hung and gave 0.

        If an exception had ended the worker, it is that exception's code, whoever stopped it after
        that.
        """
        if self.raised and self.signo:
            return self.ending.code or 1
        return exit_code(self.status) or int(self.failed)


def how(exit_: Exit) -> str:
    """Return the manner of its end: its exit code, or the signal that killed it."""
    if exit_.is_left:
        return "it does not die of SIGKILL"
    if exit_.raised and exit_.signo:
        by = "torshrun" if exit_.stopped else signal_name(exit_.signo)
        return f"exit code {exit_.code}, stopped by {by} before it had ended"
    manner = f"killed by {signal_name(exit_.signo)}, " if exit_.signo else ""
    return f"{'hung, then ' if exit_.hung else ''}{manner}exit code {exit_.code}"


def where(exit_: Exit) -> str:
    """Return where it ended, and after how long."""
    return f"host {exit_.host}, pid {exit_.pid}, after {exit_.seconds:.1f} s"
