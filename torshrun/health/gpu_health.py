"""Judges what NVML tells of GPUs: which are broken, and what else is worth knowing. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torshrun.topology.gpus import Gpu, select

BROKEN_XIDS: Mapping[int, str] = {
    48: "an uncorrectable ECC error",
    62: "its microcontroller halted",
    64: "a row remapping failed",
    74: "an NVLink error",
    79: "fallen off the bus",
    95: "an uncontained ECC error",
    119: "its firmware does not answer",
    120: "its firmware failed",
    140: "an unrecovered ECC error",
}
"""Xids after which a GPU needs a reset, or a repair. Others may be a program's fault."""
SLOWED: Mapping[int, str] = {
    0x8: "slowed down by the hardware",
    0x20: "slowed down by heat",
    0x40: "slowed down by heat",
    0x80: "slowed down by the power brake",
}
"""Flags of NVML's clock event reasons. A power cap is not among them: it is usual at full load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """Holds what NVML tells of one GPU; None is what it does not know."""

    index: int
    """Index among the GPUs that workers may use."""
    pci: str
    """PCI address in the kernel's form ("0000:3b:00.0")."""
    error: str = ""
    """Reason why it cannot be reached; "" if it can."""
    memory_used: int | None = None
    """Bytes."""
    utilization: int | None = None
    """Percent of the last second in which kernels ran."""
    power: int | None = None
    """Milliwatts."""
    temperature: int | None = None
    """Degrees Celsius."""
    ecc: int | None = None
    """Uncorrected memory errors since the driver was loaded."""
    remap_pending: bool = False
    remap_failed: bool = False
    width: int | None = None
    """PCIe lanes in use."""
    width_max: int | None = None
    reasons: int = 0
    """Flags of why its clocks are lowered."""
    xids: tuple[int, ...] = ()
    """The last Xids since the agent began, the oldest first."""
    xid_count: int = 0
    """The number of all of them."""

    @property
    def name(self) -> str:
        return f"GPU {self.index} ({self.pci})"

    @property
    def is_throttled(self) -> bool:
        return any(self.reasons & flag for flag in SLOWED)


def readings(
    told: Mapping[str, Any], node: Sequence[Gpu], listed: str | None
) -> tuple[GpuReading, ...]:
    """Return the readings of the GPUs that workers may use, in their order.

    `told` is an answer of nvml.py, `node` the GPUs in /dev, and `listed` CUDA_VISIBLE_DEVICES.
    Frameworks count the GPUs that the driver lists: it leaves out those that a scheduler denies to
    this job, although they are in /dev.
    """
    known = _known(told, node)
    gpus = [Gpu(str(index), pci, uuid, _names(card)) for index, (pci, uuid, card) in known.items()]
    chosen = dict.fromkeys(gpu.pci for gpu in select(gpus, listed) if gpu.pci)
    cards = {pci: card for pci, _, card in known.values()}
    return tuple(_reading(index, pci, cards[pci]) for index, pci in enumerate(chosen))


def _known(
    told: Mapping[str, Any], node: Sequence[Gpu]
) -> dict[int, tuple[str, str, Mapping[str, Any]]]:
    """Return the PCI address, the UUID and the facts of each card that workers could use.

    The driver knows no address of a card that it cannot reach: then it has that of its place.
    """
    cards = [card for card in told.get("gpus", ()) if isinstance(card, dict)]
    uuids = {place_of(gpu.pci): gpu.uuid for gpu in node}
    found = []
    for index, card in enumerate(cards):
        pci = place_of(str(card.get("pci", "")))
        if not pci and len(cards) == len(node):
            pci = place_of(node[index].pci)
        is_denied = not card.get("pci") and not card.get("error")
        if not is_denied and (pci in uuids or not all(uuids)):  # what is not in /dev is denied too
            found.append((pci, str(card.get("uuid") or uuids.get(pci, "")), card))
    return dict(enumerate(found))


def _names(card: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(map(str, card.get("mig", ())))


def _reading(index: int, pci: str, card: Mapping[str, Any]) -> GpuReading:
    names = [field.name for field in fields(GpuReading)]
    known = {name: card[name] for name in names if name in card}
    known |= {"index": index, "pci": pci, "xids": tuple(card.get("xids", ()))}
    return GpuReading(**known)


def place_of(pci: str) -> str:
    """Return a PCI address in one form: the driver gives its domain 8 digits, the kernel 4."""
    domain, _, rest = pci.strip().lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if rest else ""


def faults(now: Sequence[GpuReading], before: Sequence[GpuReading]) -> Iterator[str]:
    """Yield why GPUs are broken, each in a clause about one of them.

    `before` are the readings of the last check, () at the first one. Counts of errors are compared
    with those, so that an earlier job's errors, after which a GPU was reset, do not count.
    """
    past, there = {each.pci: each for each in before}, {each.pci for each in now}
    for each in before:
        if each.pci not in there:
            yield f"{each.name}: cannot be reached (the driver does not list it any more)"
    for each in now:
        for why in _faults(each, past.get(each.pci)):
            yield f"{each.name}: {why}"


def _faults(now: GpuReading, before: GpuReading | None) -> Iterator[str]:
    if now.error:
        yield f"cannot be reached ({now.error})"
        return
    if before and (now.ecc or 0) > (before.ecc or 0):
        yield f"uncorrectable ECC errors: {(now.ecc or 0) - (before.ecc or 0)} since the last round"
    if now.remap_failed:
        yield "row remapping failed: its memory has to be repaired"
    for xid in _new_xids(now, before):
        if xid in BROKEN_XIDS:
            yield f"Xid {xid}, {BROKEN_XIDS[xid]}"


def remarks(now: Sequence[GpuReading], before: Sequence[GpuReading]) -> Iterator[str]:
    """Yield what else people may want to know, as it appears."""
    past = {each.pci: each for each in before}
    for each in now:
        known = {*_remarks(past[each.pci], None)} if each.pci in past else set()
        for text in _remarks(each, past.get(each.pci)):
            if text not in known:
                yield f"{each.name}: {text}"


def _remarks(now: GpuReading, before: GpuReading | None) -> Iterator[str]:
    if now.width and now.width_max and now.width < now.width_max:
        yield f"its PCIe link uses {now.width} of {now.width_max} lanes"
    if now.remap_pending:
        yield "a row remapping is pending: reset it before long"
    yield from dict.fromkeys(text for flag, text in SLOWED.items() if now.reasons & flag)
    for xid in _new_xids(now, before):
        if xid not in BROKEN_XIDS:
            yield f"Xid {xid}, which a program may have caused"


def _new_xids(now: GpuReading, before: GpuReading | None) -> tuple[int, ...]:
    count = min(now.xid_count - (before.xid_count if before else 0), len(now.xids))
    return now.xids[len(now.xids) - count :]
