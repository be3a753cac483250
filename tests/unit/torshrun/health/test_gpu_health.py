"""What readings of GPUs show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from torshrun.health.gpu_health import BROKEN_XIDS, GpuReading, faults, readings, remarks

WELL = GpuReading(index=0, pci="0000:3b:00.0", ecc=0, width=16, width_max=16)
NAME = "GPU 0 (0000:3b:00.0)"


def with_xids(*xids: int) -> GpuReading:
    return replace(WELL, xids=xids, xid_count=len(xids))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"error": "GPU is lost"}, "cannot be reached (GPU is lost)"),
        ({"ecc": 2}, "uncorrectable ECC errors: 2 since the last round"),
        ({"remap_failed": True}, "row remapping failed: its memory has to be repaired"),
        ({"xids": (13, 79), "xid_count": 2}, "Xid 79, fallen off the bus"),
    ],
)
def test_a_broken_gpu_is_told_by_what_changed(changes: dict[str, Any], why: str) -> None:
    assert [*faults([replace(WELL, **changes)], [WELL])] == [f"{NAME}: {why}"]
    assert [*faults([WELL], [WELL])] == []


def test_what_was_there_before_the_first_check_counts_only_if_it_lasts() -> None:
    assert [*faults([replace(WELL, ecc=9)], [])] == []
    assert len([*faults([replace(WELL, remap_failed=True)], [])]) == 1


@pytest.mark.parametrize("xid", BROKEN_XIDS)
def test_an_xid_counts_once(xid: int) -> None:
    assert len([*faults([with_xids(xid)], [WELL])]) == 1
    assert [*faults([with_xids(xid)], [with_xids(xid)])] == []
    assert len([*faults([with_xids(xid, xid)], [with_xids(xid)])]) == 1


def test_xids_that_were_dropped_are_not_taken_for_new_ones() -> None:
    before = replace(WELL, xids=(13,) * 64, xid_count=100)
    now = replace(WELL, xids=(13,) * 63 + (79,), xid_count=101)
    assert [*faults([now], [before])] == [f"{NAME}: Xid 79, fallen off the bus"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"width": 8}, "its PCIe link uses 8 of 16 lanes"),
        ({"reasons": 0x20 | 0x40}, "slowed down by heat"),
        ({"reasons": 0x80}, "slowed down by the power brake"),
        ({"remap_pending": True}, "a row remapping is pending: reset it before long"),
        ({"xids": (31,), "xid_count": 1}, "Xid 31, which a program may have caused"),
    ],
)
def test_what_is_worth_knowing_is_told_as_it_appears(changes: dict[str, Any], what: str) -> None:
    now = replace(WELL, **changes)
    assert [*remarks([now], [WELL])] == [f"{NAME}: {what}"]
    assert [*remarks([now], [now])] == []
    assert [*faults([now], [WELL])] == []


def test_a_power_cap_is_usual() -> None:
    now = replace(WELL, reasons=0x4)
    assert ([*remarks([now], [WELL])], now.is_throttled) == ([], False)


def test_gpus_that_may_not_be_asked_are_not_taken_for_lost() -> None:
    [found] = readings({"gpus": [{"index": 0}]}, ["0000:3b:00.0"])
    assert found.error == ""


def test_an_answer_that_makes_no_sense_tells_nothing_of_health() -> None:
    [found] = readings({"gpus": ["?", 3]}, ["0000:3b:00.0"])
    assert found.error
