"""Measures the cost of groups that are made while a job runs.

    python benchmarks/groups.py --help

Measures a group that is reconfigured in place (configure()), a new group, and the groups of a mesh,
each with its first all_reduce of 8 bytes. The groups are torsh's own, torch's with the backend
"torsh", and Gloo's. All are made repeatedly by the same processes in one run, in turns; a time is
the slowest rank's. Ratios are of medians, to Gloo's and to torsh's own new group. With torch 2.14
it also measures torch's own reconfigure functions, on both backends in processes of their own, and
what many of them leave behind.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks.bars import Check
from benchmarks.many_groups import descriptors, private_bytes
from benchmarks.table import MISSING, ratio, render

Times = dict[str, list[float]]
"""Seconds of one rank, by kind of group."""
CONFIGURE, NEW, TORCH_CONFIGURE, TORCH_NEW, GLOO_NEW = (
    "configure",
    "new_group",
    "torch configure",
    "torch new_group",
    "gloo new_group",
)
RECONFIGURE, GLOO_RECONFIGURE = "torch _reconfigure", "gloo _reconfigure"
MESH, TORCH_MESH, GLOO_MESH = "mesh", "torch mesh", "gloo mesh"
_RATIOS = {
    "to new_group": [(CONFIGURE, NEW), (TORCH_CONFIGURE, TORCH_NEW)],
    "to gloo": [
        *((made, GLOO_NEW) for made in (CONFIGURE, NEW, TORCH_CONFIGURE, TORCH_NEW)),
        *((made, GLOO_MESH) for made in (MESH, TORCH_MESH)),
        (RECONFIGURE, GLOO_RECONFIGURE),
    ],
}
_MESH_BAR = 0.5
_RECONFIGURE_BARS = 0.003, 0.1
"""Seconds, and of Gloo's."""
_LEFT = "descriptors", "KiB of memory"
_LEFT_BARS = 0.0, 1.0
"""The most that one of many reconfigurations may leave behind, in the mean of the worst rank."""
_PATIENCE = 120.0


