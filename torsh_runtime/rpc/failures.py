"""Defines the errors of remote calls, and transfers exceptions from one process to another."""

from __future__ import annotations

import pickle
import traceback
from typing import Any, NamedTuple

from torsh_runtime.errors import Blame, CommError, ConfigError, PeerLost, TorshError
from torsh_runtime.rpc.options import WorkerInfo


class RemoteTraceback(TorshError):
    """Holds the traceback of an exception that a called function has raised, as its cause.

    Attributes:
        name: The worker's name.
        rank: The worker's id.
        host: The worker's host.
        trace: The traceback there, as text.

    Example:
        ```python
        try:
            tr.rpc.rpc_sync("worker1", evaluate)
        except ValueError as error:
            print(error.__cause__.trace)
            raise
        ```
    """

    def __init__(self, name: str, rank: int, host: str, trace: str) -> None:
        super().__init__(f"on {name!r} (rank {rank}, host {host}):\n\n{trace.rstrip()}")
        self.name, self.rank, self.host, self.trace = name, rank, host, trace

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.rank, self.host, self.trace), self.__dict__


class RemoteError(TorshError, RuntimeError):
    """Reports an exception of a called function that cannot be rebuilt here, or that must not be.

    SystemExit over there ends nobody. Its cause is a RemoteTraceback.

    Attributes:
        kind: The exception's type, such as "builtins.SystemExit".
        text: The exception's text.
        name: The worker's name.
        rank: The worker's id.
        host: The worker's host.

    Example:
        ```python
        try:
            tr.rpc.rpc_sync("worker1", sys.exit)
        except tr.rpc.RemoteError as error:
            print(error.kind)  # builtins.SystemExit
        ```
    """

    def __init__(self, kind: str, text: str, name: str, rank: int, host: str) -> None:
        super().__init__(f"{kind} on {name!r} (rank {rank}, host {host}): {text}")
        self.kind, self.text, self.name, self.rank, self.host = kind, text, name, rank, host

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.text, self.name, self.rank, self.host), self.__dict__


class CallRefused(ConfigError, RuntimeError):
    """Reports that a call cannot be made.

    There is no such worker, function or reference, its arguments cannot be pickled, or this process
    takes no part in calls (not yet, no longer, or as a fork).

    Example:
        ```python
        try:
            tr.rpc.rpc_sync("nobody", print)
        except tr.rpc.CallRefused as error:
            print(error)
        ```
    """


class CallTimeout(CommError, TimeoutError):
    """Reports that a call was not answered by its deadline. It is not known whether the function
    ran.

    Attributes:
        function: The function's name.
        name: The worker's name.
        rank: The worker's id.
        seconds: The timeout.

    Example:
        ```python
        try:
            tr.rpc.rpc_sync("worker1", evaluate, timeout=5)
        except tr.rpc.CallTimeout as error:
            print(f"{error.name} took more than {error.seconds} s")
        ```
    """

    def __init__(
        self, function: str, name: str, rank: int, seconds: float, detail: str = ""
    ) -> None:
        super().__init__(
            f"{function} on {name!r} (rank {rank}) did not answer within {seconds:.3g} s"
            f"{detail}. It may be stopped, busy, or slow: look at what it does (py-spy dump, "
            f"torshctl status), or give the call a longer timeout."
        )
        self.function, self.name, self.rank, self.seconds = function, name, rank, seconds
        self.detail = detail
        self.blame = Blame("late", (rank,), function)

    def __reduce__(self) -> tuple[Any, ...]:
        facts = self.function, self.name, self.rank, self.seconds, self.detail
        return type(self), facts, self.__dict__


def lost(worker: WorkerInfo, host: str, function: str, reason: str) -> PeerLost:
    """Return the error of a call whose worker is gone."""
    return PeerLost(worker.id, function, 0, reason, name=f"{worker.name!r} on {host}")


class Account(NamedTuple):
    """An exception in a form that another process can read."""

    kind: str
    text: str
    trace: str
    pickled: bytes
    """Pickle of the exception, or b"" if it cannot be rebuilt."""
    name: str
    rank: int
    host: str


def account(error: BaseException, worker: WorkerInfo, host: str) -> Account:
    """Return the account of an exception that a called function has raised here, for its caller."""
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    trace = "".join(traceback.format_exception(error))
    return Account(kind, _text(error), trace, _pickled(error), worker.name, worker.id, host)


def rebuilt(account: Account) -> Exception:
    """Return the exception that a call raises."""
    error = _unpickled(account)
    error.__cause__ = RemoteTraceback(account.name, account.rank, account.host, account.trace)
    return error


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its text cannot be had: __str__ raises)"


def _pickled(error: BaseException) -> bytes:
    """Return the pickled exception, or b"" unless it comes out of the pickle as it went in."""
    if not isinstance(error, Exception):
        return b""
    try:
        pickled = pickle.dumps(error, 5)
        again = pickle.loads(pickled)  # noqa: S301  (it was made in the line before)
        is_same = type(again) is type(error) and _text(again) == _text(error)
    except Exception:
        return b""
    return pickled if is_same else b""


def _unpickled(account: Account) -> Exception:
    if account.pickled:
        try:
            error = pickle.loads(account.pickled)  # noqa: S301  (within a sealed frame)
            if isinstance(error, Exception):
                return error
        except Exception:  # for example, its module is missing here
            return _stand_in(account)
    return _stand_in(account)


def _stand_in(account: Account) -> RemoteError:
    return RemoteError(account.kind, account.text, account.name, account.rank, account.host)
