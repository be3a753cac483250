"""Finds the GPUs that this process may use, in /dev, /proc and /sys, without loading a driver."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torsh_runtime.errors import ConfigError
from torshrun.procfs import ROOT, read_number, read_text


@dataclass(frozen=True, slots=True)
class Gpu:
    """Describes one GPU, as CUDA_VISIBLE_DEVICES would name it."""

    identifier: str
    """The index among the usable GPUs, or the name that the variable uses."""
    pci: str = ""
    """The PCI address ("0000:3b:00.0"). Empty if unknown."""
    uuid: str = ""
    """The UUID, with the prefix GPU-. Empty if unknown."""
    instances: tuple[str, ...] = ()
    """The UUIDs of the MIG instances that it is divided into, as far as they are known."""


def visible(environ: Mapping[str, str], root: Path = ROOT) -> tuple[Gpu, ...]:
    """Return the GPUs that a framework started with `environ` would see, in its order.

    As with CUDA, a list ends before its first invalid entry, and is void if it names a device
    twice.
    """
    nvidia = of_nvidia(root)
    if nvidia:
        return select(nvidia, environ.get("CUDA_VISIBLE_DEVICES"))
    rocr = select(_amd(root), environ.get("ROCR_VISIBLE_DEVICES"))
    amd = [Gpu(str(index), gpu.pci) for index, gpu in enumerate(rocr)]
    return select(amd, environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES")))


def pci_numa_node(gpu: Gpu, root: Path = ROOT) -> int | None:
    """Return the NUMA node that the GPU is attached to, or None if unknown."""
    if not gpu.pci:
        return None
    return read_number(root / "sys/bus/pci/devices" / gpu.pci / "numa_node")  # -1 is no node


def share_out(environ: Mapping[str, str], workers: int, root: Path = ROOT) -> tuple[str, ...]:
    """Return CUDA_VISIBLE_DEVICES for each local rank, so that it sees one GPU of its own.

    If the variable is set, its list is used even if no GPU is found. Without a list the index is
    the local rank, as in torchrun. Raises ConfigError if there are fewer GPUs than workers.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None and listed.strip() in ("", "-1"):
        return (listed,) * workers
    names = [gpu.identifier for gpu in visible(environ, root)]
    if not names and listed is not None:
        names = [name.strip() for name in listed.split(",")]
    if names and len(names) < workers:
        raise ConfigError(
            f"--virtual-local-rank gives each of the {workers} workers a GPU of its own, but only "
            f"{len(names)} can be seen ({','.join(names)}): start at most {len(names)} workers, or "
            f"make more GPUs visible"
        )
    return tuple(names[:workers]) or tuple(map(str, range(workers)))


def select(gpus: Sequence[Gpu], listed: str | None) -> tuple[Gpu, ...]:
    """Return those that a list of visible devices names, in its order; all without a list."""
    if listed is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for entry in listed.split(","):
        gpu = _find(gpus, entry.strip())
        if gpu is None:
            break
        chosen.append(gpu)
    return tuple(chosen) if len(set(chosen)) == len(chosen) else ()


def _find(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    """Return the GPU that an entry of a list of visible devices names, or None if it is invalid."""
    if entry.isascii() and entry.isdecimal():
        index = int(entry)
        return Gpu(entry, gpus[index].pci) if index < len(gpus) else None
    if entry.startswith("MIG-") and gpus:
        parent = _by_uuid(gpus, entry.removeprefix("MIG-").partition("/")[0])
        parent = parent or next((gpu for gpu in gpus if entry in gpu.instances), None)
        return Gpu(entry, parent.pci if parent else "")
    if entry.startswith("GPU-"):
        gpu = _by_uuid(gpus, entry)
        if gpu is None and any(not gpu.uuid for gpu in gpus):
            return Gpu(entry)
        return gpu and Gpu(entry, gpu.pci)
    return None


def _by_uuid(gpus: Sequence[Gpu], prefix: str) -> Gpu | None:
    found = [gpu for gpu in gpus if prefix.startswith("GPU-") and gpu.uuid.startswith(prefix)]
    return found[0] if len(found) == 1 else None


def of_nvidia(root: Path) -> list[Gpu]:
    """Return the GPUs in the order of PCI addresses, without those that a container hides."""
    found: dict[str, tuple[str, str]] = {}
    """PCI address and UUID of each GPU of the driver, by the name of its device."""
    for folder in (root / "proc/driver/nvidia/gpus").glob("*"):
        text = read_text(folder / "information")
        minor = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
        uuid = re.search(r"^GPU UUID:\s*(GPU-[\da-f-]+)", text, re.MULTILINE)
        if minor:
            found[f"nvidia{minor[1]}"] = folder.name.lower(), uuid[1] if uuid else ""
    places = sorted(
        (*found.get(device.name, ("", "")), int(device.name.removeprefix("nvidia")))
        for device in (root / "dev").glob("nvidia[0-9]*")
        if device.name.removeprefix("nvidia").isdecimal() and os.access(device, os.R_OK | os.W_OK)
    )
    return [Gpu(str(index), pci, uuid) for index, (pci, uuid, _) in enumerate(places)]


def _amd(root: Path) -> list[Gpu]:
    """Return the GPUs in the order of the kernel's topology, whose nodes include processors."""
    folders = (root / "sys/class/kfd/kfd/topology/nodes").glob("[0-9]*")
    nodes = [_properties(folder) for folder in sorted(folders, key=lambda path: int(path.name))]
    gpus = [node for node in nodes if node.get("simd_count")]
    return [_radeon(index, node) for index, node in enumerate(gpus)]


def _properties(node: Path) -> dict[str, int]:
    """Return the properties of a node.

    A node that a container may not use exists, but cannot be read.
    """
    pairs = (line.split() for line in read_text(node / "properties").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _radeon(index: int, node: Mapping[str, int]) -> Gpu:
    place, unique = node.get("location_id", 0), node.get("unique_id", 0)
    bus, device, function = place >> 8 & 0xFF, place >> 3 & 0x1F, place & 7
    pci = f"{node.get('domain', 0):04x}:{bus:02x}:{device:02x}.{function}"
    return Gpu(str(index), pci, f"GPU-{unique:016x}" if unique else "")
