"""Defines ElasticAgent, which runs a function in workers under torshrun from within a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from torsh_runtime.checkpoint.checkpointer import Checkpointer
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.elastic.function import NamedFunction, check_arguments, is_main_being_found
from torsh_runtime.errors import CheckpointError, ConfigError, WorkerFailed
from torsh_runtime.launchers import completed

_WORKER = "torsh_runtime.elastic_worker"
"""Imported by name, since it belongs to a higher layer: it creates the process group."""
_OF_HOSTS = ("TORSH_HOSTFILE", "TORSH_INCLUDE", "TORSH_EXCLUDE")
"""Variables that would make torshrun start the workers on other hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    min_workers: int = 1
    max_workers: int | None = None
    checkpoint_dir: str | Path | None = None
    max_restarts: int = 3
    workers_per_node: int | None = None
    rdzv_endpoint: str | None = None
    options: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("min_workers", "max_workers", "workers_per_node", "max_restarts"):
            value, least = getattr(self, name), int(name != "max_restarts")
            is_none = value is None and name in ("max_workers", "workers_per_node")
            if not is_none and (type(value) is not int or value < least):
                raise ConfigError(f"{name} must be an integer of {least} or more, not {value!r}")
        if self.max_workers is not None and self.max_workers < self.min_workers:
            raise ConfigError(
                f"max_workers={self.max_workers} is less than min_workers={self.min_workers}"
            )
        if not isinstance(self.checkpoint_dir, str | Path | None) or self.checkpoint_dir == "":
            raise ConfigError(f"checkpoint_dir must be a path, not {self.checkpoint_dir!r}")
        if isinstance(self.options, str) or not all(isinstance(e, str) for e in self.options):
            raise ConfigError(f"options must be a list of strings, not {self.options!r}")

    def launcher_options(self) -> list[str]:
        """Return torshrun's options. Raises ConfigError for settings that contradict each other."""
        common = ["--scheduler=none", f"--max-restarts={self.max_restarts}", *self.options]
        if self.rdzv_endpoint is None:
            return [f"--nproc-per-node={self._workers_here()}", *common]
        if self.max_workers is None or self.workers_per_node is None:
            raise ConfigError("with rdzv_endpoint give max_workers and workers_per_node, too")
        least = -(-self.min_workers // self.workers_per_node)
        most = self.max_workers // self.workers_per_node
        if most < least:
            raise ConfigError(
                f"no number of nodes with {self.workers_per_node} workers each has "
                f"{self.min_workers} to {self.max_workers} workers"
            )
        return [
            f"--nproc-per-node={self.workers_per_node}",
            f"--nnodes={least}:{most}",
            "--rdzv-backend=tcp",
            f"--rdzv-endpoint={self.rdzv_endpoint}",
            *common,
        ]

    def _workers_here(self) -> int:
        processors = len(os.sched_getaffinity(0))
        wanted = self.workers_per_node or max(processors, self.min_workers)
        if self.max_workers is not None:
            wanted = min(wanted, self.max_workers)
        if wanted < self.min_workers:
            raise ConfigError(
                f"workers_per_node={wanted} on one node is less than min_workers="
                f"{self.min_workers}: give rdzv_endpoint for more nodes"
            )
        return wanted


class ElasticAgent:
    """Runs a function in workers and restarts them when one fails, without a command line.

    ElasticAgent().min_workers(2).max_workers(8).checkpoint_dir("kept") is equivalent to arguments:
    each of these methods returns a new agent.

    Example:
        ```python
        def train(checkpointer):
            return fit(checkpointer)  # restores its state first, and returns the loss

        if __name__ == "__main__":
            loss = tr.elastic.ElasticAgent(min_workers=2, checkpoint_dir="kept").run(train)
        ```
    """

    def __init__(
        self,
        *,
        min_workers: int = 1,
        max_workers: int | None = None,
        checkpoint_dir: str | Path | None = None,
        max_restarts: int = 3,
        workers_per_node: int | None = None,
        rdzv_endpoint: str | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """Configure the workers; run() starts them.

        On one machine there are `workers_per_node` workers, or else one per processor, within
        `min_workers` and `max_workers`.

        Args:
            min_workers: The smallest number of workers.
            max_workers: The largest number of workers; None is no limit.
            checkpoint_dir: The directory of the Checkpointer that the function receives.
            max_restarts: How many times workers are started again after a failure.
            workers_per_node: The number of workers on each machine.
            rdzv_endpoint: host:port at which programs on several machines rendezvous. Each machine
                has workers_per_node workers; the job starts with min_workers in total and grows up
                to max_workers.
            options: Further options of torshrun's command line.

        Raises:
            ConfigError: For invalid or contradictory values.
        """
        self._settings = _Settings(
            min_workers=min_workers,
            max_workers=max_workers,
            checkpoint_dir=checkpoint_dir,
            max_restarts=max_restarts,
            workers_per_node=workers_per_node,
            rdzv_endpoint=rdzv_endpoint,
            options=options,
        )

    def min_workers(self, number: int) -> ElasticAgent:
        """Return a copy of this agent with a different minimum number of workers."""
        return self._with(min_workers=number)

    def max_workers(self, number: int | None) -> ElasticAgent:
        """Return a copy of this agent with a different maximum number of workers."""
        return self._with(max_workers=number)

    def checkpoint_dir(self, directory: str | Path | None) -> ElasticAgent:
        """Return a copy of this agent with a different directory of checkpoints."""
        return self._with(checkpoint_dir=directory)

    def max_restarts(self, number: int) -> ElasticAgent:
        """Return a copy of this agent with a different number of restarts."""
        return self._with(max_restarts=number)

    def run(self, train_fn: Callable[..., Any]) -> Any:
        """Run the function in all workers and return its result on rank 0.

        The workers have a process group. In a worker of torshrun or torchrun, and in a process that
        mpiexec or srun has started for a rank, the function is only called and its result returned.

        Args:
            train_fn: A function of a Checkpointer of checkpoint_dir, or of nothing if there is no
                checkpoint_dir. Workers find it by its name in a module or in the program itself,
                which must then call run() under `if __name__ == "__main__"`. The function itself
                restores the state it starts from.

        Returns:
            The result, which may consist of numbers, strings, bytes, arrays, and lists, tuples and
                dicts of them. It is None on machines other than rank 0's.

        Raises:
            WorkerFailed: When no restart is left, with the first worker's error.
            ConfigError: Before anything is started if the function cannot be found or settings
                contradict each other, and after it has run if its result cannot be passed on.

        Example:
            ```python
            if __name__ == "__main__":
                loss = tr.elastic.ElasticAgent(min_workers=4).run(train)
            ```
        """
        if is_main_being_found():
            raise ConfigError(
                "run() is called while a worker loads the program: call it behind "
                'if __name__ == "__main__"'
            )
        settings = self._settings
        directory = None if settings.checkpoint_dir is None else Path(settings.checkpoint_dir)
        check_arguments(train_fn, int(directory is not None))
        if "RANK" in completed(os.environ):
            return import_module(_WORKER).run_here(train_fn, directory)
        return _launch(NamedFunction.of(train_fn), directory, settings.launcher_options())

    def _with(self, **changes: Any) -> ElasticAgent:
        other = ElasticAgent()
        other._settings = replace(self._settings, **changes)
        return other


def _launch(function: NamedFunction, directory: Path | None, options: Sequence[str]) -> Any:
    with tempfile.TemporaryDirectory(prefix="torsh-result-") as place:
        error_file = Path(place, "error.json")
        told = json.dumps(
            {
                "module": function.module,
                "is_path": function.is_path,
                "name": function.name,
                "path": [each or str(Path.cwd()) for each in sys.path],
                "checkpoint_dir": None if directory is None else str(directory.absolute()),
                "results": place,
            }
        )
        launcher = [sys.executable, "-m", "torshrun", *options, "-m", _WORKER, told]
        tied = [sys.executable, "-m", "torsh_runtime.elastic.tied", str(os.getpid()), *launcher]
        environ = {name: os.environ[name] for name in os.environ if name not in _OF_HOSTS}
        code = _wait(tied, {**environ, "TORCHELASTIC_ERROR_FILE": str(error_file)})
        if code:
            raise WorkerFailed(_cause(error_file) or f"torshrun ended with {code}: see its output")
        return _result(Path(place))


def _wait(command: Sequence[str], environ: dict[str, str]) -> int:
    with subprocess.Popen(command, env=environ) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()  # torshrun ends its workers and then itself
            process.wait()
            raise


def _cause(error_file: Path) -> str:
    try:
        message = json.loads(error_file.read_text())["message"]
        return str(message["extraInfo"]["py_callstack"] or message["message"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def _result(place: Path) -> Any:
    refused = place / "refused"
    if refused.exists():
        raise ConfigError(f"the function has run, but its result is lost: {refused.read_text()}")
    try:
        loaded = Checkpointer(place, process_group=Ranks(None)).load()
    except CheckpointError as error:
        raise WorkerFailed(f"rank 0's result cannot be read: {error}") from None
    if loaded is None:
        return None  # rank 0 ran on a different machine
    return loaded.values["result"]
