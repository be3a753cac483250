"""Implements torch's elastic_launch() and launch_agent() by torshrun.

That serves what is built on them: accelerate launch, notebook_launcher, Lightning's `fabric run`.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from torsh_runtime.elastic.function import is_main_being_found
from torsh_runtime.errors import BackendUnavailable, ConfigError
from torshrun.functions.agent_process import REFUSED, Outcome, run_torshrun
from torshrun.functions.launching import WORKER
from torshrun.functions.transfer import leave_function, take_results
from torshrun.shim.launch_config import (
    Entrypoint,
    options_of,
    program_of,
    remove_torchs_folder,
    signals_of,
    why_not,
)
from torshrun.shim.own import tell

_NONE = "<N/A>"
"""The name that torch uses for a missing file."""


def stand_in(api: ModuleType) -> None:
    """Replace launch_agent() in the module torch.distributed.launcher.api in memory.

    Everything that starts workers there calls it, and looks it up when it does.
    """
    own = api.launch_agent

    @wraps(own)
    def launch_agent(
        config: Any, entrypoint: Entrypoint, args: list[Any], *more: Any, **named: Any
    ) -> dict[int, Any]:
        if not isinstance(entrypoint, str) and is_main_being_found():
            raise ConfigError(
                "workers are started while a worker loads the program: start them below "
                'if __name__ == "__main__"'
            )
        reason = why_not(config, entrypoint)
        if any(each is not None for each in (*more, *named.values())):
            reason = "it has a health check server"
        with tempfile.TemporaryDirectory(prefix="torsh-function-") as name:
            if not reason:
                target, reason = _target(Path(name), config, entrypoint, args)
            if not reason:
                outcome = _run(config, target, Path(name))
                _check(api, outcome, config, entrypoint, Path(name))
                if isinstance(entrypoint, str):
                    return dict.fromkeys(_ranks(config))
                return take_results(Path(name))
        tell(reason)
        found: dict[int, Any] = own(config, entrypoint, args, *more, **named)
        return found

    api.launch_agent = launch_agent  # type: ignore[attr-defined]


def end_by_code(run: ModuleType) -> None:
    """Let torch.distributed.run.run(), which serves a command, exit with torshrun's code.

    torshrun has printed its report, which says what ChildFailedError would.
    """
    own: Callable[[Any], Any] = run.run

    @wraps(own)
    def ending(args: Any) -> None:
        try:
            own(args)
        except Exception as error:
            code = getattr(error, "torshrun_code", None)
            if code is None:
                raise
            sys.exit(code)

    run.run = ending  # type: ignore[attr-defined]


def _target(
    place: Path, config: Any, entrypoint: Entrypoint, args: Sequence[Any]
) -> tuple[list[str], str]:
    """Return what torshrun is to run, or the reason why it cannot.

    A function goes to forks by value, and to spawned processes by its name, as with torch.
    """
    if isinstance(entrypoint, str):
        return program_of(entrypoint, args), ""
    assert entrypoint is not None
    try:
        leave_function(place, entrypoint, args, by_value=config.start_method == "fork")
    except (BackendUnavailable, ConfigError) as error:
        return [], str(error)
    return ["-m", WORKER, str(place)], ""


def _run(config: Any, target: list[str], place: Path) -> Outcome:
    remove_torchs_folder(config)
    words = ["--scheduler=none", *options_of(config), *target]
    return run_torshrun(words, place, signals_of(config))


def _ranks(config: Any) -> range:
    """Return the ranks of this node's workers, as far as they are known here."""
    first = int(config.rdzv_configs.get("rank", 0)) * config.nproc_per_node
    return range(first, first + config.nproc_per_node)


def _check(
    api: ModuleType, outcome: Outcome, config: Any, entrypoint: Entrypoint, place: Path
) -> None:
    """Raise torch's exceptions for a failed job, and ConfigError for one that could not begin."""
    if outcome.signo:
        text = f"Process {os.getpid()} got signal: {outcome.signo}"
        error = api.SignalException(text, signal.Signals(outcome.signo))
        raise _with_code(error, outcome.code or 128 + outcome.signo)
    if outcome.is_refusal:
        raise _with_code(ConfigError(REFUSED), outcome.code)
    if outcome.code:
        failure = _failure(api, outcome, config, place)
        name = entrypoint if isinstance(entrypoint, str) else getattr(entrypoint, "__name__", "")
        error = api.ChildFailedError(str(name), {max(outcome.rank, 0): failure})
        error.add_note(outcome.report)
        raise _with_code(error, outcome.code)


def _failure(api: ModuleType, outcome: Outcome, config: Any, place: Path) -> Any:
    """Return torch's ProcessFailure of the root cause."""
    errors = sys.modules[api.ChildFailedError.__module__]
    file = place / "error.json"
    failure = errors.ProcessFailure(
        local_rank=max(outcome.rank, 0) % config.nproc_per_node,
        pid=outcome.pid,
        exitcode=outcome.exitcode,
        error_file=str(file) if file.is_file() else _NONE,
    )
    above = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if above and file.is_file():  # for a launcher above this program, as torch's @record does
        shutil.copyfile(file, above)
    failure.error_file = above or _NONE  # the temporary file is deleted now
    return failure


def _with_code(error: Exception, code: int) -> Exception:
    """Attach the exit code for end_by_code()."""
    error.torshrun_code = code  # type: ignore[attr-defined]
    return error
