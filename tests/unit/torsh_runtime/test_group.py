"""The API over a group of one: ranks, roots, lists, objects, groups, coalescing, refusals."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import torsh_runtime as tr
from torsh_runtime.backends.base import Backend, BackendType
from torsh_runtime.backends.single import SingleBackend
from torsh_runtime.backends.work import CompletedWork, Work
from torsh_runtime.comm.authenticated_pickle import ALL, AuthenticatedMessage, AuthenticatedPickle
from torsh_runtime.comm.default import default_group, set_default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.non_member import NonMember
from torsh_runtime.comm.registry import GroupRegistry
from torsh_runtime.comm.roots import root_rank
from torsh_runtime.comm.splitting import cut
from torsh_runtime.comm.timeouts import seconds


@pytest.fixture
def group() -> Iterator[ProcessGroup]:
    """A default group of one."""
    made = tr.init_process_group("single", "tcp://127.0.0.1:1", 10.0, 1, 0)
    yield made
    tr.destroy_process_group()


class Spy:
    """A backend of rank 2 of 4 that only notes what it is asked."""

    rank, world_size, failed = 2, 4, False
    type = BackendType.GLOO

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., Work]:
        def operation(*arguments: Any) -> Work:
            self.calls.append((name, *arguments))
            return CompletedWork(3)

        operation.__name__ = name
        return operation

    def coalescing(self, timeout: float) -> Any:
        return Backend.coalescing(self)  # type: ignore[arg-type]


@pytest.fixture
def spy() -> Iterator[Spy]:
    """The default group's backend; its ranks are 10, 11, 12 and 13."""
    backend = Spy()
    made = ProcessGroup(backend, 7.0, range(10, 14))  # type: ignore[arg-type]
    set_default_group(made)
    yield backend
    set_default_group(None)


# --- what reaches the backend ---

X, Y, LIST = object(), object(), [object()] * 4


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: tr.all_reduce(X), ("all_reduce", X, tr.ReduceOp.SUM, 7.0, False)),
        (lambda: tr.reduce(X, 13), ("reduce", X, 3, tr.ReduceOp.SUM, 7.0, False)),
        (lambda: tr.reduce(X, group_dst=1), ("reduce", X, 1, tr.ReduceOp.SUM, 7.0, False)),
        (lambda: tr.broadcast(X, 10), ("broadcast", X, 0, 7.0, False)),
        (lambda: tr.all_gather(LIST, X), ("all_gather", LIST, X, 7.0, False)),
        (lambda: tr.all_gather(deque(LIST), X), ("all_gather", LIST, X, 7.0, False)),
        (lambda: tr.all_gather_into_tensor(X, Y), ("all_gather", X, Y, 7.0, False)),
        (lambda: tr.gather(X, LIST, 12), ("gather", LIST, X, 2, 7.0, False)),
        (lambda: tr.gather(X, dst=11), ("gather", None, X, 1, 7.0, False)),
        (lambda: tr.scatter(X, LIST, 12), ("scatter", X, LIST, 2, 7.0, False)),
        (lambda: tr.scatter(X, src=11), ("scatter", X, None, 1, 7.0, False)),
        (
            lambda: tr.reduce_scatter(X, LIST, tr.ReduceOp.MAX),
            ("reduce_scatter", X, LIST, tr.ReduceOp.MAX, 7.0, False),
        ),
        (
            lambda: tr.reduce_scatter_tensor(X, Y, tr.premul_sum(0.5)),
            ("reduce_scatter", X, Y, tr.PremulSum(0.5), 7.0, False),
        ),
        (lambda: tr.all_to_all(LIST, LIST), ("all_to_all", LIST, LIST, 7.0, False)),
        (lambda: tr.all_to_all_single(X, Y), ("all_to_all", X, Y, 7.0, False)),
        (lambda: tr.send(X, 13, tag=5), ("send", X, 3, 5, 7.0, False)),
        (lambda: tr.recv(X, 13), ("recv", X, 3, 0, 7.0, False)),
        (lambda: tr.recv(X), ("recv", X, None, 0, 7.0, False)),
        (lambda: tr.barrier(), ("barrier", 7.0, False)),
        (lambda: tr.barrier(timeout=timedelta(seconds=2)), ("barrier", 2.0, False)),
        (lambda: tr.monitored_barrier(timeout=3), ("barrier", 3.0, False)),
    ],
)
def test_calls_reach_the_backend(spy: Spy, call: Callable[[], object], expected: Any) -> None:
    call()
    assert spy.calls == [expected]


