"""Assignments are complete, and the environment is what torchrun's users expect."""

from __future__ import annotations

import sys

import pytest

from torsh_runtime.contract import WorkerEnv
from torshrun.config import LaunchConfig
from torshrun.workers.spec import RoundFacts, WorkerSpec, assign

FACTS = RoundFacts(
    number=2,
    restart_count=1,
    master_port=1234,
    store_endpoint="unix:@x",
    secret="ab",
    scratch="/tmp/torsh-x",
    folder="/f",
    keep_output=False,
)


def spec_of(config: LaunchConfig, environ: dict[str, str] | None = None) -> WorkerSpec:
    return WorkerSpec.from_config(config, environ or {}, allowed_cpus=8)


def test_commands() -> None:
    script = LaunchConfig(target="t.py", arguments=("--x", "1"))
    assert spec_of(script).argv == (sys.executable, "-u", "t.py", "--x", "1")
    module = LaunchConfig(target="pkg.mod", kind="module", arguments=("y",))
    assert spec_of(module).argv == (sys.executable, "-u", "-m", "pkg.mod", "y")
    program = LaunchConfig(target="/bin/true", kind="program", arguments=("z",))
    assert spec_of(program).argv == ("/bin/true", "z")


@pytest.mark.parametrize(("workers", "threads"), [(1, "8"), (3, "2"), (8, "1"), (20, "1")])
def test_threads_share_the_cpus(workers: int, threads: str) -> None:
    config = LaunchConfig(target="t", nproc_per_node=workers)
    assert spec_of(config).environ["OMP_NUM_THREADS"] == threads


def test_threads_that_are_set_stay() -> None:
    given = {"OMP_NUM_THREADS": "7"}
    assert spec_of(LaunchConfig(target="t"), given).environ["OMP_NUM_THREADS"] == "7"


def test_each_worker_reads_its_own_place() -> None:
    config = LaunchConfig(target="t", nproc_per_node=2, max_restarts=3, run_id="r", role="w")
    outer = {"RANK": "99", "HOME": "/root"}
    assignments = assign(config, spec_of(config, outer), FACTS)
    places = [WorkerEnv.from_environ(a.environ) for a in assignments]
    assert places == [a.worker for a in assignments]
    assert [(p.rank, p.local_rank, p.world_size) for p in places] == [(0, 0, 2), (1, 1, 2)]
    last = places[1]
    assert (last.restart_count, last.max_restarts, last.round) == (1, 3, 2)
    assert (last.store_endpoint, last.secret, last.error_file) == (
        "unix:@x",
        "ab",
        "/f/1/error.json",
    )
    assert assignments[1].environ["HOME"] == "/root"
    assert assignments[1].environ["PYTHONUNBUFFERED"] == "1"
