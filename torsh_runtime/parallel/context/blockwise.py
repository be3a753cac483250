"""Computes attention to the keys of all ranks, block by block, as routes bring them.

A route serves one pass: `blocks` yields each rank's block, this rank's own first. In a backward
pass `give` takes what this rank adds to the gradients of the latest block, and `returned` returns
the sums for its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torsh_runtime.backends.work import Work
from torsh_runtime.comm.exchanging import crossing, usual_tag
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.parallel.context.kernels import Attention, Kernel, Merged, Sum, kind
from torsh_runtime.parallel.context.sequence import Task
from torsh_runtime.parallel.operations import Array, JointOperation, cast, functions_of, joined
from torsh_runtime.parallel.regions.arrays import contiguous, empty, part, resized

_BLOCKS, _SUMS = 1 << 20, (1 << 20) + 1
"""Tags of messages."""

Block = list[Array]
"""Keys and values, whose elements lie in order, or their gradients; tokens along dimension 2."""


class Route(ABC):
    """Brings all ranks' blocks to this rank during one pass."""

    kept: Sequence[Array] = ()
    """The part of a block from a forward pass that is kept for the backward pass."""

    @abstractmethod
    def blocks(
        self, own: Block, kept: Sequence[Array] | None = None
    ) -> Iterator[tuple[int, Block]]:
        """Yield each block's owner and the block. `kept`: what the forward pass kept, or None."""

    @abstractmethod
    def give(self, sums: Block) -> None:
        """Add this to the gradients of the block that came last; the arrays are the route's."""

    @abstractmethod
    def returned(self) -> Block:
        """Return the gradients of this rank's block, after all blocks have been yielded."""


class Alone(Route):
    """Serves attention in which this rank's block is the only one."""

    _sums: Block

    def blocks(
        self, own: Block, kept: Sequence[Array] | None = None
    ) -> Iterator[tuple[int, Block]]:
        yield 0, own

    def give(self, sums: Block) -> None:
        self._sums = sums

    def returned(self) -> Block:
        return self._sums


class Ring(Route):
    """Passes each block on to the rank before, after it has been looked at. The next block travels
    while one is computed with, and the sums of its gradients follow it, to its owner in the end
    (Liu et al., Ring Attention, 2023). In causal attention a block thus reaches those ranks first
    that look at all of it, and its late chunk need not be sent to the others. The block that came
    first is kept for the backward pass, which begins with it and ends with this rank's own, so that
    the last sums travel meanwhile.
    """

    def __init__(self, group: ProcessGroup, seen: Sequence[Sequence[int]]) -> None:
        """Make a route for one pass.

        `seen`: for each rank's block how many of its tokens each rank looks at.
        """
        self._group, self._seen = group, seen
        self._step = 0
        self._own: Block = []
        self._sums: Block = []
        self._under_way: list[Work] = []

    def blocks(
        self, own: Block, kept: Sequence[Array] | None = None
    ) -> Iterator[tuple[int, Block]]:
        here, last = [*(kept or own)], self._group.world_size - 1
        for step in range(1 if kept else 0, last + 1):
            self._step = step
            source, after = self._source(0), self._source(1)
            works: list[Work] = []
            coming: Block = []
            if step < last:
                theirs = self._seen[source][self._group.rank - 1]
                mine = self._seen[after][self._group.rank]
                sent = [contiguous(part(each, 2, 0, theirs)) for each in here]
                coming = [empty(each, resized(each.shape, 2, mine)) for each in sent]
                works = self._pass_on(sent, coming, _BLOCKS)
            yield source, here
            _wait(works)
            self.kept, here = self.kept or coming, coming
        if kept:
            self._step = 0
            yield self._group.rank, own

    def _source(self, later: int) -> int:
        """Return the owner of the block that this rank has `later` steps from now."""
        return (self._group.rank + self._step + later) % self._group.world_size

    def give(self, sums: Block) -> None:
        if self._step == 0:
            self._own = sums
            return
        if self._step > 1:
            sums = self._added(sums)
        after = self._source(1)
        coming = self._seen[after][after - 1]
        sent = _by_token(sums)
        room = [empty(each, resized(each.shape, 1, coming)) for each in sent]
        self._under_way = self._pass_on(sent, room, _SUMS)
        self._sums = [each.swapaxes(1, 2) for each in room]

    def _added(self, sums: Block) -> Block:
        """Add the received sums and these, the shorter one into the longer."""
        _wait(self._under_way)
        found = []
        for pair in zip(self._sums, sums, strict=True):
            short, long = sorted(pair, key=lambda array: int(array.shape[2]))
            place = part(long, 2, 0, short.shape[2])
            place += short
            found.append(long)
        return found

    def returned(self) -> Block:
        return self._added(self._own)

    def _pass_on(self, sent: Block, room: Block, tag: int) -> list[Work]:
        """Begin to send to the rank before, and to receive from the next."""
        group = self._group
        before, behind = ((group.rank + step) % group.world_size for step in (-1, 1))
        return crossing(group, sent, before, room, behind, usual_tag(sent[0], tag))