def test_async_op_is_passed_on_and_gives_work(spy: Spy) -> None:
    assert tr.all_reduce(X) is None
    work = tr.all_reduce(X, async_op=True)
    assert isinstance(work, Work)
    assert isinstance(tr.isend(X, 13), Work)
    assert isinstance(tr.irecv(X), Work)
    assert [call[-1] for call in spy.calls] == [False, True, True, True]


def test_recv_gives_the_rank_of_the_default_group(spy: Spy) -> None:
    assert tr.recv(X) == 13


def test_all_to_all_single_cuts_rows(spy: Spy) -> None:
    output, array = np.zeros((6, 2)), np.arange(16.0).reshape(8, 2)
    tr.all_to_all_single(output, array, [0, 1, 2, 3], [1, 1, 1, 5])
    _, outputs, inputs, *_ = spy.calls[0]
    assert [len(part) for part in outputs] == [0, 1, 2, 3]
    assert [part[:, 0].tolist() for part in inputs[:2]] == [[0.0], [2.0]]
    assert all(np.shares_memory(part, output) for part in outputs[1:])


def test_all_to_all_single_cuts_the_other_side_equally(spy: Spy) -> None:
    tr.all_to_all_single(np.zeros(4), np.zeros(7), input_split_sizes=[1, 2, 3, 1])
    _, outputs, inputs, *_ = spy.calls[0]
    assert [len(part) for part in outputs] == [1, 1, 1, 1]
    assert [len(part) for part in inputs] == [1, 2, 3, 1]


def test_buffers_are_cut_in_place() -> None:
    buffer = bytearray(4)
    parts: Any = cut("output", buffer, [1, 3], 2)
    parts[1][:] = b"abc"
    assert buffer == b"\0abc"


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([1, 2], "they must be 3 numbers"),
        ([1, 2, 5], "add up to the 6 rows"),
        ([-1, 2, 5], "add up to the 6 rows"),
        (None, None),
    ],
)
def test_split_sizes(sizes: Sequence[int] | None, words: str | None) -> None:
    if words is None:
        assert [len(part) for part in cut("input", np.zeros(6), sizes, 3)] == [2, 2, 2]  # type: ignore[arg-type]
        return
    with pytest.raises(ValueError, match=words):
        cut("input", np.zeros(6), sizes, 3)


def test_rows_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="give input_split_sizes"):
        cut("input", np.zeros(7), None, 3)


