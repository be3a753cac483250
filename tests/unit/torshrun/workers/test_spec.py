"""Assignments are complete, and the environment is what torchrun's users expect."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support import machines

from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import ConfigError
from torshrun.config.job import LaunchConfig
from torshrun.workers import startup
from torshrun.workers.spec import Assignment, WorkerSpec, assign

EIGHT = frozenset(range(8))
HOOK = str(Path(startup.__file__).parent)


def first_of(config: LaunchConfig, **more: object) -> WorkerEnv:
    """The place of the first worker of the second of two nodes."""
    place = WorkerEnv(
        rank=4,
        world_size=8,
        local_rank=0,
        local_world_size=config.nproc_per_node,
        node_rank=1,
        num_nodes=2,
        role_name=config.role,
        master_addr="n0",
        master_port=1234,
        restart_count=1,
        max_restarts=config.max_restarts,
        run_id=config.run_id,
        round=2,
        store_endpoint="unix:@x",
        secret="ab",
        scratch="/tmp/torsh-x",
        status_file="/tmp/torsh-x/status",
        jax_coordinator_port=1235,
    )
    return replace(place, **more)  # type: ignore[arg-type]


def spec_of(config: LaunchConfig, environ: dict[str, str] | None = None) -> WorkerSpec:
    return WorkerSpec.from_config(config, environ or {}, EIGHT)


def assigned(
    config: LaunchConfig, environ: dict[str, str] | None = None, root: Path = Path("/nowhere")
) -> tuple[Assignment, ...]:
    spec = WorkerSpec.from_config(config, environ or {}, EIGHT, root)
    return assign(spec, first_of(config), "/f")


def test_commands() -> None:
    script = LaunchConfig(target="t.py", arguments=("--x", "1"))
    assert spec_of(script).argv == (sys.executable, "-u", "t.py", "--x", "1")
    module = LaunchConfig(target="pkg.mod", kind="module", arguments=("y",))
    assert spec_of(module).argv == (sys.executable, "-u", "-m", "pkg.mod", "y")
    program = LaunchConfig(target="/bin/true", kind="program", arguments=("z",))
    assert spec_of(program).argv == ("/bin/true", "z")
    path = spec_of(LaunchConfig(target="-t.py", kind="path", arguments=("a",))).argv
    assert path[:2] == (sys.executable, "-u")
    assert Path(path[2]).name == "run_path.py"
    assert path[3:] == ("-t.py", "a")


def test_a_script_that_looks_like_an_option() -> None:
    assert spec_of(LaunchConfig(target="-t.py")).argv[2:] == ("./-t.py",)


def test_all_have_one_role() -> None:
    """As ranks and as numbers of workers, those of the role are those of the job."""
    names = ("RANK", "ROLE_RANK", "WORLD_SIZE", "ROLE_WORLD_SIZE")
    workers = assigned(LaunchConfig(target="t", nproc_per_node=2))
    found = [tuple(worker.environ[name] for name in names) for worker in workers]
    assert found == [("4", "4", "8", "8"), ("5", "5", "8", "8")]


@pytest.mark.parametrize(
    "name",
    [
        *("TORCHELASTIC_HEALTH_CHECK_PORT", "TORSH_METRICS_PORT", "PET_METRICS_PORT"),
        *("TORSH_HOSTFILE", "PET_NNODES", "TORSH_RDZV_ENDPOINT", "TORSH_RUN_ID", "TORSH_CONFIG"),
    ],
)
def test_a_torshrun_within_a_worker_is_not_told_what_this_one_was(name: str) -> None:
    (worker,) = assigned(LaunchConfig(target="t"), {name: "9400"})
    assert name not in worker.environ
    (told,) = assigned(LaunchConfig(target="t", environment={name: "9500"}), {name: "9400"})
    assert told.environ[name] == "9500"


def test_arguments_may_name_the_local_rank() -> None:
    config = LaunchConfig(target="t.py", nproc_per_node=2, arguments=("--gpu=${local_rank}", "$x"))
    assert [worker.argv[3:] for worker in assigned(config)] == [
        ("--gpu=0", "$x"),
        ("--gpu=1", "$x"),
    ]


@pytest.mark.parametrize("kind", ["script", "module", "path"])
def test_another_interpreter(tmp_path: Path, kind: str) -> None:
    python = tmp_path / "python7"
    config = LaunchConfig(target="t", kind=kind)  # type: ignore[arg-type]
    environ = {"PYTHON_EXEC": "python7", "PATH": str(tmp_path)}
    with pytest.raises(ConfigError, match="PYTHON_EXEC=python7"):
        spec_of(config, environ)
    python.touch(mode=0o755)
    assert spec_of(config, environ).argv[0] == str(python)
    assert spec_of(config, {"PYTHON_EXEC": str(python)}).argv[0] == str(python)
    assert spec_of(config, {"PYTHON_EXEC": ""}).argv[0] == sys.executable


@pytest.mark.parametrize(("workers", "threads"), [(1, "8"), (3, "2"), (8, "1"), (20, "1")])
def test_threads_share_the_cpus(workers: int, threads: str) -> None:
    config = LaunchConfig(target="t", nproc_per_node=workers)
    assert {worker.environ["OMP_NUM_THREADS"] for worker in assigned(config)} == {threads}


@pytest.mark.parametrize(("workers", "threads"), [(1, "5"), (2, "2"), (8, "1")])
def test_threads_share_a_quota(tmp_path: Path, workers: int, threads: str) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": "25 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/cpu.max": "550000 100000\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    config = LaunchConfig(target="t", nproc_per_node=workers)
    shares = {worker.environ["OMP_NUM_THREADS"] for worker in assigned(config, root=tmp_path)}
    assert shares == {threads}


def test_threads_that_are_set_stay() -> None:
    given = {"OMP_NUM_THREADS": "7"}
    (inherited,) = assigned(LaunchConfig(target="t"), given)
    assert inherited.environ["OMP_NUM_THREADS"] == "7"
    (asked,) = assigned(LaunchConfig(target="t", environment={"OMP_NUM_THREADS": "3"}), given)
    assert asked.environ["OMP_NUM_THREADS"] == "3"


def test_each_worker_reads_its_own_place() -> None:
    config = LaunchConfig(target="t", nproc_per_node=2, max_restarts=3, run_id="r", role="w")
    assignments = assigned(config, {"RANK": "99", "HOME": "/root"})
    places = [WorkerEnv.from_environ(a.environ) for a in assignments]
    assert places == [a.worker for a in assignments]
    assert [(p.rank, p.local_rank, p.world_size) for p in places] == [(4, 0, 8), (5, 1, 8)]
    assert [(p.role_rank, p.role_world_size) for p in places] == [(4, 8), (5, 8)]
    last = places[1]
    assert (last.restart_count, last.max_restarts, last.round) == (1, 3, 2)
    assert (last.store_endpoint, last.secret, last.error_file) == (
        "unix:@x",
        "ab",
        "/tmp/torsh-x/error_2_1.json",
    )
    assert (last.status_file, last.jax_coordinator_port) == ("/tmp/torsh-x/status", 1235)
    assert assignments[1].environ["HOME"] == "/root"
    assert assignments[1].environ["PYTHONUNBUFFERED"] == "1"


def test_the_jobs_environment_wins_over_what_is_inherited_but_not_over_the_place() -> None:
    config = LaunchConfig(target="t", environment={"A": "job", "PYTHONUNBUFFERED": "", "RANK": "5"})
    (worker,) = assigned(config, {"A": "shell", "B": "shell"})
    expected = {"A": "job", "B": "shell", "PYTHONUNBUFFERED": "", "RANK": "4"}
    assert {name: worker.environ[name] for name in expected} == expected


def test_workers_do_not_inherit_the_agents_credentials() -> None:
    credentials = dict.fromkeys(
        ("TORSH_ETCD_USER", "TORSH_ETCD_PASSWORD", "TORSH_SECRET_FILE", "PET_SECRET_FILE"), "hush"
    )
    (worker,) = assigned(
        LaunchConfig(target="t"), {**credentials, "TORSH_SECRET": "hush", "TORSH_DEBUG": "1"}
    )
    assert "hush" not in worker.environ.values()
    assert (worker.environ["TORSH_WORKER_SECRET"], worker.environ["TORSH_DEBUG"]) == ("ab", "1")


INJECTION = "127.0.0.1\0PYTHONWARNINGS=all:0:antigravity.x:0:0"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            ("master_addr", value)
            for value in (INJECTION, "", "a b", "-x", "n0;id", "a..b", "[::1]")
        ),
        *(
            ("master_addr", value)
            for value in ("n" * 64, "a." * 127 + "a", "n0\n", "\ud800", "n\xf6")
        ),
        *(("master_port", value) for value in (-1, 0, 65536)),
        *(("jax_coordinator_port", value) for value in (-1, 65536)),
        *(("store_endpoint", value) for value in ("unix:@x\0A=b", "\ud800")),
        ("secret", "ab\0A=b"),
    ],
)
def test_what_other_nodes_say_does_not_get_into_a_worker_unchecked(
    field: str, value: object
) -> None:
    config = LaunchConfig(target="t")
    with pytest.raises(ConfigError) as raised:
        assign(spec_of(config), first_of(config, **{field: value}), "")
    assert field.upper().split("_")[0] in str(raised.value).upper()


@pytest.mark.parametrize("addr", ["n0", "n-0.x_1.example.org.", "10.0.0.1", "::1", "fe80::1%eth0"])
def test_hosts_by_name_and_by_address(addr: str) -> None:
    config = LaunchConfig(target="t")
    (worker,) = assign(spec_of(config), first_of(config, master_addr=addr), "")
    assert worker.environ["MASTER_ADDR"] == addr


@pytest.mark.parametrize(
    "given", [{"TOKEN": "hush\0B=1"}, {"TOKEN": "hush\ud800"}, {"A=B": "hush"}]
)
def test_a_variable_that_no_program_can_have_is_named_without_its_value(
    given: dict[str, str],
) -> None:
    (name,) = given
    with pytest.raises(ConfigError, match=name) as raised:
        spec_of(LaunchConfig(target="t", environment=given))
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(("given", "seen"), [({}, "1"), ({"PYTHONFAULTHANDLER": ""}, "")])
def test_crashes_show_their_stack_unless_that_is_set(given: dict[str, str], seen: str) -> None:
    (worker,) = assigned(LaunchConfig(target="t"), given)
    assert worker.environ["PYTHONFAULTHANDLER"] == seen


@pytest.mark.parametrize("kind", ["script", "module", "path", "program"])
@pytest.mark.parametrize(
    ("given", "path"),
    [({}, HOOK), ({"PYTHONPATH": "/a:/b"}, f"{HOOK}:/a:/b"), ({"PYTHONPATH": HOOK}, HOOK)],
)
def test_the_start_hook_comes_first_and_once(given: dict[str, str], path: str, kind: str) -> None:
    (worker,) = assigned(LaunchConfig(target="t", kind=kind), given)  # type: ignore[arg-type]
    assert worker.environ["PYTHONPATH"] == path


def test_the_start_hook_stays_when_the_job_sets_the_path() -> None:
    config = LaunchConfig(target="t", environment={"PYTHONPATH": "/job"})
    (worker,) = assigned(config, {"PYTHONPATH": "/shell"})
    assert worker.environ["PYTHONPATH"] == f"{HOOK}:/job"


def test_without_binding_nobody_is_bound() -> None:
    config = LaunchConfig(target="t", nproc_per_node=2)
    assert [worker.cpus for worker in assigned(config)] == [frozenset(), frozenset()]


def test_bound_workers_use_their_own_cpus_only(tmp_path: Path) -> None:
    root = machines.two_sockets(tmp_path)
    exclusive = LaunchConfig(target="t", nproc_per_node=3, numa_binding="exclusive")
    workers = assigned(exclusive, root=root)
    assert [worker.cpus for worker in workers] == [{0, 1}, {2, 3}, {4, 5, 6, 7}]
    assert [worker.environ["OMP_NUM_THREADS"] for worker in workers] == ["2", "2", "4"]
    shared = LaunchConfig(target="t", nproc_per_node=4, numa_binding="node")
    assert [worker.environ["OMP_NUM_THREADS"] for worker in assigned(shared, root=root)] == [
        "2"
    ] * 4


def test_gpus_draw_workers_to_their_nodes(tmp_path: Path) -> None:
    root = machines.four_gpus(machines.two_sockets(tmp_path))
    config = LaunchConfig(target="t", nproc_per_node=2, numa_binding="node")
    spec = WorkerSpec.from_config(
        config, {"CUDA_VISIBLE_DEVICES": "2,0"}, frozenset(range(32)), root
    )
    assert [min(cpus) for cpus in spec.cpus] == [8, 4]


def test_a_machine_that_cannot_place_the_workers_is_an_error(tmp_path: Path) -> None:
    config = LaunchConfig(target="t", nproc_per_node=9, numa_binding="exclusive")
    with pytest.raises(ConfigError, match="--numa-binding"):
        assigned(config, root=tmp_path)


def virtual(environ: dict[str, str], root: Path) -> list[dict[str, str]]:
    config = LaunchConfig(target="t", nproc_per_node=2, virtual_local_rank=True)
    names = ("LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    workers = assigned(config, environ, root)
    assert [worker.worker.local_rank for worker in workers] == [0, 1]
    assert [worker.folder for worker in workers] == ["/f/0", "/f/1"]
    return [{name: w.environ[name] for name in names if name in w.environ} for w in workers]


def test_a_virtual_local_rank(tmp_path: Path) -> None:
    root = machines.four_gpus(tmp_path)
    assert virtual({}, root) == [
        {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "0"},
        {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "1"},
    ]
    assert virtual({"CUDA_VISIBLE_DEVICES": "3,1"}, root)[0]["CUDA_VISIBLE_DEVICES"] == "3"


def test_hip_reads_a_variable_of_its_own_first(tmp_path: Path) -> None:
    for number in range(3):
        machines.add_kfd_node(tmp_path, number, simd_count=304)
    second = virtual({"HIP_VISIBLE_DEVICES": "2,0"}, tmp_path)[1]
    assert second == {
        "LOCAL_RANK": "0",
        "CUDA_VISIBLE_DEVICES": "0",
        "HIP_VISIBLE_DEVICES": "0",
    }


def test_the_jobs_environment_chooses_gpus_too(tmp_path: Path) -> None:
    config = LaunchConfig(
        target="t", virtual_local_rank=True, environment={"CUDA_VISIBLE_DEVICES": "2"}
    )
    (worker,) = assigned(config, {"CUDA_VISIBLE_DEVICES": "0"}, machines.four_gpus(tmp_path))
    assert worker.environ["CUDA_VISIBLE_DEVICES"] == "2"
