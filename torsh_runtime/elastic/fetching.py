"""Transfers bytes of files from the memory of some nodes to the ranks that want them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.checkpoint.pieces import Landing, PieceReader
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.layout import ShardedTensor

Bytes = NDArray[np.uint8]
_CHUNK = 16 << 20
"""Bytes per rank that are transferred at a time."""


class Request(NamedTuple):
    """Requests bytes of a file from `start` on, as many as the target has."""

    file: str
    start: int
    target: Bytes

    def cut(self, first: int, last: int) -> Request:
        """Return the part of this request between these offsets of the file."""
        first, last = max(first - self.start, 0), min(last - self.start, self.target.size)
        return Request(self.file, self.start + first, self.target[first:last])


def landings_of(
    source: PieceReader, reads: Iterable[tuple[str, ShardedTensor]]
) -> tuple[list[Landing], list[Request]]:
    """Return memory for pieces of tensors, by name, and what is to be requested for it."""
    landings: list[Landing] = []
    requests: list[Request] = []
    for name, target in reads:
        landing = Landing(target, source.kind(name)[0])
        landings.append(landing)
        requests += [
            Request(span.file, span.start, landing.memory[span.first : span.last])
            for span in source.spans(name, target.piece)
        ]
    return landings, requests


class Fetching:
    """Fetches files from nodes' memory. All ranks make the same calls in the same order."""

    def __init__(
        self,
        ranks: Ranks,
        here: Mapping[str, Bytes],
        sizes: Mapping[str, int],
        holders: Mapping[str, Sequence[int]],
    ) -> None:
        """Prepare to fetch from these files.

        here: the files in this node's memory.

        sizes: bytes of each file, equal on all ranks.

        holders: for each file the ranks whose node's memory has it, equal on all ranks.
        """
        self._ranks, self._here, self._holders = ranks, here, holders
        self._names = sorted(sizes)
        self._places = {name: place for place, name in enumerate(self._names)}
        self._sizes = sizes

    def fetch(self, requests: Sequence[Request]) -> None:
        """Fill the requests' targets.

        A file of which many ranks want parts is broadcast; other parts are sent from one rank that
        has them to the rank that wants them.
        """
        missing = []
        for each in requests:
            if each.file in self._here:
                _copy(self._here[each.file], 0, each)
            else:
                missing.append(each)
        wanted = dict.fromkeys(self._names, 0)
        for each in missing:
            wanted[each.file] += each.target.size
        sums = np.array(self._ranks.numbers(list(wanted.values()))).sum(0).tolist()
        popular = {
            name
            for name, total in zip(self._names, sums, strict=True)
            if total > 2 * self._sizes[name]
        }
        for name in sorted(popular):
            self._stream(name, [each for each in missing if each.file == name])
        if any(total for name, total in zip(self._names, sums, strict=True) if name not in popular):
            self._exchange([each for each in missing if each.file not in popular])

    def _stream(self, name: str, requests: Sequence[Request]) -> None:
        source = self._source(name, 0)
        for start in range(0, self._sizes[name], _CHUNK):
            chunk = np.empty(0, np.uint8)
            if self._ranks.rank == source:
                chunk = self._here[name][start : start + _CHUNK].copy()
            chunk = self._ranks.broadcast(chunk, source)
            for each in requests:
                if each.start < start + chunk.size and start < each.start + each.target.size:
                    _copy(chunk, start, each.cut(start, start + chunk.size))

    def _source(self, name: str, turn: int) -> int:
        holders = self._holders[name]
        return holders[(self._places[name] + turn) % len(holders)]

    def _exchange(self, requests: Sequence[Request]) -> None:
        batches = list(_batches(requests))
        (most,) = np.array(self._ranks.numbers([len(batches)])).max(0).tolist()
        for number in range(most):
            self._exchange_batch(batches[number] if number < len(batches) else [])

    def _exchange_batch(self, batch: Sequence[Request]) -> None:
        asked: list[list[Request]] = [[] for _ in range(self._ranks.world_size)]
        for each in batch:
            asked[self._source(each.file, self._ranks.rank)].append(each)
        questions = [np.array([self._row(each) for each in own], np.int64) for own in asked]
        asked_of_us = self._ranks.exchange([each.reshape(-1).view(np.uint8) for each in questions])
        answers = [self._answer(each.view(np.int64).reshape(-1, 3)) for each in asked_of_us]
        for own, content in zip(asked, self._ranks.exchange(answers), strict=True):
            at = 0
            for each in own:
                each.target[:] = content[at : at + each.target.size]
                at += each.target.size

    def _row(self, request: Request) -> tuple[int, int, int]:
        return self._places[request.file], request.start, request.target.size

    def _answer(self, questions: NDArray[np.int64]) -> Bytes:
        parts = [
            self._here[self._names[file]][start : start + size]
            for file, start, size in questions.tolist()
        ]
        return np.concatenate([*parts, np.empty(0, np.uint8)])


def _batches(requests: Sequence[Request]) -> Iterator[list[Request]]:
    """Yield the requests in batches of equally many bytes, split where needed."""
    batch, room = list[Request](), _CHUNK
    for each in requests:
        start, end = each.start, each.start + each.target.size
        while start < end:
            part = each.cut(start, min(start + room, end))
            batch.append(part)
            start += part.target.size
            room -= part.target.size
            if not room:
                yield batch
                batch, room = [], _CHUNK
    if batch:
        yield batch


def _copy(content: Bytes, begins: int, request: Request) -> None:
    """Fill the request's target from a part of the file that begins at `begins`."""
    start = request.start - begins
    request.target[:] = content[start : start + request.target.size]