# --- ranks and roots ---


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((None, None), "give dst"),
        ((10, 0), "not both"),
        ((14, None), r"rank 14 is not in the group of ranks \[10, 11, 12, 13\]"),
    ],
)
def test_roots_that_make_no_sense(spy: Spy, arguments: tuple[Any, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        root_rank(default_group(), *arguments, "dst")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tr.reduce(X, group_dst=4), "not a rank of the group"),
        (lambda: tr.reduce(X, group_dst=-1), "not a rank of the group"),
        (lambda: tr.send(X, 12), "own rank"),
        (lambda: tr.recv(X, 12), "own rank"),
        (lambda: tr.all_gather([X], X), "has 1 arrays; it needs one per rank, 4"),
        (lambda: tr.reduce_scatter(X, [X] * 5), "has 5 arrays"),
        (lambda: tr.all_to_all(LIST, [X]), "input_tensor_list has 1"),
        (lambda: tr.gather(X, LIST, 10), "gather_list is for rank 0 only"),
        (lambda: tr.gather(X, dst=12), "gather_list has 0 arrays"),
        (lambda: tr.scatter(X, LIST, 10), "scatter_list is for rank 0 only"),
        (lambda: tr.batch_isend_irecv([]), "at least one"),
        (lambda: tr.P2POp(tr.send, X, 1), "isend or irecv"),
    ],
)
def test_refused_before_the_backend_is_asked(
    spy: Spy, call: Callable[[], object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        call()
    assert spy.calls == []


def test_ranks_of_the_default_group_and_the_groups_own(spy: Spy) -> None:
    group = default_group()
    assert (tr.get_rank(), tr.get_world_size(), tr.get_backend()) == (2, 4, "gloo")
    assert tr.get_process_group_ranks() == [10, 11, 12, 13]
    assert tr.get_group_rank(group, 11) == 1
    assert tr.get_global_rank(group, 3) == 13
    with pytest.raises(ValueError, match="no rank 4"):
        tr.get_global_rank(group, 4)


def test_a_batch_of_messages(spy: Spy) -> None:
    works = tr.batch_isend_irecv([tr.P2POp(tr.isend, X, 13), tr.P2POp(tr.irecv, Y, group_peer=0)])
    assert len(works) == 2
    assert spy.calls == [("send", X, 3, 0, 7.0, True), ("recv", Y, 0, 0, 7.0, True)]


# --- coalescing ---


def test_coalesced_calls_are_launched_at_the_end(spy: Spy) -> None:
    done: list[Work] = []
    with tr.coalesce(async_op=True) as work:
        assert tr.all_reduce(X) is None
        assert tr.isend(Y, 13) is work
        assert spy.calls == []
        assert not work.done()
        with pytest.raises(RuntimeError, match="has ended"):
            work.wait()
    assert spy.calls == [
        ("all_reduce", X, tr.ReduceOp.SUM, 7.0, True),
        ("send", Y, 3, 0, 7.0, True),
    ]
    assert work.wait(1.0)
    assert work.done()
    assert work.exception() is None
    work.add_done_callback(done.append)
    assert done == [work]


def test_without_async_op_only_messages_are_left_under_way(spy: Spy) -> None:
    with tr.coalesce():
        tr.irecv(X, 13)
        tr.all_reduce(X, async_op=True)
    assert [(call[0], call[-1]) for call in spy.calls] == [("recv", True), ("all_reduce", False)]


@pytest.mark.parametrize(
    "call",
    [
        lambda: tr.all_gather_object([None], 1),
        lambda: tr.gather_object(1, [None]),
        lambda: tr.broadcast_object_list([1]),
        lambda: tr.scatter_object_list([None], [1]),
        lambda: tr.split(0),
    ],
)
def test_what_needs_results_on_the_way_is_not_held_back(
    group: ProcessGroup, call: Callable[[], object]
) -> None:
    def together() -> None:
        with tr.coalesce():
            call()

    with pytest.raises(RuntimeError, match="outside the block"):
        together()
    with tr.coalesce(), ThreadPoolExecutor(1) as another:
        another.submit(call).result()
    call()


def test_an_exception_launches_nothing(spy: Spy) -> None:
    def fail() -> None:
        with tr.coalesce():
            tr.all_reduce(X)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    tr.all_reduce(Y)
    assert [call[1] for call in spy.calls] == [Y]


def test_an_empty_block_is_complete(spy: Spy) -> None:
    with tr.coalesce(async_op=True) as work:
        pass
    assert work.wait()
    called: list[Work] = []
    work.add_done_callback(called.append)
    assert called == [work]


def test_coalescing_cannot_be_nested(spy: Spy) -> None:
    with tr.coalesce(), pytest.raises(RuntimeError, match="nested"):
        tr.coalesce().__enter__()
    tr.all_reduce(X)
    assert len(spy.calls) == 1


# --- groups ---


def made(rank: int, kinds: list[tuple[Any, ...]]) -> GroupRegistry:
    def connect(*arguments: Any) -> Backend:
        kinds.append(arguments)
        return SingleBackend()

    return GroupRegistry(rank, 4, connect, AuthenticatedPickle(b"secret"))


def test_groups_of_the_same_ranks_have_the_same_names_everywhere() -> None:
    """Whatever other groups some of them have made in between."""
    asked: list[list[tuple[Any, ...]]] = [[], []]
    first, second = made(0, asked[0]), made(1, asked[1])
    first.group("", [0, 3], BackendType.NATIVE, 1.0)
    for session in (first, second, first, second):
        session.group("", [0, 1], BackendType.NATIVE, 1.0)
    names = [[call[1] for call in calls if call[3] == [0, 1]] for calls in asked]
    assert names[0] == names[1]
    assert len(set(names[0])) == 2


def test_all_groups_are_left_when_leaving_one_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[ProcessGroup] = []

    def close(group: ProcessGroup) -> None:
        left.append(group)
        raise tr.CommError(f"{group.ranks}")

    session = made(0, [])
    groups = [session.group("", [0, n], BackendType.NATIVE, 1.0) for n in (1, 2, 3)]
    monkeypatch.setattr(ProcessGroup, "close", close)
    with pytest.raises(tr.CommError, match=r"\(0, 1\)"):
        session.close()
    assert left == groups[::-1]


def test_who_is_not_in_a_group_cannot_use_it() -> None:
    group = made(3, []).group("", [0, 1], BackendType.NATIVE, 1.0)
    assert isinstance(group, NonMember)
    assert (tr.get_rank(group), tr.get_world_size(group)) == (-1, -1)
    assert tr.get_process_group_ranks(group) == [0, 1]
    for call in (
        lambda: tr.all_reduce(X, group=group),
        lambda: tr.barrier(group),
        lambda: tr.isend(X, 0, group),
        lambda: tr.broadcast(X, 0, group),
        lambda: tr.all_gather_object([], X, group),
    ):
        with pytest.raises(tr.ConfigError, match=r"rank 3 is not in the group of ranks \[0, 1\]"):
            call()
    tr.destroy_process_group(group)


@pytest.mark.parametrize("ranks", [[], [0, 0], [0, 4], [-1]])
def test_ranks_that_make_no_group(ranks: list[int]) -> None:
    with pytest.raises(tr.ConfigError, match="make no group"):
        made(0, []).group("", ranks, BackendType.NATIVE, 1.0)


def test_new_groups_of_a_single_rank(group: ProcessGroup) -> None:
    for sub in (tr.new_group(), tr.new_group([0], timeout=3), tr.split(7)):
        assert sub is not None
        total = np.ones(2)
        tr.all_reduce(total, group=sub)
        assert (sub.rank, total.tolist()) == (0, [1.0, 1.0])
        tr.destroy_process_group(sub)
        with pytest.raises(tr.CommAborted):
            tr.all_reduce(total, group=sub)
    assert tr.split(None) is None


def test_groups_are_closed_with_the_default_group() -> None:
    tr.init_process_group("single", "tcp://127.0.0.1:1", 10.0, 1, 0)
    sub = tr.new_group()
    tr.destroy_process_group()
    with pytest.raises(tr.CommAborted):
        sub.barrier()


def test_options_that_nobody_has_are_refused(group: ProcessGroup) -> None:
    with pytest.raises(tr.ConfigError, match="pg_options"):
        tr.new_group(pg_options=object())  # type: ignore[arg-type]
    with pytest.raises(tr.BackendUnavailable, match="carrier pigeon"):
        tr.new_group(backend="carrier pigeon")
    assert tr.new_group(backend="native").backend == "native"
    assert tr.new_group(backend="single").backend == "single"


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "soon", timedelta(days=31)])
def test_timeouts_that_make_no_sense(timeout: Any) -> None:
    with pytest.raises(tr.ConfigError, match="timeout"):
        seconds(timeout, 1.0)


