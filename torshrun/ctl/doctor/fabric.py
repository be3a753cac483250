"""Examines InfiniBand and RoCE adapters, and how GPUs reach them."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torshrun.ctl.doctor.finding import Finding, note, ok, warning
from torshrun.procfs import ROOT, read_number, read_text
from torshrun.topology.gpus import visible

_DMABUF_SINCE = (5, 12)
"""Version of Linux since which adapters can take memory of GPUs as dmabuf."""


@dataclass(frozen=True, slots=True)
class Port:
    """Describes a port as its files in /sys do."""

    number: str
    state: str
    """DOWN, INIT, ARMED, ACTIVE; empty if unknown."""
    rate: str
    """In the kernel's form, as "400 Gb/sec (4X NDR)"."""
    link_layer: str
    """InfiniBand or Ethernet."""

    @property
    def gigabits(self) -> float:
        """Return the rate in Gb/s, 0 if unknown."""
        found = re.match(r"[\d.]+(?= Gb/sec)", self.rate)
        return float(found[0]) if found else 0.0


@dataclass(frozen=True, slots=True)
class Place:
    """Describes where a device is attached."""

    path: tuple[str, ...]
    """Names of the PCI devices from its host bridge down to itself."""
    node: int | None
    """NUMA node; None is unknown."""


@dataclass(frozen=True, slots=True)
class Adapter:
    name: str
    place: Place
    ports: tuple[Port, ...]

    @property
    def is_active(self) -> bool:
        return any(port.state == "ACTIVE" for port in self.ports)


@dataclass(frozen=True, slots=True)
class Fabric:
    adapters: tuple[Adapter, ...]
    gpus: Mapping[str, Place]
    """Places of the GPUs that a framework would see, by their names."""
    has_peermem: bool
    """True if the module nvidia_peermem is loaded."""
    is_open: bool
    """True if NVIDIA's open kernel module drives the GPUs."""
    kernel: str
    """Release of Linux."""


def gather(environ: Mapping[str, str], root: Path = ROOT) -> Fabric:
    adapters = tuple(map(_adapter, sorted((root / "sys/class/infiniband").glob("*"))))
    devices = root / "sys/bus/pci/devices"
    gpus = {f"GPU {gpu.identifier}": _place(devices / gpu.pci) for gpu in visible(environ, root)}
    return Fabric(
        adapters,
        gpus,
        has_peermem=(root / "sys/module/nvidia_peermem").exists(),
        is_open="Open Kernel Module" in read_text(root / "proc/driver/nvidia/version"),
        kernel=platform.release(),
    )


def _adapter(folder: Path) -> Adapter:
    ports = sorted((folder / "ports").glob("[0-9]*"))
    return Adapter(folder.name, _place(folder / "device"), tuple(map(_port, ports)))


def _port(folder: Path) -> Port:
    """Read a port; its state is in the form "4: ACTIVE"."""
    told = {name: read_text(folder / name).strip() for name in ("state", "rate", "link_layer")}
    state = told["state"].rpartition(":")[2].strip()
    return Port(folder.name, state, told["rate"], told["link_layer"])


def _place(device: Path) -> Place:
    parts = device.resolve().parts
    first = next((n for n, part in enumerate(parts) if part.startswith("pci")), len(parts))
    node = read_number(device / "numa_node")
    return Place(parts[first:], None if node is None or node < 0 else node)


def distance(one: Place, other: Place) -> tuple[int, str]:
    """Return how far two devices are from each other: a rank, 0 is near, and words for it."""
    shared = 0
    while shared < min(len(one.path), len(other.path)) and one.path[shared] == other.path[shared]:
        shared += 1
    if shared > 1:
        return 0, "behind the same PCIe switch or port"
    if shared == 1:
        return 1, "at the same PCIe host bridge"
    if one.node is None or other.node is None:
        return 2, "over PCIe, NUMA nodes unknown"
    return (2, "at the same processor") if one.node == other.node else (3, "at another processor")


def check(facts: Fabric) -> Iterator[Finding]:
    if not facts.adapters:
        yield ok("InfiniBand and RoCE", "none")
        return
    fastest = max(port.gigabits for each in facts.adapters for port in each.ports or (_NO_PORT,))
    for adapter in facts.adapters:
        for port in adapter.ports:
            yield _checked(f"{adapter.name} port {port.number}", port, fastest)
    active = [adapter for adapter in facts.adapters if adapter.is_active]
    if not active:
        yield warning(
            "InfiniBand and RoCE",
            "no port is active",
            "NCCL uses TCP then: see cables and switches (ibstat), and for InfiniBand whether a "
            "subnet manager runs.",
        )
    elif facts.gpus:
        yield _direct(facts)
        yield from _nearest(facts.gpus, active)


_NO_PORT = Port("", "", "", "")


def _checked(what: str, port: Port, fastest: float) -> Finding:
    value = f"{port.state.lower() or 'state unknown'}, {port.rate or 'rate unknown'}"
    value += f", {port.link_layer}" if port.link_layer else ""
    if port.state in ("INIT", "ARMED"):
        return warning(
            what, value, "It waits for a subnet manager: see whether one runs (sminfo, opensm)."
        )
    if port.state == "ACTIVE" and 0 < port.gigabits < fastest:
        return note(
            what,
            value,
            f"Another port has {fastest:g} Gb/s: if they should be equal, see its cable and the "
            f"switch's port; NCCL_IB_HCA leaves out ports of another network.",
        )
    if port.state == "DOWN":
        return note(what, value, "Nothing, if it is not used; else see its cable and the switch.")
    return ok(what, value)


def _direct(facts: Fabric) -> Finding:
    """Tell whether adapters can read and write GPUs' memory, without a copy in the host's."""
    what = "GPUDirect RDMA"
    if facts.has_peermem:
        return ok(what, "nvidia_peermem is loaded")
    numbers = tuple(map(int, re.findall(r"\d+", facts.kernel)[:2]))
    if facts.is_open and numbers >= _DMABUF_SINCE:
        return ok(what, f"by dmabuf (the open kernel module, Linux {facts.kernel})")
    return warning(
        what,
        "neither nvidia_peermem nor dmabuf",
        "NCCL copies through the host's memory then: modprobe nvidia_peermem, or use NVIDIA's open "
        "kernel module on Linux 5.12 or newer.",
    )


def _nearest(gpus: Mapping[str, Place], adapters: Sequence[Adapter]) -> Iterator[Finding]:
    for name, place in gpus.items():
        far = {each.name: distance(place, each.place) for each in adapters}
        rank, where = min(far.values())
        near = ", ".join(each for each, (how_far, _) in far.items() if how_far == rank)
        what, value = f"{name} to adapters", f"{near} {where}"
        if rank < 3:
            yield ok(what, value)
        else:
            yield note(
                what,
                value,
                "Its traffic crosses the link between processors: see whether the adapter beside "
                "it is down, or is not given to this container.",
            )