class Rank:
    """Measures groups in one of the processes."""

    def __init__(self, rank: int, ranks: int, port: int, meet: Barrier) -> None:
        """Connect to the other processes.

        port: the port of torch's store, which the first process serves. The next port is for
            torsh's.
        """
        import torch.distributed as dist

        self._rank = rank
        self._ranks = ranks
        self._port = port
        self._meet = meet
        self._store = dist.TCPStore("127.0.0.1", port, ranks, is_master=rank == 0)
        self._turn = 0
        self.times: Times = {}

    def make_groups(self, rounds: int) -> None:
        """Reconfigure groups and make new ones, in turns."""
        import torch.distributed as dist

        import torsh_runtime as tr

        self._begin("gloo")
        own = tr.init_process_group(
            "native", f"tcp://127.0.0.1:{self._port + 1}", _PATIENCE, self._ranks, self._rank
        )
        ours, theirs = tr.new_group(), dist.new_group(backend="torsh")
        for turn in range(rounds):
            self._time(CONFIGURE, lambda turn=turn: self._configure(ours, tr.get_store(), turn))
            self._time(
                TORCH_CONFIGURE, lambda turn=turn: self._configure(theirs, self._store, turn)
            )
            tr.destroy_process_group(self._time(NEW, tr.new_group))
            for name, backend in ((TORCH_NEW, "torsh"), (GLOO_NEW, "gloo")):
                made = self._time(name, lambda backend=backend: dist.new_group(backend=backend))
                dist.destroy_process_group(made)
        tr.destroy_process_group(own)
        dist.destroy_process_group()

    def make_meshes(self, rounds: int) -> None:
        """Make meshes with axes of two ranks each over new default groups, in turns."""
        import torch.distributed as dist

        import torsh_runtime as tr

        shape = (2,) * int(math.log2(self._ranks))
        for turn in range(rounds):
            for name, backend in ((TORCH_MESH, "torsh"), (GLOO_MESH, "gloo")):
                self._begin(backend)
                self._time(name, lambda: dist.init_device_mesh("cpu", shape))
                self._meet.wait()
                dist.destroy_process_group()
            address = f"tcp://127.0.0.1:{self._port + 1 + turn}"
            tr.init_process_group("native", address, _PATIENCE, self._ranks, self._rank)
            self._time(MESH, lambda: tr.init_device_mesh(shape))
            self._meet.wait()
            tr.destroy_process_group()

    def reconfigure_torsh(self, rounds: int) -> None:
        """Call torch's reconfigure functions on a torsh group."""
        self._reconfigure_all(RECONFIGURE, "torsh", rounds)

    def reconfigure_gloo(self, rounds: int) -> None:
        """Call torch's reconfigure functions on a group of Gloo."""
        self._reconfigure_all(GLOO_RECONFIGURE, "gloo", rounds)

    def _reconfigure_all(self, name: str, backend: str, rounds: int) -> None:
        import torch.distributed as dist

        self._begin(backend, enable_reconfigure=True)
        group = self._reconfigure(dist.group.WORLD, 0)
        for turn in range(1, rounds + 1):
            handles = self._handles(group)
            self._time(name, partial(self._reconfigure, group, turn, handles))
        dist.destroy_process_group()

    def reconfigure_often(self, rounds: int) -> None:
        """Reconfigure a torsh group very often, and note what each time leaves behind."""
        import torch.distributed as dist

        self._begin("torsh", enable_reconfigure=True)
        warm_up = rounds // 10 + 1
        for turn in range(warm_up + rounds):
            if turn == warm_up:
                before = descriptors(), private_bytes()
            first_use(self._reconfigure(dist.group.WORLD, turn))
        left = descriptors() - before[0], (private_bytes() - before[1]) / 1024
        self.times = {name: [value / rounds] for name, value in zip(_LEFT, left, strict=True)}
        self._meet.wait()
        dist.destroy_process_group()

    def _handles(self, group: Any) -> list[str]:
        """Return all ranks' handles, in their order."""
        import torch.distributed as dist

        self._meet.wait()
        self._store.set(f"handle/{self._rank}", dist._get_reconfigure_handle(group))
        self._meet.wait()
        return [self._store.get(f"handle/{rank}").decode() for rank in range(self._ranks)]

    def _reconfigure(self, group: Any, uuid: int, handles: list[str] | None = None) -> Any:
        import torch.distributed as dist

        dist._reconfigure(uuid, handles or self._handles(group), group).wait()
        return group

    def _begin(self, backend: str, **named: Any) -> None:
        import torch.distributed as dist

        self._turn += 1
        store = dist.PrefixStore(f"default {self._turn}", self._store)
        dist.init_process_group(
            backend, store=store, rank=self._rank, world_size=self._ranks, **named
        )

    def _configure(self, group: Any, store: Any, turn: int) -> Any:
        group.configure(store, "", (self._rank + turn) % self._ranks, self._ranks, turn)
        return group

    def _time(self, name: str, make: Callable[[], Any]) -> Any:
        self._meet.wait()
        begin = time.perf_counter()
        made = make()
        for group in made.get_all_groups() if hasattr(made, "get_all_groups") else [made]:
            first_use(group)
        self.times.setdefault(name, []).append(time.perf_counter() - begin)
        return made


def first_use(group: Any) -> None:
    """Do an all_reduce of 8 bytes."""
    import numpy as np

    import torsh_runtime as tr

    if isinstance(group, tr.ProcessGroup):
        tr.all_reduce(np.ones(1), group=group)
        return
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1, dtype=torch.float64), group=group)


def measure(ranks: int, scene: str, rounds: int, kind: type[Rank] = Rank) -> Times:
    """Run a scene of ranks of class `kind`, and return the slowest rank's time of each round.

    Raises RuntimeError if a rank fails.
    """
    import torsh_runtime.integrations.torch  # noqa: F401

    context, port = get_context("fork"), _ports(rounds + 2)
    meet = context.Barrier(ranks, timeout=_PATIENCE)
    pipes = []
    for rank in range(ranks):
        reader, writer = context.Pipe(False)
        arguments = (kind, rank, ranks, port, meet, scene, rounds, writer)
        context.Process(target=_be_rank, args=arguments).start()
        writer.close()
        pipes.append(reader)
    try:
        told: list[Times] = [pipe.recv() for pipe in pipes]
    except EOFError:
        raise RuntimeError(f"a rank of the scene {scene} failed") from None
    return {
        name: [max(each) for each in zip(*(t[name] for t in told), strict=True)] for name in told[0]
    }


def _be_rank(
    kind: type[Rank],
    number: int,
    ranks: int,
    port: int,
    meet: Barrier,
    scene: str,
    rounds: int,
    writer: Any,
) -> None:
    rank = kind(number, ranks, port, meet)
    getattr(rank, scene)(rounds)
    meet.wait()  # the first process serves the store until then
    writer.send(rank.times)


def _ports(count: int) -> int:
    """Return the first of `count` successive ports that are free now."""
    for first in range(20000, 30000, count):
        probes = [socket.socket() for _ in range(count)]
        try:
            for port, probe in enumerate(probes, first):
                probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
    raise RuntimeError("there are no free ports")


