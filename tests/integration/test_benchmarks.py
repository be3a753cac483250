"""Every benchmark in its quick form, on ours alone: what a change breaks is seen at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from support.etcd_servers import binary_or_skip
from support.hosts import needs_hosts
from support.loaded_programs import forked_programs
from support.processes import soon

from benchmarks import gpu
from benchmarks.gpu import CASES, measured

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TIMEOUT = 600
"""Seconds after which a benchmark hangs, however busy the machine is."""


def run(script: str, *arguments: str) -> str:
    """What the benchmark printed; it must have ended well."""
    command = [sys.executable, str(BENCHMARKS / script), "--quick", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def with_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has the processes of a benchmark forked with torch loaded, as loading it takes most of their
    time: torshrun's workers by torshrun, the others by this process.
    """
    pytest.importorskip("torch")
    monkeypatch.setenv("PET_PRELOAD", "torch._dynamo")
    monkeypatch.setenv("PET_STANDBYS", "0")
    with forked_programs():
        yield


def test_collectives(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    printed = run(
        "collectives.py", "--peers", "ours", "--registered", "--op", "all_reduce,all_to_all",
        "--sizes", "8,64Ki", "--json", str(record),
    )  # fmt: skip
    assert "all_to_all, float32" in printed
    samples = json.loads(record.read_text())["samples"]
    assert {sample["library"] for sample in samples} == {"ours", "registered", "memcpy"}
    assert {sample["nbytes"] for sample in samples} == {8, 65536}


def test_collectives_in_half_precision() -> None:
    printed = run("collectives.py", "--peers", "ours", "--dtype", "float16", "--sizes", "64Ki")
    assert "all_reduce, float16" in printed


def launched(script: str, *arguments: str) -> str:
    """The same of a script for torshrun."""
    launch = [sys.executable, "-m", "torshrun", "--nproc-per-node", "2"]
    command = [*launch, str(BENCHMARKS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_monitoring_scale() -> None:
    printed = run("monitoring_scale.py")
    assert "summaries of 1024 bytes" in printed
    assert "16 nodes have told something" in printed


def test_many_groups() -> None:
    assert "20 groups of 2 ranks" in launched("many_groups.py", "--groups", "20")


@pytest.mark.torch
@pytest.mark.usefixtures("with_torch")
def test_mesh() -> None:
    assert "ours, all axes" in run("mesh.py")


def test_checkpoint() -> None:
    assert "state of 8 MB over 2 ranks" in launched("checkpoint.py", "--quick")


def test_elastic_resume() -> None:
    launch = [sys.executable, "-m", "torshrun", "--nproc-per-node", "2", "--max-restarts", "3"]
    command = [*launch, "--restart-backoff", "0", str(BENCHMARKS / "elastic_resume.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("; 0 steps are lost") == 3


@pytest.mark.torch
@pytest.mark.usefixtures("with_torch")
def test_context_parallel() -> None:
    printed = launched("context_parallel.py", "--quick")
    assert "all_to_all" in printed
    assert "torch's context_parallel on gloo: " in printed


def test_compression_training(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setenv("PET_PRELOAD", "sklearn.datasets")  # which takes longer than the training
    monkeypatch.setenv("PET_STANDBYS", "0")
    printed = launched("compression_training.py", "--quick", "--compressors", "int8")
    assert "Digits" in printed
    assert "Gpt" in printed


@pytest.mark.torch
@pytest.mark.usefixtures("with_torch")
def test_rpc() -> None:
    printed = run("rpc.py", "--here", "--peers", "ours", "--what", "calls,memory,deaths")
    assert "calls in a window" in printed
    assert "2 deaths of one of 4 workers" in printed
    assert "memory grew" in printed


@pytest.mark.netns
@pytest.mark.torch
@needs_hosts
@pytest.mark.usefixtures("with_torch")
def test_ddp_network() -> None:
    printed = run("ddp_network.py", "--compressors", "topk:0.01")
    assert "hidden" in printed
    assert "times as fast as dense" in printed


@pytest.mark.netns
@needs_hosts
def test_clocks() -> None:
    printed = run("clocks.py")
    assert "0 effects before their causes" in printed
    assert "errors beyond their bound 0 <= 0: pass" in printed


@pytest.mark.netns
@needs_hosts
def test_network() -> None:
    printed = run("network.py", "--peers", "ours", "--sizes", "8,64Ki")
    rows = [line.split()[:2] for line in printed.splitlines() if line.lstrip().startswith("2x")]
    assert ["2x1", "8"] in rows
    assert ["2x2", "64Ki"] in rows
    assert "TCP alone: round trip" in printed


@pytest.mark.netns
@needs_hosts
def test_an_interrupted_network_benchmark_leaves_no_namespace() -> None:
    command = [sys.executable, str(BENCHMARKS / "network.py"), "--peers", "ours", "--rounds", "99"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert "round 1" in process.stderr.readline()
        started = psutil.Process(process.pid).children(recursive=True)
        assert {namespace_of(each) for each in started} - {namespace_of(psutil.Process())}
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(TIMEOUT) == 130
    assert soon(lambda: not any(each.is_running() for each in started), 10), started


def namespace_of(process: psutil.Process) -> str:
    """The network namespace that a process is in, and that ends with the last process in it."""
    return str(Path(f"/proc/{process.pid}/ns/net").readlink())


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("with_torch")
def test_torch_steps() -> None:
    printed = run("torch_steps.py", "--here", "--models", "DDP")
    assert "torsh/gloo" in printed
    assert "unedited/gloo" in printed


@pytest.mark.torch
@pytest.mark.usefixtures("with_torch")
def test_pipeline() -> None:
    assert "torch zb" in run("pipeline.py", "--what", "steps,split")


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("with_torch")
def test_pipeline_layers() -> None:
    printed = run("pipeline_layers.py")
    assert "zbv" in printed
    assert "tensors" in printed


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("with_torch")
def test_tensor_parallel() -> None:
    assert "ours/bare" in run("tensor_parallel.py", "--here")


def test_rendezvous() -> None:
    for backend in ("tcp", "memory"):
        assert "16 agents" in run("rendezvous.py", "--backend", backend)


@pytest.mark.etcd
def test_rendezvous_on_etcd() -> None:
    binary_or_skip("3.5")
    printed = run("rendezvous.py", "--bars")
    assert "16 agents: requests of each" in printed


def test_kernels(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    printed = run("kernels.py", "--json", str(record))
    kernels = {(f["dtype"], f["operation"]) for f in json.loads(record.read_text())["figures"]}
    assert {("bfloat16", "SUM"), ("bool", "MAX"), ("complex64", "PRODUCT")} <= kernels
    assert ("complex64", "MAX") not in kernels
    assert "GB/s" in printed


def test_compression(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    printed = run("compression.py", "--bars", "--json", str(record))
    assert "bytes: pass (9 of 9 checks" in printed
    figures = {f["compressor"]: f for f in json.loads(record.read_text())["figures"]}
    assert figures["topk:0.01"]["sent"] < figures["int8"]["sent"] < figures["fp16"]["sent"]


def test_tune_writes_a_file_that_the_backend_reads(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    run("tune.py", "--ranks", "2", "--output", str(path))
    assert set(json.loads(path.read_text())["shm"]["2"]) == {"whole_limit", "block_bytes"}
    from torsh_runtime.backends.native.tuning import TuningFile

    TuningFile.read({"TORSH_TUNING": str(path)}).tuning(2)


def test_recovery(request: pytest.FixtureRequest) -> None:
    """With --soak beside torchrun as well, whose agent and workers each load torch."""
    peers = ("torchft", "torchrun") if request.config.getoption("--soak") else ("torchft",)
    printed = run("recovery.py", "--peers", ",".join(peers))
    assert "2 workers, 1 kills, 10,000 parameters" in printed
    lines = [line.split() for line in printed.splitlines()]
    assert [len(line) for line in lines if line[:1] == ["join()"]] == [8], printed
    for peer in peers:  # one that is not installed is named as well
        is_measured = any(line[:1] == [peer] and len(line) == 8 for line in lines)
        assert is_measured or f"{peer}: not run, as it is not installed" in printed, printed


def test_a_peer_of_recovery_that_nobody_knows() -> None:
    command = [sys.executable, str(BENCHMARKS / "recovery.py"), "--peers", "gloo,mpi"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 2
    assert "unknown: mpi" in done.stderr


def test_corruption() -> None:
    printed = run("corruption.py")
    assert "2 ranks, 80,800 bytes of state, a check in 10 steps" in printed
    assert "8 samples: cost " in printed


def test_healing() -> None:
    printed = run("healing.py")
    assert "2 ranks, 2,097,152 bytes" in printed
    assert "memory: " in printed
    assert "meet: " in printed


def test_launch() -> None:
    printed = run("launch.py", "--launchers", "torshrun", "--json", os.devnull)
    assert "terminal, 80 B" in printed


def test_faults() -> None:
    rows = run("faults.py", "--ranks", "2").splitlines()
    assert rows
    assert all("1 times, 0 wrong accounts" in row for row in rows)


def test_death_notice(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    assert "the agent stops the others" in run("death_notice.py", "--json", str(record))
    assert set(json.loads(record.read_text())["times"]) == {"all_reduce", "recv", "no group"}


@pytest.mark.torch
def test_trace() -> None:
    pytest.importorskip("torch")
    assert "a traced step" in run("trace.py")


@pytest.mark.torch
@pytest.mark.usefixtures("with_torch")
def test_recorder() -> None:
    assert "all_reduce of 8 B: ns more" in run("recorder.py")


def test_sections() -> None:
    assert 'with section("data"), off: ns' in run("sections.py")


def test_stragglers() -> None:
    assert "rank right, of 1" in run("stragglers.py", "--only", "data")


@pytest.mark.netns
def test_overlap() -> None:
    assert "computed 0.5: off by" in run("overlap.py")


def test_rpc_publish(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    assert "all readers have it" in run("rpc_publish.py", "--json", str(record))
    assert json.loads(record.read_text())["mib"] == 8


@pytest.mark.netns
@pytest.mark.etcd
@pytest.mark.slow
@needs_hosts
def test_elasticity() -> None:
    assert "all members down for 4 s" in run("elasticity.py", "--only", "outage")


def test_memory() -> None:
    script = [str(BENCHMARKS / "memory.py"), "--mib", "1", "--rounds", "1"]
    command = [sys.executable, "-m", "torshrun", "--nproc-per-node", "2", *script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert "x memcpy" in done.stdout, done.stdout + done.stderr


def test_flight_faults() -> None:
    printed = run("flight_faults.py", "--bars")
    assert "faults explained: pass" in printed


@pytest.mark.torch
@pytest.mark.usefixtures("with_torch")
@pytest.mark.parametrize("name", CASES)
def test_each_case_of_gpus_measures_what_its_bars_are_for(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """On the CPU, which has no peaks; what is measured of the other figures means nothing here.
    Ranks are forked from this process, as torshrun would load torch anew for each case.
    """
    monkeypatch.setattr("benchmarks.gpu.command", started_by_hand)
    figures = measured(name, TIMEOUT, ["--quick", "--device", "cpu"])
    for bar in CASES[name].bars:
        assert {bar.what, bar.beside or bar.what} <= figures.keys()
    errors = [bar for bar in CASES[name].bars if "error" in bar.what or bar.unit == "s"]
    for bar in errors:
        assert figures[bar.what] <= bar.limit


def started_by_hand(name: str, folder: Path, options: Sequence[str]) -> list[str]:
    """The command that starts a case's ranks as processes of their own."""
    words = ["--outlive", str(CASES[name].ranks), str(gpu.WORKER), name, str(folder)]
    return [sys.executable, str(gpu.SPAWN), *words, *options]
