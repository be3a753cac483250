"""Requests to etcd's gateway: reused connections, fail-over between members, logging in."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import NoReturn

from torsh_runtime.errors import StoreError, StoreTimeout
from torsh_runtime.store.etcd import messages
from torsh_runtime.store.etcd.config import Address, EtcdConfig
from torsh_runtime.store.etcd.http import HttpConnection
from torsh_runtime.store.etcd.messages import Message

MAX_IDLE = 4
"""The largest number of connections that are kept open while no request uses them."""
STREAM_SECONDS = 300.0
"""Seconds after which a stream is ended, so that one that silently failed is opened again."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_NOT_FOUND, _UNAUTHENTICATED = 5, 16
_UNSETTLED = frozenset({1, 2, 4, 10, 13, 14})  # gRPC: cancelled … unavailable: it may have happened
_NO_LEADER = "etcdserver: no leader"  # in answer to "hasleader": nothing was done
_LOGIN_LOST = (
    "etcdserver: invalid auth token",
    "etcdserver: revision of auth store is old",
    "etcdserver: user name is empty",  # another request has just found that the login had lapsed
)
_LOGINS = 3  # the most for one request


class Refused(StoreError):
    """Reports that etcd refused a request and has not carried it out."""

    def __init__(self, what: str, code: int, message: str) -> None:
        super().__init__(f"{what}: etcd refused: {message}{_advice(message)}")
        self.not_found = code == _NOT_FOUND
        self.message = message
        self.login_lost = code == _UNAUTHENTICATED or message in _LOGIN_LOST


class AnswerLost(StoreTimeout):
    """Reports that a request was sent and not answered: it may or may not have been carried out."""


class _Unsettled(ConnectionError):
    """Reports that a member does not know whether the request will be carried out."""


class _NotDone(ConnectionError):
    """Reports that a member can serve no requests now, and has not carried out this one."""


