"""Futures: values, errors, chains, and those of operations."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

import pytest

import torsh_runtime as tr
from torsh_runtime.backends.work import COMPLETED


def test_callbacks_run_once_in_the_order_they_were_added() -> None:
    future, calls = tr.Future(), list[object]()
    future.add_done_callback(lambda done: calls.append(("first", done.value())))
    future.add_done_callback(lambda done: calls.append(("second", done.value())))
    assert not future.done()
    future.set_result(7)
    future.add_done_callback(lambda done: calls.append(("late", done.value())))
    assert calls == [("first", 7), ("second", 7), ("late", 7)]


def test_chains_hand_on_values_and_errors_without_a_thread() -> None:
    future, before = tr.Future(), threading.active_count()
    doubled = future.then(lambda done: done.value() * 2)
    failed = doubled.then(lambda done: done.value() / 0)
    after = failed.then(lambda done: done.value())
    assert not any(each.done() for each in (doubled, failed, after))
    assert threading.active_count() == before
    future.set_result(21)
    assert doubled.wait() == 42
    for each in (failed, after):
        with pytest.raises(ZeroDivisionError):
            each.wait()


def test_a_future_is_completed_once() -> None:
    future = tr.Future()
    with pytest.raises(RuntimeError, match="wait"):
        future.value()
    with pytest.raises(TimeoutError):
        future.wait(timedelta(milliseconds=1))
    future.set_exception(KeyError("x"))
    with pytest.raises(RuntimeError, match="already"):
        future.set_result(1)
    with pytest.raises(KeyError):
        future.value()


def test_a_failing_callback_is_logged_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    future, calls = tr.Future(), list[object]()
    future.add_done_callback(lambda _: 1 // 0)
    future.add_done_callback(calls.append)
    with caplog.at_level(logging.ERROR, "torsh_runtime"):
        future.set_result(None)
    assert calls == [future]
    assert "ZeroDivisionError" in caplog.text


def test_a_thread_that_waits_is_woken() -> None:
    future, found = tr.Future(), list[object]()
    thread = threading.Thread(target=lambda: found.append(future.wait(30)))
    thread.start()
    future.set_result("value")
    thread.join(30)
    assert found == ["value"]


def test_the_future_of_an_operation() -> None:
    array = [1.0]
    future = COMPLETED.giving((array,)).get_future()
    assert COMPLETED.result() == []
    assert future.done()
    assert future.wait() == future.value() == [array]
    assert future.then(lambda done: done.value()[0][0]).value() == 1.0
    with pytest.raises(RuntimeError, match="itself"):
        future.set_result(None)
