"""Remote calls that cannot be made, and functions that end badly: clear errors, and nobody ends."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.forked import Raised, run_forked
from support.ports import free_address
from support.processes import soon
from support.rpc_worlds import double, error_of, join, name_here, run_workers, wait_for

import torsh_runtime as tr
import torsh_runtime.rpc as rpc


class PairError(Exception):
    """Takes two arguments, as many exceptions do."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


class StubbornError(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("stubborn")
        self.lock = threading.Lock()


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class UnmadeError(Exception):
    """Comes out of its pickle differently."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")


class BadArgument:
    """Cannot be unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


ERRORS: dict[str, Callable[[], BaseException]] = {
    "pair": lambda: PairError(3, "two"),
    "stubborn": StubbornError,
    "mute": MuteError,
    "unmade": lambda: UnmadeError(7),
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "generator": GeneratorExit,
    "os": lambda: FileNotFoundError(2, "No such file", "/nowhere"),
    "group": lambda: ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    "stop": lambda: StopIteration(5),
}


def fail(name: str) -> None:
    raise ERRORS[name]()


def make_lock() -> Any:
    return threading.Lock()


@rpc.functions.async_execution
def no_future() -> int:
    return 1


@rpc.functions.async_execution
def fail_later(name: str) -> Any:
    future = rpc.Future()
    future.set_exception(ERRORS[name]())
    return future


def in_two(body: Callable[[], Any]) -> Any:
    """What it returns on worker 0 of two; worker 1 must be there and right afterwards."""

    def be(rank: int) -> Any:
        if rank:
            return None
        result = body()
        assert rpc.rpc_sync("worker1", double, args=(21,)) == 42
        return result

    first, second = run_workers(2, be)
    assert second is None
    assert not isinstance(first, Raised), vars(first.error)["trace"]
    return first


def test_errors_come_as_themselves_if_they_can_and_always_with_what_happened_there() -> None:
    def account(error: Exception) -> tuple[str, str]:
        cause = error.__cause__
        assert isinstance(cause, rpc.RemoteTraceback)
        assert (cause.name, cause.rank, cause.host) == ("worker1", 1, os.uname().nodename)
        assert cause.trace.startswith("Traceback") or "Group Traceback" in cause.trace
        return type(error).__name__, str(error)

    def body() -> Any:
        found = {}
        for name in ERRORS:
            calls = {
                "at once": lambda name=name: rpc.rpc_sync("worker1", fail, (name,)),
                "later": lambda name=name: rpc.rpc_sync("worker1", fail_later, (name,)),
                "reference": lambda name=name: rpc.remote("worker1", fail, (name,)).to_here(),
            }
            found[name] = {account(error_of(call)) for call in calls.values() if name != "mute"}
        return found

    found = in_two(body)
    where = "on 'worker1' (rank 1, host " + os.uname().nodename + ")"
    assert found == {
        "pair": {("PairError", "(3, 'two')")},
        "stubborn": {("RemoteError", f"{__name__}.StubbornError {where}: stubborn")},
        "mute": set(),
        "unmade": {("RemoteError", f"{__name__}.UnmadeError {where}: code 7")},
        "exit": {("RemoteError", f"builtins.SystemExit {where}: 3")},
        "interrupt": {("RemoteError", f"builtins.KeyboardInterrupt {where}: ")},
        "generator": {("RemoteError", f"builtins.GeneratorExit {where}: ")},
        "os": {("FileNotFoundError", "[Errno 2] No such file: '/nowhere'")},
        "group": {("ExceptionGroup", "several (2 sub-exceptions)")},
        "unicode": {("UnicodeDecodeError", str(ERRORS["unicode"]()))},
        "stop": {("StopIteration", "5")},
    }


REFUSED: dict[str, tuple[type[Exception], tuple[str, ...], Callable[[], Any]]] = {
    "unknown name": (
        RuntimeError,
        ("'nobody'", "'worker0', 'worker1'"),
        lambda: rpc.rpc_sync("nobody", double, (1,)),
    ),
    "unknown rank": (RuntimeError, ("7",), lambda: rpc.rpc_sync(7, double, (1,))),
    "no worker": (TypeError, ("None",), lambda: rpc.rpc_sync(None, double, (1,))),  # type: ignore[arg-type]
    "unknown info": (RuntimeError, ("'nobody'",), lambda: rpc.get_worker_info("nobody")),
    "argument": (
        TypeError,
        ("double", "'worker1'", "cannot pickle '_thread.lock'"),
        lambda: rpc.rpc_sync("worker1", double, (make_lock(),)),
    ),
    "function": (
        AttributeError,
        ("lambda", "'worker1'", "rpc.register()"),
        lambda: rpc.rpc_sync("worker1", lambda: 1),
    ),
    "result": (
        pickle.PicklingError,
        ("make_lock", "cannot pickle '_thread.lock'"),
        lambda: rpc.rpc_sync("worker1", make_lock),
    ),
    "fetched": (
        pickle.PicklingError,
        ("cannot pickle '_thread.lock'",),
        lambda: rpc.remote("worker1", make_lock).to_here(),
    ),
    "unpickling": (
        ValueError,
        ("'no number'",),
        lambda: rpc.rpc_sync("worker1", double, (BadArgument(),)),
    ),
    "unpickling of what is kept": (
        ValueError,
        ("'no number'",),
        lambda: rpc.remote("worker1", double, (BadArgument(),)).to_here(),
    ),
    "no future": (
        TypeError,
        ("no_future", "must return a Future, not int"),
        lambda: rpc.rpc_sync("worker1", no_future),
    ),
    "not registered": (
        RuntimeError,
        ("'unheard of'", "rpc.register("),
        lambda: rpc.rpc_sync("worker1", "unheard of"),
    ),
    "args": (TypeError, ("tuple or a list",), lambda: rpc.rpc_sync("worker1", double, 5)),  # type: ignore[arg-type]
    "timeout": (
        tr.ConfigError,
        ("-3",),
        lambda: rpc.rpc_sync("worker1", double, (1,), timeout=-3),
    ),
    "pickled reference": (RuntimeError, ("RRef",), lambda: pickle.dumps(rpc.RRef(1))),
    "init twice": (
        tr.ConfigError,
        ("shutdown()",),
        lambda: rpc.init_rpc("again", rank=0, world_size=1),
    ),
}


def test_what_cannot_be_called_is_refused_by_name() -> None:
    found = in_two(lambda: {name: error_of(call) for name, (_, _, call) in REFUSED.items()})
    for name, (kind, words, _) in REFUSED.items():
        assert isinstance(found[name], kind), (name, found[name])
        assert all(word in str(found[name]) for word in words), (name, found[name])


def without_a_world() -> list[Exception]:
    calls = (
        lambda: rpc.rpc_sync("worker1", double, (1,)),
        lambda: rpc.rpc_async("worker1", double, (1,)),
        lambda: rpc.remote("worker1", double, (1,)),
        lambda: rpc.RRef(1),
        rpc.get_worker_info,
        rpc.shutdown,
    )
    return [error_of(call) for call in calls]


def test_nothing_can_be_called_before_init_rpc_nor_after_shutdown() -> None:
    def body(rank: int) -> Any:
        before = without_a_world()
        join(f"worker{rank}", rank, address, 2)
        reference = rpc.remote(f"worker{1 - rank}", double, args=(rank,))
        values = reference.to_here(), rpc.rpc_async(1 - rank, double, (rank,))
        rpc.shutdown()
        return before, without_a_world(), values[0], values[1].wait(), error_of(reference.to_here)

    address = free_address()
    for rank, found in enumerate(run_forked(2, body)):
        before, after, one, other, reference = found
        assert all(isinstance(each, RuntimeError) for each in (*before, *after, reference))
        assert all("init_rpc()" in str(each) for each in (*before, *after))
        assert one == other == 2 * rank


def test_workers_meet_again_after_shutdown() -> None:
    def body(rank: int) -> Any:
        names = []
        for turn in range(3):
            join(f"turn{turn}-{rank}", rank, addresses[turn], 3)
            names.append(rpc.rpc_sync((rank + 1) % 3, name_here))
            rpc.shutdown()
        return names

    addresses = [free_address() for _ in range(3)]
    results = run_forked(3, body)
    assert results == [[f"turn{turn}-{(rank + 1) % 3}" for turn in range(3)] for rank in range(3)]


def test_a_fork_is_no_worker_and_does_not_disturb_its_parent() -> None:
    def child() -> int:
        errors = without_a_world()
        if not all("init_rpc()" in str(each) for each in errors):
            return 1
        join("alone", 0, free_address(), 1)
        right = rpc.rpc_sync("alone", double, (4,)) == 8
        rpc.shutdown()
        return 0 if right else 2

    def body() -> Any:
        waiting = rpc.rpc_async("worker1", double, (1,))
        pid = os.fork()
        if pid == 0:
            status = 3
            try:
                signal.alarm(60)
                status = child()
            finally:
                os._exit(status)
        others = [rpc.rpc_sync("worker1", double, (number,)) for number in range(50)]
        _, status = os.waitpid(pid, 0)
        return waiting.wait(), others, os.waitstatus_to_exitcode(status)

    assert in_two(body) == (2, [2 * number for number in range(50)], 0)


def test_names_are_checked_and_belong_to_one_worker_each() -> None:
    def named(rank: int) -> Any:
        bad = "", "x" * 129, "tab\t", 5, None
        errors = [error_of(lambda name=name: join(name, 0, address, 2)) for name in bad]  # type: ignore[misc]
        return errors, error_of(lambda: join("same", rank, address, 2)), rpc.is_initialized()

    address = free_address()
    for errors, same, is_initialized in run_forked(2, named):
        assert all(isinstance(error, tr.ConfigError) for error in (*errors, same)), errors
        assert "'same'" in str(same)
        assert not is_initialized


def test_who_does_not_know_the_secret_is_not_let_in(tmp_path: Path) -> None:
    address = free_address()
    tried, called, left = (tmp_path / name for name in ("tried", "called", "left"))

    def body(number: int) -> Any:
        if number == 1:
            os.environ["TORSH_SECRET"] = "ab" * 32
            options = rpc.RpcBackendOptions(init_method=address)
            error = error_of(lambda: rpc.init_rpc("stranger", None, 7, None, options))
            tried.touch()
            return str(error)
        join("host" if number == 0 else "friend", number, address)
        if number == 0:
            wait_for(tried)
            assert soon(lambda: len(rpc.get_worker_infos()) == 2, 60)
            result = rpc.rpc_sync("friend", name_here), len(rpc.get_worker_infos())
            called.touch()
        else:
            wait_for(called)
            result = rpc.rpc_sync("host", name_here), 0
            left.touch()
        wait_for(left)
        rpc.shutdown()
        return result

    host, stranger, friend = run_forked(3, body)
    assert "does not know this job's secret" in stranger
    assert (host, friend) == (("friend", 2), ("host", 0))
