"""Finds where a worker was blocked in its program: from a traceback, a stack or its status page.

Everything here is pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile, zip_longest
from pathlib import PurePath
from types import MappingProxyType
from typing import NamedTuple

_NONE: Mapping[int, int] = MappingProxyType({})
WAITS = (
    "a lock",
    "a lock file",
    "another process",
    "a task of its own threads",
    "a file",
    "a connection",
    "compiled code",
)
A_FILE = "a file to appear"
ALL_RANKS = "all ranks to come"
KEYS = "store.wait"
"""The call of a rank that waits for keys of a store."""
_MOST_LOCKS = 4
IN_RETRY = "except of a loop"
"""The clean-up in which it waits for its next attempt."""
LINE_CHARS = 120
"""Characters of a line of source that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedAt:
    """Holds where a worker was when it ended, or when it was asked to."""

    call: str = ""
    """The collective that it was in, by its name; "" is none."""
    full: str = ""
    """The name of that collective with its arguments and number, as far as they are known."""
    place: str = ""
    """The innermost line of the program's own: "load (train.py:12)"; "" is unknown."""
    line: str = ""
    """The source of that line; "" is unknown."""
    cleanup: str = ""
    """The clean-up that it was in, "finally", "except" or "except of a loop"; "" is unknown."""
    waits_for: str = ""
    """The thing that it waited for there outside of any collective, by its code: A_FILE, ALL_RANKS
    or one of WAITS; "" if nothing can be told.
    """
    locks: str = ""
    """Places where its threads waited for locks, if several did: "load (train.py:5): with X:"."""
    last: str = ""
    """The collective that it entered last, if it has left that one or not, with its arguments."""
    group: int = -1
    """The number of that one's group; -1 is unknown."""
    sequence: int = 0
    """The collective's number in that group."""
    entered: Mapping[int, int] = field(default_factory=lambda: _NONE, hash=False)
    """For each group of its own, the number of the last operation that it entered."""
    awaited: int = -1
    """The rank whose message it waited for; -1 is none that is known."""
    instead: int = -1
    """The tag of another message that has come from there, which nobody takes; -1 is none."""
    mesh: str = ""
    """The place of the worker in a mesh: "pp 1, tp 0"; "" if it is in none."""
    doing: str = ""
    """The work outside of collectives that it had noted: "F5 of stage 1"; "" is nothing."""

    @property
    def cleans(self) -> bool:
        """Return whether it is in a clean-up, and does not only wait there for its next attempt."""
        return bool(self.cleanup) and (self.cleanup != IN_RETRY or bool(self.call))

    @property
    def pauses(self) -> bool:
        """Return whether it sleeps there, and seldom has something to do in between."""
        return bool(_PAUSE.search(self.line))

    @property
    def in_group(self) -> str:
        """Return the collective, with the group that the program's line gives to it if any; "" if
        that line does not show the whole call.
        """
        calls = re.findall(rf"\b{re.escape(self.call)}(\({_WITHIN}\))", self.line)
        if not self.call or len(calls) != 1 or "*" in calls[0]:
            return ""
        first, *others = _NESTED.sub("", calls[0][1:-1]).split(",")
        if len([each for each in others if "=" not in each and each.strip()]) > 1:
            return ""  # the group may be one of them
        named = _OF_GROUP.search(calls[0])
        alone = first.strip() if self.call == "barrier" and "=" not in first else ""
        group = named[1] if named else alone
        return f"{self.call}(group={group})" if group and not _WORLD.search(group) else self.call

    def __str__(self) -> str:
        where = f"in {self.full or self.call}" if self.call else "in no collective"
        if self.instead >= 0:
            where += f", while a message with tag={self.instead} had come"
        doing = self.doing if self.awaited < 0 else ""
        where = ", ".join(filter(None, (where, doing, self.mesh and f"at {self.mesh}")))
        line = f": {self.line}" if self.line and not self.call else ""
        return f"{where}, at {self.place}{line}" if self.place else where


_PAUSE = re.compile(r"\bsleep\(")
_WITHIN = r"(?:[^()]|\([^()]*\))*"
_NESTED = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
_OF_GROUP = re.compile(r"\bgroup\s*=\s*([\w.]+(?:\[[^\[\],]*\]|\([^()]*\))?)")
_WORLD = re.compile(r"(?:^|\.)(?:None|WORLD)$")


