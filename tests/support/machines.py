"""Made-up machines: trees of files as the kernel shows them below /sys, /proc and /dev."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def add_nodes(root: Path, cpulists: Sequence[str]) -> None:
    """NUMA nodes and their processors; "" is a node with memory only."""
    write(root, {f"sys/devices/system/node/node{n}/cpulist": c for n, c in enumerate(cpulists)})


def add_cpu(root: Path, number: int, *, socket: int, siblings: str, cache: str) -> None:
    folder = f"sys/devices/system/cpu/cpu{number}"
    write(
        root,
        {
            f"{folder}/topology/physical_package_id": str(socket),
            f"{folder}/topology/thread_siblings_list": siblings,
            f"{folder}/cache/index0/level": "1",
            f"{folder}/cache/index0/shared_cpu_list": siblings,
            f"{folder}/cache/index3/level": "3",
            f"{folder}/cache/index3/shared_cpu_list": cache,
        },
    )


def two_sockets(root: Path) -> Path:
    """2 sockets of 2 nodes of 4 cores of 2 threads, numbered as usual: CPU n and n + 16 share a
    core. Each pair of cores shares a cache.
    """
    add_nodes(root, [f"{n}-{n + 3},{n + 16}-{n + 19}" for n in (0, 4, 8, 12)])
    for number in range(32):
        core = number % 16
        first = core - core % 2
        add_cpu(
            root,
            number,
            socket=core // 8,
            siblings=f"{core},{core + 16}",
            cache=f"{first}-{first + 1},{first + 16}-{first + 17}",
        )
    return root


def one_node(root: Path, cores: int) -> Path:
    add_nodes(root, [f"0-{cores - 1}"])
    for number in range(cores):
        add_cpu(root, number, socket=0, siblings=str(number), cache=f"0-{cores - 1}")
    return root


def add_nvidia(root: Path, minor: int, pci: str, uuid: str, node: int, device: bool = True) -> None:
    """A GPU that NVIDIA's driver knows; without `device` this process was not given it."""
    information = f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}"
    write(
        root,
        {
            f"proc/driver/nvidia/gpus/{pci}/information": information,
            f"sys/bus/pci/devices/{pci}/numa_node": str(node),
            "dev/nvidiactl": "",
            "dev/nvidia-uvm": "",
            "dev/nvidia-caps/nvidia-cap1": "",
        },
    )
    if device:
        write(root, {f"dev/nvidia{minor}": ""})


def four_gpus(root: Path) -> Path:
    """Two on node 1, then two on node 2, by PCI address; their minor numbers run the other way."""
    for index, node in enumerate((1, 1, 2, 2)):
        pci = f"0000:{0x1B + index * 0x10:02x}:00.0"
        add_nvidia(root, 3 - index, pci, f"GPU-{index}a{index}b-00", node)
    return root


def add_kfd_node(root: Path, number: int, **properties: int) -> None:
    text = "\n".join(f"{name} {value}" for name, value in properties.items())
    write(root, {f"sys/class/kfd/kfd/topology/nodes/{number}/properties": text})
