"""Scripts that torchrun or an MPI library's mpiexec starts, as they are."""

from __future__ import annotations

import importlib.util
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from support.hosts import needs_hosts, plugged
from support.localhost import skip_unless_torchrun_starts
from support.process_worlds import NotHereError, environ, mpiexec

SCRIPT = """
import os, numpy as np, torsh_runtime as tr
tr.init_process_group()
array, everyone = np.ones(3), [None] * tr.get_world_size()
tr.all_reduce(array)
tr.all_gather_object(everyone, (tr.get_rank(), os.environ.get("TORCHELASTIC_RESTART_COUNT")))
print("sum %g, ranks %s\\n" % (array[0], [rank for rank, _ in everyone]), end="", flush=True)
if everyone[0][1] == "0" and tr.get_rank() == 1:
    os._exit(3)
tr.destroy_process_group()
"""
MPI = ["mpich-3", "openmpi-3"]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def lines(command: list[str]) -> list[str]:
    done = subprocess.run(
        command, env=environ(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line]


def launcher(name: str) -> list[str]:
    try:
        return mpiexec(name)
    except NotHereError as error:
        pytest.skip(str(error))


@pytest.mark.torch
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_torchrun_also_after_a_restart(script: Path) -> None:
    skip_unless_torchrun_starts()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    assert lines([*command, "--max-restarts", "1", str(script)]) == ["sum 2, ranks [0, 1]"] * 4


@pytest.mark.mpi
@pytest.mark.parametrize("name", MPI)
def test_mpiexec(name: str, script: Path) -> None:
    found = lines([*launcher(name), sys.executable, str(script)])
    assert found == ["sum 3, ranks [0, 1, 2]"] * 3


@pytest.mark.mpi
@pytest.mark.parametrize("name", MPI)
def test_the_script_of_the_guide_to_mpirun(name: str, script: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "mpirun.md").read_text()
    script.write_text(guide.split("```python\n")[1].split("```")[0])
    expected = [f"rank {rank} of 3: [6. 6. 6.]" for rank in range(3)]
    assert sorted(lines([*launcher(name), sys.executable, str(script)])) == expected


@pytest.mark.mpi
@pytest.mark.parametrize("name", MPI)
def test_mpiexec_of_a_shell_script(name: str, script: Path, tmp_path: Path) -> None:
    wrapper = tmp_path / "train.sh"
    wrapper.write_text(f"#!/bin/sh\n'{sys.executable}' '{script}'\nexit $?\n")
    wrapper.chmod(0o700)
    assert lines([*launcher(name), str(wrapper)]) == ["sum 3, ranks [0, 1, 2]"] * 3


@pytest.mark.mpi
def test_two_worlds_at_once(script: Path) -> None:
    command = [*launcher("mpich-3"), sys.executable, str(script)]
    both = [
        subprocess.Popen(command, env=environ(), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in both:
        assert process.communicate(timeout=120)[0].count("sum 3, ranks [0, 1, 2]") == 3
        assert process.returncode == 0


@needs_hosts
@pytest.mark.parametrize(("own", "family"), [("127.0.1.1", "ipv4"), ("::1", "ipv6")])
def test_by_hand_where_the_first_host_takes_its_own_name_for_a_loopback_address(
    own: str, family: str, script: Path, tmp_path: Path
) -> None:
    """As Debian's installer writes /etc/hosts; the other hosts know an address that they reach."""
    with plugged(2) as hosts:
        running = []
        secret, apart = secrets.token_hex(16), ("unshare", "--mount", "--uts")
        for rank, (host, known) in enumerate(
            zip(hosts, (own, getattr(hosts[0], family)), strict=True)
        ):
            names = tmp_path / f"hosts{rank}"
            names.write_text(f"127.0.0.1 localhost\n{known} first\n")
            mounted = f"mount --bind {names} /etc/hosts && exec '{sys.executable}' '{script}'"
            named = f"echo {'first' if rank == 0 else 'second'} >/proc/sys/kernel/hostname"
            place = {"RANK": str(rank), "WORLD_SIZE": "2", "TORSH_SECRET": secret}
            meeting = {"MASTER_ADDR": "first", "MASTER_PORT": "29500"}
            running.append(
                subprocess.Popen(
                    [*host.command, *apart, "sh", "-c", f"{named} && {mounted}"],
                    env={**environ(), "GLOO_SOCKET_IFNAME": "", **place, **meeting},
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        said = [process.communicate(timeout=120)[0] for process in running]
    assert said == ["sum 2, ranks [0, 1]\n"] * 2