class _Frame(NamedTuple):
    path: str
    line: str
    function: str
    arguments: str = ""
    """The arguments, as far as they are shown: "src=2, tag=5"."""
    source: str = ""


_TRACE = re.compile(r'^[ |]*File "(?P<path>[^"]+)", line (?P<line>\d+),? in (?P<function>\S+)')
_PY_SPY = re.compile(
    r"^ +(?P<function>[^( ]+) \((?P<path>[^():]+):(?P<line>\d+)\)(?: \[(?P<arguments>.*)\])?$"
)
_SOURCE = re.compile(r"^ {4,}(?=[^ ~^])")
_CLEANUP = re.compile(r"  # in (finally|except(?: of a loop)?)$")
_LOOP = re.compile(r"^(.*)  # in (while .*)$")
_FOR_FILE = re.compile(r"\bwhile not .*\b(?:exists|is_file|is_dir|isfile|isdir)\(")
_FOR_RANKS = re.compile(
    r"\bwhile (?:not )?.*[<>=].*\b(?:(?:get_)?world(?:_?size)?|n_?(?:procs?|ranks)|"
    r"num_(?:procs|processes|ranks))\b",
    re.IGNORECASE,
)
"""A loop that counts who has come, as a barrier that is made by hand."""
_THREAD = re.compile(r"^(?:Current t|T)hread ", re.MULTILINE)
_LIBRARY = re.compile(
    r"(?:^|/)(?:site|dist)-packages/|/lib/python\d|^<|(?:^|/)torsh_runtime/|/torshrun/workers/|"
    r"^torch/|^(?:threading|queue|subprocess|selectors|socket|ssl|asyncio|concurrent|"
    r"multiprocessing|runpy|importlib)(?:/|\.py)"
)
_HOOK = re.compile(r"(?:^|/)torshrun/workers/startup/|^<frozen site>$|/lib/python[\d.]+/site\.py$")
_COLLECTIVE = re.compile(
    r"(?:^|/)torch/(?:distributed/(?:distributed_c10d|rendezvous|_functional_collectives|"
    r"nn/functional)|nn/parallel/distributed)\.py$|"
    r"(?:^|/)torsh_runtime/(?:comm/\w+|bootstrap)\.py$"
)
_GRADIENTS = re.compile(r"(?:^|/)torch/(?:_tensor|autograd/(?:__init__|graph))\.py$")
_WRAPPERS = ("wrapper", "call", "<module>", "<lambda>")
_NAMES = {
    "_verify_param_shape_across_processes": "DistributedDataParallel",
    "__init__": "DistributedDataParallel",
    "_pre_forward": "DistributedDataParallel",
    "forward": "DistributedDataParallel",
    "_all_gather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "_store_based_barrier": "init_process_group",
    "_new_process_group_helper": "init_process_group",
    "_create_c10d_store": "init_process_group",
    "_env_rendezvous_handler": "init_process_group",
    "next": "init_process_group",
}
_LOCK = re.compile(
    r"^with (?!.*\bopen\()(?!.*:\s*[^\s#].*\()|"  # one line with its body may wait in that
    r"\.acquire\(|\b(?:flock|lockf|FileLock)\("
)
_KEYS = re.compile(r"\.wait\((\[[^\[\]]*\])")
_WORK = re.compile(r"\.wait\(")
_MESSAGE = re.compile(
    r"\b(?P<call>i?(?:send|recv)|broadcast|reduce)\([^(),=]+(?:\([^()]*\)[^(),=]*)?,"
    r"\s*(?:(?:src|dst)\s*=\s*(?P<named>[0-9]{1,7})|(?P<peer>[0-9]{1,7}))(?P<rest>\s*(?:,[^()]*)?\))"
)
_END = re.compile(r"\b(?<!group_)(?:src|dst)=([0-9]{1,7})\b")
_RANKS = re.compile(r"\branks=\[[0-9, ]+\]")
_GROUP = re.compile(r'\bgroup_name="([0-9]+)"')
_TAG = re.compile(r"\btag\s*=\s*([0-9]{1,9})\b")
_NEVER = re.compile(r"(?!)")
_SEMAPHORE = re.compile(r"(?:^|/)threading\.py$")
_AWAITED = (  # by the library that the innermost call is in, or by the program's own line
    (
        "a lock file",
        re.compile(r"(?:^|/)(?:torch/utils/file_baton\.py$|(?:filelock|portalocker|fasteners)/)"),
        _NEVER,
    ),
    ("a lock", re.compile(r"^$"), _LOCK),
    ("a task of its own threads", re.compile(r"(?:^|/)concurrent/futures/\w+\.py$"), _NEVER),
    (
        "another process",
        re.compile(
            r"(?:^|/)(?:subprocess|torch/utils/data/dataloader|"
            r"multiprocessing/(?:popen_\w+|process|pool|queues|connection))\.py$"
        ),
        re.compile(r"\bwaitpid\(|\bos\.(?:wait|system)\("),
    ),
    (
        "a connection",
        re.compile(r"/(?:socket|ssl|http/client|urllib/request|urllib3/.*|requests/.*)\.py$"),
        re.compile(r"\.(?:recv(?:_into|from|msg)?|accept|connect|sendall)\("),
    ),
    (
        "a file",
        re.compile(r"/(?:pathlib(?:/\w+)?|shutil|glob|genericpath|posixpath|codecs)\.py$"),
        re.compile(
            r"\bopen\(|\.(?:read|write|readline|readlines|flush)\(|"
            r"\bos\.(?:listdir|stat|scandir|walk|open|read|write|fsync|makedirs|rename|replace)\("
        ),
    ),
    (
        "compiled code",
        re.compile(r"/ctypes/"),
        re.compile(r"\b(?:CDLL|PyDLL|cdll)\b|\.synchronize\("),
    ),
)


