"""Names the kinds of failure, and describes those that show in what several ranks did. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """Names sorts of failure, as far as they can be told from outside."""

    HUNG = "hung"
    STOPPED = "stopped by torshrun"
    OUT_OF_MEMORY = "out of memory"
    CRASHED = "crashed"
    KILLED = "killed by a signal"
    PEER_LOST = "peer lost"
    MISMATCH = "mismatch"
    MISSING = "missing"
    SLOW = "slow"
    DEADLOCK = "deadlock"
    EARLY_EXIT = "early exit"
    FROZEN = "stopped"
    NODE_LOST = "node lost"
    UNREACHABLE = "node unreachable"
    AGENT = "agent"
    GPU_MEMORY = "GPU out of memory"
    GPU = "GPU failed"
    GPU_PROGRAM = "GPU program failed"
    ALLOCATION = "allocation refused"
    SHARED_MEMORY = "shared memory full"
    IMPORT = "import failed"
    SYNTAX = "syntax error"
    ENCODING = "encoding"
    NO_FILE = "file missing"
    DAMAGED_FILE = "file damaged"
    USAGE = "wrong arguments"
    ADDRESS_IN_USE = "address in use"
    NETWORK = "network"
    STORE = "store"
    CLOCK = "clock"
    VERSION = "version"
    DISK_FULL = "disk full"
    LIMIT = "limit"
    PERMISSION = "permission denied"
    NAN = "nan"
    EXCEPTION = "exception"
    EXIT_CODE = "exit code"


class Diagnosis(NamedTuple):
    """Holds what the end of a worker shows."""

    kind: Kind
    why: str = ""
    """The reason of the failure, in whole sentences; "" if its own words say all there is."""
    advice: str = ""
    """Advice on what to do about it; "" if that depends on its own words alone."""

    @property
    def hint(self) -> str:
        return " ".join(filter(None, (self.why, self.advice)))


class Pattern(NamedTuple):
    """Words by which workers show a sort of failure, with why and what to do."""

    kind: Kind
    words: str
    why: str
    advice: str
    """Both may speak of {name}, what the group of that name found or else the first, of the other
    groups by their names, and of the {program}."""


NO_READING = Diagnosis(Kind.EXIT_CODE)
"""A diagnosis that says nothing."""


def of_ranks(kind: Kind, who: str, call: str, others: str, what: str = "") -> Diagnosis:
    """Return the diagnosis of a kind that shows in what several ranks did.

    Args:
        who: The ranks at fault.
        call: The collective in which others waited, or what was called.
        others: Those other ranks.
        what: What is known of the cause.
    """
    why, advice = _OF_RANKS[kind]
    return Diagnosis(kind, why.format(who=who, call=call, others=others, what=what), advice)


_OF_RANKS: Mapping[Kind, tuple[str, str]] = {
    Kind.MISSING: (
        "{others} waited in {call} for {who}, which did not come.",
        "Every rank must call the same collectives: see where it was instead, and look for a "
        "condition on the rank, a skipped or missing batch, or slow work (a save, an evaluation) "
        "that takes longer than the others' timeout.",
    ),
    Kind.SLOW: (
        "{others} waited in {call} for {who}, which did not come: it was still computing.",
        "Compare its work at that place with the others': spread the work evenly, do it before the "
        "job, or give the others a longer timeout. If it never ends, look for an endless loop "
        "there.",
    ),
    Kind.EXCEPTION: (
        "A thread of {who} had ended with an exception ({what}), and {others} waited in {call}.",
        "Nothing does that thread's work any more: let it pass its exception to the main thread (a "
        "queue, concurrent.futures), so that the rank ends.",
    ),
    Kind.EARLY_EXIT: (
        "{who} ended too early: with exit code 0, while {others} still needed it ({call}).",
        "Find out why that script ended before the others: fewer batches (uneven data; "
        "drop_last, or DDP's join()), a return or sys.exit() on a condition, a caught exception. "
        "A barrier before the end keeps ranks together.",
    ),
    Kind.FROZEN: (
        "The process of {who} was stopped (SIGSTOP or a debugger), and {others} waited for it "
        "({call}).",
        "`kill -CONT PID` continues it; find out what stopped it: a debugger, a scheduler that "
        "suspends jobs, Ctrl-Z in a shell, a frozen container.",
    ),
    Kind.MISMATCH: (
        "Ranks disagree about a collective: {call}.",
        "Every rank must make the same calls in the same order, with the same shape and dtype: "
        "compare what they pass, the size of the last batch, and conditions on the rank.",
    ),
    Kind.VERSION: (
        "Ranks have different code or packages: {who} {what}.",
        "Install the same versions on all nodes and give all ranks the same code; classes of "
        "objects that are sent must be in a module that every rank can import.",
    ),
    Kind.DEADLOCK: (
        "A deadlock: {who} waited for {others}: {what}.",
        "Take locks, groups and messages in the same order everywhere: one rank sends while the "
        "other receives (isend, batch_isend_irecv), and none waits for others while it holds a "
        "lock that they want.",
    ),
    Kind.NODE_LOST: (
        "{who} was lost: {what}. Its agent or its machine was stopped or killed, or the network "
        "to it broke.",
        "See whether the machine is up and what its own torshrun wrote last; dmesg and the "
        "scheduler's log show kills and reboots, torshctl doctor examines the network.",
    ),
    Kind.UNREACHABLE: (
        "{who} was lost: {what}. Ranks that waited for it saw no connection closed: most likely "
        "the network to it broke, or the whole machine stopped.",
        "See whether the machine is up and reached from the others (ping, the switch, a "
        "firewall); torshctl doctor examines the network between the nodes.",
    ),
    Kind.NETWORK: (
        "Connections of {who} broke or did not carry anything: {what}.",
        "See what it communicated with (its traceback): another rank, a service, a lost host. "
        "torshctl doctor examines the network between nodes; a slow one needs longer timeouts.",
    ),
    Kind.HUNG: (
        "{who} made no progress, and waited for {what}.",
        "See where its code waits: what should provide what it waits for there (a lock, another "
        "process, a file or its server, a service, a device), and is there a timeout?",
    ),
}
