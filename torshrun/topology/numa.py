"""Assigns processors to workers. Only those that this process may use count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from torsh_runtime.errors import ConfigError
from torshrun.procfs import ROOT, read_number, read_text
from torshrun.text import parse_ranges, ranges


@dataclass(frozen=True, slots=True)
class Cpu:
    """Describes one processor, by its number in the kernel, and what it is part of."""

    number: int
    node: int
    socket: int
    """The physical package."""
    core: int
    """The physical core, by the lowest number among the core's processors."""
    cache: int
    """The largest cache, by the lowest number among the processors that share it."""


Topology = tuple[Cpu, ...]
"""The processors that this process may use, by number. Never empty."""
CpuSet = frozenset[int]


def read_topology(allowed: Iterable[int], root: Path = ROOT) -> Topology:
    """Return what the kernel reports about the processors `allowed`.

    Where it reports nothing, as in some containers, each is a core of its own, in one node and one
    socket, with one cache.
    """
    online = parse_ranges(read_text(root / "sys/devices/system/cpu/online"))
    numbers = sorted(n for n in allowed if n in online or not online)
    nodes = _nodes(root)
    return tuple(_cpu(root, number, nodes.get(number, 0)) for number in numbers)


def bind(
    policy: str, local_world_size: int, topology: Topology, gpu_nodes: Sequence[int | None] = ()
) -> tuple[CpuSet, ...]:
    """Return each local rank's processors, by the policy of --numa-binding.

    `gpu_nodes` are the visible GPUs' NUMA nodes. A rank belongs to the node of the GPU with its
    number if all ranks have one. Otherwise ranks spread evenly over the cores, neighbours together.
    Raises ConfigError if that is not possible.
    """
    nodes = [node for node in gpu_nodes[:local_world_size] if node is not None]
    if len(nodes) < local_world_size:
        nodes = _spread(local_world_size, topology)
    return tuple(_share(policy, rank, nodes, topology) for rank in range(local_world_size))


# ---- policies


def _share(policy: str, rank: int, nodes: Sequence[int], topology: Topology) -> CpuSet:
    chosen: Iterable[Cpu]
    node = nodes[rank]
    cpus = [cpu for cpu in topology if cpu.node == node]
    if not cpus:
        raise ConfigError(
            f"--numa-binding: local rank {rank}'s GPU is on NUMA node {node}, but this process may "
            f"use none of that node's CPUs (only {_named(topology)}): allow some (taskset, cpuset, "
            f"the scheduler's CPU binding), or drop --numa-binding"
        )
    position, neighbours = nodes[:rank].count(node), nodes.count(node)
    if policy == "socket":
        chosen = _on_socket(cpus, position, neighbours, topology)
    elif policy == "exclusive":
        chosen = _on_own_cores(cpus, position, neighbours)
    elif policy == "core-complex":  # larger ones first; all are used once before one is shared
        complexes = sorted(_groups(cpus, "cache"), key=len, reverse=True)
        chosen = complexes[position % len(complexes)]
    else:
        chosen = cpus
    return frozenset(cpu.number for cpu in chosen)


def _on_socket(
    cpus: Sequence[Cpu], position: int, neighbours: int, topology: Topology
) -> Iterable[Cpu]:
    """Return the processors of the socket.

    A socket may have several nodes. With NUMA switched off, a node has several sockets.
    """
    cores = _groups(cpus, "core")
    socket = cores[position * len(cores) // neighbours][0].socket
    return [cpu for cpu in topology if cpu.socket == socket]


def _on_own_cores(cpus: Sequence[Cpu], position: int, neighbours: int) -> Iterable[Cpu]:
    cores = _groups(cpus, "core")
    if len(cores) < neighbours:
        raise ConfigError(
            f"--numa-binding exclusive gives each worker cores of its own, but {neighbours} "
            f"workers belong on NUMA node {cpus[0].node}, where {len(cores)} may be used (CPUs "
            f"{_named(cpus)}): start fewer workers, allow more CPUs, or take --numa-binding node"
        )
    first, behind = (each * len(cores) // neighbours for each in (position, position + 1))
    return chain(*cores[first:behind])


def _groups(cpus: Iterable[Cpu], part: Literal["core", "cache"]) -> list[list[Cpu]]:
    """Group processors by what they are part of, lowest number first."""
    groups: dict[int, list[Cpu]] = {}
    for cpu in cpus:
        groups.setdefault(getattr(cpu, part), []).append(cpu)
    return list(groups.values())


def _named(cpus: Iterable[Cpu]) -> str:
    return ",".join(ranges({cpu.number for cpu in cpus}))


# ---- ranks to nodes


def _spread(ranks: int, topology: Topology) -> list[int]:
    """Assign ranks to nodes in proportion to the nodes' cores.

    No core is taken twice while another is free.
    """
    cores = sorted({(cpu.node, cpu.core) for cpu in topology})
    return [cores[rank * len(cores) // ranks][0] for rank in range(ranks)]


# ---- reading the topology


def _nodes(root: Path) -> dict[int, int]:
    """Return the NUMA node of each processor."""
    return {
        number: int(folder.name.removeprefix("node"))
        for folder in (root / "sys/devices/system/node").glob("node[0-9]*")
        for number in parse_ranges(read_text(folder / "cpulist"))
    }


def _cpu(root: Path, number: int, node: int) -> Cpu:
    folder = root / f"sys/devices/system/cpu/cpu{number}"
    siblings = parse_ranges(read_text(folder / "topology/thread_siblings_list"))
    return Cpu(
        number=number,
        node=node,
        socket=read_number(folder / "topology/physical_package_id") or 0,
        core=min(siblings, default=number),
        cache=_largest_cache(folder / "cache"),
    )


def _largest_cache(folder: Path) -> int:
    levels: dict[int, int] = {}
    for index in folder.glob("index[0-9]*"):
        level = read_number(index / "level")
        shared = parse_ranges(read_text(index / "shared_cpu_list"))
        if level and shared:
            levels[level] = min(shared)
    return levels[max(levels)] if levels else 0
