"""Warns about variables of other launchers that number the nodes of a job.

They are no options of torshrun, nor of torchrun. A torshrun without other options starts a job of
its own.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from torshrun.clusters.hints import NUMBER, Environ, in_worker

_HOST = re.compile("[A-Za-z0-9_.:-]{1,253}")
_LONGEST = 65536
"""The most characters of a list of hosts that is parsed."""


class _Numbering(NamedTuple):
    """Names variables that number nodes."""

    rank: str
    number: str
    master: str
    """The variable with the address of rank 0. Empty if the launcher sets none."""


_NUMBERINGS = (
    _Numbering("RANK", "WORLD_SIZE", "$MASTER_ADDR"),  # Volcano, PyTorchJob, Vertex AI, Azure ML
    _Numbering("NODE_RANK", "NNODES", "$MASTER_ADDR"),
    _Numbering("NODE_RANK", "NUM_NODES", "$MASTER_ADDR"),
    _Numbering("FLUX_TASK_RANK", "FLUX_JOB_SIZE", ""),
    _Numbering("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", ""),  # mpirun_rsh
    _Numbering("PMI_RANK", "PMI_SIZE", ""),  # launchers that set nothing else
)
_GRID_ENGINES = """torshrun --hostfile=<(awk '{print $1, "slots=" $2}' "$PE_HOSTFILE") …"""
"""The command for Grid Engine. The file has a host and its slots on each line."""
_HOSTS, _HERE = "SM_HOSTS", "SM_CURRENT_HOST"
"""Variables of Amazon SageMaker: a JSON list of host names, and the name of this host."""


def told_of_others(environ: Environ) -> str:
    """Return a line for people if variables say that this is one of several nodes, else ""."""
    if in_worker(environ):  # the numbers are those of the worker
        return ""
    for each in _NUMBERINGS:
        rank, count = (environ.get(name, "") for name in (each.rank, each.number))
        if NUMBER.fullmatch(rank) and NUMBER.fullmatch(count) and int(rank) < int(count) > 1:
            told = f"{each.rank}={rank} and {each.number}={count}"
            return _line(told, _command(each))
    count = environ.get("NHOSTS", "")
    if "PE_HOSTFILE" in environ and NUMBER.fullmatch(count) and int(count) > 1:
        return _line(f"NHOSTS={count} (Grid Engine)", _GRID_ENGINES)
    hosts = _hosts(environ)
    here = environ.get(_HERE, "")
    if len(hosts) > 1 and here in hosts:
        told = f"{here} is one of the {len(hosts)} hosts of {_HOSTS}"
        return _line(told, _torshrun(str(len(hosts)), str(hosts.index(here)), hosts[0]))
    return ""


def _line(told: str, command: str) -> str:
    return (
        f"{told}, but this torshrun is a job of its own, on this node only. For one job on all "
        f"nodes: {command}; --standalone suppresses this line"
    )


def _command(numbering: _Numbering) -> str:
    """Return the command that starts torshrun on each node.

    It includes a shell if no shell would expand the variables there.
    """
    number, rank = f"${numbering.number}", f"${numbering.rank}"
    if numbering.master:
        return _torshrun(number, rank, numbering.master)
    return f"bash -c '{_torshrun(number, rank, 'HOST')}' (HOST is where {numbering.rank} is 0)"


def _torshrun(number: str, rank: str, master: str) -> str:
    return f"torshrun --nnodes={number} --node-rank={rank} --master-addr={master} …"


def _hosts(environ: Environ) -> list[str]:
    text = environ.get(_HOSTS, "")
    if len(text) > _LONGEST:
        return []
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    names = found if isinstance(found, list) else []
    is_whole = all(isinstance(name, str) and _HOST.fullmatch(name) for name in names)
    return names if is_whole else []
