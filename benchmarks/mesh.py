"""Measures the cost of a mesh.

    python benchmarks/mesh.py --help

A mesh of 2 × 2 × 2 is made over a new default group, with its first all_reduce of 8 bytes along
each axis, on torsh's own groups and by torch.distributed.init_device_mesh on Gloo, in turns by the
same processes. A time is the slowest rank's. torch makes all groups when the mesh is made, torsh
when an axis is first used. Then an all_reduce along the last axis is measured, with and without
DeviceMesh.measure(). Ratios are of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks.bars import Check
from benchmarks.groups import Rank, Times, first_use, measure
from benchmarks.table import MISSING, ratio, render

AXES = {"pp": 2, "dp": 2, "tp": 2}
OURS, GLOO = "ours", "gloo"
PLAIN, METERED = "all_reduce", "all_reduce, measured"
_ALL = "all axes"
_BAR = 1.0
_CALLS = 200
_PATIENCE = 120.0


class MeshRank(Rank):
    """Measures meshes in one of the processes."""

    def by_axis(self, rounds: int) -> None:
        """Measure ours and Gloo's in turns, each over a new default group."""
        import torch.distributed as dist

        import torsh_runtime as tr

        names = tuple(AXES)
        for turn in range(rounds):
            self._begin("gloo")
            self._use(
                GLOO,
                lambda: dist.init_device_mesh("cpu", (*AXES.values(),), mesh_dim_names=names),
            )
            dist.destroy_process_group()
            address = f"tcp://127.0.0.1:{self._port + 1 + turn}"
            tr.init_process_group("native", address, _PATIENCE, self._ranks, self._rank)
            mesh = self._use(OURS, lambda: tr.init_device_mesh(AXES))
            self._measured(mesh)
            self._meet.wait()
            tr.destroy_process_group()

    def _use(self, whose: str, make: Callable[[], Any]) -> Any:
        self._meet.wait()
        began = last = time.perf_counter()
        mesh = make()
        for name in AXES:
            first_use(mesh.get_group(name))
            now = time.perf_counter()
            self.times.setdefault(f"{whose}, {name}", []).append(now - last)
            last = now
        self.times.setdefault(f"{whose}, {_ALL}", []).append(last - began)
        self._meet.wait()
        return mesh

    def _measured(self, mesh: Any) -> None:
        """Measure back-to-back all_reduces."""
        group = mesh.get_group("tp")
        for name, is_measured in ((PLAIN, False), (METERED, True)):
            mesh.measure(is_measured)
            self._meet.wait()
            began = time.perf_counter()
            for _ in range(_CALLS):
                first_use(group)
            self.times.setdefault(name, []).append((time.perf_counter() - began) / _CALLS)


def _rows(times: Times) -> Iterator[list[str]]:
    for name, samples in times.items():
        quartiles = statistics.quantiles(samples, n=4)
        yield [
            name,
            f"{statistics.median(samples) * 1e3:.3f}",
            f"{quartiles[0] * 1e3:.3f} to {quartiles[2] * 1e3:.3f}",
            _ratio(name, times),
        ]


def _ratio(name: str, times: Times) -> str:
    other = PLAIN if name == METERED else name.replace(OURS, GLOO)
    return MISSING if other == name else ratio(_to(times, name, other))


def _to(times: Mapping[str, list[float]], one: str, other: str) -> float:
    return statistics.median(times[one]) / statistics.median(times[other])


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark, and return the exit status: 1 if the bar was missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="(default %(default)s)")
    parser.add_argument("--bars", action="store_true", help="print pass or fail, and exit with 1")
    parser.add_argument("--json", type=Path, help="write every sample")
    parser.add_argument("--quick", action="store_true", help="see whether it works")
    given = parser.parse_args(arguments)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # not the interface of the host's name
    os.environ["TORSH_SECRET"] = "00" * 16
    ranks, rounds = 2 ** len(AXES), 3 if given.quick else given.rounds
    times = measure(ranks, "by_axis", rounds, MeshRank)
    table = render(["what", "ms", "quartiles", "ratio"], [*_rows(times)])
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors, {ranks} ranks\n{table}")
    if given.json:
        given.json.write_text(json.dumps(times))
    value = _to(times, f"{OURS}, {_ALL}", f"{GLOO}, {_ALL}")
    check = Check("first all_reduce along all axes to gloo", value, _BAR, at_most=True)
    if given.bars:
        print(check)
    return 0 if check.passed or not given.bars else 1


if __name__ == "__main__":
    sys.exit(main())
