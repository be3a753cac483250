"""Converts the native layer's account of a failure to the error that Python raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torsh_runtime.enumerations import DTYPES, OF_LIST, OPERATIONS, REDUCTIONS, FailureKind
from torsh_runtime.errors import (
    CommAborted,
    CommError,
    CommMismatch,
    CommTimeout,
    PeerLost,
    named_operation,
)

_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_ROOTED = {"broadcast": "src", "scatter": "src", "reduce": "dst", "gather": "dst"}


_REFUSALS = {
    FailureKind.CLOSED: "the process group is closed; make a new one",
    FailureKind.NESTED: "a signal handler called a collective while it had interrupted another one "
    "of the same group; set a flag in the handler instead",
    FailureKind.FORKED: "this process is a fork of a rank and no rank itself; call collectives in "
    "the parent, or start the child by exec and give it a group of its own",
}


@dataclass
class Peers:
    """Holds known facts about a group's ranks."""

    processes: Mapping[int, int]
    """Pids of those of this node, by rank."""
    numbers: Sequence[int]
    """The group's ranks as the launched job numbers them."""
    names: Sequence[str] = ()
    """Names of the ranks in a mesh, for people."""
    axis: str = ""
    """The axis of that mesh that the ranks are along."""

    def named(self, ranks: Sequence[int], form: str = "{}") -> str:
        """Return the names of the ranks in the mesh, put into `form`; "" without a mesh."""
        if not self.names or not ranks:
            return ""
        more = f"; {len(ranks) - _MOST_NAMES} more" if len(ranks) > _MOST_NAMES else ""
        names = "; ".join(self.names[rank] for rank in ranks[:_MOST_NAMES]) + more
        return form.format(names)

    @property
    def along(self) -> str:
        """Return a phrase for the axis of the mesh that the ranks are along; "" without one."""
        return f" of axis {self.axis}" if self.axis else ""

    def in_job(self, rank: int) -> tuple[str, str]:
        """Return what the rank is numbered in, and its name in the job.

        They are PeerLost's `group` and `name`.
        """
        number = self.numbers[rank] if self.numbers else rank
        is_plain = number in (rank, -1)  # of no job of ours: there is no other name
        group = f"axis {self.axis}" if self.axis else "" if is_plain else "the group"
        if self.names:
            return group, self.names[rank]
        return group, f"rank {number} of the job" if group and number >= 0 else ""


_MOST_NAMES = 8


def comm_error(
    peers: Peers,
    kind: int,
    rank: int,
    reporter: int,
    operation: int,
    sequence: int,
    seconds: float,
    missing: Sequence[int],
    own: tuple[Any, ...],
    other: tuple[Any, ...],
) -> CommError:
    """Return the error for a Failure."""
    facts = kind, rank, reporter, operation, sequence, seconds, missing, own, other
    error = _error(peers, *facts)
    error.members = tuple(peers.numbers)
    return error


def _error(
    peers: Peers,
    kind: int,
    rank: int,
    reporter: int,
    operation: int,
    sequence: int,
    seconds: float,
    missing: Sequence[int],
    own: tuple[Any, ...],
    other: tuple[Any, ...],
) -> CommError:
    op: str = OPERATIONS[operation]
    if op == "barrier" and not sequence:  # the ranks' first meeting; messages have no sequence
        op = "init_process_group"
    match kind:
        case FailureKind.PEER_LOST:
            return PeerLost(rank, op, sequence, "", *peers.in_job(rank))
        case FailureKind.PEER_LEFT:
            return PeerLost(rank, op, sequence, "it has left the group", *peers.in_job(rank))
        case FailureKind.TIMEOUT:
            detail = peers.named(missing, f"{peers.along} ({{}})")
            detail += _stopped(peers.processes, missing)
            return CommTimeout(op, sequence, seconds, missing, detail)
        case FailureKind.MISMATCH:
            detail = peers.named([reporter, rank], f"{peers.along} ({{}})")
            return CommMismatch(sequence, reporter, _call(own), rank, _call(other), detail)
        case FailureKind.ABORTED:
            return CommAborted(
                f"rank {rank} aborted the group during {named_operation(op, sequence)}"
                f"{peers.named([rank], ' ({})')}. Destroy the process group and make a new one."
            )
        case FailureKind.BUSY:
            return CommAborted(
                f"another thread of this process has used the group for over {seconds:g} s, so "
                f"this operation was not begun; give each thread a group of its own"
            )
        case _:
            return CommAborted(_REFUSALS[FailureKind(kind)])


def _stopped(processes: Mapping[int, int], ranks: Sequence[int]) -> str:
    """Return a phrase naming those ranks whose process is stopped by SIGSTOP or a debugger.

    It is empty if there are none.
    """
    stopped = [rank for rank in ranks if rank in processes and _is_stopped(processes[rank])]
    if not stopped:
        return ""
    who = ", ".join(f"{rank} (pid {processes[rank]})" for rank in stopped)
    return f" (stopped: rank {who}; `kill -CONT` lets it go on)"


def _is_stopped(pid: int) -> bool:
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return False
    return after_name.split()[0] in "Tt"


def _call(call: tuple[Any, ...]) -> str:
    kind, dtype, op, root, dims, shape = call
    name = OPERATIONS[kind]
    if name == "barrier":
        return "barrier()"
    text = f"{DTYPES[dtype]}[{', '.join(map(str, shape))}]"
    if root == OF_LIST:
        text = _of_list(DTYPES[dtype], dims, shape)
    if name in _REDUCING:
        text += f", {REDUCTIONS[op]}"
    if name in _ROOTED:
        text += f", {_ROOTED[name]}={root}"
    return f"{name}({text})"


def _of_list(dtype: str, length: int, elements: Sequence[int]) -> str:
    """Describe a list of `length` arrays, given the number of elements of the first ones."""
    if len(elements) == length and len({*elements}) == 1:
        return f"{length} x {dtype}[{elements[0]}]"
    sizes = [f"{dtype}[{count}]" for count in elements]
    return " + ".join([*sizes, "…"] if length > len(elements) else sizes)
