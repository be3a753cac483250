"""Steps and sections are noted as the program marks them."""

import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from torsh_runtime import monitoring
from torsh_runtime.monitoring.marks import Span, own_marks
from torsh_runtime.monitoring.notes import Note
from torsh_runtime.monitoring.pace import pace_of
from torsh_runtime.monitoring.recording import own_recording
from torsh_runtime.status import PAGE_BYTES, Page

Noted = Callable[[], list[Note]]


def told(notes: list[Note]) -> list[tuple[str, str, float]]:
    return [(each.kind, each.name, each.value) for each in notes]


def test_a_step_is_noted_with_its_numbers(noted: Noted) -> None:
    monitoring.step(7, total=10, samples=32, loss=0.5)
    monitoring.step(8, lr=1)
    assert told(noted()) == [
        ("step", "", 7.0),
        ("scalar", "step/total", 10.0),
        ("scalar", "step/samples", 32.0),
        ("scalar", "loss", 0.5),
        ("step", "", 8.0),
        ("scalar", "lr", 1.0),
    ]


def test_the_same_step_again_adds_numbers(noted: Noted) -> None:
    monitoring.step(7, total=10)
    monitoring.step(7, loss=0.5)
    monitoring.step(6)
    monitoring.step(7)
    assert [each.kind for each in noted()] == ["step", "scalar", "scalar", "step", "step"]


def test_what_is_a_number_to_other_libraries_is_one(noted: Noted) -> None:
    numpy = pytest.importorskip("numpy")
    monitoring.step(numpy.int64(3), loss=numpy.float32(0.25), mean=numpy.array(2))
    assert [value for _, _, value in told(noted())] == [3.0, 0.25, 2.0]


@pytest.mark.parametrize("wrong", ["0.5", None, [1], object()])
def test_what_is_no_number_is_refused_by_name(noted: Noted, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"^n="):
        monitoring.step(wrong)
    if wrong is not None:
        with pytest.raises(TypeError, match=r"^loss="):
            monitoring.step(1, loss=wrong)
    assert noted() == []


def test_sections_are_nested_and_end_in_any_case(noted: Noted) -> None:
    with monitoring.section("outer"), pytest.raises(KeyError), monitoring.section("inner"):
        raise KeyError
    assert told(noted()) == [
        ("begin", "outer", 0.0),
        ("begin", "inner", 0.0),
        ("end", "inner", 0.0),
        ("end", "outer", 0.0),
    ]


def test_a_decorated_function_may_call_itself(noted: Noted) -> None:
    @monitoring.section("count")
    def count(number: int) -> int:
        return 0 if not number else 1 + count(number - 1)

    assert count(2) == 2
    assert [each.kind for each in noted()] == ["begin"] * 3 + ["end"] * 3


def test_functions_that_run_later_are_not_decorated() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def answer() -> None:
        pass

    async def answers() -> Any:
        yield 1

    for function in (numbers, answer, answers):
        with pytest.raises(TypeError, match=r"cannot decorate .*use `with section"):
            monitoring.section("later")(function)
    with pytest.raises(TypeError, match="is a text"):
        monitoring.section(numbers)  # type: ignore[arg-type]  # a decorator without a name


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_step_has_a_finite_number(noted: Noted, number: float) -> None:
    with pytest.raises(TypeError, match="is no number of a step"):
        monitoring.step(number)  # type: ignore[arg-type]
    assert noted() == []


def test_a_program_may_use_the_names_of_the_librarys_numbers(noted: Noted) -> None:
    monitoring.step(3, total=10, progress=0.3)
    bar = monitoring.progress(range(5), disable=True, mininterval=0)
    bar.set_postfix(total=2.5, samples=7, progress=0.1)
    bar.close()
    told = pace_of(noted())
    assert (told.total, told.samples_per_second) == (10, None)
    assert told.scalars == {"total": 2.5, "samples": 7, "progress": 0.1}


def test_each_thread_has_its_sections(noted: Noted) -> None:
    def run() -> None:
        with monitoring.section("elsewhere"):
            pass

    with monitoring.section("here"):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert [(each.name, each.thread) for each in noted()] == [
        ("here", 0),
        ("elsewhere", 1),
        ("elsewhere", 1),
        ("here", 0),
    ]


def test_a_span_that_ends_in_another_thread_is_of_the_first_one(noted: Noted) -> None:
    with monitoring.section("first"):
        span = Span("span")
    thread = threading.Thread(target=span.end)
    thread.start()
    thread.join()
    span.end()
    assert [(each.kind, each.thread) for each in noted() if each.name == "span"] == [
        ("begin", 0),
        ("end", 0),
    ]


class Source:
    """Sees steps."""


def test_the_first_source_counts_steps_until_it_is_gone(noted: Noted) -> None:
    first, second, weak = Source(), Source(), Source()
    own_marks().step_by(weak, gives_way=True)
    own_marks().step_by(first)
    own_marks().step_by(second)
    own_marks().step_by(weak, gives_way=True)
    own_marks().step_by(first)
    assert [each.value for each in noted()] == [1.0, 2.0, 3.0]
    del first
    own_marks().step_by(second)
    assert [each.value for each in noted()] == [1.0, 2.0, 3.0, 4.0]


def test_the_programs_own_steps_end_all_others(noted: Noted) -> None:
    source = Source()
    own_marks().step_by(source)
    monitoring.step(100)
    own_marks().step_by(source)
    assert [each.value for each in noted()] == [1.0, 100.0]


def test_steps_that_are_reported_end_all_others(
    noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Page(memoryview(bytearray(PAGE_BYTES)).cast("Q"))
    monkeypatch.setattr("torsh_runtime.monitoring.marks.own_page", lambda: page)
    source = Source()
    own_marks().step_by(source)
    own_marks().step_by(source)
    assert page.step == 2
    page.note_step(50)
    own_marks().step_by(source)
    assert page.step == 50
    assert [each.value for each in noted()] == [1.0, 2.0]


CHILD = """
import os
import torsh_runtime as tr
from torsh_runtime.monitoring.notes import notes_of
from torsh_runtime.monitoring.recording import own_recording
tr.monitoring.step(1)
if not os.fork():
    tr.monitoring.step(2)
    with tr.monitoring.section("child"):
        pass
    os._exit(0)
os.wait()
words = own_recording().words()
print([(each.kind, each.value) for each in notes_of(words, words)])
"""


def test_a_forked_child_notes_nothing_in_its_parents_recording() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert done.stdout == "[('step', 1.0)]\n", done.stderr


def test_nothing_is_noted_where_the_recorder_is_off(
    noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "TORSH_RECORDER", "off")
    monitoring.step(1, loss=2)
    with monitoring.section("data"):
        pass
    assert own_recording() is None


def test_what_a_worker_does_not_use_is_not_loaded() -> None:
    heavy = ("numpy", "torch", "prometheus_client", "tracemalloc", "http.server")
    code = (
        "import sys, torsh_runtime as tr\n"
        "tr.monitoring.step(1)\n"
        "with tr.monitoring.section('data'): pass\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