class Direct(Route):
    """Ranks send each other what they look at and no more: step by step to the rank one before, two
    before and so on, what is for the next step while this one's is computed with. Where a rank
    needs nothing of another, no message goes.
    """

    def __init__(self, group: ProcessGroup, needed: Callable[[int, int], Sequence[slice]]) -> None:
        """Make a route for one pass.

        `needed`: which tokens a rank needs of a source's, by the rank and the source.
        """
        self._group, self._needed = group, needed
        self._step = 0
        self._own: Block = []
        self._sums: Block = []
        self._coming: list[tuple[Sequence[slice], Block]] = []
        self._under_way: list[Work] = []

    def blocks(
        self, own: Block, kept: Sequence[Array] | None = None
    ) -> Iterator[tuple[int, Block]]:
        rank, ranks = self._group.rank, self._group.world_size
        is_backward = kept is not None
        coming, works = ([*(kept or ())], []) if is_backward else self._fetched(own, 1)
        yield rank, own
        for self._step in range(1, ranks):
            _wait(works)
            here = coming
            if self._step == 1:
                self.kept = here
            if self._step + 1 < ranks:
                coming, works = self._fetched(own, self._step + 1)
            if here:
                yield (rank + self._step) % ranks, here
            if is_backward:
                self._send_back(own)

    def _fetched(self, own: Block, step: int) -> tuple[Block, list[Work]]:
        """Begin to send the rank `step` places before what it needs, and to receive."""
        there, here = self._partners(step)
        sent = self._wanted(own, self._needed(there, self._group.rank))
        came = self._needed(self._group.rank, here)
        room = self._room(own, came, 2)
        return room, crossing(self._group, sent, there, room, here, usual_tag(own[0], _BLOCKS))

    def _partners(self, step: int) -> tuple[int, int]:
        """Return the rank that looks at this rank's tokens in a step, and the one it looks at."""
        rank, ranks = self._group.rank, self._group.world_size
        return (rank - step) % ranks, (rank + step) % ranks

    def _wanted(self, own: Block, some: Sequence[slice]) -> Block:
        if not some:
            return []
        parts = [[part(each, 2, one.start, one.stop) for one in some] for each in own]
        return [contiguous(joined(each, 2) if len(each) > 1 else each[0]) for each in parts]

    def _room(self, like: Block, some: Sequence[slice], dim: int) -> Block:
        length = sum(one.stop - one.start for one in some)
        return [empty(each, resized(each.shape, dim, length)) for each in like if length]

    def give(self, sums: Block) -> None:
        if self._step == 0:
            self._own = sums
        else:
            self._sums = sums

    def _send_back(self, own: Block) -> None:
        """Begin to send the sums for what came, and to receive those for what was sent."""
        there, here = self._partners(self._step)
        some = self._needed(there, self._group.rank)
        room = self._room([each.swapaxes(1, 2) for each in self._own], some, 1)
        sent, self._sums = _by_token(self._sums), []
        tag = usual_tag(own[0], _SUMS)
        self._under_way += crossing(self._group, sent, here, room, there, tag)
        self._coming.append((some, [each.swapaxes(1, 2) for each in room]))

    def returned(self) -> Block:
        _wait(self._under_way)
        for some, sums in self._coming:
            for total, each in zip(self._own, sums, strict=False):
                at = 0
                for one in some:
                    size = one.stop - one.start
                    place = part(total, 2, one.start, one.stop)
                    place += part(each, 2, at, at + size)
                    at += size
        return self._own


