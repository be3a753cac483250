"""What a worker notes about itself is read as it was written, within the room that there is."""

import mmap
import random
import threading
import time

import pytest

from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.monitoring.layout import NAMES, NOTES, RECORDING_BYTES, words_of
from torsh_runtime.monitoring.notes import OTHER, Group, Notebook, groups_of, notes_of


@pytest.fixture
def memory() -> memoryview:
    return memoryview(mmap.mmap(-1, RECORDING_BYTES))


def test_notes_are_read_in_their_order(memory: memoryview) -> None:
    notebook, before = Notebook(memory), time.monotonic()
    notebook.write("step", value=7)
    notebook.write("begin", "data")
    thread = threading.Thread(target=notebook.write, args=("scalar", "löss", -0.25))
    thread.start()
    thread.join()
    words = words_of(memory)
    found = notes_of(words, words)
    told = [(each.number, each.kind, each.name, each.value) for each in found]
    assert told == [(0, "step", "", 7.0), (1, "begin", "data", 0.0), (2, "scalar", "löss", -0.25)]
    assert [each.thread for each in found] == [0, 0, 1]
    assert before <= found[0].time <= found[1].time <= found[2].time <= time.monotonic()


def test_the_main_thread_is_0_whoever_notes_first(memory: memoryview) -> None:
    notebook = Notebook(memory)
    thread = threading.Thread(target=notebook.write, args=("begin", "fetch"))
    thread.start()
    thread.join()
    notebook.write("begin", "forward")
    words = words_of(memory)
    assert [(each.name, each.thread) for each in notes_of(words, words)] == [
        ("fetch", 1),
        ("forward", 0),
    ]


def test_the_last_notes_are_held(memory: memoryview) -> None:
    notebook = Notebook(memory)
    for step in range(NOTES + 10):
        notebook.write("step", value=step)
    words = words_of(memory)
    assert [each.value for each in notes_of(words, words)] == list(range(10, NOTES + 10))
    notebook.write("step")
    assert len(notes_of(words, words_of(memory))) == NOTES - 1  # the first was overwritten


def test_names_without_room_become_other(memory: memoryview) -> None:
    notebook = Notebook(memory)
    for index in range(NAMES + 5):
        notebook.write("begin", f"section {index}")
    words = words_of(memory)
    names = [each.name for each in notes_of(words, words)]
    assert names[: NAMES - 1] == [f"section {index}" for index in range(NAMES - 1)]
    assert set(names[NAMES - 1 :]) == {OTHER}


def test_groups_keep_their_place(memory: memoryview) -> None:
    notebook = Notebook(memory)
    notebook.name_group(Group(0, 4, "default", "0-3"))
    notebook.name_group(Group(9, 2, "tp", "0,2"))
    notebook.name_group(Group(0, 3, "default", "0-2"))
    assert groups_of(words_of(memory)) == [Group(0, 3, "default", "0-2"), Group(9, 2, "tp", "0,2")]


def test_the_compiled_library_goes_on_where_python_was(memory: memoryview) -> None:
    notebook, before = Notebook(memory), time.monotonic()
    for step in range(NOTES - 5):
        notebook.write("step", value=step)
    notebook.write_by(_native.NoteWriter(memory).write)
    for step in range(NOTES - 5, NOTES + 10):
        notebook.write("step", value=step)
    notebook.write("end", "data", -0.25)
    words = words_of(memory)
    *steps, last = notes_of(words, words)
    assert [each.value for each in steps] == list(range(11, NOTES + 10))
    assert (last.number, last.kind, last.name, last.value) == (NOTES + 10, "end", "data", -0.25)
    assert before <= steps[-1].time <= last.time <= time.monotonic()


def test_nonsense_is_survived() -> None:
    chance = random.Random(3)
    for _ in range(20):
        words = words_of(chance.randbytes(RECORDING_BYTES))
        notes_of(words, words)
        groups_of(words)
