"""What readings of GPUs show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from torshrun.health.gpu_health import BROKEN_XIDS, GpuReading, faults, readings, remarks
from torshrun.topology.gpus import Gpu

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


NODE = tuple(Gpu(str(n), f"0000:{n}b:00.0", f"GPU-{n}{n}") for n in range(4))


def card(number: int, **facts: Any) -> dict[str, Any]:
    told = {"pci": f"00000000:{number}B:00.0", "uuid": f"GPU-{number}{number}"}
    return {"index": number} | told | facts


def places(cards: Sequence[Any], listed: str | None = None) -> list[str]:
    return [each.pci for each in readings({"gpus": cards}, NODE, listed)]


@pytest.mark.parametrize(
    "listed", [None, "0", "GPU-22", "MIG-GPU-22/1/0", "MIG-aa", "MIG-bb,MIG-aa"]
)
def test_a_gpu_that_is_in_dev_and_denied_is_not_looked_at(listed: str | None) -> None:
    assert places([card(2, mig=["MIG-aa", "MIG-bb"])], listed) == [NODE[2].pci]
    denied = [card(2, mig=["MIG-aa", "MIG-bb"]) if n == 2 else {"index": n} for n in range(4)]
    assert places(denied, listed) == [NODE[2].pci]


def test_an_instance_that_is_unknown_is_of_no_gpu() -> None:
    assert places([card(n) for n in range(4)], "MIG-aa") == []


def test_a_gpu_that_the_driver_names_no_more_has_its_place() -> None:
    cards = [{"index": n, "error": "GPU is lost"} if n == 1 else card(n) for n in range(4)]
    for listed in ("1", "GPU-11"):
        [found] = readings({"gpus": cards}, NODE, listed)
        assert (found.name, found.error) == ("GPU 0 (0000:1b:00.0)", "GPU is lost")


def test_a_gpu_that_is_listed_no_more_is_lost() -> None:
    before = readings({"gpus": [card(n) for n in range(4)]}, NODE, "2,3")
    now = readings({"gpus": [card(n) for n in (0, 1, 2)]}, NODE, "2,3")
    [found] = faults(now, before)
    assert found == "GPU 1 (0000:3b:00.0): cannot be reached (the driver does not list it any more)"
    assert len([*faults((), before)]) == 2


def test_an_answer_that_makes_no_sense_tells_nothing_of_health() -> None:
    assert places(["?", 3]) == []
