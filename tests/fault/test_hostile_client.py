"""Clients that say all kinds of nonsense to each thing that listens: it survives them, serves its
own, holds nothing for them in the end and tells them nothing.

A short form runs with the other tests, 125,000 messages for each surface with `--soak`, a million
in all, and as many as TORSH_HOSTILE_MESSAGES says, for each surface, if that is set. A failing
script is shown.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import secrets
import socket
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.hostile import (
    GUARD,
    IN_A_CALL,
    MOST_BYTES,
    Call,
    Saying,
    Surface,
    Target,
    mostly,
    packed,
    requests,
    scripts,
    unframed,
)
from support.led_nodes import formed
from support.raw_clients import RawClient

from torsh_runtime.backends.native import segment
from torsh_runtime.backends.native.connections import ANSWER, GREETING, Keys, Listeners, connect_all
from torsh_runtime.backends.native.host_info import HostInfo, Terms
from torsh_runtime.backends.native.network import Network
from torsh_runtime.errors import StoreError
from torsh_runtime.store import wire
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.memory import MemoryStore
from torsh_runtime.store.server import StoreServer
from torshrun.live.http_pages import Pages
from torshrun.live.http_server import HttpServer
from torshrun.live.snapshot import Snapshot
from torshrun.rendezvous import rows
from torshrun.rendezvous.agent_server import AgentServer
from torshrun.rendezvous.epoch import Epoch
from torshrun.rendezvous.heartbeats import Heartbeat

MESSAGES, MESSAGES_IN_FULL = 800, 125_000
FAMILIES = 2
"""Of calls, in a script; as many calls are in a family as these numbers say, by what is to come."""
KINSHIP, KINSHIP_OF_MANY = 10, 50
MANY = 10_000
SECRET = b"the job's secret"
TREASURE = b"what strangers must not see"
TEXTS = st.text(max_size=20)
NUMBERS = st.integers(-2, 3) | st.integers(-(2**70), 2**70) | st.none() | st.floats()
ANSWERS = st.tuples(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))


class StoreSurface(Surface):
    """A StoreServer."""

    payloads = mostly(
        requests({**wire._ARGUMENTS, "close": (), "__init__": ()}),
        mostly(ANSWERS.map(lambda answer: packed(list(answer)))),
    )

    def __init__(self, listen: str, secret: bytes) -> None:
        kind = listen.partition(":")[0]
        self.name = f"store {kind} {'with' if secret else 'without'} secret"
        self._listen = listen
        self._secret = secret

    def serve(self) -> tuple[Any, Callable[[], int], Callable[[], None]]:
        loop = asyncio.new_event_loop()
        failures: list[str] = []
        loop.set_exception_handler(lambda _, context: failures.append(str(context)))
        threading.Thread(target=loop.run_forever, daemon=True).start()
        run: Callable[[Any], Any] = lambda work: asyncio.run_coroutine_threadsafe(  # noqa: E731
            work, loop
        ).result(GUARD)
        endpoint, stop = run(self.start())

        def close() -> None:
            run(stop())
            assert not failures, failures

        return endpoint, lambda: run(_tasks()), close

    async def start(self) -> tuple[str, Callable[[], Awaitable[None]]]:
        """Serve, within the loop: the endpoint, and how to stop."""
        server = StoreServer(MemoryStore(), self._secret, on_refused=lambda reason: None)
        return await server.start(self._listen), server.close

    def connect(self, known: str) -> socket.socket:
        return RawClient(known, self._secret).sock

    def greet(self, sock: socket.socket, known: str) -> RawClient:
        client = RawClient.over(sock, self._secret)
        client.authenticate()
        return client

    def sign(self, session: RawClient, data: bytes, saying: Saying) -> bytes:
        signed = session.session.pack(data)
        if saying.manner == "forged" and signed:
            return signed[:-1] + bytes([signed[-1] ^ 1])
        return signed

    def hears(self, known: str, said: bytes, honest: bool) -> None:
        if self._secret and not honest:
            decoder = wire.FrameDecoder(wire.MAX_HANDSHAKE_FRAME)
            decoder.feed(said)
            while (payload := decoder.take()) is not None:
                message = wire.decode(payload)
                assert isinstance(message, list)
                assert message[0] in (wire.MAGIC, False), "somebody was let in"

    def works(self, known: str) -> None:
        with StoreClient.connect(known, self._secret, GUARD) as client:
            own = client.get("own")
            assert own is None or own.value == TREASURE
            client.put("own", TREASURE)


async def _tasks() -> int:
    return len(asyncio.all_tasks())


def _put_beat(fields: dict[str, Any]) -> bytes:
    return packed([1, "get", ["beat " + json.dumps(fields)]])


class HubSurface(StoreSurface):
    """The hub of the agent that leads a round, where the other agents' signs of life go."""

    payloads = mostly(
        st.fixed_dictionaries(
            {
                "node": st.sampled_from(["a", "b", "", "\0", "\udcff", "x" * 2000]) | TEXTS,
                "round": NUMBERS,
                "token": st.sampled_from(["t", "", "another"]) | TEXTS,
                "number": NUMBERS,
                "confirmed": NUMBERS,
                "summary": st.sampled_from(["", "AAAA", "A" * 2000]) | TEXTS | NUMBERS,
            }
        ).map(_put_beat),
        StoreSurface.payloads,
    )
    epoch = Epoch("run", "name", "", SECRET)

    def __init__(self) -> None:
        super().__init__("tcp:", self.epoch.key("hub", "n"))
        self.name = "hub"

    async def start(self) -> tuple[str, Callable[[], Awaitable[None]]]:
        view = formed("a", "b")
        hub = await AgentServer(self.epoch, "n", lambda reason: None).open("127.0.0.1")
        hub.serve(lambda beat: view.answer_beat(beat, time.monotonic(), math.inf))
        return hub.endpoint, hub.close

    def works(self, known: str) -> None:
        super().works(known)
        with StoreClient.connect(known, self._secret, GUARD) as client:
            answer = client.get("beat " + rows.encode(Heartbeat("b", 0, "t", 1, 0)).decode())
            assert answer is not None
            assert answer.key == "granted"


