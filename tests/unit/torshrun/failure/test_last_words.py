"""What is taken from a worker's stderr, from texts as Python and others write them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.exits import VALUE_ERROR, an_exit, raised

from torshrun.failure.ending import Ending
from torshrun.failure.last_words import TAIL_LINES, last_words
from torshrun.failure.tracebacks import Words, find_trace

SEGFAULT = b"""step 7
Fatal Python error: Segmentation fault

Thread 0x00007ff302da56c0 (most recent call first):
  File "/lib/threading.py", line 982 in run

Current thread 0x00007ff303be9b80 (most recent call first):
  File "/lib/ctypes/__init__.py", line 519 in string_at
  File "train.py", line 4 in <module>

Extension modules: numpy.core (total: 1)
"""


def words_of(stderr: bytes, status: int = 1 << 8, **facts: Any) -> Words:
    return last_words(an_exit(0, status, stderr=stderr, **facts))


def stderr_of(script: str, folder: Path) -> tuple[int, bytes]:
    path = folder / "script.py"
    path.write_text(script)
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", path], capture_output=True, timeout=60
    )
    return ended.returncode, ended.stderr


def test_noise_around_a_traceback_is_left_out() -> None:
    noise = b"W1121 01:02:03 cleanup\n[W1121 01:02:03] again\nExit: bye\n"
    words = words_of(b"loading\n" + VALUE_ERROR + noise)
    assert words.lines[0] == "Traceback (most recent call last):"
    assert words.lines[-1] == "ValueError: bad"
    assert words.errors == ("ValueError: bad",)
    assert words.frame == "t.py:3"


def test_much_output_after_it_does_not_hide_it() -> None:
    words = words_of(VALUE_ERROR + b"\n" + b"bye\n" * 300)
    assert words.lines[-1] == "ValueError: bad"


def test_the_last_of_several_is_taken() -> None:
    words = words_of(raised("KeyError: 1") + b"retrying\n\n" + VALUE_ERROR)
    assert words.errors == ("ValueError: bad",)


def test_one_that_was_cut_short_is_not() -> None:
    cut = b'Traceback (most recent call last):\n  File "u.py", line 3\n'
    assert words_of(VALUE_ERROR + cut).errors == ("ValueError: bad",)
    assert words_of(cut).heading == "the last lines of its stderr"


def test_chained_ones_are_taken_together() -> None:
    words = words_of(b"hello\n" + raised("KeyError: 1", "ValueError: 2", "OSError: 3") + b"bye\n")
    assert words.errors[:2] == ("KeyError: 1", "ValueError: 2")
    assert words.lines.count("Traceback (most recent call last):") == 3
    assert words.lines[2:5] == (
        "KeyError: 1",
        "",
        "The above exception was the direct cause of the following exception:",
    )
    assert words.frame == "t.py:3"


@pytest.mark.parametrize(
    "heading",
    [
        "Exception ignored in: <function f at 0x7f>",
        "Exception in thread Thread-1 (f):",
        "Error in atexit._run_exitfuncs:",
        "--- Logging error ---",
        "Process SpawnProcess-1:",
    ],
)
def test_side_shows_count_only_if_there_is_nothing_else(heading: str) -> None:
    aside = heading.encode() + b"\n" + raised("RuntimeError: aside")
    assert words_of(VALUE_ERROR + aside).errors == ("ValueError: bad",)
    assert words_of(VALUE_ERROR + aside + aside).errors == ("ValueError: bad",)
    alone = words_of(aside)
    assert alone.lines[0] == heading
    assert alone.errors == ("RuntimeError: aside",)


def test_messages_and_notes_of_several_lines_stay_whole() -> None:
    message = "RuntimeError: Error(s) in loading:\n\tMissing key(s)\n\tUnexpected key(s)\na note"
    words = words_of(raised(message))
    assert words.errors == (message.expandtabs(),)


def test_an_error_from_another_process_keeps_its_original_traceback() -> None:
    message = (
        "RuntimeError: Caught KeyError in DataLoader worker process 0.\n"
        'Original Traceback (most recent call last):\n  File "data.py", line 9, in get\nKeyError: 1'
    )
    words = words_of(raised(message))
    assert words.errors == (message.expandtabs(),)
    assert words.frame == "t.py:1"


def test_what_a_terminal_would_not_show_is_removed() -> None:
    stderr = b" 10%|# |\r 50%|##### | 5/10Traceback (most recent call last):\r\n"
    stderr += b'  File \x1b[35m"t.py"\x1b[0m, line 3\r\n\x1b[1;31mValueError\x1b[0m: bad\r\n'
    words = words_of(stderr)
    assert words.lines == (
        "Traceback (most recent call last):",
        '  File "t.py", line 3',
        "ValueError: bad",
    )


def test_the_rank_that_torch_puts_before_each_line_is_removed() -> None:
    marked = b"".join(b"[rank1]: " + line for line in VALUE_ERROR.splitlines(keepends=True))
    assert words_of(marked).lines == words_of(VALUE_ERROR).lines


def test_real_tracebacks(tmp_path: Path) -> None:
    script = """
