"""What workers wrote beside what tells of their ends."""

from __future__ import annotations

import pytest
from support.exits import VALUE_ERROR, an_exit, raised

from torshrun.failure.asides import logged, numbers, removed


@pytest.mark.parametrize(
    "line",
    [
        "Deleting older checkpoint [ckpt/step1] due to args.save_total_limit",
        "INFO:root:moving runs/warmup to archive/",
        "pruned old.pt",
        "rm: cleaned up /scratch/job7",
    ],
)
def test_a_line_that_tells_of_files_that_are_removed_is_kept(line: str) -> None:
    told = f"step 1\n{line}\nstep 2\n".encode()
    assert removed(an_exit(0, 1 << 8, stderr=told)) == line


@pytest.mark.parametrize(
    "line", ["moved on to step 3", "clean run", "reading ckpt/step1", "expired after 3 s", ""]
)
def test_other_lines_tell_of_no_files_that_are_removed(line: str) -> None:
    assert removed(an_exit(0, 1 << 8, stderr=line.encode())) == ""


def test_of_many_lines_all_files_are_kept_or_their_folders() -> None:
    def of(count: int) -> str:
        lines = [f"removed cache/{number}.pt" for number in range(count)]
        return removed(an_exit(0, 0, stderr="\n".join(lines).encode()))

    assert of(3) == "removed cache/2.pt; before: cache/0.pt, cache/1.pt"
    assert of(100) == "removed cache/99.pt; before: cache/"


def test_an_exception_that_was_handled_is_told_apart_from_the_last_one() -> None:
    handled = raised("KeyError: 'x'")
    assert logged(an_exit(0, 15, stopped=True, stderr=handled + b"going on\n")) == "KeyError: 'x'"
    assert logged(an_exit(0, 1 << 8, stderr=handled + b"on\n" + VALUE_ERROR)) == "KeyError: 'x'"
    assert logged(an_exit(0, 1 << 8, stderr=VALUE_ERROR)) == ""
    assert logged(an_exit(0, 15, stopped=True, stderr=b"fine\n")) == ""


def test_numbers_in_tracebacks_are_none_that_it_wrote() -> None:
    found = numbers(an_exit(0, 1 << 8, stderr=b"loss 1.5\n" + raised("ValueError: loss is nan")))
    assert found is not None
    assert (found.finite, found.line) == (1, "")
