"""What the doctor says of InfiniBand and RoCE adapters, from trees as the kernel shows them.

The files' contents are in the forms of public listings of ConnectX adapters.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import machines

from torshrun.ctl.doctor import fabric
from torshrun.ctl.doctor.fabric import Fabric
from torshrun.ctl.doctor.finding import Finding

NEAR = "pci0000:17/0000:17:01.0/0000:18:00.0"
"""A switch at the first processor, with a GPU and an adapter behind it."""
FAR = "pci0000:97/0000:97:01.0/0000:98:00.0"
PORT = {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}


def add_device(root: Path, path: str, node: int) -> None:
    """A PCI device at a path below /sys/devices, and its link below /sys/bus."""
    machines.write(root, {f"sys/devices/{path}/numa_node": str(node)})
    link = root / "sys/bus/pci/devices" / path.rpartition("/")[2]
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(root / "sys/devices" / path)


def add_adapter(root: Path, name: str, path: str, node: int, **port: str) -> None:
    add_device(root, path, node)
    folder = f"sys/class/infiniband/{name}"
    machines.write(root, {f"{folder}/ports/1/{file}": text for file, text in (PORT | port).items()})
    (root / folder / "device").symlink_to(root / "sys/devices" / path)


def add_gpu(root: Path, minor: int, path: str, node: int) -> None:
    add_device(root, path, node)
    machines.add_nvidia(root, minor, path.rpartition("/")[2], f"GPU-{minor}", node)


def add_version(root: Path, kind: str) -> None:
    text = f"NVRM version: NVIDIA UNIX {kind} for x86_64  570.158.01  Release Build"
    machines.write(root, {"proc/driver/nvidia/version": text})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two GPUs, each with an adapter behind its switch."""
    add_gpu(tmp_path, 0, f"{NEAR}/0000:19:00.0/0000:1b:00.0", 0)
    add_adapter(tmp_path, "mlx5_0", f"{NEAR}/0000:19:01.0/0000:1a:00.0", 0)
    add_gpu(tmp_path, 1, f"{FAR}/0000:99:00.0/0000:9b:00.0", 1)
    add_adapter(tmp_path, "mlx5_1", f"{FAR}/0000:99:01.0/0000:9a:00.0", 1)
    machines.write(tmp_path, {"sys/module/nvidia_peermem/refcnt": "0"})
    return tmp_path


def found(root: Path) -> dict[str, Finding]:
    return {each.what: each for each in fabric.check(fabric.gather({}, root))}


def test_a_host_without_adapters_has_none(tmp_path: Path) -> None:
    assert [*fabric.check(fabric.gather({}, tmp_path))] == [Finding("InfiniBand and RoCE", "none")]


def test_a_well_built_host_has_no_complaint(root: Path) -> None:
    said = found(root)
    assert {each.severity for each in said.values()} == {"ok"}
    assert said["mlx5_0 port 1"].value == "active, 400 Gb/sec (4X NDR), InfiniBand"
    assert said["GPU 0 to adapters"].value == "mlx5_0 behind the same PCIe switch or port"
    assert said["GPU 1 to adapters"].value == "mlx5_1 behind the same PCIe switch or port"


def test_adapters_without_gpus_are_enough(tmp_path: Path) -> None:
    add_adapter(tmp_path, "mlx5_0", f"{NEAR}/0000:1a:00.0", 0, link_layer="Ethernet")
    said = found(tmp_path)
    assert said.keys() == {"mlx5_0 port 1"}
    assert said["mlx5_0 port 1"].value.endswith("Ethernet")


@pytest.mark.parametrize(
    ("port", "severity", "hint"),
    [
        ({"state": "1: DOWN", "rate": "10 Gb/sec (4X SDR)"}, "note", "cable"),
        ({"state": "2: INIT"}, "warning", "subnet manager"),
        ({"rate": "100 Gb/sec (4X EDR)"}, "note", "Another port has 400 Gb/s"),
        ({"state": "4: ACTIVE"}, "ok", ""),
    ],
)
def test_ports_in_trouble(root: Path, port: dict[str, str], severity: str, hint: str) -> None:
    folder = "sys/class/infiniband/mlx5_1/ports/1"
    machines.write(root, {f"{folder}/{name}": text for name, text in port.items()})
    said = found(root)["mlx5_1 port 1"]
    assert (said.severity, hint in said.advice) == (severity, True)


def test_a_gpu_whose_adapter_is_down_reaches_one_at_another_processor(root: Path) -> None:
    machines.write(root, {"sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN"})
    said = found(root)["GPU 1 to adapters"]
    assert (said.severity, said.value) == ("note", "mlx5_0 at another processor")


def test_if_no_port_is_active_tcp_is_what_is_left(root: Path) -> None:
    for name in ("mlx5_0", "mlx5_1"):
        machines.write(root, {f"sys/class/infiniband/{name}/ports/1/state": "1: DOWN"})
    assert found(root)["InfiniBand and RoCE"].severity == "warning"


def test_places_are_told_by_the_pci_path(tmp_path: Path) -> None:
    add_gpu(tmp_path, 0, "pci0000:17/0000:17:02.0/0000:1b:00.0", 0)
    add_gpu(tmp_path, 1, "pci0000:57/0000:57:02.0/0000:5b:00.0", 0)
    add_adapter(tmp_path, "mlx5_0", f"{NEAR}/0000:1a:00.0", 0)
    said = found(tmp_path)
    assert said["GPU 0 to adapters"].value == "mlx5_0 at the same PCIe host bridge"
    assert said["GPU 1 to adapters"].value == "mlx5_0 at the same processor"


@pytest.mark.parametrize(
    ("version", "kernel", "severity"),
    [
        ("x86_64 Kernel Module", "6.8.0-45", "warning"),
        ("Open Kernel Module", "5.4.0-200", "warning"),
        ("Open Kernel Module", "6.8.0-45", "ok"),
    ],
)
def test_gpudirect_needs_a_module(root: Path, version: str, kernel: str, severity: str) -> None:
    add_version(root, version)
    facts = fabric.gather({}, root)
    assert isinstance(facts, Fabric)
    said = {x.what: x for x in fabric.check(replace(facts, has_peermem=False, kernel=kernel))}
    assert said["GPUDirect RDMA"].severity == severity
