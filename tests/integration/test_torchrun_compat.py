"""What workers see under torshrun, compared with what they see under torchrun."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.launchers import Bench, Run
from support.ports import free_port

from torsh_runtime.contract import ALL_VARIABLES, COMMIT_MEMORY
from torshrun.config.command_line import TORCHRUNS

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="compares with torch's own"),
]

VOLATILE = {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "PROBED"}
"""Differ from run to run."""
DIFFERENT = {"MASTER_ADDR", "OMP_NUM_THREADS", "TORCHELASTIC_USE_AGENT_STORE"}
"""Have another value than under torchrun, as the table says."""
OWN = {
    *ALL_VARIABLES,
    COMMIT_MEMORY,
    "OMP_NUM_THREADS",
    "PYTHONFAULTHANDLER",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
}
"""What torshrun may set."""
SIZED = ("--nproc-per-node", "4", "--max-restarts", "2", "--role", "trainer", "--rdzv-id", "job7")
SET = {"OMP_NUM_THREADS": "7", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
C10D = ("--nnodes", "1:1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


def environs(run: Run) -> list[dict[str, str]]:
    return [run.seen[key]["environ"] for key in sorted(run.seen)]


def common(environ: dict[str, str]) -> dict[str, str]:
    """What ought to be equal under both."""
    left_out = VOLATILE | DIFFERENT
    return {name: value for name, value in environ.items() if name not in left_out}


def test_four_workers_find_every_variable_of_torchrun(bench: Bench) -> None:
    ours, theirs = bench.both(*SIZED, *C10D, "probe.py")
    assert (ours.code, theirs.code) == (0, 0), ours.err
    assert len(ours.seen) == len(theirs.seen) == 4
    for our, their in zip(environs(ours), environs(theirs), strict=True):
        assert their.keys() - our.keys() <= {"TORCHELASTIC_SIGNALS_TO_HANDLE"}
        expected = common(their)
        expected.pop("TORCHELASTIC_SIGNALS_TO_HANDLE")
        assert common(our).items() >= expected.items()


def test_one_worker_finds_every_variable_of_torchrun(bench: Bench) -> None:
    ours, theirs = bench.both("probe.py")
    our, their = environs(ours)[0], environs(theirs)[0]
    made_up = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
    expected = {name: value for name, value in common(their).items() if name not in made_up}
    assert common(our).items() >= expected.items()
    for environ in (our, their):
        assert len(environ["TORCHELASTIC_RUN_ID"]) >= 16  # made up, whatever it is


def test_nothing_is_set_but_what_the_contract_says(bench: Bench) -> None:
    ours = bench.run("torshrun", *SIZED, *C10D, "probe.py")
    inherited = {"PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TMPDIR"}
    for environ in environs(ours):
        assert environ.keys() - inherited - {"PROBED", "THEN", "LC_CTYPE", "PWD"} <= OWN


def test_the_addresses(bench: Bench) -> None:
    for environ in environs(bench.run("torshrun", *SIZED, *C10D, "probe.py")):
        assert environ["MASTER_ADDR"] == "127.0.0.1"
        assert 1 <= int(environ["MASTER_PORT"]) <= 65535
        assert environ["TORCHELASTIC_USE_AGENT_STORE"] == "False"
        host, _, port = environ["JAX_COORDINATOR_ADDRESS"].rpartition(":")
        assert host == environ["MASTER_ADDR"]
        assert port != environ["MASTER_PORT"]


def test_threads_share_the_processors_and_ones_own_number_is_kept(bench: Bench) -> None:
    allowed = len(os.sched_getaffinity(0))
    for environ in environs(bench.run("torshrun", *SIZED, *C10D, "probe.py")):
        assert environ["OMP_NUM_THREADS"] == str(max(1, allowed // 4))
    for run in bench.both("--nproc-per-node", "2", "probe.py", environ=SET):
        assert all(environ["OMP_NUM_THREADS"] == "7" for environ in environs(run))


def test_ones_own_choice_for_nccl_is_kept(bench: Bench) -> None:
    for run in bench.both("--nproc-per-node", "2", "probe.py", environ=SET):
        assert all(environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3" for environ in environs(run))


def surroundings(worker: Any) -> Any:
    names = ("argv", "cwd", "path0", "name", "file", "executable", "unbuffered", "leader")
    return {name: worker[name] for name in names}


ARGUMENTS = ("--nproc-per-node", "9", "a b", "--", "", "-m", "local_rank=${local_rank}")


@pytest.mark.parametrize("kind", [("probe.py",), ("-m", "probe"), ("./probe.py",)], ids=str)
def test_a_script_sees_the_same_surroundings(bench: Bench, kind: tuple[str, ...]) -> None:
    ours, theirs = bench.both("--nproc-per-node=2", *kind, *ARGUMENTS)
    for rank in range(2):
        assert surroundings(ours.worker(rank)) == surroundings(theirs.worker(rank))
    assert ours.worker(1)["argv"][-1] == "local_rank=1"


def test_run_path_sees_the_same_script(bench: Bench) -> None:
    script = str(bench.folder / "probe.py")
    ours, theirs = bench.both("--run-path", "--no-python", script, "x", "-y")
    ours_seen, theirs_seen = surroundings(ours.worker()), surroundings(theirs.worker())
    for seen in (ours_seen, theirs_seen):
        del seen["leader"], seen["unbuffered"]  # torchrun makes a child by multiprocessing
    assert ours_seen == theirs_seen
    assert ours.worker()["leader"]


def lines(text: str) -> list[str]:
    """Without the prefixes, in any order."""
    return sorted(line.partition("] ")[2] if line[:1] == "[" else line for line in text.split("\n"))


def test_programs(bench: Bench) -> None:
    command = ("sh", "-c", 'echo "$RANK of $WORLD_SIZE: $0 $1"; cat', "zero", "one two")
    ours, theirs = bench.both("--nproc-per-node=2", "--no-python", *command, stdin="")
    assert (ours.code, theirs.code) == (0, 0)
    assert (
        lines(ours.out) == lines(theirs.out) == ["", "0 of 2: zero one two", "1 of 2: zero one two"]
    )


def test_another_interpreter(bench: Bench) -> None:
    wrapper = bench.folder / "python"
    wrapper.write_text(f'#!/bin/sh\nWRAPPED=yes exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    given = {"PYTHON_EXEC": str(wrapper)}
    for run in bench.both("probe.py", environ=given):
        assert run.worker()["environ"]["WRAPPED"] == "yes"


def test_stdin_reaches_the_worker(bench: Bench) -> None:
    ours, theirs = bench.both("--no-python", "cat", stdin="from the keyboard\n")
    assert lines(ours.out) == lines(theirs.out) == ["", "from the keyboard"]


def test_virtual_local_rank(bench: Bench) -> None:
    given = {"CUDA_VISIBLE_DEVICES": "5,6,GPU-7"}
    options = ("--virtual-local-rank", "--nproc-per-node", "3", "probe.py")
    ours, theirs = bench.both(*options, environ=given)
    expected = [("0", "5"), ("0", "6"), ("0", "GPU-7")]
    for run in (ours, theirs):
        seen = [(found["LOCAL_RANK"], found["CUDA_VISIBLE_DEVICES"]) for found in environs(run)]
        assert seen == expected
    assert [environ["TORSH_LOCAL_RANK"] for environ in environs(ours)] == ["0", "1", "2"]


def test_virtual_local_rank_without_a_list_of_gpus(bench: Bench) -> None:
    options = ("--virtual-local-rank", "--nproc-per-node", "2", "probe.py")
    ours, theirs = bench.both(*options)
    for name in ("LOCAL_RANK", "CUDA_VISIBLE_DEVICES"):
        assert [e[name] for e in environs(ours)] == [e[name] for e in environs(theirs)]


def place(run: Run) -> list[dict[str, str]]:
    names = ("WORLD_SIZE", "ROLE_NAME", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID")
    return [{name: environ[name] for name in names} for environ in environs(run)]


def test_defaults_from_the_environment(bench: Bench) -> None:
    given = {
        "PET_NPROC_PER_NODE": "3",
        "PET_ROLE": "from-environment",
        "PET_MAX_RESTARTS": "4",
        "PET_RDZV_ID": "pet",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "localhost:0",
        "PET_MODULE": "1",
        "PET_STANDALONE": "0",
    }
    ours, theirs = bench.both("--nproc-per-node", "2", "probe", environ=given)
    assert place(ours) == place(theirs)
    assert place(ours)[0]["WORLD_SIZE"] == "2"
    assert place(ours)[0]["ROLE_NAME"] == "from-environment"
    assert given.keys() <= environs(theirs)[0].keys()
    assert given.keys().isdisjoint(environs(ours)[0])


def test_abbreviations_and_underscores(bench: Bench) -> None:
    options = ("--nnode", "1", "--nproc_per_no=2", "--max-rest", "1", "--rdzv_i", "short")
    backend = ("--rdzv_backend=c10d", "--rdzv_endpoint", "localhost:0", "--rol", "r")
    ours, theirs = bench.both(*options, *backend, "probe.py")
    assert place(ours) == place(theirs)
    assert len(ours.seen) == 2


def test_one_node_has_a_new_name_each_time(bench: Bench) -> None:
    jobs = [(), ("--nproc-per-node", "1"), ("--standalone",), ("--standalone", "--role", "r")]
    runs = [bench.run("torshrun", *options, "probe.py") for options in jobs]
    assert len({place(run)[0]["TORCHELASTIC_RUN_ID"] for run in runs}) == len(jobs)


@pytest.mark.parametrize("by", ["master", "endpoint"])
def test_a_given_address_is_the_workers(bench: Bench, by: str) -> None:
    port = str(free_port())
    options = {
        "master": ("--master-addr", "127.0.0.1", "--master-port", port),
        "endpoint": ("--rdzv-backend", "static", "--rdzv-endpoint", f"127.0.0.1:{port}"),
    }[by]
    for run in bench.both("--node-rank", "0", *options, "probe.py"):
        environ = run.worker()["environ"]
        assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == ("127.0.0.1", port)


def test_every_option_of_torchrun_is_accepted_in_both_spellings(bench: Bench) -> None:
    values = {
        "--nnodes": "1:1",
        "--nproc-per-node": "1",
        "--rdzv-backend": "static",
        "--rdzv-endpoint": "",
        "--rdzv-conf": "join_timeout=60,timeout=900",
        "--monitor-interval": "0.5",
        "--start-method": "fork",
        "--redirects": "0",
        "--tee": "0:1,1:2",
        "--local-ranks-filter": "0",
        "--duplicate-stdout-filters": "a,b",
        "--duplicate-stderr-filters": "a,,b",
        "--log-dir": str(bench.folder / "tmp"),
        "--node-rank": "0",
        "--master-addr": "127.0.0.1",
        "--master-port": "0",
        "--local-addr": "127.0.0.1",
        "--numa-binding": "node",
        "--signals-to-handle": "SIGTERM,SIGINT",
        "--shutdown-timeout": "5",
        "--max-restarts": "1",
    }
    for spell in (str, lambda name: "--" + name[2:].replace("-", "_")):
        words = ["--print-config"]
        for option in sorted(options_of_torchrun() - {"--print-completion"}):  # prints that instead
            flag = option in FLAGS
            words += [spell(option)] if flag else [spell(option), values.get(option, "text")]
        run = bench.run("torshrun", *(word for word in words if word != "--no-python"), "probe.py")
        assert run.code == 0, run.err


FLAGS = {"--standalone", "--module", "--no-python", "--run-path", "--virtual-local-rank"}


@functools.cache
def options_of_torchrun() -> set[str]:
    """The long spelling of each, with dashes, as torch's own parser has them."""
    code = (
        "from torch.distributed.run import get_args_parser\n"
        "for action in get_args_parser()._actions:\n"
        "    print(max(action.option_strings, key=len, default=''))"
    )
    command = [sys.executable, "-c", code]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return {name.replace("_", "-") for name in listed.stdout.split()} - {"--help"}


