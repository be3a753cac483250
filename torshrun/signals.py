"""Signals: their names, those that are for workers, and what they tell about who is to blame."""

from __future__ import annotations

import signal

FIRST_CAUSES = frozenset(
    {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
)
"""A worker that one of these killed did not fail because another one had. SIGABRT is none of them:
a process aborts by itself, and often because of its peers, as by NCCL's watchdog or an exception
that no thread catches.
"""
NOTICES = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals for the workers, unless the user names them as ones that stop the job."""


def exit_code(status: int) -> int:
    """Return the shell's exit code, 128 + n for signal n, of a `status` as of waitpid."""
    signo = status & 0x7F
    return 128 + signo if signo else status >> 8 & 0xFF


def signal_name(signo: int) -> str:
    try:
        return signal.Signals(signo).name
    except ValueError:
        return f"signal {signo}"
