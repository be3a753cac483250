"""Defines what the nodes write to the store: records, their keys and their encoding.

Records are JSON objects, for the sake of people who look with etcdctl, each followed by a signature
(torsh_runtime/store/signed.py). Unknown fields are ignored, so that newer agents may add some. A
record that lacks a field, or has an invalid value in one, is decoded as None, whoever wrote it:
this is the only place where data from a store is checked.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import quote

from torsh_runtime.store.endpoint import TcpEndpoint, parse_endpoint
from torshrun.rendezvous.base import Lasting, Verdict

T = TypeVar("T")
_Reader = Callable[[Any], Any]
LONGEST_RECORD = 1 << 20
"""Bytes."""
MOST_ANSWER = 16 << 20
"""Bytes of a node's answer to a question."""
LONGEST_TEXT = 8192
"""Characters of one field."""
LARGEST_NUMBER = 1e15
"""No number of seconds comes near it."""
LONGEST_DELAY = 3600.0
"""Seconds between two rounds."""

EPOCH, LEADER, ROUND = "ctl/epoch", "ctl/leader", "ctl/round"
VERDICT, WAIT = "ctl/verdict", "ctl/wait"
QUESTIONS = "ctl/question/"
"""Under CONTROL, which all agents watch."""
ANSWERS = "answer/"
"""Prefix under which agents write answers; only torshctl watches it."""
CONTROL, NODES, PLACES, WANTS = "ctl/", "nodes/", "place/", "want/"
"""NODES and WANTS are watched by the leader alone. A place is read by the node it is for."""
DRAIN_KEPT = 86400.0
"""Seconds that a request to drain a node is kept: the ids of nodes never come again."""
WANT_SIZE, WANT_STOP, WANT_DRAIN = "want/size", "want/stop", "want/drain/"
SET = b"1"
"""Value of keys that say everything: of a node that is to leave, or of an epoch's mark."""


def base(run_id: str) -> str:
    """Return the prefix of all keys of a run, and of no other: the id is quoted as in a URL."""
    return f"torsh/{quote(run_id, safe='')}/"


def _like(pattern: str) -> Callable[[str], object]:
    return re.compile(pattern, re.ASCII).fullmatch


_is_host = _like(r"[\w.:%-]{0,255}")


def _is_host_port(text: str) -> bool:
    if not text:
        return True
    endpoint = parse_endpoint(text)  # ConfigError is a ValueError
    return isinstance(endpoint, TcpEndpoint) and bool(_is_host(endpoint.host))