def from_trace(lines: Sequence[str]) -> BlockedAt | None:
    """Return where a traceback, outermost call first, ends; None if it has no frames."""
    return _standing(_frames(lines))


def from_stack(text: str) -> BlockedAt | None:
    """Return where the main thread is in the output of faulthandler or py-spy, innermost call
    first.

    None if there are no frames. Lines of source may follow the frames.
    """
    starts = [found.start() for found in _THREAD.finditer(text)]
    blocks = _once([text[start:end] for start, end in pairwise([*starts, len(text)])])
    # Of py-spy: a head for each thread, the main one's first.
    blocks = blocks or re.split(r"^(?=\S)", text, flags=re.MULTILINE)[::-1]
    threads = [frames[::-1] for frames in (_frames(each.splitlines()) for each in blocks) if frames]
    if not threads:
        return None
    whole = [frames for frames in threads if frames[0].function == "<module>"]
    standing = _standing((whole or threads)[-1])
    locked = [frames[-1] for frames in threads if _takes_lock(frames)]
    if standing and not standing.call and len(locked) > 1:
        places = [f"{_place(frame)}: {frame.source}" for frame in locked[:_MOST_LOCKS]]
        return replace(standing, waits_for="a lock", locks="; ".join(places))
    return standing


def _once(blocks: Sequence[str]) -> list[str]:
    """Return each thread once, in its longest form: a worker may have been asked twice."""
    threads: dict[str, str] = {}
    for block in blocks:
        name = block.partition("hread ")[2].partition(" ")[0]
        threads[name] = max(block, threads.get(name, ""), key=len)
    return [*threads.values()]


def _takes_lock(frames: Sequence[_Frame]) -> bool:
    innermost = frames[-1]
    is_idle = innermost.function.endswith("wait") and innermost.path.endswith("threading.py")
    return bool(_LOCK.search(innermost.source)) and not is_idle


def _frames(lines: Sequence[str]) -> list[_Frame]:
    """Return the frames, in the order of the lines."""
    frames = []
    for line, after in zip_longest(lines, lines[1:], fillvalue=""):
        found = _TRACE.match(line) or _PY_SPY.match(line)
        if found:
            is_source = _SOURCE.match(after) and not _PY_SPY.match(after)
            source = after.strip()[:LINE_CHARS] if is_source else ""
            shown = {name: text or "" for name, text in found.groupdict().items()}
            frames.append(_Frame(**shown, source=source))
    return frames


