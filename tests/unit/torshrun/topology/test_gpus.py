"""Which GPUs a framework would see, on machines that are made up."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support import machines

from torsh_runtime.errors import ConfigError
from torshrun.topology.gpus import pci_numa_node, share_out, visible


def identifiers(environ: dict[str, str], root: Path) -> tuple[str, ...]:
    return tuple(gpu.identifier for gpu in visible(environ, root))


@pytest.fixture
def four(tmp_path: Path) -> Path:
    return machines.four_gpus(tmp_path)


def cuda(listed: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": listed}


def test_a_machine_without_gpus(tmp_path: Path) -> None:
    assert len(visible({}, tmp_path)) == 0
    assert identifiers(cuda("0,1"), tmp_path) == ()
    assert identifiers(cuda("GPU-1,MIG-2"), tmp_path) == ()


def test_all_gpus_in_the_order_of_their_addresses(four: Path) -> None:
    assert identifiers({}, four) == ("0", "1", "2", "3")
    assert [pci_numa_node(gpu, four) for gpu in visible({}, four)] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("listed", "seen"),
    [
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("2", ("2",)),
        (" 3 , 1", ("3", "1")),
        ("0,7,1", ("0",)),  # ends before the first that is not there
        ("0,-1,1", ("0",)),
        ("1,,2", ("1",)),
        ("1,x", ("1",)),
        ("1,²", ("1",)),
        ("1,1", ()),  # CUDA takes that for a mistake
        ("GPU-2a,GPU-0a0b-00", ("GPU-2a", "GPU-0a0b-00")),
        ("GPU-2a,GPU-9", ("GPU-2a",)),
        ("GPU-", ()),  # could be any of them
        ("MIG-77aa-1,MIG-77aa-2", ("MIG-77aa-1", "MIG-77aa-2")),
        ("MIG-GPU-3a3b-00/1/0", ("MIG-GPU-3a3b-00/1/0",)),
    ],
)
def test_visible_devices(four: Path, listed: str, seen: tuple[str, ...]) -> None:
    assert identifiers(cuda(listed), four) == seen
    assert len(visible(cuda(listed), four)) == len(seen)


def test_each_name_leads_to_its_node(four: Path) -> None:
    listed = cuda("3,GPU-0a,MIG-GPU-2a2b-00/1/0,MIG-77aa")
    assert [pci_numa_node(gpu, four) for gpu in visible(listed, four)] == [2, 1, 2, None]


def test_a_container_sees_what_it_was_given(tmp_path: Path) -> None:
    """/proc shows the whole machine's driver, and minor numbers do not begin at 0."""
    for minor in range(4):
        pci = f"0000:0{minor}:00.0"
        machines.add_nvidia(tmp_path, minor, pci, f"GPU-{minor}f", minor, device=minor == 2)
    (gpu,) = visible({}, tmp_path)
    assert (gpu.identifier, pci_numa_node(gpu, tmp_path)) == ("0", 2)
    assert identifiers(cuda("0,1"), tmp_path) == ("0",)


def test_a_device_that_cannot_be_opened_does_not_count(four: Path) -> None:
    (four / "dev/nvidia0").unlink()
    (four / "dev/nvidia0").symlink_to("nowhere")
    assert len(visible({}, four)) == 3


def test_devices_alone_will_do(tmp_path: Path) -> None:
    """A container may hide the driver's account; then any UUID is believed."""
    machines.write(tmp_path, {"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidiactl": ""})
    assert identifiers({}, tmp_path) == ("0", "1")
    assert identifiers(cuda("GPU-5"), tmp_path) == ("GPU-5",)
    assert [pci_numa_node(gpu, tmp_path) for gpu in visible({}, tmp_path)] == [None, None]


def test_a_machine_without_numa(tmp_path: Path) -> None:
    machines.add_nvidia(tmp_path, 0, "0000:01:00.0", "GPU-1", -1)
    (gpu,) = visible({}, tmp_path)
    assert pci_numa_node(gpu, tmp_path) is None


