"""Implements torshrun.launch(), which runs a function in workers, from a program or a notebook."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torsh_runtime.elastic.function import is_main_being_found
from torsh_runtime.errors import ConfigError, WorkerFailed
from torshrun.config.command_line import parse
from torshrun.functions.agent_process import REFUSED, Outcome, run_torshrun
from torshrun.functions.transfer import leave_function, take_results

WORKER = "torshrun.functions.worker"
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
ELSEWHERE = ("help", "version", "dry_run", "print_config", "print_completion", "hostfile")
"""Options with which torshrun starts no workers, or starts them on other hosts."""


class LaunchFailed(WorkerFailed):
    """Raised when workers of launch() have failed, or were stopped. Its text is torshrun's report.

    Attributes: code (torshrun's exit code), rank (of the failure that is the cause, or -1 if there
    is none or it is unknown), report.
    """

    def __init__(self, code: int, rank: int, report: str) -> None:
        super().__init__(report)
        self.code, self.rank, self.report = code, rank, report

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.rank, self.report), self.__dict__


def launch(
    function: Callable[..., Any],
    *args: Any,
    nproc_per_node: int | str = 1,
    max_restarts: int = 0,
    options: Sequence[str] = (),
) -> dict[int, Any]:
    """Call function(*args) in workers, and return the results of this node's ranks, by rank.

    nproc_per_node: a number of workers, "cpu", "gpu" or "auto".
    max_restarts: how often all workers are started again after a failure.
    options: further options of torshrun's command line, such as ["--hang-timeout", "60"].

    Workers are new processes, each with RANK, WORLD_SIZE and so on. A function that is defined at
    the top level of a module, or of the program, is found there by its name: the program's main
    module is run again for it, so call launch() below `if __name__ == "__main__"`. One of a
    notebook, a lambda or a nested function is sent by value, with what it uses, by cloudpickle.

    Raises LaunchFailed when workers fail and no restart is left, KeyboardInterrupt when
    interrupted, ConfigError and BackendUnavailable for what cannot be started.
    """
    if is_main_being_found():
        raise ConfigError(
            "launch() is called while a worker loads the program: call it below "
            'if __name__ == "__main__"'
        )
    _check_given(function, options)
    size = [f"--nproc-per-node={nproc_per_node}", f"--max-restarts={max_restarts}"]
    with tempfile.TemporaryDirectory(prefix="torsh-function-") as name:
        place = Path(name)
        leave_function(place, function, args, by_value=False)
        words = ["--scheduler=none", *size, *options, "-m", WORKER, name]
        check_outcome(run_torshrun(words, place, PASSED_ON))
        return take_results(place)


def _check_given(function: object, options: Sequence[str]) -> None:
    """Raise ConfigError for options that would run something else, or nothing here."""
    is_text = isinstance(options, str) or any(not isinstance(each, str) for each in options)
    if is_text or not callable(function):
        raise ConfigError("launch() takes a function, and options as a list of strings")
    line = parse(options)
    if line.script is not None:
        raise ConfigError(
            f"options must not name a script, as {line.script!r}: launch() runs a function"
        )
    for key in ELSEWHERE:
        if key in line.given:
            option = key.replace("_", "-")
            raise ConfigError(f"launch() starts workers here: call torshrun itself for --{option}")


def check_outcome(outcome: Outcome) -> None:
    """Raise the exception for the outcome, unless the workers have succeeded."""
    if outcome.signo == signal.SIGINT:
        raise KeyboardInterrupt
    if outcome.is_refusal:
        raise ConfigError(REFUSED)
    if outcome.code or outcome.signo:
        raise LaunchFailed(outcome.code, outcome.rank, outcome.report)