class Gateway:
    """Sends requests to the members of a cluster. Use it from one event loop only."""

    def __init__(self, config: EtcdConfig) -> None:
        self.revision = 0
        """Highest revision in any answer so far."""
        self._config = config
        self._addresses = config.addresses()
        self._tls = config.tls()
        self._turn = random.randrange(len(self._addresses))  # so that members share the clients
        self._idle: list[HttpConnection] = []
        self._open: set[HttpConnection] = set()
        self._guards: set[asyncio.Task[None]] = set()
        self._heard: dict[Address, float] = {}
        self._token = ""
        self._logging_in = asyncio.Lock()
        self._closing = asyncio.Event()

    def __str__(self) -> str:
        return f"etcd at {', '.join(map(str, self._addresses))}"

    def deadline(self) -> float:
        """Return the moment, in the loop's time, by which a request that begins now must end."""
        return asyncio.get_running_loop().time() + self._config.request_timeout

    def check_open(self) -> None:
        """Raise StoreError if the gateway has been closed."""
        if self._closing.is_set():
            raise StoreError("the store is closed. Open a new one to go on.")

    async def call(
        self, what: str, path: str, message: Message, deadline: float, *, resend: bool = True
    ) -> Message:
        """Send a request, to one member after another if need be, and return the answer.

        `what` describes the request in errors, and `deadline` is in the loop's time. Raises Refused
        when etcd refuses the request; StoreTimeout when no member has answered at the deadline.
        Unless the request may be sent again (`resend`), raises AnswerLost when a member received it
        and did not answer.
        """
        body = json.dumps(message).encode()
        for _ in range(_LOGINS - 1):
            try:
                return await self._logged_in(what, path, body, deadline, resend)
            except Refused as refusal:
                if not (refusal.login_lost and self._config.user):
                    raise
            self._token = ""
        return await self._logged_in(what, path, body, deadline, resend)

    async def stream(self, what: str, path: str, message: Message) -> AsyncGenerator[Message, None]:
        """Send a request on a connection of its own and yield the answers as they arrive.

        Raises OSError or EOFError when the connection breaks or the member stops responding; the
        next call uses a different member. Raises Refused when etcd refuses the request. The stream
        ends after about STREAM_SECONDS.
        """
        await self._log_in(what, self.deadline())
        turn = self._turn
        address = self._addresses[turn]
        try:
            async with asyncio.timeout(self._attempt_seconds()):
                connection = await self._connect(address)
            async with aclosing(self._stream(connection, what, path, message)) as answers:
                async for answer in answers:
                    yield answer
        except (OSError, EOFError):
            self.check_open()
            self._pass_turn(turn)
            raise
        except Refused as refusal:
            if not (refusal.login_lost and self._config.user):
                raise
            self._token = ""
            raise ConnectionError(str(refusal)) from None

    async def pause(self, seconds: float) -> None:
        """Wait for `seconds`. Raises StoreError as soon as the gateway is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        self.check_open()

    async def close(self) -> None:
        """Cut all connections. Requests and streams under way end with StoreError."""
        self._closing.set()
        for connection in self._open:
            connection.abort()
        self._idle.clear()
        self._open.clear()
        for guard in self._guards:
            guard.cancel()
        await asyncio.sleep(0)  # the loop closes the sockets in its next step

    # ---- one request

    async def _logged_in(
        self, what: str, path: str, body: bytes, deadline: float, resend: bool
    ) -> Message:
        await self._log_in(what, deadline)
        return await self._send(what, path, body, deadline, resend)

    async def _send(
        self, what: str, path: str, body: bytes, deadline: float, resend: bool
    ) -> Message:
        clock = asyncio.get_running_loop().time
        pause, attempts = _FIRST_PAUSE, 0
        while True:
            turn, attempts = self._turn, attempts + 1
            attempt = _Attempt()
            try:
                async with asyncio.timeout_at(min(deadline, clock() + self._attempt_seconds())):
                    return await self._try(attempt, self._addresses[turn], what, path, body)
            except (OSError, EOFError) as error:
                self.check_open()
                self._pass_turn(turn)
                failure = f"{self._addresses[turn]}: {_name(error)}"
                if attempt.sent and not resend and not isinstance(error, _NotDone):
                    raise AnswerLost(f"{what}: {self} took it and gave no answer ({failure})")
            if clock() + pause >= deadline:
                raise self._unanswered(what, failure)
            if attempts % len(self._addresses) == 0:
                await self.pause(pause * random.uniform(0.5, 1))
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _try(
        self, attempt: _Attempt, address: Address, what: str, path: str, body: bytes
    ) -> Message:
        connection = self._take(address) or await self._connect(address)
        attempt.sent = True
        try:
            status, answer = await connection.exchange(f"/v3/{path}", self._fields(), body)
        except BaseException:
            self._drop(connection)
            raise
        self._give(connection)
        self._heard[address] = asyncio.get_running_loop().time()
        return self._understand(what, status, answer)

    def _understand(self, what: str, status: int, body: bytes) -> Message:
        message = _parse(body)
        if status != 200 or "error" in message:
            _refuse(what, status, message)
        result = messages.sound(message.get("result", message))
        self.revision = max(self.revision, messages.revision(result))
        return result

    def _attempt_seconds(self) -> float:
        """Return the seconds that a member may take, so that others can be asked in time."""
        return self._config.request_timeout / max(2, len(self._addresses))

    def _pass_turn(self, turn: int) -> None:
        if self._turn == turn:
            self._turn = (turn + 1) % len(self._addresses)

    def _unanswered(self, what: str, failure: str) -> StoreTimeout:
        return StoreTimeout(
            f"{what}: {self} gave no answer within {self._config.request_timeout:g} s (last: "
            f"{failure}). See whether a majority of its members runs and can be reached from here."
        )

    # ---- connections

    def _take(self, address: Address) -> HttpConnection | None:
        for connection in [c for c in self._idle if c.address == address]:
            self._idle.remove(connection)
            if connection.is_usable():
                return connection
            self._drop(connection)
        return None

    async def _connect(self, address: Address) -> HttpConnection:
        self.check_open()
        connection = await HttpConnection.open(address, self._tls)
        if self._closing.is_set():
            connection.abort()
            self.check_open()
        self._open.add(connection)
        return connection

    def _give(self, connection: HttpConnection) -> None:
        if not connection.is_usable() or self._closing.is_set():
            self._drop(connection)
            return
        self._idle.append(connection)
        if len(self._idle) > MAX_IDLE:
            self._drop(self._idle.pop(0))

    def _drop(self, connection: HttpConnection) -> None:
        self._open.discard(connection)
        connection.abort()

    # ---- streams

    async def _stream(
        self, connection: HttpConnection, what: str, path: str, message: Message
    ) -> AsyncGenerator[Message, None]:
        guard = asyncio.create_task(self._guard(connection))
        self._guards.add(guard)
        guard.add_done_callback(self._guards.discard)
        try:
            await connection.send(f"/v3/{path}", self._fields(), json.dumps(message).encode())
            async with aclosing(connection.stream()) as lines:
                async for status, line in lines:
                    self._heard[connection.address] = asyncio.get_running_loop().time()
                    yield self._understand(what, status, line)
        finally:
            guard.cancel()
            self._drop(connection)
            await asyncio.wait((guard,))

    async def _guard(self, connection: HttpConnection) -> None:
        """Cut the connection when its server stops responding, or after about STREAM_SECONDS."""
        clock = asyncio.get_running_loop().time
        end = clock() + STREAM_SECONDS * random.uniform(0.8, 1.2)
        interval = self._config.request_timeout / 2
        try:
            while clock() < end:
                await asyncio.sleep(interval)
                if self._heard.get(connection.address, 0.0) < clock() - interval:
                    await self._probe(connection.address)
        except (OSError, EOFError, StoreError):
            return
        finally:
            connection.abort()

    async def _probe(self, address: Address) -> None:
        """Check that the server answers at all. Raises OSError or EOFError if it does not."""
        async with asyncio.timeout(self._attempt_seconds()):
            with suppress(Refused, _Unsettled, _NotDone):
                await self._try(_Attempt(), address, "status", "maintenance/status", b"{}")

    # ---- logging in

    def _fields(self) -> str:
        login = f"Authorization: {self._token}\r\n" if self._token else ""
        return f"Grpc-Metadata-hasleader: true\r\n{login}"

    async def _log_in(self, what: str, deadline: float) -> None:
        self.check_open()
        if self._config.user is None or self._token:
            return
        async with self._logging_in:
            if not self._token:
                login = {"name": self._config.user, "password": self._config.password}
                what = f"{what}: logging in as {self._config.user!r}"
                body = json.dumps(login).encode()
                answer = await self._send(what, "auth/authenticate", body, deadline, resend=True)
                self._token = str(answer.get("token", ""))
                if not self._token:
                    raise Refused(what, 0, "it gave no token")


class _Attempt:
    """Records the state of an attempt at a request."""

    __slots__ = ("sent",)

    def __init__(self) -> None:
        self.sent = False
        """True if some of the request may have reached the server."""


def _parse(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):  # no JSON, or nested more deeply than etcd's answers
        message = None
    if not isinstance(message, dict):
        return {"error": f"it said {body[:80]!r}. Is it etcd >= 3.4, with its gRPC gateway on?"}
    return message


def _refuse(what: str, status: int, message: Message) -> NoReturn:
    """Raise the exception for an error message.

    A stream sends an error as an object "error" within the message.
    """
    error = message.get("error", message)
    facts = error if isinstance(error, dict) else message
    code = facts.get("code") or facts.get("grpc_code")
    code = code if isinstance(code, int) else 0
    text = str(facts.get("message", facts.get("error", f"HTTP status {status}")))
    if text == _NO_LEADER:
        raise _NotDone(text)
    if code in _UNSETTLED or (not code and status >= 500):
        raise _Unsettled(text)
    raise Refused(what, code, text)


def _advice(message: str) -> str:
    if "user name is empty" in message:
        return ". It wants a user and a password: give both."
    if "authentication is not enabled" in message:
        return ". It knows no users: leave user and password out."
    if "permission denied" in message:
        return ". Let its administrator grant this user's role the keys under that name."
    if "too many operations" in message:
        return ". Split the transaction, or raise etcd's --max-txn-ops."
    if "too large" in message or "larger than max" in message:
        return ". Split the value, or raise etcd's --max-request-bytes."
    return ""


def _name(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
