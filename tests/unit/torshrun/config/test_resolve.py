"""Which source wins, what becomes of the options together, and what is said about them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torsh_runtime.contract import ALL_VARIABLES, WorkerEnv
from torsh_runtime.errors import ConfigError
from torshrun.config.job import Address, LaunchConfig, OutputConfig, StreamRule, Streams
from torshrun.config.options import OPTIONS
from torshrun.config.request import gather
from torshrun.config.resolve import resolve

from .conftest import Asked, Made


def test_defaults(made: Made, script: str) -> None:
    resolution = made()
    assert resolution.job == LaunchConfig(target=script, run_id="a new name")
    assert resolution.notes == ()


def test_all_fields(made: Made, script: str) -> None:
    job = made(
        nproc_per_node="2",
        max_restarts="3",
        restart_backoff="0",
        retry_same_start="true",
        run_id="j",
        role="r",
        hang_timeout="5m",
        agent_timeout="0",
        pid_namespace="true",
        virtual_local_rank="1",
        torch_backend="torsh",
        numa_binding="core-complex",
        metrics_port="0.0.0.0:9400",
        debugpy=":5678",
        events="-",
        tee="1",
        local_ranks_filter="0",
        ranks_filter="1",
        log_line_prefix_template="",
        log_timestamps="true",
        log_rotate="1M",
        duplicate_stdout_filters="a",
        duplicate_stderr_filters="b,,c",
        color="never",
        status_line="never",
    ).job
    assert job == LaunchConfig(
        target=script,
        nproc_per_node=2,
        max_restarts=3,
        restart_backoff=0.0,
        retry_same_start=True,
        run_id="j",
        role="r",
        hang_timeout=0.0,  # one that stands at a breakpoint would count as hung
        agent_timeout=0.0,
        pid_namespace=True,
        virtual_local_rank=True,
        torch_backend="torsh",
        numa_binding="core-complex",
        metrics_port=("0.0.0.0", 9400),
        debugpy=Address("0.0.0.0", 5678),
        events="-",
        output=OutputConfig(
            tee=StreamRule(everyone=Streams.STDOUT),
            local_ranks_filter=frozenset({0}),
            ranks_filter=frozenset({1}),
            log_line_prefix_template="",
            log_timestamps=True,
            log_rotate=1024**2,
            duplicate_stdout_filters=("a",),
            duplicate_stderr_filters=("b,c",),
            color="never",
            status_line="never",
        ),
    )


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("nproc_per_node", "0", "^--nproc-per-node: 0 is not possible"),
        ("max_restarts", "1.5", "^--max-restarts: '1.5' is not a whole number"),
        ("run_id", "", "^--rdzv-id: must not be empty"),
        ("master_addr", "", "^--master-addr: must not be empty"),
        ("nnodes", "1:4", "^--nnodes: with several nodes --rdzv-endpoint .* where they meet"),
        ("node_rank", "1", "^--node-rank: 1 is not possible: .* whose rank is 0"),
        ("rdzv_backend", "etcd-v2", "etcd's version 3"),
        ("rdzv_endpoint", "node1", "needs a port, like node1:29500"),
        ("config", "", "^--config: must not be empty"),
        ("debugpy", "0", "^--debugpy: nobody would know what port 0 becomes"),
    ],
)
def test_refusals(made: Made, option: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(**{option: text})


def test_a_file_is_no_module(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(script).parent)
    asked = gather({"module": "true"}, "train.py", (), {})
    with pytest.raises(ConfigError, match="-m takes a module's name: give train, or leave -m out"):
        resolve(asked, {})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"no_python": "true"}, "with --no-python there is no Python to serve it"),
        ({"nproc_per_node": "4"}, "4 workers need the ports 65533 to 65536"),
    ],
)
def test_debugpy_is_refused_where_it_cannot_be(
    asked: Asked, options: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=f"^--debugpy: {said}"):
        resolve(asked({}, debugpy="65533", **options), {}, needs_target=False)


def test_while_torshrun_is_debugged_nobody_runs_out_of_time(asked: Asked) -> None:
    given = asked({}, hang_timeout="5", debugpy="5678", preload="none")
    job, notes = resolve(given, {}, is_debugged=True)
    assert (job.hang_timeout, job.agent_timeout, job.debugpy) == (0.0, 0.0, None)
    assert notes == tuple(
        f"{name} has no effect: torshrun runs in a debugger"
        for name in ("--hang-timeout", "--debugpy")
    )


def test_the_log_directory_may_not_be_a_file(made: Made, script: str) -> None:
    with pytest.raises(ConfigError, match="not a directory"):
        made(log_dir=script)
    with pytest.raises(ConfigError, match="there is no directory"):
        made(events=f"{script}/events.jsonl")


@pytest.mark.parametrize("variable", ["TORSH_MASTER_PORT", "PET_MASTER_PORT"])
def test_a_bad_variable_is_named(made: Made, variable: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{variable}: 70000"):
        made({variable: "70000"})


def test_options_win_over_torsh_over_pet(made: Made) -> None:
    environ = {"TORSH_NPROC_PER_NODE": "2", "PET_NPROC_PER_NODE": "3", "PET_MAX_RESTARTS": "5"}
    job = made(environ).job
    assert (job.nproc_per_node, job.max_restarts) == (2, 5)
    assert made(environ, nproc_per_node="4").job.nproc_per_node == 4


def test_variables_of_other_names(made: Made) -> None:
    environ = {
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7",
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${rank}> ",
        "TORCHELASTIC_HEALTH_CHECK_PORT": "9500",
        "PET_RDZV_ID": "j",
    }
    job = made(environ).job
    assert (job.shutdown_timeout, job.output.log_line_prefix_template, job.run_id) == (
        7.0,
        "<${rank}> ",
        "j",
    )
    assert job.metrics_port == ("127.0.0.1", 9500)
    assert made({**environ, "PET_SHUTDOWN_TIMEOUT": "8"}).job.shutdown_timeout == 8.0


@pytest.mark.parametrize(("text", "set_"), [("1", True), ("0", False), ("2", True), ("", False)])
def test_flags_by_variable(made: Made, text: str, set_: bool) -> None:
    assert made({"PET_VIRTUAL_LOCAL_RANK": text}).job.virtual_local_rank is set_


def test_an_empty_variable_is_none(made: Made) -> None:
    assert made({"PET_NPROC_PER_NODE": ""}).job.nproc_per_node == 1


def test_the_job_around_a_worker_gives_no_defaults(made: Made) -> None:
    outer = WorkerEnv(rank=3, world_size=4, local_rank=1, local_world_size=2, run_id="outer")
    around = {**outer.to_environ(), "TORCHELASTIC_ERROR_FILE": ""}
    assert made(around) == made()
    assert made({"MASTER_PORT": "1", "MASTER_ADDR": "x"}) == made()


def test_no_variable_of_workers_is_one_that_torshrun_is_told_something_by() -> None:
    read = {variable for option in OPTIONS for variable in option.environment}
    assert not ALL_VARIABLES & {*read, "TORSH_SECRET", "TORSH_ETCD_USER", "TORSH_ETCD_PASSWORD"}


def test_a_name_is_kept_wherever_it_is_given(made: Made) -> None:
    assert made({"TORSH_RUN_ID": "mine", "TORCHELASTIC_RUN_ID": "x"}).job.run_id == "mine"
    assert made({"PET_RDZV_ID": "mine"}).job.run_id == "mine"


def test_a_job_of_one_node_has_a_name_of_its_own(made: Made, asked: Asked) -> None:
    assert made().job.run_id == "a new name"
    several = made(nnodes="2", rdzv_backend="tcp", rdzv_endpoint="n0").job
    assert several.run_id == "none"  # nodes cannot know what another one made up


def test_one_worker_per_processor(made: Made) -> None:
    cpus = len(os.sched_getaffinity(0))
    assert made(nproc_per_node="cpu").job.nproc_per_node == cpus


def test_gpus_are_those_of_the_environment(made: Made) -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
    with pytest.raises(ConfigError, match=r"^PET_NPROC_PER_NODE: no GPU can be used"):
        made({**hidden, "PET_NPROC_PER_NODE": "gpu"})
    cpus = len(os.sched_getaffinity(0))
    assert made(hidden, nproc_per_node="auto").job.nproc_per_node == cpus


@pytest.mark.parametrize(
    ("flags", "kind", "notes"),
    [
        ({}, "script", 0),
        ({"run_path": "true"}, "path", 0),
        ({"run_path": "true", "no_python": "true"}, "path", 1),
        ({"run_path": "true", "module": "true"}, "path", 1),
        ({"module": "true"}, "module", 0),
    ],
)
def test_kinds(made: Made, flags: dict[str, str], kind: str, notes: int) -> None:
    resolution = made(**flags)
    assert (resolution.job.kind, len(resolution.notes)) == (kind, notes)


def test_modules_and_programs_exclude_each_other(made: Made) -> None:
    with pytest.raises(ConfigError, match=r"^--module and PET_NO_PYTHON exclude each other"):
        made({"PET_NO_PYTHON": "1"}, module="true")


@pytest.mark.parametrize(
    ("options", "addr", "port"),
    [
        ({"master_addr": "n1", "master_port": "29500"}, "n1", 29500),
        ({"rdzv_endpoint": "n1:29500"}, "n1", 29500),
        ({"rdzv_endpoint": "n1:29500", "rdzv_backend": "static"}, "n1", 29500),
        ({"rdzv_endpoint": "n1:29500", "rdzv_backend": "c10d"}, "127.0.0.1", 0),
        ({"rdzv_endpoint": "n1:29500", "rdzv_backend": "etcd", "nnodes": "1:1"}, "127.0.0.1", 0),
        ({"rdzv_endpoint": "localhost:0", "rdzv_backend": "c10d", "nnodes": "1"}, "127.0.0.1", 0),
        ({"master_addr": "[::1]", "node_rank": "0"}, "::1", 0),
    ],
)
def test_what_says_that_there_is_one_node_works_silently(
    made: Made, options: dict[str, str], addr: str, port: int
) -> None:
    resolution = made(**options)
    assert (resolution.job.master_addr, resolution.job.master_port) == (addr, port)
    assert resolution.notes == ()


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({"rdzv_backend": "c10d", "master_port": "29500"}, "--master-port has no effect: only"),
        (
            {"rdzv_endpoint": "a:1", "master_addr": "b"},
            "--master-addr has no effect: --rdzv-endpoint",
        ),
        (
            {"start_method": "fork"},
            "--start-method has no effect: workers are programs, not functions",
        ),
        ({"local_addr": "me"}, "--local-addr has no effect"),
        ({"monitor_interval": "5"}, "--monitor-interval has no effect"),
        ({"event_log_handler": "null"}, "--event-log-handler has no effect"),
        ({"logs_specs": "mine"}, "--logs-specs has no effect"),
        ({"rdzv_conf": "use_libuv=1,timeout=3"}, "--rdzv-conf: use_libuv has no effect"),
        ({"local_ranks_filter": "3,4"}, "names no worker: their local ranks are 0 to 0"),
        ({"standalone": "1", "nnodes": "2"}, "--nnodes has no effect: --standalone is given"),
        ({"standalone": "1", "node_rank": "1"}, "--node-rank has no effect"),
        ({"standalone": "1", "rdzv_backend": "etcd"}, "--rdzv-backend has no effect"),
        ({"standalone": "1", "rdzv_endpoint": "a:1"}, "--rdzv-endpoint has no effect"),
        ({"standalone": "1", "master_port": "29500"}, "--master-port has no effect"),
    ],
)
def test_what_comes_to_nothing_is_said_once(made: Made, options: dict[str, str], note: str) -> None:
    resolution = made(**options)
    assert len(resolution.notes) == 1
    assert note in resolution.notes[0]
    if "standalone" in options:
        assert (resolution.job.master_addr, resolution.job.master_port) == ("127.0.0.1", 0)


def test_a_note_names_the_variable(made: Made) -> None:
    notes = made({"PET_STANDALONE": "1", "PET_NNODES": "2:4"}).notes
    assert notes == ("PET_NNODES has no effect: --standalone is given",)


def test_standalone_makes_a_name_unless_one_is_given(made: Made) -> None:
    resolution = made(
        standalone="true", nnodes="1", rdzv_backend="c10d", rdzv_endpoint="localhost:0"
    )
    assert (resolution.job.run_id, resolution.notes) == ("a new name", ())
    assert made(standalone="true", run_id="mine").job.run_id == "mine"


def test_a_rank_of_another_node_is_no_mistake(made: Made) -> None:
    several = {"nnodes": "2", "rdzv_backend": "tcp", "rdzv_endpoint": "n0", "nproc_per_node": "4"}
    assert made(**several, ranks_filter="4-7").notes == ()
    (note,) = made(nproc_per_node="4", ranks_filter="4-7").notes
    assert note == "--ranks-filter names no worker: their ranks are 0 to 3"


def test_names_made_up_differ(asked: Asked) -> None:
    settings = asked(standalone="true")
    assert resolve(settings, {}).job.run_id != resolve(settings, {}).job.run_id


def test_scripts(tmp_path: Path) -> None:
    def script(name: str) -> str:
        return resolve(gather({}, name, (), {}), {}).job.target

    with pytest.raises(ConfigError, match="does not exist"):
        script(str(tmp_path / "none.py"))
    with pytest.raises(ConfigError, match="leave the word python3 out"):
        script("python3")
    with pytest.raises(ConfigError, match="is a directory"):
        script(str(tmp_path))
    with pytest.raises(ConfigError, match="must not be empty"):
        script("")
    (tmp_path / "__main__.py").write_text("")
    assert script(str(tmp_path)) == str(tmp_path)


def test_programs(tmp_path: Path) -> None:
    def program(name: str, path: str = "") -> str:
        settings = gather({"no_python": "true"}, name, (), {})
        return resolve(settings, {"PATH": path}).job.target

    tool = tmp_path / "tool"
    tool.write_text("")
    with pytest.raises(ConfigError, match="not executable"):
        program(str(tool))
    with pytest.raises(ConfigError, match="not in PATH"):
        program("tool", str(tmp_path))
    tool.chmod(0o755)
    assert program("tool", f"/nonexistent:{tmp_path}") == str(tool)
    with pytest.raises(ConfigError, match="does not exist"):
        program(f"{tmp_path}/nothing")
    with pytest.raises(ConfigError, match="is a directory"):
        program(f"{tmp_path}/")


def test_validation_needs_no_script() -> None:
    notes = resolve(gather({"start_method": "spawn"}, None, (), {}), {}, needs_target=False).notes
    assert len(notes) == 1
    with pytest.raises(ConfigError, match="--nnodes"):
        resolve(gather({"nnodes": "2"}, None, (), {}), {}, needs_target=False)
    with pytest.raises(ConfigError, match=r"^SCRIPT is missing"):
        resolve(gather({}, None, (), {}), {})


def test_a_launcher_above_is_told_why_the_job_failed(made: Made) -> None:
    assert made({"TORCHELASTIC_ERROR_FILE": "/x/error.json"}).job.error_file == "/x/error.json"
    assert made({"TORCHELASTIC_ERROR_FILE": ""}).job.error_file is None


def test_the_scratch_place_is_inside_the_outer_jobs(made: Made, tmp_path: Path) -> None:
    assert made({"TORSH_SCRATCH": str(tmp_path)}).job.scratch_place == str(tmp_path)
    assert made({"TORSH_SCRATCH": "/gone", "TMPDIR": "/var/tmp"}).job.scratch_place == "/var/tmp"


def test_stragglers_are_not_found_without_a_recorder(made: Made) -> None:
    off = {"TORSH_RECORDER": "off"}
    assert made(off).notes == ()
    (note,) = made(off, straggler_threshold="1.2").notes
    assert "TORSH_RECORDER" in note


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({}, "give --max-restarts, too"),
        ({"max_restarts": "1", "nnodes": "2", "rdzv_endpoint": "a"}, "it is for jobs of one node"),
        ({"max_restarts": "1", "pid_namespace": "true"}, "--pid-namespace excludes it"),
    ],
)
def test_copies_are_refused_where_none_takes_a_place(
    made: Made, others: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigError, match=f"--recover: .*{why}"):
        made(recover="true", **others)


def test_copies_need_restarts(made: Made) -> None:
    assert made(recover="true", max_restarts="1").job.recover