NodeState = Literal["waiting", "inside", "reported", "left"]
NodeId = Annotated[str, _like(r"[\w.-]{0,255}")]
"""Id of a node: letters, digits, `.`, `_` and `-`; "" is none."""
OneNode = Annotated[str, _like(r"[\w.-]{1,255}")]
Token = NodeId
"""Random, of the same characters."""
Host = Annotated[str, _is_host]
"""A host's name or address, IPv6 without brackets; "" is none."""
HostPort = Annotated[str, _is_host_port]
"""Endpoint of an agent, "tcp:host:port"; "" is none."""
Port = Annotated[int, range(65536).__contains__]
"""TCP port; 0 is none."""
Count = Annotated[int, range(2**53).__contains__]
RoundNumber = Annotated[int, range(-1, 2**53).__contains__]
"""-1: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRow:
    """Under which name, and with which secret, a job uses its run id, under `ctl/epoch`."""

    name: Annotated[str, _like(r"[\w.-]{16,255}")]
    after: Token = ""
    """Token of the epoch that this one continues, if the store had lost it."""
    past: tuple[Token, ...] = ()
    """Tokens of the epochs that it replaces."""
    secret: Token = ""
    """The job's, in hexadecimal, if its nodes bring none; then it is as safe as the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node, as it describes itself under `nodes/<node id>`, on its lease."""

    node: OneNode
    sequence: Count
    """Counts the row's versions, so that no two are equal."""
    state: NodeState
    """waiting: runs no worker of any round, and wants a place in the next. inside: in that round;
    none of its workers was started before this was written. reported: none of them runs any more.
    left: likewise, and it goes."""
    host: str = ""
    address: Host = ""
    endpoint: HostPort = ""
    nproc: Annotated[int, range(1, 2**20 + 1).__contains__] = 1
    role: str = ""
    fixed_rank: int = -1
    master_port: Port = 0
    jax_port: Port = 0
    round: RoundNumber = -1
    """The round that it is in or was in last."""
    token: Token = ""
    """Token of that round."""
    node_rank: int = -1
    """-1: it had no place in that round, and has heard of it."""
    first_rank: int = -1
    round_size: Count = 0
    """Number of nodes of that round; 0 if not known."""
    round_leader: NodeId = ""
    """The node id of the author of its header."""
    restarts: Count = 0
    """Number of restarts in the whole job, as far as this node knows."""
    holds: bool = False
    """True if its workers want no node to be added before their next checkpoint."""
    ttl: float = 0.0
    """Lease time as in the leader's row, with which it must agree; 0 if not known."""
    outage_timeout: float = 0.0
    max_restarts: Count = 0
    """Likewise, as are the seconds above."""
    standbys: Count = 0
    """Number of processes that wait on it to become workers after a restart."""
    standing: Literal["", "lost", "parked", "bare", "unable"] = ""
    """The node's standing (base.Standing) in this round, if its workers are to leave that while
    they keep their processes; else ""."""
    lost: bool = False
    """True if workers of this node were lost in the round."""
    lasting: Lasting = ""
    """Says whether its workers can keep their processes when nodes of the round leave, or others
    come."""
    leaving: str = ""
    """The outcome with which it goes, or is about to; "" if it stays."""
    leaving_code: int = 0
    leaving_reason: str = ""
    outcome: str = ""
    """Outcome in its report; the fields that follow are from the report, too."""
    code: int = 0
    signo: int = 0
    startup: str = ""
    seconds: float = 0.0
    cause: str = ""
    follows: bool = False
    testimony: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRow:
    """Names the leader, under `ctl/leader`, on that node's lease.

    Its revision is the term's fence.
    """

    node: OneNode
    endpoint: HostPort
    token: Token
    """Random, so that a lost answer to the election can be told from a lost election."""
    ttl: float = 0.0
    """Seconds, by which the leader reckons when other nodes' workers have ended."""
    outage_timeout: float = 0.0
    max_restarts: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The round, under `ctl/round`, on no lease."""

    number: Count
    phase: Literal["open", "closing"]
    token: Token
    """Random: the same number may be used twice if the store loses its contents."""
    fence: int
    """Fence of the leader who wrote this, having accounted for all nodes of the round."""
    leader: NodeId = ""
    """Node id of that leader."""
    leader_inside: bool = False
    """True if that node is in the round."""
    size: Count = 0
    """Number of nodes in the round."""
    world_size: int = 0
    master_addr: Host = ""
    master_port: Port = 0
    jax_port: Port = 0
    store_node: NodeId = ""
    """Node whose agent serves the round's store, and which has rank 0."""
    store_endpoint: HostPort = ""
    min_nodes: int = 1
    max_nodes: int = 1
    max_restarts: Count = 0
    restarts: Count = 0
    """Number of restarts in the whole job.

    While closing, it includes the restart that a failure causes.
    """
    streak: Count = 0
    startup: str = ""
    failed: bool = False
    """True if it is closing because of a failure of workers."""
    reason: str = ""
    """Reason why it is closing, or mending."""
    mending: bool = False
    """True if its workers are to leave this round, and go on in the next with those that replace
    the lost ones. That has the next number, and the same token if all nodes stay."""
    at_commit: bool = False
    """True if they are to leave it at their next commit, and not at once."""
    kept: bool = False
    """True if workers of the round before go on in this one, in which the nodes are others."""
    since: Count = 0
    """The number of the round in which the oldest of its workers were started."""
    departed: Count = 0
    """Number of nodes that were in a round of the job, and are in none any more."""
    delay: float = 0.0
    """Seconds from closing to the next round."""
    drained: tuple[NodeId, ...] = ()
    """Nodes that were asked to go."""
    finding: str = ""
    """The root cause of the failure of the round before, as in a verdict."""
    missed: tuple[NodeId, ...] = ()
    """Nodes that did not enter a round which they had places in. Each has one again once it has
    shown that it can read: it looks for its place, and changes its own row."""

    def __post_init__(self) -> None:
        _check(self.size >= 1 and 0 <= self.delay <= LONGEST_DELAY)
        _check(1 <= self.min_nodes <= self.max_nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRow:
    """A node's place in the round, under `place/<node id>`."""

    round: int
    token: Token
    node_rank: int = -1
    """-1: it has none, and `why` says why."""
    first_rank: int = -1
    role_first_rank: int = -1
    role_world_size: int = -1
    stays: bool = False
    """True if the node's workers of the round before go on in this one."""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow(Verdict):
    """States how the job ended, under `ctl/verdict`; its code is 1 to 255, or 0 if it succeeded."""

    def __post_init__(self) -> None:
        _check(0 <= self.code <= 255 and (self.code == 0) == (self.outcome == "succeeded"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeWanted:
    """`want/size`: the number of nodes asked for while the job runs."""

    min_nodes: int
    max_nodes: int

    def __post_init__(self) -> None:
        _check(1 <= self.min_nodes <= self.max_nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWanted:
    """Asks for the end of the job, under `want/stop`."""

    code: Annotated[int, range(1, 256).__contains__]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRow:
    """`ctl/question/<id>`: torshctl asks all agents; it goes with its lease."""

    id: Annotated[str, _like(r"[0-9a-f]{16}")]
    kind: str
    """Kind of the question; an agent that does not know the kind answers so."""
    argument: str = ""
    most: Annotated[int, range(1, MOST_ANSWER + 1).__contains__] = MOST_ANSWER
    """Bytes that each node may answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRow:
    """`answer/<question>/<node>`, when all parts `answer/<question>/<node>/<number>` are there."""

    parts: Annotated[int, range(MOST_ANSWER).__contains__]
    """Number of parts; together they are bytes that zlib has compressed."""
    is_cut: bool = False
    """True if there were more bytes than the node may answer."""
    trouble: str = ""
    """Reason why there is no answer; "" if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRow:
    """`ctl/wait`: what the leader waits for, in one line for people; "" is nothing."""

    why: str


def _check(is_sound: bool) -> None:
    if not is_sound:
        raise ValueError("a record cannot say so")


def encode(record: Any) -> bytes:
    """Return a record in the form in which it is stored."""
    content = {name: getattr(record, name) for name in _shape(type(record))}
    return json.dumps(content, separators=(",", ":"), default=_in_base64).encode()


def decode(kind: type[T], value: bytes | None) -> T | None:
    """Return the record, or None if there is none or it is invalid."""
    try:
        content = json.loads(value) if value and len(value) <= LONGEST_RECORD else None
        if not isinstance(content, dict):
            return None
        read = _shape(kind)
        known = {name: read[name](content[name]) for name in read.keys() & content.keys()}
        return kind(**known)
    except (TypeError, ValueError, RecursionError):  # a TypeError: a field is missing
        return None


def can_be_read(record: Any) -> bool:
    """Return whether others will be able to decode the record."""
    return bool(decode(type(record), encode(record)) == record)


def _shape(kind: type[Any]) -> dict[str, _Reader]:
    """Return the readers of the fields of a kind of record."""
    if kind not in _SHAPES:
        hints = get_type_hints(kind, include_extras=True)
        _SHAPES[kind] = {field.name: _reader(hints[field.name]) for field in fields(kind)}
    return _SHAPES[kind]


def _reader(hint: Any) -> _Reader:
    """Return a function that returns a value valid for such a field, and else raises ValueError."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _from_base64(parts[1]) if parts[0] is bytes else _typed(parts[0], fits=parts[1])
    if origin is Literal:
        return _typed(str, fits=parts.__contains__)
    if origin is tuple:
        read_list, read = _typed(list), _reader(parts[0])
        return lambda value: tuple(map(read, read_list(value)))
    return _PLAIN[hint]


def _typed(*kinds: type[Any], fits: Callable[[Any], object] = lambda value: True) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) not in kinds or not fits(value):
            raise ValueError
        return value

    return read


def _in_base64(value: object) -> str:
    if not isinstance(value, bytes):
        raise TypeError(f"a record cannot hold {type(value).__name__}")
    return binascii.b2a_base64(value, newline=False).decode()


def _from_base64(fits: Callable[[Any], object]) -> _Reader:
    read = _typed(str)

    def read_bytes(value: Any) -> bytes:
        content = binascii.a2b_base64(read(value), strict_mode=True)  # its error is a ValueError
        if not fits(content):
            raise ValueError
        return content

    return read_bytes


def _is_sound(text: str) -> bool:
    text.encode()  # UnicodeEncodeError, a ValueError, of a lone surrogate
    return len(text) <= LONGEST_TEXT and "\0" not in text


_PLAIN: dict[Any, _Reader] = {
    str: _typed(str, fits=_is_sound),
    int: _typed(int, fits=range(-(2**63) + 1, 2**63).__contains__),
    float: _typed(int, float, fits=lambda number: abs(number) <= LARGEST_NUMBER),
    bool: _typed(bool),
}
_SHAPES: dict[type[Any], dict[str, _Reader]] = {}
