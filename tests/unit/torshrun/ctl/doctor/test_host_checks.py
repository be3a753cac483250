"""What the doctor says about facts of a host: versions, processors, memory, kernel, GPUs."""

from __future__ import annotations

import errno
import math
from dataclasses import replace
from pathlib import Path

import pytest

from torshrun.ctl.doctor import accelerators, kernel, limits, machine, versions
from torshrun.ctl.doctor.accelerators import Accelerators, Card
from torshrun.ctl.doctor.finding import SEVERITIES, Finding
from torshrun.ctl.doctor.kernel import Kernel
from torshrun.ctl.doctor.limits import Limits
from torshrun.ctl.doctor.machine import Machine
from torshrun.ctl.doctor.probes import Probed
from torshrun.ctl.doctor.versions import CORE, Versions
from torshrun.topology.gpus import Gpu

GIB = 1 << 30
LOADED = {
    CORE: Probed("ok", "", {"missing": []}),
    "numpy": Probed("ok", "", {"version": "2.1"}),
    "torch": Probed("ok", "", {"version": "2.9", "cuda": "", "gpus": 0}),
    "cupy": None,
}
VERSIONS = Versions("3.11", {"torshrun": "0.1.0", "nvidia-nccl-cu12": "2.27"}, "", None, LOADED)
MACHINE = Machine(
    allowed=frozenset(range(8)),
    online=8,
    quota=math.inf,
    nodes=1,
    memory=64 * GIB,
    available=60 * GIB,
    memory_limit=0,
    shm=32 * GIB,
    shm_free=32 * GIB,
    shm_is_writable=True,
)
KERNEL = Kernel("6.1", 0, 0, 0, 0, "madvise")
LIMITS = Limits((65536, 65536), (-1, -1), (65536, 65536), (0, -1))
GPU = Accelerators((Gpu("0", "0000:3b:00.0"),), (1,), None, "NVML", (Card("H100", 80, 1),), "")


def worst(found: list[Finding]) -> Finding:
    return max(found, key=lambda each: SEVERITIES.index(each.severity))


def test_a_finding_that_is_not_ok_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="says what to do"):
        Finding("what", "value", "note")


@pytest.mark.parametrize(
    ("check", "facts"),
    [
        (versions.check, VERSIONS),
        (machine.check, MACHINE),
        (kernel.check, KERNEL),
        (limits.check, LIMITS),
        (accelerators.check, GPU),
        (accelerators.check, replace(GPU, usable=(), cards=(), source="")),
    ],
)
def test_a_healthy_host(check, facts) -> None:  # type: ignore[no-untyped-def]
    found = list(check(facts))
    assert found
    assert {each.severity for each in found} == {"ok"}


@pytest.mark.parametrize(
    ("name", "probed", "severity", "said"),
    [
        (CORE, Probed("failed", "undefined symbol"), "problem", "undefined symbol"),
        (CORE, Probed("ok", "", {"missing": ["Group.close"]}), "problem", "another version"),
        ("numpy", Probed("failed", "No module named _core"), "problem", "import numpy"),
        ("torch", Probed("hung", "not done after 30 s"), "problem", "import torch"),
        ("torch", Probed("ok", "", {"version": "2", "cuda": "12.8", "gpus": 0}), "note", "CUDA"),
    ],
)
def test_what_does_not_load(name: str, probed: Probed, severity: str, said: str) -> None:
    facts = replace(VERSIONS, loaded={**LOADED, name: probed})
    found = worst(list(versions.check(facts)))
    assert found.severity == severity
    assert said in f"{found.what}: {found.value}"


def test_a_driver_that_torch_cannot_use() -> None:
    torch = Probed("ok", "", {"version": "2", "cuda": "13.0", "gpus": 0})
    facts = replace(VERSIONS, driver="470.1", loaded={**LOADED, "torch": torch})
    assert "sees no GPU" in worst(list(versions.check(facts))).value


def test_nccl_is_told_of_its_distribution() -> None:
    assert Finding("NCCL", "2.27") in list(versions.check(VERSIONS))


