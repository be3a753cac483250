"""Runs a torshrun beside the program that wants workers.

It is started, sent the program's signals, and waited for. It is a process of its own, so that
nothing of the program's state changes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from torshrun.exit_codes import USAGE
from torshrun.signals import NOTICES

_OF_HOSTS = ("TORSH_HOSTFILE", "TORSH_INCLUDE", "TORSH_EXCLUDE")
"""Variables by which torshrun would start the workers on other hosts."""
_TIED = "torsh_runtime.elastic.tied"
REFUSED = "torshrun has started no worker: its output says why"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Describes how torshrun ended."""

    code: int
    """The exit code of torshrun, 128 + n for signal n."""
    signo: int = 0
    """The first signal that this process got meanwhile and passed on."""
    account: Mapping[str, Any] | None = None
    """The root cause that it has recorded, as torshrun/failure/error_file.py writes it."""

    @property
    def is_refusal(self) -> bool:
        """Return whether it has started no worker, as its options cannot be carried out."""
        return self.code == USAGE and self.account is None

    @property
    def rank(self) -> int:
        """Return the rank that failed, or -1 if unknown."""
        return int(self._extra("rank", -1))

    @property
    def pid(self) -> int:
        """Return the pid of the failed worker, or 0 if unknown."""
        return int(self._extra("pid", 0))

    @property
    def exitcode(self) -> int:
        """Return how the failed worker ended, as torch has it: -n for signal n.

        If that is unknown, returns torshrun's code.
        """
        status = int(self._extra("status", self.code << 8))
        return -(status & 0x7F) or status >> 8

    @property
    def report(self) -> str:
        """Return the report for people."""
        killed = f"torshrun was killed by signal {self.code - 128}, and with it the workers"
        alone = f"torshrun ended with code {self.code}: its output says why"
        return str(self._extra("report", "") or (killed if self.code == 137 else alone))

    def _extra(self, key: str, otherwise: object) -> Any:
        try:
            return (self.account or {})["message"]["extraInfo"][key]
        except (KeyError, TypeError):
            return otherwise


def run_torshrun(words: Sequence[str], place: Path, signals: Sequence[signal.Signals]) -> Outcome:
    """Run torshrun with these arguments and wait for it.

    `place` is a directory for its files, and `signals` are those that stop the job. In the main
    thread this process passes them on, and notices, too. Variables that set how torchrun starts
    workers are ignored, as the arguments set it.
    """
    error_file = place / "error.json"
    given = (name for name in os.environ if not _says_how(name))
    environ = {name: os.environ[name] for name in given}
    environ["TORCHELASTIC_ERROR_FILE"] = str(error_file)
    python = (sys.executable, "-P")
    torshrun = (*python, "-m", "torshrun", *words)
    command = (*python, "-m", _TIED, str(os.getpid()), *torshrun)
    # In a session of its own Ctrl-C reaches it once: a second SIGINT would kill the workers.
    with subprocess.Popen(command, env=environ, start_new_session=True) as process:
        try:
            with _passed_on(signals, process) as got:
                status = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    signo = got[0] if got else 0
    return Outcome(code=_as_shell(status), signo=signo, account=_read(error_file))


def _says_how(variable: str) -> bool:
    return variable in _OF_HOSTS or variable.startswith("PET_")


@contextmanager
def _passed_on(
    signals: Sequence[signal.Signals], process: subprocess.Popen[bytes]
) -> Iterator[list[int]]:
    """Pass signals on, and yield the list of those of `signals` that came.

    Signals that this process ignores, as under nohup, stay ignored, and notices that it handles
    itself are not passed on.
    """
    got: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield got
        return

    def pass_on(signo: int, _: FrameType | None) -> None:
        if signo in signals:
            got.append(signo)
        process.send_signal(signo)

    stops = [each for each in signals if signal.getsignal(each) is not signal.SIG_IGN]
    notices = [each for each in NOTICES if signal.getsignal(each) is signal.SIG_DFL]
    before = {each: signal.signal(each, pass_on) for each in {*stops, *notices}}
    try:
        yield got
    finally:
        for each, handler in before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)


def _as_shell(status: int) -> int:
    return 128 - status if status < 0 else status


def _read(error_file: Path) -> Mapping[str, Any] | None:
    try:
        account = json.loads(error_file.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return account if isinstance(account, dict) else None