import atexit, threading
class Loud:
    def __del__(self): raise OSError("in a destructor")
kept = [Loud()]
atexit.register(lambda: 1 / 0)
thread = threading.Thread(target=lambda: [][1])
thread.start(); thread.join()
def f():
    try:
        {}["k"]
    except KeyError as error:
        error.add_note("a note")
        raise ValueError("two\\nlines") from error
f()
"""
    code, stderr = stderr_of(script, tmp_path)
    words = words_of(stderr, code << 8)
    assert words.errors == ("KeyError: 'k'\na note", "ValueError: two\nlines"), stderr
    assert words.frame == f"{tmp_path}/script.py:14"


@pytest.mark.parametrize("last", ["KeyError('k')", "ExceptionGroup('inner', [KeyError('k')])"])
def test_real_exception_groups(tmp_path: Path, last: str) -> None:
    script = f"""
def f():
    try:
        raise ValueError("a\\nb")
    except ValueError as error:
        raise ExceptionGroup("several", [error, {last}])
f()
"""
    code, stderr = stderr_of(script, tmp_path)
    words = words_of(stderr + b"bye\n", code << 8)
    assert words.errors[-1] == "ExceptionGroup: several (2 sub-exceptions)", stderr
    assert words.frame == f"{tmp_path}/script.py:6"
    assert any("KeyError: 'k'" in line for line in words.lines)
    assert words.lines[-1].endswith("+------------------------------------")
    assert "bye" not in words.lines


def test_a_real_syntax_error(tmp_path: Path) -> None:
    code, stderr = stderr_of("x = 1\ndef f(:\n    pass\n", tmp_path)
    words = words_of(b"warming up\n" + stderr, code << 8)
    assert words.heading == "its traceback"
    assert words.errors[0].startswith("SyntaxError: ")
    assert words.frame == f"{tmp_path}/script.py:2"
    assert len(words.lines) == 4


def test_a_real_crash_shows_the_stack_of_the_thread_that_had_it(tmp_path: Path) -> None:
    script = """
