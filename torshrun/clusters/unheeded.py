"""Variables by which others number the nodes of a job. They are no options of torshrun's, nor of
torchrun's: a torshrun that is given nothing else makes a job of its own.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from torshrun.clusters.hints import NUMBER, Environ, in_worker

_HOST = re.compile("[A-Za-z0-9_.:-]{1,253}")
_LONGEST = 65536
"""Characters of a list of hosts that is looked at."""


class _Numbering(NamedTuple):
    """Variables that number nodes."""

    rank: str
    number: str
    master: str
    """The address of rank 0; "" where launchers of processes say no more."""


_NUMBERINGS = (
    _Numbering("RANK", "WORLD_SIZE", "$MASTER_ADDR"),  # Volcano, PyTorchJob, Vertex AI, Azure ML
    _Numbering("NODE_RANK", "NNODES", "$MASTER_ADDR"),
    _Numbering("NODE_RANK", "NUM_NODES", "$MASTER_ADDR"),
    _Numbering("FLUX_TASK_RANK", "FLUX_JOB_SIZE", ""),
    _Numbering("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", ""),  # mpirun_rsh
    _Numbering("PMI_RANK", "PMI_SIZE", ""),  # what starts processes and says nothing else
)
_GRID_ENGINES = """torshrun --hostfile=<(awk '{print $1, "slots=" $2}' "$PE_HOSTFILE") …"""
"""The variable names a file with a host, its slots and more on each line."""
_HOSTS, _HERE = "SM_HOSTS", "SM_CURRENT_HOST"
"""Amazon SageMaker's: a JSON list of names, and one of them."""


def told_of_others(environ: Environ) -> str:
    """A line for people if variables say that this is one of several nodes; else ""."""
    if in_worker(environ):  # the numbers are the workers' own
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
        f"nodes: {command}; --standalone leaves this line out"
    )


def _command(numbering: _Numbering) -> str:
    """What starts torshrun on each node, by a shell there where none reads the command yet."""
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
