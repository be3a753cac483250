"""Why a round of workers failed: exits in, root cause and a report for people out. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

TAIL_LINES = 20
"""How many lines of a worker's stderr the report shows."""

_FOLLOWERS = ("PeerLost", "CommAborted", "CommTimeout")
_FOLLOWER = re.compile(
    rb"^torsh_runtime\.errors\.(?:%s)\b" % "|".join(_FOLLOWERS).encode(), re.MULTILINE
)
_TRACEBACK = b"Traceback (most recent call last):"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How one worker ended."""

    rank: int
    host: str
    """Name of the node it ran on."""
    pid: int
    status: int
    """As waitpid gives it."""
    seconds: float
    """How long it ran."""
    stopped: bool
    """Whether it had been asked to stop before it ended."""
    stderr: bytes = b""
    """The end of its stderr."""
    account: str = ""
    """What it wrote to its error file, as text; "" is nothing."""
    log: str = ""
    """Where its output was kept; "" is nowhere."""

    @property
    def signo(self) -> int:
        """The signal that killed it; 0 if none did."""
        return self.status & 0x7F

    @property
    def code(self) -> int:
        """Its exit code as a shell gives it: 128 + n for signal n."""
        return 128 + self.signo if self.signo else self.status >> 8 & 0xFF


def root_cause(exits: Sequence[Exit]) -> Exit | None:
    """The exit that explains the others: of those that failed, in the order in which they ended,
    the first that neither lost a peer nor had been asked to stop. None if nothing failed.
    """
    failed = [exit_ for exit_ in exits if exit_.status != 0]
    unasked = [exit_ for exit_ in failed if not exit_.stopped]
    leading = [exit_ for exit_ in unasked if not followed(exit_)]
    candidates = leading or unasked or failed
    return candidates[0] if candidates else None


def followed(exit_: Exit) -> bool:
    """Whether a worker's last traceback says that it failed only because another one had."""
    last = exit_.stderr[max(exit_.stderr.rfind(_TRACEBACK), 0) :]
    return not exit_.signo and _FOLLOWER.search(last) is not None


def describe(exits: Sequence[Exit], outlook: str) -> str:
    """The report: root cause, its last words, the others in one line, and the outlook.

    `outlook` says what happens next ("restarting, 2 of 3 restarts left").
    """
    cause = root_cause(exits)
    if cause is None:
        return f"torshrun: {outlook}"
    lines = [f"torshrun: rank {cause.rank} failed first: {_circumstances(cause)}"]
    lines += _last_words(cause)
    if cause.log:
        lines.append(f"  its output is kept in {cause.log}")
    others = [exit_ for exit_ in exits if exit_ is not cause and exit_.status != 0]
    if others:
        lines.append(f"  after it: {', '.join(_in_brief(exit_) for exit_ in _by_rank(others))}")
    return "\n".join([*lines, f"  {outlook}"])


def signal_name(signo: int) -> str:
    """The signal's name, as in SIGKILL."""
    try:
        return signal.Signals(signo).name
    except ValueError:
        return f"signal {signo}"


def how(exit_: Exit) -> str:
    """The manner of its end: its exit code, or the signal that killed it."""
    if exit_.signo:
        return f"killed by {signal_name(exit_.signo)}, exit code {exit_.code}"
    return f"exit code {exit_.code}"


def _circumstances(exit_: Exit) -> str:
    return f"{how(exit_)}, host {exit_.host}, pid {exit_.pid}, after {exit_.seconds:.1f} s"


def _last_words(exit_: Exit) -> list[str]:
    """The end of its stderr; what it said in its error file only if that tells more."""
    text = exit_.stderr.decode("utf-8", "backslashreplace")
    shown = [_visible(line) for line in text.rstrip().split("\n")[-TAIL_LINES:] if text.strip()]
    heading = "the last lines of its stderr"
    if exit_.account and _TRACEBACK not in exit_.stderr:
        shown = exit_.account.rstrip().split("\n")[-TAIL_LINES:]
        heading = "from its error file"
    if not shown:
        return ["  it wrote nothing to stderr"]
    return [f"  {heading}:", *(f"  | {line}" for line in shown)]


def _visible(line: str) -> str:
    """What a terminal shows of a line after its carriage returns."""
    return line.rstrip("\r").rpartition("\r")[2]


def _by_rank(exits: Sequence[Exit]) -> list[Exit]:
    return sorted(exits, key=lambda exit_: exit_.rank)


def _in_brief(exit_: Exit) -> str:
    if exit_.stopped:
        return f"rank {exit_.rank} stopped by torshrun"
    if followed(exit_):
        return f"rank {exit_.rank} lost its peer"
    return f"rank {exit_.rank} {how(exit_)}"


def read_account(document: object) -> str:
    """The text of a decoded error.json, in torchrun's form; "" if it is not one."""
    message = document.get("message") if isinstance(document, dict) else None
    if isinstance(message, str):
        return message
    if not isinstance(message, dict):
        return ""
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    return str(stack or message.get("message") or "")
