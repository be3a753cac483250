"""Questions that torshctl asks all agents of a run, and a node's answers, as rows in the store."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from torsh_runtime.errors import StoreError
from torshrun.rendezvous import rows
from torshrun.rendezvous.asking import Asking
from torshrun.rendezvous.base import Answer, Asked
from torshrun.rendezvous.rows import AnswerRow, QuestionRow

PART_BYTES = 512 << 10
"""Bytes of one row; etcd takes 1.5 MiB in a request."""
KEPT = 60.0
"""Seconds for which an answer stays if nobody fetches it."""
_REMEMBERED = 64


class Answers:
    """A node's side of it."""

    def __init__(self, asking: Asking, node: str) -> None:
        self._asking = asking
        self._node = node
        self._heard: deque[str] = deque(maxlen=_REMEMBERED)

    def take(self, name: str, value: bytes | None) -> Asked | None:
        """Return the question in a row under `ctl/`.

        Return None if it holds none, or one that has been handled before.
        """
        if not name.startswith(rows.QUESTIONS) or name in self._heard:
            return None
        question = rows.decode(QuestionRow, value)
        if question is None or name != rows.QUESTIONS + question.id:
            return None
        self._heard.append(name)
        return Asked(question.id, question.kind, question.argument, question.most)

    async def write(self, asked: Asked, answer: Answer) -> None:
        """Give the answer; nothing comes of it if the store fails, or the question is gone."""
        asking, content = self._asking, answer.content[: asked.most]
        parts = [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)]
        is_cut = len(content) < len(answer.content)
        row = AnswerRow(parts=len(parts), is_cut=is_cut, trouble=answer.trouble)
        key = asking.key(f"{rows.ANSWERS}{asked.id}/{self._node}")
        with suppress(StoreError):
            if not await asking.ask(asking.store.get(asking.key(rows.QUESTIONS + asked.id))):
                return
            lease = await asking.ask(asking.store.grant(KEPT))
            for number, part in enumerate(parts):
                await asking.ask(asking.store.put(f"{key}/{number}", part, lease))
            await asking.ask(asking.store.put(key, rows.encode(row), lease))