def test_the_options_of_torchrun_are_those_that_abbreviations_count_with() -> None:
    """Those of torch 2.14 do not count, so that what was unambiguous before still is."""
    names = {name[2:].replace("-", "_") for name in options_of_torchrun()}
    new = {"print_completion", "log_line_prefix_template"}
    assert {*TORCHRUNS.split()} - new == (names | {"help"}) - new


def test_every_option_of_torchrun_has_a_row_in_the_table() -> None:
    table = (Path(__file__).parents[2] / "docs/torchrun-compatibility.md").read_text()
    assert [option for option in options_of_torchrun() if f"`{option}`" not in table] == []


def test_what_has_no_effect_says_so(bench: Bench) -> None:
    run = bench.run("torshrun", "--start-method", "fork", "--monitor-interval=1", "probe.py")
    assert run.code == 0
    assert "--start-method has no effect" in run.err
    assert "--monitor-interval has no effect" in run.err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--nproc-per-node", "many"), "--nproc-per-node"),
        (("--nnodes", "2:1"), "--nnodes"),
        (("--rdzv-backend", "etcd-v2"), "etcd"),
        (("--no-such-option",), "--no-such-option"),
        (("--max-restarts", "-1"), "--max-restarts"),
    ],
)
def test_bad_usage_starts_nothing(bench: Bench, options: tuple[str, ...], complaint: str) -> None:
    run = bench.run("torshrun", *options, "probe.py")
    assert (run.code, run.seen) == (2, {})
    assert complaint in run.err


def test_a_script_that_is_not_there_starts_nothing(bench: Bench) -> None:
    ours, theirs = bench.both("no-such-script.py")
    assert ours.code == 2
    assert "no-such-script.py" in ours.err
    assert theirs.code == 1  # torchrun starts workers, which fail


def test_the_bench_itself(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    run = bench.run("torshrun", "probe.py", then="sys.exit(5)")
    assert (run.code, [*run.seen]) == (5, [(0, 0)])
    assert bench.run("torshrun", "probe.py", then="sys.exit(5)") is run
