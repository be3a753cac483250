"""Lines of source below the frames of a stack, from files that may be anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torshrun.agent.sources import MOST_FILES, conditions, is_passing_through, with_sources


def frame(path: object, line: int) -> str:
    return f'  File "{path}", line {line} in f'


def test_each_frame_has_its_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time\n\n\ndef load():\n    time.sleep(60)\n")
    stack = f"Current thread 0x1 (most recent call first):\n{frame(script, 5)}\n{frame(script, 1)}"
    assert with_sources(stack).splitlines() == [
        "Current thread 0x1 (most recent call first):",
        frame(script, 5),
        "    time.sleep(60)",
        frame(script, 1),
        "    import time",
    ]


def test_lines_that_are_not_there_are_left_out(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("x\n\n")
    for path, line in ((script, 2), (script, 99), (script, 0), (tmp_path / "none", 1)):
        stack = frame(path, line)
        assert with_sources(stack) == stack
    for text in ("", "no frames", '  File "<string>", line 1 in f'):
        assert with_sources(text) == text


def test_what_is_no_file_is_waited_for_by_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "binary").write_bytes(b"\xff\x00\n\x1b[2J\n")
    for path in (tmp_path / "fifo", tmp_path, "/dev/zero", "/proc/self/mem"):
        assert with_sources(frame(path, 1)) == frame(path, 1)
    assert with_sources(frame(tmp_path / "binary", 9)) == frame(tmp_path / "binary", 9)


def test_few_files_are_read(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.py" for number in range(2 * MOST_FILES)]
    for path in paths:
        path.write_text("pass\n")
    told = with_sources("\n".join(frame(path, 1) for path in paths))
    assert told.count("    pass") == MOST_FILES


CLEANS = """def main():
    try:
        train()
    except KeyError:
        # nothing
        if last:
            barrier()
    finally:
        with timer():
            barrier()
    leave()
"""


def test_it_is_told_what_belongs_to_a_clean_up(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(CLEANS)
    told = {
        line: with_sources(frame(script, line)).splitlines()[1].strip() for line in (3, 7, 10, 11)
    }
    assert told == {
        3: "train()",
        7: "barrier()  # in except",
        10: "barrier()  # in finally",
        11: "leave()",
    }


RETRIES = """\
def load():
    while True:
        with timer():
            try:
                return read()
            except OSError:
                sleep(1)
for path in paths:
    def load():
        try:
            return read()
        except OSError:
            sleep(1)
"""


def test_an_except_that_a_loop_repeats_is_told_from_others(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RETRIES)
    told = [with_sources(frame(script, line)).splitlines()[1].strip() for line in (7, 13)]
    assert told == ["sleep(1)  # in except of a loop", "sleep(1)  # in except"]


def test_a_file_that_not_everybody_may_read_is_not_shown_to_who_names_it(tmp_path: Path) -> None:
    secret = tmp_path / "shadow"
    secret.write_text("secret\n")
    secret.chmod(0o600)
    shown = "secret" in with_sources(frame(secret, 1))
    assert shown is (os.getuid() != 0)


def test_an_exception_goes_on_after_a_finally_and_the_end_of_a_with(tmp_path: Path) -> None:
    path = tmp_path / "t.py"
    path.write_text(
        "def f():\n"
        "    try: g()\n"
        "    except OSError:\n"
        "        time.sleep(5)\n"
        "    finally:\n"
        "        if x:\n"
        "            upload()\n"
        "    with Run() as run:\n"
        "        step()\n"
        "    try: h()\n"
        "    finally: upload()\n"
    )
    passing = [line for line in range(14) if is_passing_through(str(path), line)]
    assert passing == [5, 6, 7, 8, 11]
    assert not is_passing_through("/no/such/file", 3)


def test_it_is_told_what_belongs_to_a_loop_that_waits_for_a_file(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "while not os.path.exists(done):\n    if late():\n        stop()\n    time.sleep(1)\n"
        "while not ready():\n    time.sleep(1)\n"
    )
    loop = "  # in while not os.path.exists(done):"
    told = [with_sources(frame(script, line)).splitlines()[1].strip() for line in (3, 4, 6)]
    assert told == [f"stop(){loop}", f"time.sleep(1){loop}", "time.sleep(1)"]


@pytest.mark.parametrize(
    ("condition", "is_told"),
    [
        ("arrived < dist.get_world_size()", True),
        ("len(list(met.glob('*'))) != WORLD", True),
        ("not store.add('n', 0) >= nprocs", True),
        ("step < 100", False),
        ("not world_is_ready()", False),
    ],
)
def test_it_is_told_what_belongs_to_a_loop_that_counts_ranks(
    tmp_path: Path, condition: str, is_told: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"while {condition}:\n    time.sleep(1)\n")
    told = with_sources(frame(script, 2)).splitlines()[1].strip()
    assert told == f"time.sleep(1){f'  # in while {condition}:' * is_told}"


LOOKS = """def main():
    for step in range(9):
        if rank == 0:
            if not finite(loss):
                raise ValueError(
                    loss
                )
        elif late: raise KeyError
    raise OSError
"""


def test_conditions_under_which_a_line_stands(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOKS)
    assert conditions(str(script), 5) == "if not finite(loss):; if rank == 0:"
    assert conditions(str(script), 8) == "elif late: raise KeyError"
    assert conditions(str(script), 9) == ""
    for path, line in ((script, 99), (script, 0), (tmp_path / "none", 1)):
        assert conditions(str(path), line) == ""
