"""A watch that continues without gaps after broken connections and changes of members."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from torsh_runtime.errors import StoreError
from torsh_runtime.store.base import Event
from torsh_runtime.store.etcd import messages
from torsh_runtime.store.etcd.gateway import Gateway
from torsh_runtime.store.etcd.messages import KeyRange, Message

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0


async def watch(gateway: Gateway, keys: KeyRange, after: int) -> AsyncGenerator[Event, None]:
    """Yield every change of the keys with a revision > `after`, until the caller stops.

    Raises StoreError when the gateway is closed, when etcd refuses the watch, or when etcd no
    longer has the history from which the watch would have to continue.
    """
    progress = _Progress(gateway, keys, after)
    pause = _FIRST_PAUSE
    while True:
        before = progress.seen
        try:
            async with aclosing(progress.events()) as events:
                async for event in events:
                    yield event
        except (OSError, EOFError):
            pass
        gateway.check_open()
        pause = _FIRST_PAUSE if progress.seen > before else min(2 * pause, _LONGEST_PAUSE)
        await gateway.pause(pause)


class _Progress:
    """Tracks the revision that a watch has reached."""

    def __init__(self, gateway: Gateway, keys: KeyRange, after: int) -> None:
        self.seen = after
        """Revision up to which all changes have been yielded."""
        self._gateway = gateway
        self._keys = keys
        self._cluster = 0
        self._what = f"watch of {keys}"

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the changes after `seen`, until the connection breaks."""
        create = {
            **self._keys.message(),
            "start_revision": str(self.seen + 1),
            "progress_notify": True,
        }
        stream = self._gateway.stream(self._what, "watch", {"create_request": create})
        async with aclosing(stream) as answers:
            async for answer in answers:
                await self._check(answer)
                found = messages.events(answer)
                for event in found:
                    yield event
                self._advance(answer, found)

    def _advance(self, answer: Message, found: tuple[Event, ...]) -> None:
        if found:
            self.seen = found[-1].revision
        elif not answer.get("created"):  # a notice that nothing is missing up to this revision
            self.seen = max(self.seen, messages.revision(answer))

    async def _check(self, answer: Message) -> None:
        """Raise StoreError if the watch cannot continue.

        Raise ConnectionError if only this member has ended it.
        """
        if answer.get("compact_revision"):
            raise self._gap(f"etcd has compacted its history to {answer['compact_revision']}")
        if answer.get("canceled"):
            await self._ask()  # if the user lacks the permission, this is refused too
            raise ConnectionError(f"etcd ended the watch: {answer.get('cancel_reason')}")
        if answer.get("created"):
            await self._check_history(answer)

    async def _check_history(self, answer: Message) -> None:
        """Raise StoreError if a new or restored etcd answers.

        It would send nothing until its revision had reached that of the watch.
        """
        cluster = messages.cluster(answer)
        if self._cluster not in (0, cluster):
            raise self._gap("another etcd cluster answers there now")
        self._cluster = cluster
        if messages.revision(answer) < self.seen:  # or this member only lags behind
            newest = messages.revision(await self._ask())
            if newest < self.seen:
                raise self._gap(f"etcd is new or restored, and at revision {newest}")

    async def _ask(self) -> Message:
        """Count the watched keys, logging in again if needed, and return the answer.

        Raises Refused when etcd refuses it.
        """
        question = self._keys.message() | {"count_only": True}
        return await self._gateway.call(self._what, "kv/range", question, self._gateway.deadline())

    def _gap(self, why: str) -> StoreError:
        return StoreError(
            f"{self._what} after revision {self.seen}: {why}. List the prefix again and watch "
            f"from the listing's revision."
        )
