"""--dry-run: each worker's command and environment, in words. Nothing is started or chosen."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from torsh_runtime.contract import WorkerEnv
from torshrun.agent.round import first_worker
from torshrun.config.job import LaunchConfig
from torshrun.config.values import MOST_WORKERS
from torshrun.rendezvous.base import NodeAssignment
from torshrun.text import ranges
from torshrun.topology.cpus import allowed_cpus
from torshrun.workers.spec import Assignment, WorkerSpec, assign

CHOSEN_AT_START = "<chosen at start>"
GIVEN = "<as environment: says>"
_Lines = Mapping[str, str]  # what is said about a worker, by what it is about


def plan(config: LaunchConfig, environ: Mapping[str, str]) -> str:
    """Describe how the workers would be started.

    They are assigned twice, with different facts: what differs is not known yet.
    """
    spec = WorkerSpec.from_config(config, environ, allowed_cpus())
    pairs = zip(
        assign(spec, _first(config, "a", 1), "a"),
        assign(spec, _first(config, "b", 2), "b"),
        strict=True,
    )
    workers = [_describe(one, other, environ, config.environment) for one, other in pairs]
    common = {
        key: line
        for key, line in workers[0].items()
        if all(lines.get(key) == line for lines in workers)
    }
    blocks = [_block("Every worker", common) if len(workers) > 1 else ""]
    title, where = ("Rank", "") if config.is_alone else ("Local rank", " here")
    for rank, lines in enumerate(workers):
        own = {key: line for key, line in lines.items() if len(workers) == 1 or key not in common}
        blocks.append(_block(f"{title} {rank}", own))
    plural = "s" if len(workers) > 1 else ""
    return (
        f"{len(workers)} worker{plural} would start{where}; nothing has been started.\n"
        + "".join(blocks)
    )


def _first(config: LaunchConfig, word: str, port: int) -> WorkerEnv:
    """Return the first worker's place; `port` also stands for what the rendezvous decides."""
    alone, workers = config.is_alone, config.nproc_per_node
    place = NodeAssignment(
        round=0,
        restarts=0,
        node_rank=0 if alone else port,
        num_nodes=1 if alone else port,
        first_rank=0 if alone else port * workers,
        world_size=workers if alone else port * MOST_WORKERS,
        master_addr=config.master_addr if alone else word,
        master_port=config.master_port or port,
        jax_port=port,
    )
    return first_worker(config, place, scratch=word, endpoint=word, secret=word)


def _describe(
    worker: Assignment,
    other: Assignment,
    environ: Mapping[str, str],
    asked: Mapping[str, str],
) -> _Lines:
    """Return the worker's command and processors, and how its environment differs from torshrun's.

    Values of the file's environment are left out: they may be secrets.
    """
    lines = {" command": shlex.join(worker.argv)}
    if worker.cpus:
        lines[" processors"] = f"on processors {','.join(ranges(worker.cpus))}"
    for name in environ:
        if name not in worker.environ:
            lines[name] = f"{name} is taken away"
    for name, value in worker.environ.items():
        if asked.get(name) == value:
            lines[name] = f"{name}={GIVEN}"
        elif environ.get(name) != value:
            known = value != CHOSEN_AT_START and value == other.environ[name]
            lines[name] = f"{name}={shlex.quote(value) if known else CHOSEN_AT_START}"
    return lines


def _block(title: str, lines: _Lines) -> str:
    return f"\n{title}:\n" + "".join(f"  {line}\n" for line in lines.values())
