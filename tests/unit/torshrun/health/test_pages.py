"""Reading status pages that hold anything at all."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime import status
from torshrun.health.pages import Collective, StatusPages, WorkerStatus


def collective(**facts: object) -> Collective:
    plain = {
        "group": 0,
        "ranks": 2,
        "sequence": 5,
        "active": True,
        "rounds": 6,
        "operation": "all_reduce",
        "dtype": "float32",
        "reduction": "SUM",
        "count": 8,
        "root": -1,
        "whole": True,
    }
    return Collective(**{**plain, **facts})  # type: ignore[arg-type]


def written(path: Path, page: bytes) -> WorkerStatus:
    pages = StatusPages(str(path), 1)
    try:
        with path.open("r+b") as file:
            file.seek(status.PAGE_BYTES)
            file.write(page)
        return pages.read()[0]
    finally:
        pages.close()


@given(st.binary(min_size=status.PAGE_BYTES, max_size=status.PAGE_BYTES))
def test_nonsense_is_read_without_harm(
    tmp_path_factory: pytest.TempPathFactory, page: bytes
) -> None:
    found = written(tmp_path_factory.mktemp("pages") / "status", page)
    assert isinstance(str(found.collective), str)
    assert all(isinstance(str(each), str) for each in found.collectives)


def test_numbers_without_a_name_are_shown_as_numbers(tmp_path: Path) -> None:
    record = struct.pack("5Q", 9 << 2 | status.INSIDE, 0xFF_FE_FD, 3, 0, 0)
    found = written(tmp_path / "status", bytes(status.FIRST_RECORD * 8) + record).collective
    assert found is not None
    assert (found.operation, found.dtype) == ("operation 253", "dtype 254")
    assert found.reduction == "reduction 255"


def test_a_record_that_stays_half_written_says_so(tmp_path: Path) -> None:
    record = struct.pack("5Q", 9 << 2 | status.WRITING, 0, 3, 0, 0)
    found = written(tmp_path / "status", bytes(status.FIRST_RECORD * 8) + record).collective
    assert found is not None
    assert (found.whole, found.active) == (False, False)


def test_the_file_is_for_its_owner_and_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "status"
    first = StatusPages(str(path), 2)
    old = path.stat()
    second = StatusPages(str(path), 3)
    assert old.st_mode & 0o777 == 0o600
    assert path.stat().st_size == 4 * status.PAGE_BYTES
    assert path.stat().st_ino != old.st_ino
    assert len(first.read()) == 2
    assert len(second.read()) == 3
    first.close()
    second.close()


def test_a_place_that_takes_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such"):
        StatusPages(str(tmp_path / "nowhere" / "status"), 1)


def test_the_active_operation_comes_before_later_groups() -> None:
    waiting, later = collective(), collective(group=1, active=False)
    assert WorkerStatus(collectives=(waiting, later)).collective == waiting
    assert WorkerStatus(collectives=(collective(active=False), later)).collective == later
    assert WorkerStatus().collective is None


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({}, "all_reduce(float32[8], SUM)"),
        ({"operation": "barrier"}, "barrier()"),
        ({"operation": "barrier", "sequence": 0}, "init_process_group()"),
        ({"operation": "all_gather", "group": 31}, "all_gather(float32[8]) of group 1f (2 ranks)"),
        ({"operation": "reduce", "root": 1}, "reduce(float32[8], SUM, dst=1)"),
        ({"operation": "broadcast", "root": 2}, "broadcast(float32[8], src=2)"),
    ],
)
def test_an_operation_reads_as_its_call(facts: dict[str, object], text: str) -> None:
    assert str(collective(**facts)) == text