# --- objects ---


def test_objects_of_a_single_rank(group: ProcessGroup) -> None:
    value = {"a": [1, None, "ä"]}
    gathered: list[Any] = [None]
    tr.all_gather_object(gathered, value)
    assert gathered == [value]
    tr.gather_object(3, gathered)
    assert gathered == [3]
    tr.broadcast_object_list(gathered)
    tr.scatter_object_list(gathered, [value])
    assert gathered == [value]


@pytest.mark.parametrize(
    "call",
    [
        lambda: tr.all_gather_object([], 1),
        lambda: tr.gather_object(1),
        lambda: tr.gather_object(1, [None, None]),
        lambda: tr.scatter_object_list([], [1]),
        lambda: tr.scatter_object_list([None], None),
    ],
)
def test_lists_of_the_wrong_length(group: ProcessGroup, call: Callable[[], None]) -> None:
    with pytest.raises(ValueError, match="needs"):
        call()


class Bomb:
    def __reduce__(self) -> Any:
        return pytest.fail, ("it was unpickled",)


LETTER = AuthenticatedMessage("g", "send_object_list", 0, 1)


@pytest.mark.parametrize(
    ("secret", "letter"),
    [
        (b"guess", LETTER),
        (b"secret", LETTER._replace(group="other")),
        (b"secret", LETTER._replace(call="broadcast_object_list")),
        (b"secret", LETTER._replace(sender=2)),
        (b"secret", LETTER._replace(receiver=ALL)),
        (b"secret", LETTER._replace(sender=1, receiver=0)),  # reflected
    ],
)
def test_a_pickle_without_the_proof_is_not_looked_at(
    secret: bytes, letter: AuthenticatedMessage
) -> None:
    packed = AuthenticatedPickle(secret).pack(Bomb(), letter)
    with pytest.raises(tr.CommError, match="thrown away unread"):
        AuthenticatedPickle(b"secret").unpack(packed, LETTER)