class HttpSurface(Surface):
    """An agent's port for metrics and health."""

    name = "http"
    payloads = mostly(
        st.tuples(
            st.sampled_from(["GET", "HEAD", "POST", ""]) | TEXTS,
            st.sampled_from(["/healthz", "/metrics", "/healthz?a", "/", "*"]) | TEXTS,
            st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/2", ""]) | TEXTS,
            st.lists(st.sampled_from(["Accept: */*", "A:b", ":", "A" * 9000]) | TEXTS, max_size=3),
            st.sampled_from(["\r\n", "\n", "\r"]),
        ).map(
            lambda parts: (
                parts[4]
                .join([" ".join(parts[:3]), *parts[3], "", ""])
                .encode(errors="surrogatepass")
            )
        )
    )

    def serve(self) -> tuple[Any, Callable[[], int], Callable[[], None]]:
        began = time.monotonic()
        snapshot = Snapshot(
            run_id="j", role="r", started=began, heartbeat=math.inf, state="running", pids=()
        )
        server = HttpServer("127.0.0.1", 0, Pages(lambda: snapshot).respond)
        server.start()

        def close() -> None:
            assert server._thread.is_alive()
            server.close()
            assert not server._thread.is_alive()

        return server.url, lambda: server._visits.num_callers, close

    def frame(self, saying: Saying) -> bytes:
        return unframed(saying)

    def connect(self, known: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", int(known.rpartition(":")[2])), GUARD)

    def hears(self, known: str, said: bytes, honest: bool) -> None:
        assert said.startswith(b"HTTP/1.0 ") or not said

    def works(self, known: str) -> None:
        with urllib.request.urlopen(f"{known}/healthz", timeout=GUARD) as answer:
            assert json.load(answer)["status"] == "running"


class LinkSurface(Surface):
    """A rank that waits for the links of a higher one."""

    name = "links"
    payloads = mostly(
        st.binary(min_size=ANSWER.size, max_size=ANSWER.size)
        | st.builds(
            ANSWER.pack,
            st.integers(0, 3),
            st.integers(0, 3),
            st.binary(min_size=32, max_size=32),
            st.binary(min_size=32, max_size=32),
        )
    )

    def serve(self) -> tuple[Any, Callable[[], int], Callable[[], None]]:
        opening = Listeners.opened(Network(secret=SECRET, master="127.0.0.1"))
        doors = opening.__enter__()
        other = replace(doors.contact, token=bytes(32))
        linked: list[Any] = []

        def link() -> None:
            found = connect_all(0, doors, {1: other}, Keys(SECRET, "g"), 3600.0, lambda: None)
            linked.append(found)

        thread = threading.Thread(target=link, daemon=True)
        thread.start()

        def close() -> None:
            thread.join(GUARD)
            assert len(linked[0][1]) == doors.contact.streams + 1
            opening.__exit__(None, None, None)

        return doors.contact, lambda: 0, close

    def frame(self, saying: Saying) -> bytes:
        return unframed(saying)

    def connect(self, known: Any) -> socket.socket:
        return socket.create_connection(known.addresses[-1], GUARD)

    def greet(self, sock: socket.socket, known: Any) -> bytes:
        return sock.recv(GREETING.size)

    def works(self, known: Any) -> None:
        """See `end`."""

    def end(self, known: Any) -> None:
        with Listeners.opened(Network(secret=SECRET, master="127.0.0.1")) as doors:
            own = replace(doors, contact=replace(doors.contact, token=bytes(32)))
            contact = replace(known, addresses=known.addresses[-1:])
            found = connect_all(1, own, {0: contact}, Keys(SECRET, "g"), GUARD, lambda: None)
        for lane in found[0]:
            os.close(lane)


class SegmentSurface(Surface):
    """A node's first rank that hands out the shared memory."""

    name = "segment"
    payloads = mostly(
        st.binary(min_size=40, max_size=40)
        | st.tuples(st.binary(min_size=32, max_size=32), st.integers(0, 3)).map(
            lambda parts: parts[0] + parts[1].to_bytes(8, "little")
        )
    )

    def serve(self) -> tuple[Any, Callable[[], int], Callable[[], None]]:
        offer = segment.Offer()
        own = HostInfo.here(offer.name, offer.token, Terms())
        places = {0: own, 1: replace(own, pid=os.getppid())}
        handed: list[int] = []

        def share() -> None:
            handed.append(segment.share(offer, 0, places, (4096,), 3600.0, SECRET))

        thread = threading.Thread(target=share, daemon=True)
        thread.start()

        def close() -> None:
            thread.join(GUARD)
            assert handed

        return own, lambda: 0, close

    def frame(self, saying: Saying) -> bytes:
        return unframed(saying)

    def connect(self, known: HostInfo) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(GUARD)
        sock.connect(f"\0{known.offer}")
        return sock

    def works(self, known: HostInfo) -> None:
        """See `end`."""

    def hears(self, known: HostInfo, said: bytes, honest: bool) -> None:
        assert not said

    def end(self, known: HostInfo) -> None:
        with segment.Offer() as offer:
            places = {0: known, 1: replace(known, pid=os.getpid())}
            os.close(segment.share(offer, 1, places, (4096,), GUARD, SECRET))


SURFACES: list[Callable[[], Surface]] = [
    lambda: StoreSurface(f"unix:@torsh-test-{secrets.token_hex(8)}", SECRET),
    lambda: StoreSurface(f"unix:@torsh-test-{secrets.token_hex(8)}", b""),
    lambda: StoreSurface("tcp:127.0.0.1:0", SECRET),
    lambda: StoreSurface("tcp:127.0.0.1:0", b""),
    HubSurface,
    HttpSurface,
    LinkSurface,
    SegmentSurface,
]


def num_messages(request: pytest.FixtureRequest) -> int:
    given_number = os.environ.get("TORSH_HOSTILE_MESSAGES")
    if given_number:
        return int(given_number)
    return MESSAGES_IN_FULL if request.config.getoption("--soak") else MESSAGES


@pytest.mark.parametrize("make", SURFACES, ids=lambda make: make().name)
def test_nonsense_hurts_nobody(make: Callable[[], Surface], request: pytest.FixtureRequest) -> None:
    surface = make()
    target = Target(surface)
    try:
        _attack(target, num_messages(request))
        surface.end(target.known)
    finally:
        target.close()


def _attack(target: Target, messages: int) -> None:
    surface = target.surface
    kinship = KINSHIP if messages < MANY else KINSHIP_OF_MANY
    surface.works(target.known)
    before = target.account()

    @settings(
        max_examples=math.ceil(messages / (FAMILIES * kinship * IN_A_CALL)),
        database=None,
        deadline=None,
        phases=[Phase.generate],  # cutting down a script that hangs would take for ever
        suppress_health_check=list(HealthCheck),
    )
    @given(scripts(surface.payloads, FAMILIES, kinship))
    def attack(script: list[Call]) -> None:
        with suppress(StoreError):
            target.play(script)
        surface.works(target.known)
        target.settles(before)

    attack()
    grown = target.account().resident - before.resident
    assert grown < MOST_BYTES, f"it has grown by {grown} bytes"


def test_slow_callers_are_cut_off_in_the_handshake() -> None:
    """Byte by byte, for longer than a handshake may take."""
    loop_surface = StoreSurface("tcp:127.0.0.1:0", SECRET)
    target = Target(loop_surface)
    try:
        before = target.account()
        with loop_surface.connect(target.known) as sock:
            sock.sendall(b"\0\0")
            sock.settimeout(GUARD)
            data = b""
            while part := sock.recv(1 << 16):
                data += part
            assert wire.MAGIC.encode() in data
        target.settles(before)
        loop_surface.works(target.known)
    finally:
        target.close()
