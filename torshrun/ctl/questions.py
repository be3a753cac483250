"""Asks all agents of a run, and gathers their answers before a deadline."""

from __future__ import annotations

import asyncio
import secrets
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from torsh_runtime.errors import StoreError
from torshrun.config.job import RendezvousConfig
from torshrun.ctl.picture import NotDone, Picture
from torshrun.ctl.run import Run, reach
from torshrun.rendezvous import rows
from torshrun.rendezvous.rows import MOST_ANSWER, AnswerRow, NodeRow, QuestionRow
from torshrun.text import printable

ALL_BYTES = 256 << 20
"""Bytes that all nodes together may answer. A store holds them for a moment."""
_MOST_CONTENT = 1 << 28
_OF_RANK = 512 << 10
"""Bytes that a node may report for each rank. A compressed answer may be longer unpacked."""
_LONGER = 5.0
"""Seconds that a question remains in the store after torshctl has stopped waiting."""


class Answered(NamedTuple):
    """Holds what the nodes of a run have answered."""

    contents: Mapping[str, bytes]
    """Content by node id, in the order of node ranks."""
    silent: Sequence[str]
    """Lines about nodes that have not answered, or not completely, and why."""


class AskedRun(Run):
    """Asks the agents of a run, and gathers their answers."""

    async def answers(self, kind: str, argument: str = "") -> Answered:
        """Ask all agents a question, and return the answers that come within `timeout` seconds.

        Raises NotDone if no node can answer.
        """
        nodes = self._asked()
        most = max(min(MOST_ANSWER, ALL_BYTES // len(nodes)), 1 << 16)
        question = QuestionRow(id=secrets.token_hex(8), kind=kind, argument=argument, most=most)
        seconds = self.timeout or 0.0
        key, trouble = rows.QUESTIONS + question.id, ""
        try:
            await self.ask({key: rows.encode(question)}, seconds + _LONGER)
            trouble = await self._gather(question.id, nodes, seconds)
        except StoreError as error:  # a store that an agent serves ends with the agent
            trouble = f"the store is gone: {error}"
        found = Answered(*self._read(question.id, nodes, trouble))
        with suppress(StoreError):
            answers = f"{rows.ANSWERS}{question.id}/"
            await self.withdraw([key, *(n for n in self._items if n.startswith(answers))])
        return found

    def _asked(self) -> Sequence[NodeRow]:
        if self.picture.verdict:
            raise NotDone(f"run {self.run_id} has {self.picture.summary}")
        if not self.picture.present:
            raise NotDone(f"no node of run {self.run_id} is left")
        return self.picture.present

    async def _gather(self, question: str, nodes: Sequence[NodeRow], seconds: float) -> str:
        """Wait until all nodes that are still present have answered.

        Returns the common reason why some did not, or an empty string.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._open(question, nodes, self.picture):
                    await self.change()
                return ""
        return f"it did not answer within {seconds:g} s"

    def _open(self, question: str, nodes: Sequence[NodeRow], now: Picture) -> bool:
        """Return whether any node is present that may still answer."""
        there = {row.node for row in now.present}
        return any(row.node in there and not self._row(question, row) for row in nodes)

    def _row(self, question: str, node: NodeRow) -> AnswerRow | None:
        value = self._items.get(f"{rows.ANSWERS}{question}/{node.node}")
        return rows.decode(AnswerRow, value)

    def _read(
        self, question: str, nodes: Sequence[NodeRow], trouble: str
    ) -> tuple[Mapping[str, bytes], Sequence[str]]:
        contents, silent = dict[str, bytes](), list[str]()
        there = {row.node for row in self.picture.present}
        for node in nodes:
            row = self._row(question, node)
            if row is None:
                why = trouble if node.node in there else "it has left meanwhile"
                silent.append(f"{_named(node)}: {why or 'it has left meanwhile'}")
                continue
            parts = [*self._parts(f"{rows.ANSWERS}{question}/{node.node}", row)]
            if len(parts) == row.parts > 0:
                most = min(max(_OF_RANK * (node.nproc + 1), MOST_ANSWER), _MOST_CONTENT)
                contents[node.node] = inflated(b"".join(parts), most)
            if row.trouble or row.is_cut or len(parts) < row.parts:
                silent.append(f"{_named(node)}: {printable(row.trouble) or _CUT}")
        return contents, silent

    def _parts(self, key: str, row: AnswerRow) -> Iterator[bytes]:
        for number in range(row.parts):
            part = self._items.get(f"{key}/{number}")
            if not part:
                return
            yield part


_CUT = "its answer was larger than a store takes, and the end is missing"


def inflated(content: bytes, most: int = _MOST_CONTENT) -> bytes:
    """Decompress `content`, at most to `most` bytes and as far as it is complete.

    Returns b"" if it is not compressed data.
    """
    try:
        return zlib.decompressobj().decompress(content, most)
    except zlib.error:
        return b""


def _named(node: NodeRow) -> str:
    rank = f"node {node.node_rank} ({node.node})" if node.node_rank >= 0 else node.node
    return printable(rank)


def ask_run(
    config: RendezvousConfig,
    run_id: str,
    patience: float,
    timeout: float,
    kinds: Sequence[str],
    argument: str = "",
) -> Mapping[str, Answered]:
    """Return what the agents of a run answer to questions of these kinds.

    Raises NotDone if there is no such run or no node can answer, and StoreError.
    """
    from torshrun.rendezvous.address import detach

    async def visit() -> Mapping[str, Answered]:
        detach()
        async with reach(config) as store:
            run = AskedRun(store, run_id, config.secret.encode(), patience, timeout)
            async with run.watched():
                return {kind: await run.answers(kind, argument) for kind in kinds}

    return asyncio.run(visit())