def _rows(ranks: int, times: Times) -> Iterator[list[str]]:
    for name, samples in times.items():
        middle = statistics.median(samples)
        quartiles = statistics.quantiles(samples, n=4)
        yield [
            str(ranks),
            name,
            f"{middle * 1e3:.2f}",
            f"{quartiles[0] * 1e3:.2f} to {quartiles[2] * 1e3:.2f}",
            *(_ratio(pairs, name, times) for pairs in _RATIOS.values()),
        ]


def _ratio(pairs: list[tuple[str, str]], name: str, times: Mapping[str, list[float]]) -> str:
    other = dict(pairs).get(name)
    if other is None or other not in times:
        return MISSING
    return ratio(statistics.median(times[name]) / statistics.median(times[other]))


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark, and return the exit status: 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", default="2,4,8", help="of the groups (default %(default)s)")
    parser.add_argument(
        "--mesh", type=int, default=8, help="ranks of the mesh, a power of 2; 0: none"
    )
    parser.add_argument(
        "--reconfigure", type=int, default=4, help="ranks that call torch's functions; 0: none"
    )
    parser.add_argument(
        "--often", type=int, default=1000, help="reconfigurations that should leave nothing behind"
    )
    parser.add_argument("--rounds", type=int, default=20, help="(default %(default)s)")
    parser.add_argument("--bars", action="store_true", help="print pass or fail, and exit with 1")
    parser.add_argument("--json", type=Path, help="write every sample")
    parser.add_argument("--quick", action="store_true", help="see whether it works")
    given = parser.parse_args(arguments)
    rounds = 3 if given.quick else given.rounds
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # not the interface of the host's name
    os.environ["TORSH_SECRET"] = "00" * 16
    found = {
        ranks: measure(ranks, "make_groups", rounds) for ranks in map(int, given.ranks.split(","))
    }
    if given.mesh:
        found.setdefault(given.mesh, {}).update(measure(given.mesh, "make_meshes", rounds))
    left = _reconfigured(given, rounds, found)
    header = ["ranks", "made", "ms", "quartiles", *_RATIOS]
    rows = [row for ranks, times in found.items() for row in _rows(ranks, times)]
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors\n{render(header, rows)}")
    for name, (value,) in left.items():
        print(f"{name} that each of {given.often} reconfigurations leaves behind: {value:.2f}")
    if given.json:
        given.json.write_text(json.dumps(found))
    checks = _of_meshes(found[given.mesh]) if given.mesh else []
    checks += _of_reconfigurations(found[given.reconfigure], left) if left else []
    if given.bars:
        print(*checks, sep="\n")
    return 0 if not given.bars or all(check.passed for check in checks) else 1


def _reconfigured(given: argparse.Namespace, rounds: int, found: dict[int, Times]) -> Times:
    """Measure torch's reconfigure functions, if it has them, and return what they leave behind."""
    import torch.distributed as dist

    if not given.reconfigure:
        return {}
    if not hasattr(dist, "_reconfigure"):
        print(f"this torch, before 2.14, has no functions to measure for {RECONFIGURE}")
        return {}
    for scene in ("reconfigure_gloo", "reconfigure_torsh"):  # what Gloo leaves behind slows others
        times = measure(given.reconfigure, scene, rounds)
        found.setdefault(given.reconfigure, {}).update(times)
    often = 50 if given.quick else given.often
    return measure(given.reconfigure, "reconfigure_often", often)


def _of_reconfigurations(times: Times, left: Times) -> list[Check]:
    ours, gloo = (statistics.median(times[each]) for each in (RECONFIGURE, GLOO_RECONFIGURE))
    figures = {f"{RECONFIGURE}, s": ours, f"{RECONFIGURE} to {GLOO_RECONFIGURE}": ours / gloo}
    figures |= {f"{name} each": value for name, (value,) in left.items()}
    limits = (*_RECONFIGURE_BARS, *_LEFT_BARS)
    return [
        Check(what, value, limit, at_most=True)
        for (what, value), limit in zip(figures.items(), limits, strict=True)
    ]


def _of_meshes(times: Times) -> list[Check]:
    return [
        Check(
            f"{name} to {GLOO_MESH}",
            statistics.median(times[name]) / statistics.median(times[GLOO_MESH]),
            _MESH_BAR,
            at_most=True,
        )
        for name in (MESH, TORCH_MESH)
    ]


if __name__ == "__main__":
    sys.exit(main())