import os, threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
def g(): os.abort()
os.write(2, b"free(): invalid pointer\\n")
g()
"""
    code, stderr = stderr_of(script, tmp_path)
    words = words_of(stderr, -code)
    assert words.heading.startswith("its stack")
    assert words.lines[:2] == ("free(): invalid pointer", "Fatal Python error: Aborted")
    assert "threading.py" not in "".join(words.lines)
    assert words.frame == f"{tmp_path}/script.py:4"


def test_a_segfaults_stack_has_nothing_before_and_after_it() -> None:
    assert words_of(SEGFAULT, 11).lines == (
        "Fatal Python error: Segmentation fault",
        "Current thread 0x00007ff303be9b80 (most recent call first):",
        '  File "/lib/ctypes/__init__.py", line 519 in string_at',
        '  File "train.py", line 4 in <module>',
    )


def test_a_crash_at_the_end_does_not_hide_the_exception_before_it() -> None:
    ending = (
        b"Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n"
        b"  <no Python frame>\n"
    )
    assert words_of(VALUE_ERROR + ending, 6).errors == ("ValueError: bad",)
    assert words_of(ending, 6).errors == ("Fatal Python error: Aborted",)


def test_who_was_killed_from_outside_has_only_last_lines() -> None:
    assert words_of(VALUE_ERROR, 9).heading == "the last lines of its stderr"
    assert words_of(VALUE_ERROR, 9).errors == ()


def test_an_error_file_stands_in_for_a_missing_traceback_only() -> None:
    account = raised("KeyError: 1").decode()
    assert words_of(b"warn\n", account=account).errors == ("KeyError: 1",)
    assert words_of(b"warn\n", account="OutOfLuck: x").lines == ("OutOfLuck: x",)
    assert words_of(VALUE_ERROR, account=account).errors == ("ValueError: bad",)


def test_the_end_of_a_long_stderr_in_any_bytes() -> None:
    words = words_of(b"\n".join(b"line %d \xff" % number for number in range(100)) + b"\n\n")
    assert len(words.lines) == TAIL_LINES
    assert words.lines[-1] == "line 99 \\xff"


def test_silence() -> None:
    assert words_of(b" \n").heading == ""
    assert words_of(b"").lines == ()


@pytest.mark.parametrize("inside", [[], ["  | E: m"]])
def test_many_starts_of_groups_do_not_take_long(inside: list[str]) -> None:
    """What looks for the end of each would need minutes for these."""
    header = "  + Exception Group Traceback (most recent call last):"
    assert find_trace([header, *inside] * 50_000) is None


PIECES = [
    b"Traceback (most recent call last):\n",
    b"  + Exception Group Traceback (most recent call last):\n",
    b'  File "t.py", line 3\n',
    b"  | E: m\n",
    b"    +------------------------------------\n",
    b"E: m\n",
    b"\n",
    b"During handling of the above exception, another exception occurred:\n",
    b"Exception ignored in: f\n",
    b"SyntaxError: bad\n",
    b"Fatal Python error: Aborted\n",
    b"Current thread 0x1 (most recent call first):\n",
    b"[rank0]: \xff\r",
]


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12), status=st.sampled_from([256, 6, 9]))
def test_any_order_of_lines_is_survived(pieces: list[bytes], status: int) -> None:
    words = words_of(b"".join(pieces), status)
    assert bool(words.lines) == bool(words.heading)
    assert bool(words.heading) == bool(b"".join(pieces).strip())


def test_what_complains_is_shown_though_a_worker_printed_more_to_the_same_place() -> None:
    printed = "".join(f"row {number}\n" for number in range(40))
    said = f"step 1\ncannot open data\n{printed}"
    words = last_words(an_exit(0, 3 << 8, stderr=said.encode(), has_stdout=True))
    assert words.heading == "the last lines of its output"
    assert words.lines[0] == "cannot open data"
    assert words.lines[1:] == tuple(f"row {number}" for number in range(21, 40))
    assert words.complaints == ("cannot open data",)
    short = last_words(an_exit(0, 3 << 8, stderr=b"a\nit failed\nb\n", has_stdout=True))
    assert short.lines == ("a", "it failed", "b")
    apart = last_words(an_exit(0, 3 << 8, stderr=said.encode()))
    assert "cannot open data" not in apart.lines


def test_of_both_streams_in_one_what_was_handled_is_no_complaint() -> None:
    said = raised("ModuleNotFoundError: No module named 'x'") + b"step 1\nthe loss diverged\n"
    left = Ending(is_watched=True, by="exit", is_own=True)
    exit_ = an_exit(0, 256, stderr=said, has_stdout=True, ending=left)
    words = last_words(exit_)
    assert (words.complaints, words.lines[-1]) == ((), "the loss diverged")
    failed = an_exit(0, 256, stderr=b"cannot open x\n" + said, has_stdout=True, ending=left)
    assert last_words(failed).complaints == ("cannot open x",)