class Gathering(Route):
    """Gathers all ranks' blocks at once (Llama Team, The Llama 3 Herd of Models, 2024), with one
    collective each for keys and values, and memory for all of them.
    """

    def __init__(self, group: ProcessGroup, seen: Sequence[Sequence[int]]) -> None:
        """Make a route for one pass. `seen`: as for a Ring."""
        self._group, self._lengths = group, [each[rank] for rank, each in enumerate(seen)]
        self._are_equal = min(self._lengths) == max(self._lengths)
        self._sums: dict[int, Block] = {}
        self._source = 0

    def blocks(
        self, own: Block, kept: Sequence[Array] | None = None
    ) -> Iterator[tuple[int, Block]]:
        gathered = [self._gathered(each) for each in own]
        for step in range(self._group.world_size):
            self._source = (self._group.rank - step) % self._group.world_size
            yield self._source, [parts[self._source] for parts in gathered]

    def _gathered(self, own: Array) -> list[Array]:
        if self._are_equal:
            everything = empty(own, (len(self._lengths), *own.shape))
            self._group.all_gather_into_tensor(everything, own)
            return [*everything]
        parts = [empty(own, resized(own.shape, 2, length)) for length in self._lengths]
        self._group.all_gather(parts, own)
        return parts

    def give(self, sums: Block) -> None:
        self._sums[self._source] = sums

    def returned(self) -> Block:
        found = []
        for sums in zip(*(self._sums[rank] for rank in range(self._group.world_size)), strict=True):
            own = empty(sums[0], sums[self._group.rank].swapaxes(1, 2).shape)
            if self._are_equal:
                everything = empty(own, (len(sums), *own.shape))
                for part, each in zip(everything, sums, strict=True):
                    part[...] = each.swapaxes(1, 2)
                self._group.reduce_scatter_tensor(own, everything)
            else:
                self._group.reduce_scatter(own, _by_token(sums))
            found.append(own.swapaxes(1, 2))
        return found


def _by_token(sums: Sequence[Array]) -> Block:
    """Swap heads and tokens: kernels return gradients and models take them in this order."""
    return [contiguous(each.swapaxes(1, 2)) for each in sums]


def _wait(works: Sequence[Work]) -> None:
    for work in works:
        work.wait()


@dataclass(frozen=True, slots=True)
class Blockwise(JointOperation):
    """Softmax over blocks, one after the other, merged by their logsumexp (Milakov and
    Gimelshein, Online normalizer calculation for softmax, 2018).
    """

    route: Callable[[], Route]
    """Makes one for a pass."""
    tasks: Sequence[Sequence[Task]]
    """Tasks by the rank that owns the block; in a rank's own block each query has one."""
    kernel: Kernel[Any]
    scale: float
    is_banded: bool = False
    """True if tasks are bands: in the first block a query may have several, or none at all."""
    has_sinks: bool = False
    """True if a fourth array gives each head a score whose weight falls on no value."""

    def forward(self, *arrays: Array) -> tuple[Array, Sequence[Array]]:
        query, *block = arrays[:3]
        # Kernels are faster where a head's tokens lie one behind the other.
        key, value = map(contiguous, block)
        merged, route = Merged(query, value), self.route()
        if self.is_banded:
            merged.begin()
        for source, (keys, values) in route.blocks([key, value]):
            for task in self.tasks[source]:
                own, at = _places(task)
                how = task.is_causal, self.scale, task.band
                part = Attention(query[own], keys[at], values[at], *how)
                merged.add(own, *self.kernel.forward(part))
            merged.is_begun = True
        for sinks in arrays[3:]:
            merged.sink(sinks)
        result = cast(merged.output, query.dtype)
        saved = query, key, value, result, merged.logsumexp, *arrays[3:], *route.kept
        return result, saved

    def backward(self, gradient: Array, *saved: Array) -> tuple[Array | None, ...]:
        query, key, value, output, logsumexp, *kept = saved
        sinks = [kept.pop(0)] if self.has_sinks else []
        for_query, route = Sum(query), self.route()
        for source, block in route.blocks([key, value], kept):
            sums = [Sum(each) for each in block]
            for task in self.tasks[source]:
                own, at = _places(task)
                how = task.is_causal, self.scale, task.band
                part = Attention(query[own], block[0][at], block[1][at], *how)
                found: tuple[Array, ...] = self.kernel.backward(
                    gradient[own], part, output[own], logsumexp[own]
                )
                for_query.add(own, found[0])
                for total, each in zip(sums, found[1:], strict=True):
                    total.add(at, each)
            route.give([total.array() for total in sums])
        gradients = for_query.array(), *route.returned()
        of_sinks = [_of_sinks(each, gradient, output, logsumexp) for each in sinks]
        pairs = zip((*gradients, *of_sinks), (query, key, value, *sinks), strict=True)
        return tuple(cast(each, like.dtype) for each, like in pairs)


def _places(task: Task) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return the indices of the task's queries and of its keys."""
    every = slice(None)
    return (task.rows, every, task.queries), (task.rows, every, task.keys)


def _of_sinks(sinks: Array, gradient: Array, output: Array, logsumexp: Array) -> Array:
    """Return the sinks' gradients: their weight takes from the values' and adds no value."""
    xp, computed = functions_of(sinks), kind(output)
    weights = xp.exp(cast(sinks, computed)[:, None] - logsumexp)
    delta = (cast(gradient, computed) * cast(output, computed)).sum(-1)
    return -(weights * delta).sum((0, 2))