def test_a_pickle_is_not_taken_a_second_time() -> None:
    sender, receiver = AuthenticatedPickle(b"secret"), AuthenticatedPickle(b"secret")
    first, second = sender.pack(1, LETTER), sender.pack(2, LETTER)
    assert receiver.unpack(first, LETTER) == 1
    assert receiver.unpack(second, LETTER) == 2
    with pytest.raises(tr.CommError, match="thrown away unread"):
        receiver.unpack(second, LETTER)


def test_what_is_known_of_a_group_goes_with_it() -> None:
    seal = AuthenticatedPickle(b"secret")
    for group in ("a", "b"):
        letter = LETTER._replace(group=group)
        assert seal.unpack(seal.pack(1, letter), letter) == 1
    seal.forget("a")
    assert [letter.group for letter in (*seal._sent, *seal._received)] == ["b", "b"]


def test_pickles_may_be_opened_in_any_order() -> None:
    sender, receiver = AuthenticatedPickle(b"secret"), AuthenticatedPickle(b"secret")
    packed = [sender.pack(number, LETTER) for number in range(4)]
    assert [receiver.unpack(packed[number], LETTER) for number in (2, 0, 3, 1)] == [2, 0, 3, 1]
    for again in packed:
        with pytest.raises(tr.CommError, match="thrown away unread"):
            receiver.unpack(again, LETTER)


def test_of_several_none_is_looked_at_if_one_is_wrong() -> None:
    packed = [
        AuthenticatedPickle(b"secret").pack(Bomb(), LETTER),
        AuthenticatedPickle(b"guess").pack(1, LETTER),
    ]
    letters = [LETTER, LETTER._replace(sender=1)]
    with pytest.raises(tr.CommError, match="thrown away unread"):
        AuthenticatedPickle(b"secret").unpack_all(packed, letters)


def test_what_cannot_be_pickled_counts_for_nothing() -> None:
    sender = AuthenticatedPickle(b"secret")
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        sender.pack(lambda: None, LETTER)
    assert AuthenticatedPickle(b"secret").unpack(sender.pack(1, LETTER), LETTER) == 1


def test_a_bare_pickle_is_not_looked_at() -> None:
    packed = np.frombuffer(pickle.dumps(Bomb()), np.uint8)
    with pytest.raises(tr.CommError, match="thrown away unread"):
        AuthenticatedPickle(b"secret").unpack(packed, LETTER)


def test_without_a_secret_no_objects_are_exchanged() -> None:
    with pytest.raises(tr.ConfigError, match="TORSH_SECRET"):
        AuthenticatedPickle(b"").pack(1, LETTER)