@pytest.fixture
def radeons(tmp_path: Path) -> Path:
    machines.add_kfd_node(tmp_path, 0, cpu_cores_count=64, simd_count=0)
    for number in range(3):
        machines.add_kfd_node(
            tmp_path,
            number + 1,
            simd_count=304,
            location_id=(number + 1) << 8,
            domain=1,
            unique_id=number + 10,
        )
    for number in range(3):
        machines.write(
            tmp_path, {f"sys/bus/pci/devices/0001:0{number + 1}:00.0/numa_node": str(number % 2)}
        )
    (tmp_path / "sys/class/kfd/kfd/topology/nodes/4").mkdir()  # another container's
    return tmp_path


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({}, "012"),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, "20"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "1"),
        ({"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "1"}, "2"),
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, "01"),  # numbered anew
        ({"ROCR_VISIBLE_DEVICES": "GPU-000000000000000c"}, "0"),
        ({"ROCR_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "0,1"}, "0"),
        ({"ROCR_VISIBLE_DEVICES": ""}, ""),
    ],
)
def test_rocm(radeons: Path, environ: dict[str, str], seen: str) -> None:
    assert identifiers(environ, radeons) == tuple(seen)


def test_rocms_nodes(radeons: Path) -> None:
    environ = {"ROCR_VISIBLE_DEVICES": "1,2"}
    assert [pci_numa_node(gpu, radeons) for gpu in visible(environ, radeons)] == [1, 0]


@pytest.mark.parametrize(
    ("environ", "shares"),
    [
        ({}, ("0", "1")),
        (cuda("3,1,0"), ("3", "1")),
        (cuda("GPU-2a, GPU-1a"), ("GPU-2a", "GPU-1a")),
        (cuda(""), ("", "")),  # no GPUs are wanted
        (cuda("-1"), ("-1", "-1")),
    ],
)
def test_each_worker_its_own(four: Path, environ: dict[str, str], shares: tuple[str, ...]) -> None:
    assert share_out(environ, 2, four) == shares


def test_sharing_out_where_no_gpu_is_found(tmp_path: Path) -> None:
    assert share_out({}, 3, tmp_path) == ("0", "1", "2")
    assert share_out(cuda("4, 6"), 2, tmp_path) == ("4", "6")


def test_too_few_gpus(four: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"5 workers .* only 4 can be seen \(0,1,2,3\)"):
        share_out({}, 5, four)
    with pytest.raises(ConfigError, match=r"only 1 can be seen \(0\)"):
        share_out(cuda("0,9"), 2, four)
    with pytest.raises(ConfigError, match=r"only 2 can be seen \(4,6\)"):
        share_out(cuda("4,6"), 3, tmp_path / "empty")


def test_on_this_machine() -> None:
    gpus = visible({})
    devices = [name for name in os.listdir("/dev") if name[6:].isdecimal() and "nvidia" in name]
    assert len(gpus) <= len(devices) or Path("/dev/kfd").exists()


DEVICES = Path("/sys/fs/cgroup/devices")


@pytest.mark.skipif(not os.access(DEVICES / "cgroup.procs", os.W_OK), reason="needs cgroup v1")
def test_gpus_that_a_control_group_denies_do_not_count(tmp_path: Path) -> None:
    """A scheduler such as Slurm leaves their devices in /dev."""
    root = machines.four_gpus(tmp_path)
    for minor in (0, 1):
        device = root / f"dev/nvidia{minor}"
        device.unlink()
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(195, minor))
    group = DEVICES / f"torsh-test-{os.getpid()}"
    code = (
        "import pathlib, sys; group, root = map(pathlib.Path, sys.argv[1:])\n"
        "import os; (group / 'cgroup.procs').write_text(str(os.getpid()))\n"
        "(group / 'devices.deny').write_text('c 195:1 rwm')\n"
        "from torshrun.topology.gpus import visible\n"
        "print(*(gpu.pci for gpu in visible({}, root)))"
    )
    assert len(visible({}, root)) == 4
    group.mkdir()
    try:
        seen = subprocess.check_output([sys.executable, "-P", "-c", code, group, root], text=True)
    finally:
        group.rmdir()
    assert len(seen.split()) == 3
