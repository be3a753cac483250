"""Words what the agent announces about ends: of workers, of the keeper and of rounds."""

from __future__ import annotations

from collections.abc import Sequence

from torshrun.agent import protocol
from torshrun.signals import exit_code, signal_name
from torshrun.workers.keeper import Keeper


def lost_nodes(count: int, most: int) -> str:
    """Return what may follow from nodes that were lost although the job has succeeded."""
    return (
        f"{count} of its {most} nodes did not stay to the end: srun, or whatever started their "
        f"torshruns, may end with their exit codes, 137 of one that was killed, although the job "
        f"has succeeded"
    )


def unkillable(processes: Sequence[str]) -> str:
    """Return why processes are left after SIGKILL."""
    return (
        f"error: processes that do not die of SIGKILL are left: {', '.join(processes)}. In state "
        f"D they wait for the kernel (a device, a network file system)."
    )


def end_of(rank: int, pid: int, status: int, seconds: float) -> dict[str, object]:
    """Return the facts of a worker's end for an event; `status` is as waitpid gives it."""
    return {
        "rank": rank,
        "pid": pid,
        "code": exit_code(status),
        "signal": signal_name(status & 0x7F) if status & 0x7F else "",
        "seconds": seconds,
    }


def in_time(stop: protocol.StopWorkers, alive: Sequence[int]) -> str:
    limit = f"within {stop.grace:g} s" if stop.grace else "at once"
    return f"{len(alive)} worker{'s' if len(alive) != 1 else ''} {limit}"


def dead_man(timeout: float, *, is_alone: bool) -> str:
    """Return why the keeper killed all workers after `timeout` seconds."""
    if is_alone:
        said = f"error: this process gave no sign of life for {timeout:g} s (--agent-timeout), "
    else:
        said = f"the other nodes may have heard nothing of this one for {timeout:g} s (ttl), "
    return (
        f"{said}so the keeper killed all workers. Was this process stopped, or the machine "
        f"overloaded?"
    )


def keeper_death(keeper: Keeper, left: Sequence[object]) -> str:
    """Return how the keeper died; `left` are processes that could not be killed without it."""
    remains = f"; these are left: {', '.join(map(str, left))}" if left else ""
    who = f"the keeper (torsh-keeper, pid {keeper.pid})"
    if keeper.given_up:
        return (
            f"{who} {keeper.given_up}, so this process killed it, and with it all workers"
            f"{remains}. Find out what stopped it: a debugger does, and repeated SIGSTOP."
        )
    return (
        f"{who} has died, so all workers were killed{remains}. It keeps them from being left "
        f"behind; find out what killed it (the kernel's log, if memory ran out)."
    )


def unfit(told: protocol.TellUnfit) -> str:
    """Return why all workers are restarted, or this node leaves the job, when replacements fail
    before they join."""
    what = "this node leaves the job" if told.leaves else "all workers are restarted"
    return (
        f"rank {told.rank}: two replacements in a row have ended with exit code "
        f"{exit_code(told.status)} before tr.elastic.join(), so {what}. What "
        f"communicates before join() cannot work in a replacement: leave it out where "
        f"TORSH_REPLACEMENT is set, or call it after join()"
    )


def unprotected(rank: int, reason: str) -> str:
    """Return that a loss restarts all workers, though copies of them were asked for."""
    return (
        f"--recover: rank {rank} is not protected: {reason}. When a worker is lost, all are "
        f"started again"
    )


def no_copy(rank: int) -> str:
    """Return why all workers are restarted though they were protected."""
    return f"--recover: rank {rank} has left no copy of itself, so all workers are started again"


def outlook(report: protocol.ReportFailure, budget: int, recovers: bool = False) -> str:
    """Return what follows the failure; `budget` is how many restarts the job may have, `recovers`
    says whether lost workers are replaced by copies of theirs.
    """
    attempt = f"attempt {report.restarts + 1} of {budget + 1}"
    if report.sequel == "undecided":
        return f"{attempt}: the other nodes are told"
    if report.sequel == "broken":
        return f"{attempt}: this node leaves the job, as its GPUs cannot be used"
    if report.sequel == "restart":
        left = budget - report.restarts - 1
        when = f"in {report.delay:.1f} s" if report.delay else "now"
        return f"{attempt}: restarting {when}, {left} of {budget} restarts left"
    if report.sequel == "replace":
        left = budget - report.restarts - 1
        how = "replaced by its copy, for which" if recovers else "replaced while"
        what = "wait" if recovers else "continue"
        return f"{attempt}: {how} the others {what}, {left} of {budget} restarts left"
    why = {
        "budget spent": ", no restarts left",
        "same start": " in the same way at its start as before, so it is not started again "
        "(--retry-same-start: it is)",
        "refused": ", as tr.elastic.join() refuses what the program does, which no restart changes",
    }
    return f"{attempt}: the job has failed{why.get(report.sequel, '')}"
