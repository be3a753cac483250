"""Reads nodes' records from files that agents kept or from traces of running jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torsh_runtime.monitoring.layout import Operation
from torsh_runtime.monitoring.notes import Group, Note
from torshrun.ctl.places import Unfit
from torshrun.ctl.recorded import find, loaded
from torshrun.health.alignment import aligned
from torshrun.health.packed import MAGIC
from torshrun.health.recordings import Dump, Record, before, common_clock_of
from torshrun.health.traced import Traced, read_trace

if TYPE_CHECKING:
    from torshrun.health.clocks import CommonClock

Noted = TypeVar("Noted", Operation, Note)
_MOST_BYTES = 1 << 30
_NEAR = 5.0
"""Seconds by which a disk's clock may differ from the time at which an attempt's records were kept.
"""


@dataclass(frozen=True, slots=True)
class Worker:
    """Holds what is known of one rank."""

    rank: int
    operations: Callable[[], Iterable[Operation]]
    """A function that returns the operations in the order in which they began. It may be called
    repeatedly.
    """
    notes: Callable[[], Iterable[Note]]
    groups: Sequence[Group]
    pid: int | None = None
    """The pid of its process. None is unknown."""


@dataclass(frozen=True, slots=True)
class Node:
    """Holds the records of one node's workers in one round.

    All times are those of the node's own clock, except those in `workers`, which are less by
    `zero`.
    """

    host: str
    round: int
    at: float
    """The time at which they were read."""
    zero: float
    workers: Sequence[Worker]
    began: float | None = None
    """The time from which everything was collected. None: only what was still held when they were
    read.
    """
    wall: float | None = None
    """Seconds to add to get its wall clock. None is unknown."""
    offset: float | None = None
    """Seconds to add to get the leader's clock. None is unknown."""
    bound: float = 0.0
    """The largest possible error of `offset`, in seconds."""
    clock: CommonClock | None = None
    """The agent's knowledge of the leader's clock."""
    node: int = 0
    """The group rank of the node."""
    nbytes: int = 0
    """Bytes of the trace that they were read from. 0 is unknown."""
    complaints: Sequence[str] = field(default=())
    """Lines for people about incomplete or inexact records."""


def nodes_of_dumps(dumps: Iterable[Dump]) -> list[Node]:
    """Return the nodes of what agents kept when a round failed or hung."""
    return [
        Node(
            host=dump.host,
            round=dump.round,
            at=dump.at,
            zero=dump.at,
            workers=[
                Worker(rank, _again(record.operations), _again(record.notes), record.groups)
                for rank, record in sorted(dump.records.items())
            ],
            wall=dump.wall,
            offset=dump.offset,
            bound=dump.bound,
            node=dump.node,
        )
        for dump in dumps
    ]


def nodes_of_traces(traces: Sequence[Traced]) -> list[Node]:
    """Return the nodes of what Collectors have found, on one clock as far as that is known.

    Of the facts in a trace, `ranks` (by local rank) is required. `host`, `round`, `node`, `pids`
    (by local rank) and `clock`, as recordings.save() keeps it, are used if present.
    """
    nodes = [_node_of_trace(traced) for traced in traces]
    if len({(node.node, node.host) for node in nodes}) < 2:
        return nodes
    dumps = aligned([_dump(node) for node in nodes])
    return [
        replace(moved, began=node.began, nbytes=node.nbytes, complaints=node.complaints)
        for moved, node in zip(nodes_of_dumps(dumps), nodes, strict=True)
    ]


def _node_of_trace(traced: Traced) -> Node:
    about = traced.about
    ranks, pids = (_numbers(about.get(key)) for key in ("ranks", "pids"))
    workers = [
        Worker(ranks.get(place, place), each.operations, each.notes, each.groups(), pids.get(place))
        for place, each in traced.workers.items()
    ]
    complaints = []
    if traced.full_at is not None:
        seconds = traced.full_at - traced.began
        complaints.append(
            f"what came after the first {seconds:.1f} s is missing, as there was no room for it"
        )
    return Node(
        host=str(about.get("host", "")),
        round=_number(about.get("round")),
        at=traced.at,
        zero=0.0,
        workers=sorted(workers, key=lambda each: each.rank),
        began=traced.began,
        wall=traced.wall,
        clock=common_clock_of(about.get("clock")),
        node=_number(about.get("node")),
        nbytes=traced.nbytes,
        complaints=complaints,
    )


def _dump(node: Node) -> Dump:
    """Convert a node to the form in which agents keep records."""
    records = {
        each.rank: Record(
            before(list(each.operations()), node.at),
            [note._replace(time=note.time - node.at) for note in each.notes()],
            each.groups,
        )
        for each in node.workers
    }
    dump = Dump("", node.round, node.node, node.host, node.at, records, wall=node.wall)
    return dump.with_clock(*node.clock) if node.clock else dump


def kept(place: str) -> list[Node]:
    """Return the nodes of the newest attempt in a directory. Raises Unfit if there is none."""
    (found,) = find(place)
    return nodes_of_dumps([*_attempts_before(Path(place), found.dumps), *found.dumps])


def trace_in(place: str) -> Traced:
    """Return the trace in a file that a Collector has written. Raises Unfit if it is none."""
    path = Path(place)
    try:
        content = b""
        if path.is_file() or not path.exists():  # a pipe might never end
            with path.open("rb") as file:
                content = file.read(len(MAGIC))
                content += file.read(_MOST_BYTES) if content == MAGIC else b""
    except OSError as error:
        raise Unfit(f"cannot read {place}: {error.strerror or error}") from None
    traced = read_trace(content)
    if traced is None:
        raise Unfit(f"{place} is neither a directory of a job nor a trace of one node")
    return traced


def _attempts_before(folder: Path, newest: Sequence[Dump]) -> Iterator[Dump]:
    """Yield what was kept of the same run's earlier attempts, since the nodes were booted."""
    found = list(loaded(folder))
    run_id, number = newest[0].run_id, newest[0].round
    numbered = [each for each in found if each[1].run_id == run_id]
    last = {dump.node: (time, dump.at) for time, dump in numbered if dump.round == number}
    rounds: dict[int, list[Dump]] = {}
    for time, dump in numbered:
        if dump.round < number and dump.node in last:
            written, at = last[dump.node]
            if abs((written - time) - (at - dump.at)) < _NEAR:
                rounds.setdefault(dump.round, []).append(dump)
    for _, dumps in sorted(rounds.items()):
        yield from aligned(dumps)


def _again(records: Sequence[Noted]) -> Callable[[], Sequence[Noted]]:
    return lambda: records


def _numbers(value: object) -> Mapping[int, int]:
    if not isinstance(value, Mapping):
        return {}
    return {
        int(key): number
        for key, number in value.items()
        if str(key).isdecimal() and isinstance(number, int)
    }


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
