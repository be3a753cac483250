"""The report as a person reads it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.exits import PEER_LOST, VALUE_ERROR, an_exit, raised

from torshrun.failure import report
from torshrun.failure.exits import Exit
from torshrun.failure.explanation import explain
from torshrun.failure.report import LINE_CHARS, SHOWN_LINES
from torshrun.failure.tracebacks import HEADER


def describe(exits: Sequence[Exit], outlook: str, is_partial: bool = False) -> str:
    return report.describe(explain(exits), outlook, is_partial)


def test_the_report_names_the_cause_then_the_others_then_the_outlook() -> None:
    exits = [
        an_exit(0, 1 << 8, stderr=PEER_LOST),
        an_exit(1, 1 << 8, stderr=b"step 1\n" + VALUE_ERROR, log="/logs/1"),
        an_exit(3, 15, stopped=True),
        an_exit(2, 1 << 8, stderr=PEER_LOST.replace(b"rank 1", b"rank 0")),
        an_exit(5, 0),
    ]
    assert describe(exits, "restarting").split("\n") == [
        "torshrun: rank 1 failed first: exit code 1, host h, pid 101, after 1.2 s",
        "  its traceback:",
        "  | Traceback (most recent call last):",
        '  |   File "t.py", line 3',
        "  | ValueError: bad",
        "  its output is kept in /logs/1",
        "  after it: ranks 0, 2 lost a peer; rank 3 stopped by torshrun",
        "  restarting",
    ]


def test_ranks_that_failed_alike_are_named_together() -> None:
    said = b"step\n" + VALUE_ERROR
    exits = [an_exit(rank, 1 << 8, stderr=said, at=float(at)) for at, rank in enumerate((2, 0, 1))]
    lines = describe(exits, "x").split("\n")
    assert lines[0] == (
        "torshrun: ranks 0-2 failed first: exit code 1, first rank 2, host h, pid 102, after 1.2 s"
    )
    assert "  rank 2: its traceback:" in lines
    assert "  after it: ranks 0-1 in the same way" in lines


def test_where_nobody_can_tell_all_candidates_are_named_with_what_they_said() -> None:
    lines = describe([an_exit(3, 7 << 8, stderr=b"oops\n"), an_exit(1, 4 << 8)], "x").split("\n")
    assert lines[:3] == [
        "torshrun: undecided between rank 1 and rank 3: exit code",
        "  rank 1: exit code 4",
        "  rank 3: exit code 7: oops",
    ]


def test_as_long_as_other_nodes_have_not_told_nobody_is_accused() -> None:
    told = describe([an_exit(0, 1 << 8, stderr=VALUE_ERROR)], "x", is_partial=True)
    assert told.startswith("torshrun: rank 0 failed first on this node: exit code 1, host h,")


def test_what_is_known_about_the_cause_comes_before_its_words() -> None:
    lines = describe([an_exit(0, 11, stderr=b"working\n")], "x").split("\n")
    assert lines[0].startswith("torshrun: rank 0 failed first: killed by SIGSEGV, exit code 139,")
    assert lines[1].startswith("  It accessed memory that is not its own")
    assert lines[2:4] == ["  the last lines of its stderr:", "  | working"]
    assert lines[4].startswith("  what to do: See which call")
    assert lines[5:] == ["  x"]


def test_nothing_failed() -> None:
    assert describe([an_exit(0, 0)], "the job has ended") == "torshrun: the job has ended"


def test_silence_is_said_to_be_silence() -> None:
    assert "  it wrote nothing to stderr\n" in describe([an_exit(0, 1 << 8)], "x")


def test_an_error_file_is_named_as_the_source() -> None:
    told = describe([an_exit(0, 1 << 8, account="KeyError: 1", stderr=b"warn\n")], "x")
    assert "  from its error file:\n  | KeyError: 1\n" in told
    assert "  the last lines of its stderr:\n  | warn\n" in told


def shown(stderr: bytes, status: int = 1 << 8) -> list[str]:
    lines = describe([an_exit(0, status, stderr=stderr)], "x").split("\n")
    return [line.removeprefix("  | ") for line in lines if line.startswith("  |")]


def test_of_a_long_traceback_the_innermost_calls_are_shown() -> None:
    frames = "".join(f'  File "t.py", line {number}, in f\n' for number in range(200))
    lines = shown(f"Traceback (most recent call last):\n{frames}KeyError: 1\n".encode())
    assert len(lines) == SHOWN_LINES
    assert lines[:2] == ["Traceback (most recent call last):", "  … 163 lines left out …"]
    assert lines[2] == '  File "t.py", line 163, in f'
    assert lines[-1] == "KeyError: 1"


def library_calls(count: int) -> str:
    return "".join(
        f'  File "/venv/lib/python3.12/site-packages/lib/{n}.py", line {n}, in f\n    g()\n'
        for n in range(count)
    )


@pytest.mark.parametrize("path", ["/home/me/lib/train.py", "train.py"])
def test_of_a_long_traceback_the_programs_own_calls_are_shown_too(path: str) -> None:
    calls = f'  File "{path}", line 7, in main\n    fit()\n'
    own = "".join(f'  File "{path}", line {n}, in step\n    run()\n' for n in range(20))
    traced = f"{HEADER}\n{library_calls(30)}{calls}{library_calls(30)}KeyError: 1\n"
    lines = shown(traced.encode())
    at = lines.index(f'  File "{path}", line 7, in main')
    assert lines[at - 1 : at + 4] == [
        "  … 60 lines left out …",
        f'  File "{path}", line 7, in main',
        "    fit()",
        "  … 26 lines left out …",
        '  File "/venv/lib/python3.12/site-packages/lib/13.py", line 13, in f',
    ]
    assert lines[-2:] == ["    g()", "KeyError: 1"]
    assert len(lines) == SHOWN_LINES
    many = shown(f"{HEADER}\n{own}{library_calls(50)}KeyError: 1\n".encode())
    assert SHOWN_LINES - 2 <= len(many) <= SHOWN_LINES
    assert many[1].endswith("lines left out …")
    assert f'  File "{path}", line 19, in step' in many
    assert sum(line.startswith("    g()") for line in many) >= SHOWN_LINES // 4 - 1


def test_of_own_calls_within_libraries_no_line_is_shown_twice_or_lost() -> None:
    own = "".join(f'  File "t.py", line {n}, in f\n    own({n})\n' for n in range(9))
    for libraries in range(40):
        traced = f"{HEADER}\n{library_calls(40)}{own}{library_calls(libraries)}KeyError: 1\n"
        lines = shown(traced.encode())
        assert len(lines) <= SHOWN_LINES
        left_out = [int(line.split()[1]) for line in lines if line.endswith("left out …")]
        assert sum(left_out) + len(lines) - len(left_out) == traced.count("\n")
        assert len([line for line in lines if "own(" in line]) >= 5


def chained(*sizes: int) -> bytes:
    """A chain of exceptions with so many calls each."""
    chain = "\nThe above exception was the direct cause of the following exception:\n\n"
    traces = (
        "Traceback (most recent call last):\n"
        + "".join(f'  File "t.py", line {line}, in f\n' for line in range(size))
        + f"KeyError: {number}\n"
        for number, size in enumerate(sizes)
    )
    return chain.join(traces).encode()


def test_of_a_long_chain_the_innermost_calls_of_each_are_shown() -> None:
    lines = shown(chained(200, 200, 2))
    assert len(lines) <= SHOWN_LINES
    assert [line for line in lines if line.startswith("KeyError")] == [
        "KeyError: 0",
        "KeyError: 1",
        "KeyError: 2",
    ]
    assert lines[1].endswith("lines left out …")
    assert lines[lines.index("KeyError: 0") - 1] == '  File "t.py", line 199, in f'
    many = shown(chained(*[30] * 12))
    assert len(many) <= SHOWN_LINES
    assert {"KeyError: 0", "KeyError: 7", "KeyError: 11"} <= {*many}
    assert "KeyError: 3" not in many


def test_of_a_crashs_deep_stack_too() -> None:
    frames = "".join(f'  File "t.py", line {number} in f\n' for number in range(200))
    stack = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
    )
    lines = shown(f"{stack}{frames}".encode(), 11)
    assert len(lines) == SHOWN_LINES
    assert lines[2] == '  File "t.py", line 0 in f'
    assert lines[-1] == "  … 163 lines left out …"


def test_long_lines_are_cut() -> None:
    assert shown(raised("KeyError: " + "x" * 9999))[-1] == "KeyError: " + "x" * (LINE_CHARS - 10)


def test_hundreds_of_ranks_take_one_short_line() -> None:
    exits = [an_exit(7, 9), *(an_exit(rank, 15, stopped=True) for rank in range(256) if rank != 7)]
    told = describe(exits, "x")
    assert "\n  after it: ranks 0-6, 8-255 stopped by torshrun\n" in told
    mixed = [an_exit(300, 9)]
    mixed += [an_exit(rank, (rank % 50 + 1) << 8) for rank in range(300)]
    (line,) = (line for line in describe(mixed, "x").split("\n") if "after it" in line)
    assert "ranks 0, 50, 100, 150, 200, 250 exit code 1; " in line
    assert line.endswith("; 264 others in other ways")
    even = [an_exit(301, 9), *(an_exit(rank, 15, stopped=True) for rank in range(0, 300, 2))]
    assert "ranks 0, 2, 4, 6, 8, 10, 12, 14, … (150 in all) stopped by torshrun" in describe(
        even, "x"
    )


@pytest.mark.parametrize(
    "command", [b"\x1b]0;title\x07", b"\x1b]52;c;cm0=\x1b\\", b"\x1bPq\x1b\\", "\x9b2J".encode()]
)
def test_no_worker_commands_the_terminal(command: bytes) -> None:
    stack = (
        'Current thread 0x1 (most recent call first):\n  File "a{0}.py", line 1 in f\n    x{0}()'
    )
    away = an_exit(1, 15, stopped=True, stack=stack.format(command.decode("latin-1")))
    late = an_exit(0, 1 << 8, stderr=raised("torsh_runtime.errors.CommTimeout: x"))
    told = describe([late, away], "x")
    assert "rank 1: in no collective, at f (a" in told
    assert all(line.isprintable() for line in told.split("\n"))
    loud = raised("ValueError: bad").replace(b"bad", b"b" + command + b"ad\0")
    for facts in ({"stderr": loud}, {"account": loud.decode()}):
        report = describe([an_exit(0, 1 << 8, **facts)], "x")
        assert "| ValueError: bad\N{REPLACEMENT CHARACTER}\n" in report
        assert all(line.isprintable() for line in report.split("\n"))
