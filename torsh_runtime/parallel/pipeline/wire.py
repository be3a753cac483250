"""Carries messages between stages on different ranks.

The first time that batches have certain shapes, each tensor is announced before it is sent. Later
the receiver knows what comes, and prepares memory for it, unless shared memory holds it until it is
needed.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from torsh_runtime.backends.work import Work
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.pipeline.autograd import Autograd, Spec
from torsh_runtime.parallel.pipeline.batches import MOST
from torsh_runtime.parallel.pipeline.lanes import Lanes
from torsh_runtime.parallel.pipeline.table import Kind, Row, Table

_FIRST_TAG = 1 << 16
"""First tag for messages, above those that programs use themselves."""


_HELD_AT_ONCE = 4
"""Number of messages from a rank for which shared memory must have room if it is to hold them."""

_KNOWN = 256
"""Number of kinds of batches whose shapes are remembered. Those of the kind seen least recently are
announced again.
"""


class Message(NamedTuple):
    """Identifies activations of a microbatch for the next stage, or their gradients for the one
    before.
    """

    sender: int
    """The stage that sends it."""
    receiver: int
    microbatch: int


class _Sending(NamedTuple):
    message: Message
    works: Sequence[Work]
    values: Sequence[Any]

    @property
    def done(self) -> bool:
        return all(work.done() for work in self.works)


class _Awaited(NamedTuple):
    works: Sequence[Work]
    values: Sequence[Any]


Shapes = dict[Message, list[Spec]]


class Wire:
    """Sends and receives the messages of one rank, in a group of the pipeline's ranks."""

    def __init__(
        self,
        group: ProcessGroup,
        lanes: Lanes | None,
        autograd: Autograd,
        placement: Sequence[int],
    ) -> None:
        """Connect a rank to the others. lanes: used for values on GPUs."""
        self._group, self._autograd, self._placement = group, autograd, placement
        self._lanes = lanes
        self._table: Table | None = None
        self._orders: dict[int, list[Message]] = {}
        self._queues: dict[int, deque[Message]] = {}
        self._known: dict[object, Shapes] = {}
        self._shapes: Shapes = {}
        self._is_new = True
        self._awaited: dict[Message, _Awaited] = {}
        self._held: set[Message] = set()
        """Messages that are not to be received before they are needed."""
        self._sending: list[_Sending] = []
        self.sent = 0
        """Number of bytes sent since begin()."""

    def begin(self, key: object, table: Table) -> None:
        """Begin a step with a batch whose shapes `key` stands for."""
        if self._lanes is not None:
            if table is not self._table:
                orders = {rank: [*self._sent_here(row)] for rank, row in enumerate(table.rows)}
                self._table, self._orders = table, orders
            self._queues = {rank: deque(order) for rank, order in self._orders.items()}
        known = self._known.pop(key, None)  # end() has it back, as the newest
        self._is_new, self._shapes = known is None, known or {}
        self._key, self.sent = key, 0
        self._held.clear()

    def send(self, message: Message, values: Sequence[Any], specs: Sequence[Spec]) -> None:
        """Begin to send; values must stay as they are.

        Raises ConfigError if their shapes differ from those of the last batch with the same shapes.
        """
        to, tag = self._placement[message.receiver], self._tag(message)
        works = []
        if self._is_new and message.sender < message.receiver:
            self._shapes[message] = list(specs)
            content = np.frombuffer(json.dumps(specs).encode(), np.uint8)
            works.append(self._group.send_object(content, to, tag, async_op=True))
        elif message.sender < message.receiver and self._shapes[message] != list(specs):
            raise ConfigError(
                f"stage {message.sender} returned {_text(specs)} for microbatch "
                f"{message.microbatch}, and {_text(self._shapes[message])} for a batch of the same "
                f"shapes before: what stages return must depend on shapes alone"
            )
        for each in values:
            self.sent += each.nbytes
            works.append((self._lanes or self._group).send(each, to, tag, async_op=True))
        self._sending = [held for held in self._sending if not held.done]
        self._sending.append(_Sending(message, works, values))

    def expect(self, message: Message) -> None:
        """Begin to receive a message, if its shapes are known.

        If shared memory holds it until it is needed, nothing is done: a thread that receives it
        earlier would only interrupt computations.
        """
        if message in self._held:
            return
        for due in self._due(message):
            specs = self.specs(due)
            if specs is None:
                return
            if self._is_held(specs):
                self._held.add(due)
            else:
                self._begin(due, specs, async_op=True)

    def _is_held(self, specs: Sequence[Spec]) -> bool:
        """Return whether shared memory holds such a message until it is needed.

        On a lane, where messages have to be received in order, it holds none.
        """
        together = _HELD_AT_ONCE * sum(map(self._autograd.nbytes, specs))
        return self._lanes is None and together <= self._group.held_bytes

    def _begin(self, due: Message, specs: Sequence[Spec], async_op: bool) -> None:
        source, tag = self._placement[due.sender], self._tag(due)
        values = [self._autograd.empty(spec) for spec in specs]
        here = self._lanes or self._group
        works = [here.recv(each, source, tag, async_op=async_op) for each in values]
        self._awaited[due] = _Awaited(works, values)
        if self._lanes is not None:
            self._queues[source].popleft()

    def receive(self, message: Message) -> list[Any]:
        """Return the values. Blocks for the group's timeout at most."""
        for due in self._due(message):
            if self._is_new and due.sender < due.receiver:
                told = self._group.recv_object(self._placement[due.sender], self._tag(due))
                self._shapes[due] = _specs(told.content)
            specs = self.specs(due)
            assert specs is not None, "gradients come after their activations"
            self._begin(due, specs, async_op=self._lanes is not None)
        awaited = self._awaited.pop(message)
        for work in awaited.works:
            work.wait()
        return list(awaited.values)

    def _due(self, message: Message) -> list[Message]:
        """Return what is to be received: the message, and on a lane all that was sent before it."""
        if message in self._awaited:
            return []
        if self._lanes is None:
            return [message]
        queue = self._queues[self._placement[message.sender]]
        return [*islice(queue, queue.index(message) + 1)]

    def _sent_here(self, row: Row) -> Iterator[Message]:
        """Yield what another rank sends to this one when it takes these steps, in order."""
        last = len(self._placement) - 1
        for stage, kind, microbatch in row:
            way = {Kind.FORWARD: 1, Kind.BACKWARD: -1, Kind.INPUT: -1}.get(kind, 0)
            if not way or stage + way not in range(last + 1):
                continue
            ends = self._placement[stage], self._placement[stage + way]
            if ends[0] != self._group.rank == ends[1]:
                yield Message(stage, stage + way, microbatch or 0)

    def specs(self, message: Message) -> list[Spec] | None:
        """Return the shapes of a message; None if they are not known yet.

        Those of gradients are those of the activations that want them.
        """
        if message.sender < message.receiver:
            return self._shapes.get(message)
        there = Message(message.receiver, message.sender, message.microbatch)
        specs = self._shapes.get(there)
        return None if specs is None else [spec for spec in specs if spec.wants_gradient]

    def end(self, before: Callable[[Message], None]) -> None:
        """Wait until everything has been sent; call `before` with each message before waiting for
        it.
        """
        for each in self._sending:
            if not each.done:
                before(each.message)
            for work in each.works:
                work.wait()
        self._sending.clear()
        self._known[self._key] = self._shapes
        if len(self._known) > _KNOWN:  # all ranks have the same ones, and forget the same one
            del self._known[next(iter(self._known))]

    def forget(self) -> None:
        """Forget what is under way in a step that failed."""
        self._sending.clear()
        self._awaited.clear()

    def _tag(self, message: Message) -> int:
        way = 2 * message.sender + (message.sender < message.receiver)
        return _FIRST_TAG + way * MOST + message.microbatch


def exchange(
    group: ProcessGroup | Lanes, ranks: Sequence[int], values: Any, add: Callable[..., Any]
) -> Any:
    """Return the sum over these ranks of the group, this one among them.

    It has the same bits on all ranks, as values are added in the order of ranks. `add(target,
    source)` works in place; `values` is overwritten.
    """
    first, *others = ranks
    tag = _FIRST_TAG - 1
    if group.rank != first:
        group.send(values, first, tag)
        group.recv(values, first, tag)
        return values
    received = values
    for rank in others:
        received = values.clone() if hasattr(values, "clone") else values.copy()
        group.recv(received, rank, tag)
        add(values, received)
    works = [group.send(values, rank, tag, async_op=True) for rank in others]
    for work in works:
        work.wait()
    return values


def _specs(content: Any) -> list[Spec]:
    told = json.loads(bytes(np.asarray(content)))
    return [Spec(tuple(shape), dtype, wants) for shape, dtype, wants in told]


def _text(specs: Sequence[Spec]) -> str:
    return ", ".join(f"{spec.dtype} of shape {spec.shape}" for spec in specs) or "nothing"
