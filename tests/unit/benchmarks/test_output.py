import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.launchers import TORCHRUN, TORSHRUN, Launcher, launchers
from benchmarks.output import (
    WORKERS,
    Case,
    Sample,
    cases,
    check_files,
    compare,
    expected,
    measure,
    rate_of,
    report,
)
from benchmarks.output_worker import BLOCK_BYTES, lines
from benchmarks.peers import OURS
from benchmarks.processes import RunError

CASE = Case(name="pipe, 80 B", launcher=TORSHRUN, prefix="[{rank}] ")


def arrived(blocks: int, shuffled: bool = True) -> list[bytes]:
    """All lines of a run, in an order that may come about."""
    found = [line for line, times in expected(CASE, blocks).items() for _ in range(times)]
    if shuffled:
        random.Random(1).shuffle(found)
    return found


def compared(found: list[bytes], blocks: int, end: bytes = b"\n") -> tuple[int, int]:
    return compare(memoryview(b"".join(line + end for line in found)), expected(CASE, blocks))


@pytest.mark.parametrize("size", [20, 80])
def test_lines_are_as_long_as_asked_for_and_all_different(size: int) -> None:
    found = [line for rank in range(WORKERS) for line in lines(rank, size)]
    assert {len(line) for line in found} == {size}
    assert len(set(found)) == len(found) == WORKERS * BLOCK_BYTES // size


def test_all_that_was_written_in_any_order_is_whole() -> None:
    assert compared(arrived(3), 3) == (0, 0)


def test_lines_are_whole_across_the_pieces_in_which_they_are_looked_at() -> None:
    assert compared(arrived(40), 40) == (0, 0)


def test_a_lost_line_is_missed_and_a_second_one_too_many() -> None:
    found = arrived(2)
    assert compared(found[1:], 2) == (1, 0)
    assert compared([*found, found[0]], 2) == (0, 1)


def test_a_torn_line_is_lost_and_wrong() -> None:
    first, second, *rest = arrived(1)
    torn = [first[:40], second, first[40:]]
    assert compared([*torn, *rest], 1) == (1, 2)


def test_an_unfinished_last_line_is_not_overlooked() -> None:
    assert compare(memoryview(b"[0] 0 00"), Counter({b"[0] 0 0000000": 1})) == (1, 1)


def test_another_ranks_prefix_is_wrong() -> None:
    first, *rest = arrived(1, shuffled=False)
    assert compared([b"[3]" + first[3:], *rest], 1) == (1, 1)


def test_what_a_terminal_does_not_show_is_passed_over() -> None:
    status = b"\x1b[?7l2 workers\x1b[0m\x1b[?7h\r"
    found = [b"\x1b[38;5;31m" + line[:4] + b"\x1b[0m" + line[4:] for line in arrived(1)]
    found[5] = status + b"\x1b[2K" + found[5]
    assert compared(found, 1, end=b"\r\n") == (0, 0)


def test_times_before_lines_are_passed_over() -> None:
    stamped = [line[:4] + b"2025-01-31T12:34:56.789Z " + line[4:] for line in arrived(1)]
    assert compared(stamped, 1) == (0, 0)


def test_a_log_file_must_be_exactly_what_its_worker_wrote(tmp_path: Path) -> None:
    for rank in range(WORKERS):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "stdout.log").write_bytes(b"".join(lines(rank, 80)) * 2)
    check_files(tmp_path, 80, 2)
    with pytest.raises(RunError, match="rank 0"):
        check_files(tmp_path, 80, 3)
    (tmp_path / "2" / "stdout.log").unlink()
    with pytest.raises(RunError, match="rank 2"):
        check_files(tmp_path, 80, 2)


def test_each_case_is_written_whole_whatever_the_amount() -> None:
    assert [CASE.blocks(amount) for amount in (1, 4 * BLOCK_BYTES, 40 * BLOCK_BYTES)] == [1, 1, 10]


def test_cases_have_different_names_for_each_launcher() -> None:
    found = [(case.name, case.launcher) for case in cases()]
    assert len(set(found)) == len(found)
    assert {name for name, launcher in found if launcher == TORCHRUN} < {name for name, _ in found}


def test_rates_are_set_against_torchrun_of_the_same_case() -> None:
    samples = {
        ("a", TORSHRUN): [Sample(200.0, 26.0, 1.0, 0, 0), Sample(300.0, 27.0, 2.0, 1, 2)],
        ("a", TORCHRUN): [Sample(50.0, 220.0, 0.0, 0, 0)],
        ("b", TORSHRUN): [Sample(70.0, 26.0, 1.0, 0, 0)],
    }
    ours, theirs, alone = (line.split() for line in report(samples).splitlines()[1:])
    assert ours == ["a", "torshrun", "250", "5.00", "27.0", "1.50", "1", "2"]
    assert theirs[3] == "1.00"
    assert alone[3] == "-"
    assert rate_of(samples, "b", TORCHRUN) is None


@pytest.mark.parametrize("case", [case for case in cases() if case.launcher == TORSHRUN])
def test_a_small_run_of_ours_arrives_whole(case: Case, tmp_path: Path) -> None:
    sample = measure(case, launchers()[0], tmp_path, 2**20, timeout=60)
    assert (sample.lost, sample.wrong) == (0, 0)
    assert sample.megabytes_per_second > 0
    assert sample.agent_peak_mib > 1


@pytest.mark.parametrize(
    ("code", "message", "timeout"),
    [
        ("raise SystemExit('no such')", "not ready before status 1; stderr: no such", 60.0),
        ("import time; time.sleep(60)", "not ready in time", 0.3),
    ],
)
def test_a_launcher_that_starts_nothing_is_a_failure(
    code: str, message: str, timeout: float, tmp_path: Path
) -> None:
    broken = Launcher(name="broken", peer=OURS, start=(sys.executable, "-c", code))
    with pytest.raises(RunError, match=message):
        measure(CASE, broken, tmp_path, 1, timeout)
