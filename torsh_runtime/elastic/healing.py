"""Gives ranks without a whole state that of the others, over their common group."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_hexdigest

from torsh_runtime.arrays.raw import copy_out, dtype_name, memory_of
from torsh_runtime.checkpoint.manifest import Manifest, StoredFile, StoredPiece, StoredTensor
from torsh_runtime.checkpoint.pieces import Landing, PieceReader
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.checkpoint.tensor_file import ITEMSIZES
from torsh_runtime.comm.agreement import Attempt, agree
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.layout import Piece
from torsh_runtime.parallel.state import Contents, Restoration, contents_of

Bytes = NDArray[np.uint8]
_NOTHING = np.empty(0, np.uint8)
_CHECKSUM = " (checksum "


def whole_contents(parts: Mapping[str, Any], ranks: Ranks) -> Contents:
    """Return what the parts consist of. Raises ConfigError for what not every rank has whole."""
    contents = contents_of(parts, ranks)
    for name, tensor in contents.tensors.items():
        if not tensor.piece.is_whole:
            raise ConfigError(
                f"{name!r} is sharded, and tr.elastic.join() needs whole copies on all ranks: use "
                f"DistributedDataParallel, or tr.elastic.State, which restarts all workers"
            )
    return contents


class Holding(NamedTuple):
    """Represents the state of a rank, with what other ranks compare with theirs."""

    contents: Contents
    lines: list[str]
    """A line with a checksum for each tensor, and for what is no tensor."""
    problem: Exception | None


def hold(parts: Mapping[str, Any], ranks: Ranks) -> Holding:
    """Return the state of this rank with its checksums, or why it cannot be given to others."""
    contents, lines = Contents(), list[str]()
    with Attempt() as attempt:
        contents = whole_contents(parts, ranks)
        lines = _lines(contents)
    return Holding(contents, lines, attempt.error)


def digests_of(held: Holding) -> dict[str, int]:
    """Return the checksums of a state by name."""
    parts = (line.rpartition(_CHECKSUM) for line in held.lines)
    return {name: int(digest[:-1], 16) for name, _, digest in parts}


def check_same(group: ProcessGroup, own: Holding) -> None:
    """Raise ConfigError on all ranks unless all have the same state, naming the first difference.

    If one has a problem, it is raised on all.
    """
    agree(group, "the state at elastic.join()", {"state": own.lines}, own.problem, _SAME)


def _lines(contents: Contents) -> list[str]:
    digests = {name: _digest(_memory(each.values)) for name, each in contents.tensors.items()}
    for name, value in contents.values.items():
        text = json.dumps(value, sort_keys=True).encode()
        digests[f"{name}, what is no tensor"] = _digest(np.frombuffer(text, np.uint8))
    return [f"{name}{_CHECKSUM}{digests[name]})" for name in sorted(digests)]


def _digest(memory: Bytes) -> str:
    return xxh3_64_hexdigest(memory.data)


_SAME = (
    "Give all ranks the same state before join(): the same seed, and the same checkpoint. What is "
    "meant to differ between ranks cannot be a part of it"
)


def heal(
    group: ProcessGroup,
    parts: Mapping[str, Any],
    own: Holding | None,
    whole: Sequence[int],
    healing: Sequence[int],
) -> None:
    """Give the ranks `healing` the state of the ranks `whole`, and check that all have the same.

    All ranks of the group call it. `own`: what hold() returned on a rank that is `whole`, and else
    None. If it fails, the state of the ranks `healing` is undefined.

    Raises:
        ConfigError: On all ranks if the state does not fit, or differs afterwards.
        CommError: If a rank is lost.
    """
    ranks, problem = Ranks(group), None if own is None else own.problem
    landings, text, plan = dict[str, Landing](), b"", None
    with Attempt() as attempt:
        if own is not None and problem is None:
            text = _manifest(own.contents, group.world_size).to_bytes()
    told = ranks.broadcast(np.frombuffer(bytearray(text), np.uint8), whole[0])
    with attempt:
        if own is None and told.size:
            source = _Told(Manifest.from_bytes(told.tobytes()))
            plan = Restoration(parts, source, ranks)
            landings = {name: Landing(target, source.kind(name)[0]) for name, target in plan.reads}
    agree(group, "elastic.join()", problem=problem or attempt.error)
    names = sorted(Manifest.from_bytes(told.tobytes()).tensors)
    _send(ranks, names, Contents() if own is None else own.contents, landings, whole, healing)
    if plan is not None:
        with attempt:  # the program's own load_state_dict() may raise anything
            for landing in landings.values():
                landing.finish()
            plan.finish()
        own = hold(parts, ranks)
    assert own is not None, "agree() has raised where there was no plan"
    check_same(group, own._replace(problem=attempt.error or own.problem))


def _send(
    ranks: Ranks,
    names: Sequence[str],
    contents: Contents,
    landings: Mapping[str, Landing],
    whole: Sequence[int],
    healing: Sequence[int],
) -> None:
    """Send the tensors, of as many at a time as there are ranks that have them, one each."""
    for some in _batches(names, len(whole)):
        given = dict(zip(whole, some, strict=False))
        sent, room = [_NOTHING] * ranks.world_size, [_NOTHING] * ranks.world_size
        if ranks.rank in given:
            own = _memory(contents.tensors[given[ranks.rank]].values)
            sent = [own if rank in healing else _NOTHING for rank in range(ranks.world_size)]
        elif ranks.rank in healing:
            for rank, name in given.items():
                room[rank] = landings[name].memory if name in landings else room[rank]
        ranks.exchange(sent, room)


def _batches(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for first in range(0, len(names), size):
        yield names[first : first + size]


def _memory(values: Any) -> Bytes:
    """Return the bytes of an array, without copying them where that is possible."""
    memory = memory_of(values)
    if memory is None:
        size = int(np.prod(tuple(values.shape), dtype=np.int64)) * ITEMSIZES[dtype_name(values)]
        memory = np.empty(size, np.uint8)
        copy_out(values, memory)
    return memory


def _manifest(contents: Contents, world_size: int) -> Manifest:
    """Describe the contents as a checkpoint with a file for each tensor."""
    tensors, files = {}, {}
    for number, (name, each) in enumerate(contents.tensors.items()):
        file, dtype, shape = str(number), dtype_name(each.values), each.piece.global_shape
        size = each.piece.size * ITEMSIZES[dtype]
        tensors[name] = StoredTensor(dtype, shape, (StoredPiece(file, 0, Piece.whole(shape)),))
        files[file] = StoredFile(size, max(size, 1), (0,) if size else ())
    return Manifest(0, world_size, 0.0, tensors, contents.values, contents.aliases, files)


class _Told(PieceReader):
    """Represents the state of the other ranks, whose bytes are sent by _send()."""

    where = "the other ranks' state"

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest

    def read_file(self, file: str, start: int, target: Bytes) -> None:
        """Refuse to read: _send() transfers the bytes."""
        raise NotImplementedError
