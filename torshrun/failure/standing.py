"""Where a worker stood in its program: from a traceback, a stack, or its status page. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath
from types import MappingProxyType
from typing import NamedTuple

_NONE: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a worker was when it ended, or was asked to."""

    call: str = ""
    """The collective that it was in, by its name; "" is none."""
    full: str = ""
    """The same with its arguments and number, as far as they are known."""
    place: str = ""
    """The innermost line of the program's own: "load (train.py:12)"; "" is unknown."""
    last: str = ""
    """The collective that it entered last, if it has left that one or not, with its arguments."""
    group: int = -1
    """The number of that one's group; -1 is unknown."""
    sequence: int = 0
    """Its number in that group."""
    entered: Mapping[int, int] = field(default_factory=lambda: _NONE, hash=False)
    """For each group of its own, the number of the last operation that it entered."""

    def __str__(self) -> str:
        where = f"in {self.full or self.call}" if self.call else "in no collective"
        return f"{where}, at {self.place}" if self.place else where


class _Frame(NamedTuple):
    path: str
    line: str
    function: str


_TRACE = re.compile(r'^[ |]*File "(?P<path>[^"]+)", line (?P<line>\d+),? in (?P<function>\S+)')
_PY_SPY = re.compile(r"^ +(?P<function>[^( ]+) \((?P<path>[^():]+):(?P<line>\d+)\)$")
_THREAD = re.compile(r"^(?:Current t|T)hread ", re.MULTILINE)
_LIBRARY = re.compile(
    r"(?:^|/)(?:site|dist)-packages/|/lib/python\d|^<|(?:^|/)torsh_runtime/|/torshrun/workers/|"
    r"^torch/|^(?:threading|queue|subprocess|selectors|socket|ssl|asyncio|concurrent|"
    r"multiprocessing|runpy|importlib)(?:/|\.py)"
)
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


def from_trace(lines: Sequence[str]) -> Standing | None:
    """Of a traceback, outermost call first; None if it has no frames."""
    return _standing([_Frame(**found.groupdict()) for found in map(_TRACE.match, lines) if found])


def from_stack(text: str) -> Standing | None:
    """Of what faulthandler or py-spy shows, innermost call first, of the main thread; None if there
    is nothing.
    """
    starts = [found.start() for found in _THREAD.finditer(text)]
    pairs = pairwise([*starts, len(text)])
    threads = [_frames(text[start:end]) for start, end in pairs] or _spied(text)
    if not threads:
        return None
    whole = [frames for frames in threads if frames and frames[0].function == "<module>"]
    return _standing((whole or threads)[-1])


def _spied(text: str) -> list[list[_Frame]]:
    """Threads of py-spy's: a head each, the main one's first."""
    blocks = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    return [frames for frames in map(_frames, reversed(blocks)) if frames]


def _frames(block: str) -> list[_Frame]:
    """Outermost first."""
    matches = (_TRACE.match(line) or _PY_SPY.match(line) for line in block.splitlines())
    return [_Frame(**found.groupdict()) for found in matches if found][::-1]


def _standing(frames: Sequence[_Frame]) -> Standing | None:
    """`frames` are outermost first."""
    if not frames:
        return None
    own = [frame for frame in frames if not _LIBRARY.search(frame.path)]
    return Standing(call=_call(frames), place=_place((own or frames)[-1]))


def _call(frames: Sequence[_Frame]) -> str:
    """What the program called of a library of collectives, by the name that it has there."""
    for frame in frames:
        if _COLLECTIVE.search(frame.path) and frame.function not in _WRAPPERS:
            name = frame.function.rpartition(".")[2]
            return _NAMES.get(name, name)
    gradients = any(_GRADIENTS.search(frame.path) for frame in frames[-3:])
    return "backward" if gradients else ""


def _place(frame: _Frame) -> str:
    name = frame.function.rpartition(".")[2]
    place = f"{PurePath(frame.path).name}:{frame.line}"
    return place if name == "<module>" else f"{name} ({place})"