@pytest.mark.parametrize(
    ("changed", "what", "severity"),
    [
        ({"allowed": frozenset({0})}, "processors", "note"),
        ({"quota": 2.5}, "processor time", "note"),
        ({"available": GIB}, "memory", "warning"),
        ({"shm": 64 << 20, "shm_free": 64 << 20}, "/dev/shm", "warning"),
        ({"shm": None}, "/dev/shm", "warning"),
        ({"shm_free": 0}, "/dev/shm", "problem"),
        ({"shm_is_writable": False}, "/dev/shm", "warning"),
    ],
)
def test_a_machine_that_lacks_something(
    changed: dict[str, object], what: str, severity: str
) -> None:
    found = worst(list(machine.check(replace(MACHINE, **changed))))  # type: ignore[arg-type]
    assert (found.what, found.severity) == (what, severity)


def test_a_quota_says_how_many_workers() -> None:
    found = worst(list(machine.check(replace(MACHINE, quota=2.5))))
    assert "at most 2 workers" in found.advice


def test_a_machine_in_a_container(tmp_path: Path) -> None:
    """/proc, /sys and /dev that hold next to nothing."""
    facts = machine.gather(tmp_path)
    assert (facts.memory, facts.memory_limit, facts.shm) == (0, 0, None)
    assert worst(list(machine.check(facts))).what == "/dev/shm"


def test_the_strictest_limit_of_memory_counts(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    mount = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    (tmp_path / "proc/self/mountinfo").write_text(mount)
    for name, limit in (("a", str(2 * GIB)), ("a/b", "max")):
        (tmp_path / "sys/fs/cgroup" / name).mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup" / name / "memory.max").write_text(limit)
    assert machine.gather(tmp_path).memory_limit == 2 * GIB


@pytest.mark.parametrize(
    ("changed", "what", "severity"),
    [
        ({"memfd": errno.ENOSYS}, "memfd_create", "problem"),
        ({"pidfd": errno.EPERM}, "pidfd_open", "problem"),
        ({"reads_memory": errno.EPERM}, "process_vm_readv", "warning"),
        ({"ptrace_scope": 1}, "process_vm_readv", "note"),
        ({"ptrace_scope": 2}, "process_vm_readv", "warning"),
        ({"huge_pages": "never"}, "transparent huge pages", "note"),
    ],
)
def test_a_kernel_that_refuses(changed: dict[str, object], what: str, severity: str) -> None:
    found = worst(list(kernel.check(replace(KERNEL, **changed))))  # type: ignore[arg-type]
    assert (found.what, found.severity) == (what, severity)


def test_this_kernel(tmp_path: Path) -> None:
    facts = kernel.gather(tmp_path)
    assert (facts.memfd, facts.pidfd, facts.reads_memory) == (0, 0, 0)
    assert (facts.ptrace_scope, facts.huge_pages) == (-1, "")


@pytest.mark.parametrize(
    ("changed", "severity"),
    [
        ({"nofile": (1024, 1048576)}, "note"),
        ({"nofile": (1024, 1024)}, "warning"),
        ({"memlock": (8 << 20, -1)}, "note"),
        ({"nproc": (100, 100)}, "note"),
    ],
)
def test_small_limits(changed: dict[str, object], severity: str) -> None:
    found = worst(list(limits.check(replace(LIMITS, **changed))))  # type: ignore[arg-type]
    assert found.severity == severity


def test_no_limits() -> None:
    unlimited = Limits(*[(-1, -1)] * 4)
    assert worst(list(limits.check(unlimited))).severity == "ok"


@pytest.mark.parametrize(
    ("changed", "what", "severity"),
    [
        ({"source": "", "cards": ()}, "GPU details", "note"),
        ({"cards": (), "failure": "Driver/library mismatch"}, "GPU driver", "problem"),
        ({"cards": (Card("H100", 80 * GIB, 70 * GIB),)}, "GPU 0", "note"),
        ({"cards": (Card("H100", 80 * GIB, 0, 3),)}, "GPU 0", "problem"),
        ({"usable": ()}, "GPUs", "warning"),
        ({"usable": (), "listed": "7"}, "CUDA_VISIBLE_DEVICES", "warning"),
    ],
)
def test_gpus_in_trouble(changed: dict[str, object], what: str, severity: str) -> None:
    found = worst(list(accelerators.check(replace(GPU, **changed))))  # type: ignore[arg-type]
    assert (found.what, found.severity) == (what, severity)


def test_memory_that_a_gpu_does_not_tell_of_is_unknown() -> None:
    found = [*accelerators.check(replace(GPU, cards=(Card("GB10", 0, 0),)))][-1]
    assert (found.severity, found.value) == ("ok", "GB10, memory unknown")
