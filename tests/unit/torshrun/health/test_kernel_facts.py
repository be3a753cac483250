"""What the kernel tells of a process and of its node, from files as the kernel writes them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from torshrun.health.connections import RateMeter, connections
from torshrun.health.kernel_facts import Facts, Process
from torshrun.health.usage import UsageMeter

STAT = "7 (a) b) S 1 7 7 0 -1 4194560 11 0 {faults} 0 " + "0 " * 28 + "{read} 0 0 0 0 0 0 0 0 0\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


MOUNTS = {
    1: "30 20 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
    2: "30 20 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
}
NAMED = {1: "3:cpu:/job/a\n", 2: "0::/job/a\n"}
FOLDER = {1: "sys/fs/cgroup/cpu", 2: "sys/fs/cgroup"}
COUNTED = {1: "nr_throttled 4\nthrottled_time 2500000000\n", 2: "throttled_usec 2500000\n"}


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_process_has_had_to_bear(tmp_path: Path, version: int) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    write(
        tmp_path,
        {
            "proc/7/schedstat": "100 1500000000 3\n",
            "proc/7/stat": STAT.format(faults=12, read=3 * ticks),
            "proc/7/cgroup": NAMED[version],
            "proc/self/mountinfo": MOUNTS[version],
            f"{FOLDER[version]}/job/a/cpu.stat": "nr_periods 9\n",
            f"{FOLDER[version]}/job/cpu.stat": COUNTED[version],  # the quota of one above counts
        },
    )
    process = Process(7, tmp_path)
    assert process.facts() == Facts(queued=1.5, throttled=2.5, faults=12.0, read=3.0)
    write(tmp_path, {"proc/7/cgroup": NAMED[version].replace("/job/a", "/")})
    assert process.facts().throttled == 0.0  # it was moved


def test_one_that_has_ended_has_no_facts(tmp_path: Path) -> None:
    write(tmp_path, {"proc/8/schedstat": "nonsense here\n", "proc/8/stat": "8 (x) R one two\n"})
    assert Process(7, tmp_path).facts() == Process(8, tmp_path).facts() == Facts()


def test_of_this_process_something_is_known() -> None:
    facts = Process(os.getpid()).facts()
    assert facts.queued >= 0
    assert facts.since(Facts()) == facts


def counters(busy: int, idle: int, sent: int, free: int) -> dict[str, str]:
    dev = f"  eth0: 0 0 0 0 0 0 0 0 {sent} 0 0 0 0 0 0 0\n    lo: 9 0 0 0 0 0 0 0 9 0 0 0 0 0 0 0\n"
    return {
        "proc/stat": f"cpu  {busy} 0 0 {idle} 0 0 0 0 77 0\ncpu0 1 2 3\n",
        "proc/net/dev": f"Inter-|\n face |bytes\n{dev}",
        "proc/meminfo": f"MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  {free} kB\n",
        "sys/class/net/eth0/speed": "1000\n",
        "sys/class/net/lo/speed": "-1\n",
    }


def test_how_much_of_a_node_is_used(tmp_path: Path) -> None:
    write(tmp_path, counters(busy=100, idle=100, sent=0, free=250))
    meter = UsageMeter(tmp_path)
    write(tmp_path, counters(busy=190, idle=110, sent=1 << 40, free=250))
    found = meter.read()
    assert (found.cpu, found.memory) == (pytest.approx(0.9), pytest.approx(0.75))
    assert found.network is not None
    assert found.network > 1


def test_without_any_files_nothing_is_known(tmp_path: Path) -> None:
    assert UsageMeter(tmp_path).read() == (None, None, None)


def test_this_machines_own_connections_count_for_nothing() -> None:
    meter = RateMeter()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        client.sendall(bytes(1 << 16))
        inodes = {os.fstat(each.fileno()).st_ino for each in (client, server)}
        assert not inodes & set(connections())
    meter.read()