def _standing(frames: Sequence[_Frame]) -> BlockedAt | None:
    """Return where `frames`, outermost first, end; None if there are none.

    Frames of the start hook, and of what it calls, are not the program's.
    """
    frames = [*takewhile(lambda frame: not _HOOK.search(frame.path), frames)]
    if not frames:
        return None
    own = [frame for frame in frames if _is_own(frame)]
    last = (own or frames)[-1]
    call, arguments = _call(frames) or (_waited_work(frames[-1]), "")
    awaited, full = _message(call, last.source)
    if call == KEYS:
        full = f"{KEYS}({_KEYS.findall(last.source)[0]})"
    if arguments:
        awaited, full = _other_end(call, arguments), f"{call}({arguments}){_number(frames)}"
    return BlockedAt(
        call=call,
        full=full,
        awaited=awaited,
        place=_place(last),
        line=_LOOP.sub(r"\2 \1", _CLEANUP.sub("", last.source)),
        cleanup=next((found[1] for each in own if (found := _CLEANUP.search(each.source))), ""),
        waits_for="" if call else _awaited(frames, last),
    )


def _awaited(frames: Sequence[_Frame], own: _Frame) -> str:
    """Return what it waits for, by the library calls in the line `own`, else by that line."""
    within = frames[::-1][: frames[::-1].index(own)]
    if _FOR_FILE.search(own.source):
        return A_FILE
    if _FOR_RANKS.search(own.source):
        return ALL_RANKS
    if _is_permit(within) and _LOCK.search(own.source):
        return "a lock"
    for what, library, line in _AWAITED:
        if any(library.search(frame.path) for frame in within):
            return what
        if not within and line.search(own.source):
            return what
    return ""


def _is_permit(within: Sequence[_Frame]) -> bool:
    """Return whether the innermost calls are those of a lock that Python's library builds on
    another one: a semaphore or a condition.
    """
    names = {frame.function.rpartition(".")[2] for frame in within}
    return bool(names & {"acquire", "__enter__"}) and all(
        _SEMAPHORE.search(frame.path) for frame in within
    )


def _call(frames: Sequence[_Frame]) -> tuple[str, str] | None:
    """Return what the program called of a library of collectives, by its name there, with its
    arguments as far as they are shown; None if it called nothing.
    """
    for frame in frames:
        if _COLLECTIVE.search(frame.path) and frame.function not in _WRAPPERS:
            name = frame.function.rpartition(".")[2]
            name = _NAMES.get(name, name)
            return name, frame.arguments or (_members(frames) if name == "new_group" else "")
    gradients = any(_GRADIENTS.search(frame.path) for frame in frames[-3:])
    return ("backward", "") if gradients else None


def _members(frames: Sequence[_Frame]) -> str:
    """Return the ranks of the group that is made; new_group itself gets none if it has all."""
    found = next(filter(None, (_RANKS.search(frame.arguments) for frame in frames)), None)
    return found[0] if found else ""


def _number(frames: Sequence[_Frame]) -> str:
    """Return which group it makes, numbered as torch numbers those of a process."""
    found = next(filter(None, (_GROUP.search(frame.arguments) for frame in frames)), None)
    return f" as its group {found[1]}" if found else ""


def _other_end(call: str, arguments: str) -> int:
    """Return the rank at the other end of a message; -1 is unknown."""
    found = _END.search(arguments)
    return int(found[1]) if found and call in ("send", "recv") else -1


def _waited_work(innermost: _Frame) -> str:
    """Return "wait" if the program itself waits for earlier work, or KEYS for keys of the store.

    torch's Work and Store leave no frames. "" if neither is the case.
    """
    if not _is_own(innermost):
        return ""
    return KEYS if _KEYS.search(innermost.source) else "wait" * bool(_WORK.search(innermost.source))


def _message(call: str, source: str) -> tuple[int, str]:
    """Return the rank at the other end of a message, and the call with its arguments, where the
    program's line has them as numbers; else -1 and "". For collectives, only the call is returned.
    """
    calls = [found for found in _MESSAGE.finditer(source) if found["call"] == call]
    if len(calls) != 1:
        return -1, ""
    peer = int(calls[0]["named"] or calls[0]["peer"])
    tag = _TAG.search(calls[0]["rest"])
    side = "dst" if "send" in call or call == "reduce" else "src"
    is_message = call not in ("broadcast", "reduce")
    full = f"{call}({side}={peer}{f', tag={int(tag[1])}' if tag else ''})"
    return peer if is_message else -1, full


def _is_own(frame: _Frame) -> bool:
    return not _LIBRARY.search(frame.path)


def _place(frame: _Frame) -> str:
    name = frame.function.rpartition(".")[2]
    place = f"{PurePath(frame.path).name}:{frame.line}"
    return place if name == "<module>" else f"{name} ({place})"
