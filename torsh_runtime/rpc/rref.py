"""Defines RRef, a reference to a value on another worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from torsh_runtime.backends.future import Future
from torsh_runtime.rpc.current import current_agent
from torsh_runtime.rpc.failures import CallRefused, CallTimeout
from torsh_runtime.rpc.options import UNSET_RPC_TIMEOUT, WorkerInfo, seconds
from torsh_runtime.rpc.references import (
    Held,
    Key,
    Owned,
    at_owner_create,
    at_owner_fetch,
    at_owner_invoke,
)

if TYPE_CHECKING:
    from torsh_runtime.rpc.agent import Agent

Timeout = float | timedelta | None


class RRef:
    """Refers to a value that stays with its owner.

    The owner keeps the value as long as anybody has a reference. A reference can be an argument and
    a result of calls, and cannot be pickled otherwise. When the owner dies, all that needs the
    value raises PeerLost.

    Example:
        ```python
        model = tr.rpc.remote("worker1", Model, (settings,))
        loss = model.rpc_sync().evaluate(batch)
        future = model.rpc_async(timeout=30).train(batch)
        ```
    """

    def __init__(self, value: Any, type_hint: object = None) -> None:
        """Refer to a value of this worker, which becomes its owner.

        Args:
            value: The value.
            type_hint: Makes no difference.

        Raises:
            CallRefused: Without init_rpc().
        """
        self._agent = current_agent()
        self._of: Owned | Held = self._agent.references.own(value)

    @classmethod
    def _made(cls, agent: Agent, of: Owned | Held) -> RRef:
        reference = cls.__new__(cls)
        reference._agent, reference._of = agent, of
        return reference

    def owner(self) -> WorkerInfo:
        """Return the worker that has the value.

        Example:
            ```python
            model.owner().name  # "worker1"
            ```
        """
        return self._of.owner if isinstance(self._of, Held) else self._agent.own.info

    def owner_name(self) -> str:
        """Return the name of the owner."""
        return self.owner().name

    def is_owner(self) -> bool:
        """Return whether this worker is the owner."""
        return isinstance(self._of, Owned)

    def confirmed_by_owner(self) -> bool:
        """Return whether the owner has the value, as far as this worker knows."""
        if isinstance(self._of, Owned):
            return self._of.value.done()
        return self._of.creation is None or self._of.creation.done()

    def to_here(self, timeout: Timeout = UNSET_RPC_TIMEOUT) -> Any:
        """Return the value, or a copy of it that is fetched from the owner.

        It waits until the value is made.

        Args:
            timeout: Seconds or a timedelta, 0 for no limit; by default that of RpcBackendOptions.

        Raises:
            Exception: What making the value has raised.
            PeerLost: If the owner is gone.
            CallTimeout: If there is no answer in time.

        Example:
            ```python
            total = tr.rpc.remote("worker1", numpy.add, (1, 2))
            total.to_here(timeout=10)  # 3
            ```
        """
        if isinstance(self._of, Owned):
            return self._own(timeout)
        fetch = self._of.key, self._is_new
        return self._call(at_owner_fetch, fetch, timeout, "to_here()").wait()

    def local_value(self) -> Any:
        """Return the value itself, at its owner.

        Raises:
            CallRefused: On other workers. It is a RuntimeError, too.

        Example:
            ```python
            counts = tr.rpc.RRef({"done": 0})
            counts.local_value()["done"] += 1
            ```
        """
        if isinstance(self._of, Held):
            raise CallRefused(
                f"local_value() is for the owner, {self._of.owner.name!r}: call to_here() here"
            )
        return self._own(UNSET_RPC_TIMEOUT)

    def _own(self, timeout: Timeout) -> Any:
        assert isinstance(self._of, Owned)
        limit = seconds(timeout, self._agent.options.rpc_timeout)
        try:
            return self._of.value.wait(limit)
        except TimeoutError:
            if self._of.value.done():  # making it has raised that
                raise
            raise CallTimeout("to_here()", *self.owner(), limit) from None

    def rpc_sync(self, timeout: Timeout = UNSET_RPC_TIMEOUT) -> Proxy:
        """Return a proxy that calls the value's methods where it is.

        `ref.rpc_sync().method(…)` returns the result, and raises what tr.rpc.rpc_sync() raises.

        Args:
            timeout: Seconds or a timedelta of each call, 0 for no limit.

        Example:
            ```python
            model = tr.rpc.remote("worker1", Model)
            loss = model.rpc_sync(timeout=30).evaluate(batch)
            ```
        """
        return Proxy(lambda *call: self._method(timeout, *call).wait())

    def rpc_async(self, timeout: Timeout = UNSET_RPC_TIMEOUT) -> Proxy:
        """Return a proxy like that of rpc_sync(), whose methods return Futures.

        Args:
            timeout: Seconds or a timedelta of each call, 0 for no limit.

        Example:
            ```python
            model = tr.rpc.remote("worker1", Model)
            loss = model.rpc_async().evaluate(batch).wait()
            ```
        """
        return Proxy(partial(self._method, timeout))

    def remote(self, timeout: Timeout = UNSET_RPC_TIMEOUT) -> Proxy:
        """Return a proxy like that of rpc_sync(), whose methods return RRefs: results stay with the
        owner.

        Args:
            timeout: Seconds or a timedelta of each call, 0 for no limit.

        Example:
            ```python
            model = tr.rpc.remote("worker1", Model)
            copy = model.remote().clone()  # stays on worker1
            ```
        """
        return Proxy(partial(self._remote_method, timeout))

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, tuple(self._agent.references.packed(self._of))

    def __repr__(self) -> str:
        return f"RRef(of {self.owner_name()!r}, {tuple(self._of.key)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RRef) and self._of.key == other._of.key

    def __hash__(self) -> int:
        return hash(self._of.key)

    def _method(self, timeout: Timeout, name: str, args: Any, kwargs: Any) -> Future:
        call = self._of.key, self._is_new, name, args, kwargs
        return self._call(at_owner_invoke, call, timeout, f"{name}() of an RRef")

    def _remote_method(self, timeout: Timeout, name: str, args: Any, kwargs: Any) -> RRef:
        args = (self._of.key, self._is_new, name, args, kwargs)
        return created(self._agent, self.owner(), at_owner_invoke, args, {}, timeout, kept=self._of)

    @property
    def _is_new(self) -> bool:
        return isinstance(self._of, Held) and self._of.is_new

    def _call(self, function: Any, args: tuple[Any, ...], timeout: Timeout, shown: str) -> Future:
        future = self._agent.invoke(self.owner(), function, args, {}, timeout, shown)
        future.kept = [future.kept, self._of]
        return future


class Proxy:
    """The result of RRef.rpc_sync(), rpc_async() and remote(). It has the methods of the value."""

    def __init__(self, call: Callable[[str, Any, Any], Any]) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._call(name, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the value itself."""
        return self._call("__call__", args, kwargs)


def created(
    agent: Agent,
    to: str | int | WorkerInfo,
    function: Any,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    timeout: Timeout,
    kept: object = None,
) -> RRef:
    """Return a reference to what the function makes on that worker. `kept` lives until it is
    made."""
    references, owner = agent.references, agent.directory.find(to).info
    key, fork = references.new_key(), references.new_key()
    inner: list[Any] = [kept]
    pickled, buffers = agent.packed(owner, function, args, kwargs, inner)
    call = (key, fork, agent.own.info.id, pickled, buffers)
    own = references.expected(key) if owner.id == agent.own.info.id else None
    creation = agent.invoke(owner, at_owner_create, call, {}, timeout)
    creation.kept = [creation.kept, inner]
    if own is None:
        return RRef._made(agent, references.hold(key, fork, owner, creation))
    creation.add_done_callback(lambda _: references.drop_fork(key, fork))
    return RRef._made(agent, own)


def _arrived(
    key: tuple[int, int], fork: tuple[int, int] | None, owner: tuple[str, int], is_new: bool
) -> RRef:
    agent, holder = current_agent(), Key(*fork) if fork else None
    of = agent.references.unpacked(Key(*key), holder, WorkerInfo(*owner), is_new)
    return RRef._made(agent, of)
