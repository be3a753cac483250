"""Jobs on machines whose GPUs are made up: real agents, over a library that tells of GPUs."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.launcher import Launcher
from support.nodes import QUICK, Job
from support.nvml import MISSING, FakeNvml, may_mount, on_gpu_machine
from support.ports import free_port
from support.processes import soon

from torshrun import exit_codes

pytestmark = pytest.mark.skipif(not may_mount(), reason=MISSING)


class GpuNode:
    """A machine with four GPUs, and the state of these."""

    def __init__(self, folder: Path) -> None:
        self.nvml = FakeNvml(folder / "nvml")
        self.nvml.tell({})
        self.within = ["env", *(f"{name}={value}" for name, value in self.nvml.environ.items())]
        self.within += on_gpu_machine(folder / "tree")
        self.state = self.nvml.environ["FAKE_NVML"]


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    with Launcher(tmp_path) as made:
        yield made


@pytest.fixture
def node(tmp_path: Path) -> GpuNode:
    return GpuNode(tmp_path / "machine")


def run(launcher: Launcher, node: GpuNode, *argv: str) -> tuple[int, str]:
    process = launcher.start(*argv, within=node.within)
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


def test_a_job_runs_on_gpus_that_are_well(launcher: Launcher, node: GpuNode) -> None:
    node.nvml.tell({}, ["xid 1 31"])
    script = launcher.script("print('ran', os.environ['LOCAL_RANK'])")
    code, output = run(launcher, node, "--nproc-per-node=gpu", script)
    assert code == 0, output
    assert all(f"ran {rank}" in output for rank in range(4))
    assert "GPU 1 (0000:2b:00.0): Xid 31, which a program may have caused" in output


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"failed": 1}, "row remapping failed"),
        ({"error": 15}, "cannot be reached (GPU is lost)"),
    ],
)
def test_workers_do_not_start_beside_a_broken_gpu(
    launcher: Launcher, node: GpuNode, facts: dict[str, int], why: str
) -> None:
    node.nvml.tell({2: facts})
    script = launcher.script("open('ran', 'w')")
    events = launcher.folder / "events"
    code, output = run(launcher, node, "--nproc-per-node=gpu", f"--events={events}", script)
    assert code == exit_codes.GPU_BROKEN, output
    assert f"GPU 2 (0000:3b:00.0): {why}" in output
    assert "take the node out" in output
    assert "A job that uses no GPU runs there with CUDA_VISIBLE_DEVICES= (empty)" in output
    assert not (launcher.folder / "ran").exists()
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert [each["kind"] for each in told if each["event"] == "root_cause"] == ["GPU failed"]


def test_a_job_that_hides_gpus_does_not_mind_a_broken_one(
    launcher: Launcher, node: GpuNode
) -> None:
    node.nvml.tell({2: {"error": 15}})
    launcher.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
    code, output = run(launcher, node, "--nproc-per-node=1", launcher.script("print('ran')"))
    assert (code, "ran" in output) == (0, True), output


def test_a_job_that_names_no_gpu_runs_beside_a_broken_one(
    launcher: Launcher, node: GpuNode
) -> None:
    node.nvml.tell({2: {"failed": 1}})
    script = launcher.script("""
        print("ran")
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("mine")
    """)
    code, output = run(launcher, node, "--nproc-per-node=1", "--max-restarts=1", script)
    assert (code, output.count("row remapping failed")) == (0, 1), output
    assert "workers start, as nothing says that this job uses GPUs" in output
    assert "attempt 1 of 2" in output


def test_a_job_that_names_no_gpu_does_not_wait_for_their_driver(
    launcher: Launcher, node: GpuNode
) -> None:
    node.nvml.tell({}, ["hang"])
    begun = time.monotonic()
    code, output = run(launcher, node, "--nproc-per-node=1", launcher.script("print('ran')"))
    assert (code, output) == (0, "[0] ran\n"), output
    assert time.monotonic() - begun < 15


@pytest.mark.parametrize(
    ("options", "visible"),
    [
        (["--nproc-per-node=4"], ""),
        (["--nproc-per-node=1", "--virtual-local-rank"], ""),
        (["--nproc-per-node=1"], "2"),
        (["--nproc-per-node=1"], "GPU-2a2b"),
    ],
)
def test_a_job_that_names_gpus_does_not_start_beside_a_broken_one(
    launcher: Launcher, node: GpuNode, options: list[str], visible: str
) -> None:
    node.nvml.tell({2: {"failed": 1}})
    if visible:
        launcher.environ["CUDA_VISIBLE_DEVICES"] = visible
    code, output = run(launcher, node, *options, launcher.script("print('ran')"))
    assert (code, "ran" in output) == (exit_codes.GPU_BROKEN, False), output


@pytest.mark.parametrize(
    "failure",
    [
        "raise RuntimeError('No CUDA GPUs are available')",
        "print('NCCL WARN Cuda failure 101', file=sys.stderr); sys.exit(1)",
    ],
)
def test_a_failure_that_tells_of_gpus_beside_a_broken_one_ends_the_restarts(
    launcher: Launcher, node: GpuNode, failure: str
) -> None:
    node.nvml.tell({2: {"failed": 1}})
    script = launcher.script(failure)
    code, output = run(launcher, node, "--nproc-per-node=1", "--max-restarts=3", script)
    assert code == exit_codes.GPU_BROKEN, output
    assert "restarting" not in output


@pytest.mark.parametrize("when", ["start", "failure"])
def test_a_stop_request_does_not_wait_for_a_driver(
    launcher: Launcher, node: GpuNode, when: str
) -> None:
    node.nvml.tell({}, ["hang"] if when == "start" else [])
    script = launcher.script(f"""
        open({node.state!r}, "a").write("hang\\n")
        open("ran", "w")
        raise ValueError("mine")
    """)
    process = launcher.start("--nproc-per-node=4", "--max-restarts=3", script, within=node.within)
    if when == "failure":
        launcher.wait_for("ran")
    time.sleep(2)
    process.send_signal(signal.SIGTERM)
    begun = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - begun < 8, out + err


def test_a_driver_that_hangs_leaves_no_process_of_a_killed_agent(
    launcher: Launcher, node: GpuNode
) -> None:
    node.nvml.tell({}, ["hang"])
    script = launcher.script("open('ran', 'w'); time.sleep(60)")
    process = launcher.start("--nproc-per-node=1", script, within=node.within)
    launcher.wait_for("ran")
    assert soon(lambda: len(asking(node)) == 1)
    process.kill()
    process.communicate(timeout=60)
    assert soon(lambda: not asking(node))


def asking(node: GpuNode) -> list[str]:
    """The processes that ask this node's library."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            asks = b"nvml.py" in (process / "cmdline").read_bytes()
            if asks and node.state.encode() in (process / "environ").read_bytes():
                found.append(process.name)
    return found


@pytest.mark.parametrize(
    ("facts", "line", "why"),
    [
        ("ecc=3", "", "uncorrectable ECC errors: 3 since the last round"),
        ("ecc=0", "xid 0 79", "Xid 79, fallen off the bus"),
    ],
)
def test_a_gpu_that_breaks_ends_the_restarts(
    launcher: Launcher, node: GpuNode, facts: str, line: str, why: str
) -> None:
    launcher.environ["CUDA_VISIBLE_DEVICES"] = "0,1"  # so workers wait for the first reading
    script = launcher.script(f"""
        import sys
        path = {node.state!r}
        text = open(path).read().replace(" 61 0 0", " 61 {facts.removeprefix("ecc=")} 0", 1)
        open(path, "w").write(text + {line!r} + "\\n")
        raise RuntimeError("CUDA error: unspecified launch failure")
    """)
    code, output = run(launcher, node, "--nproc-per-node=1", "--max-restarts=3", script)
    assert code == exit_codes.GPU_BROKEN, output
    assert f"GPU 0 (0000:1b:00.0): {why}" in output
    assert "RuntimeError: CUDA error: unspecified launch failure" in output
    assert "attempt 1 of 4: this node leaves the job, as its GPUs cannot be used" in output
    assert "restarting" not in output


def test_a_worker_that_a_gpu_ended_is_not_replaced(launcher: Launcher, node: GpuNode) -> None:
    launcher.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
    script = launcher.script(f"""
        import signal
        import numpy as np
        import torsh_runtime as tr
        from torsh_runtime import nn, optim
        tr.init_process_group()
        model = tr.DistributedDataParallel(nn.Linear(2, 1))
        sampler = tr.elastic.ElasticSampler(64, 2)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        job = tr.elastic.join(model=model, optimizer=optimizer, sampler=sampler)
        for step in job.steps(1000):
            with step:
                loss = model(nn.Tensor(np.ones((2, 2)))).mean()
                loss.backward()
                if step.number == 5 and tr.get_rank() == 1:
                    open({node.state!r}, "a").write("xid 0 79\\n")
                    os.kill(os.getpid(), signal.SIGKILL)
                step.commit()
    """)
    code, output = run(launcher, node, "--nproc-per-node=2", "--max-restarts=3", script)
    assert code == exit_codes.GPU_BROKEN, output
    assert "Xid 79, fallen off the bus" in output
    assert "killed by SIGKILL" in output
    assert "replaced while" not in output


def test_a_failure_beside_gpus_that_are_well_is_restarted(
    launcher: Launcher, node: GpuNode
) -> None:
    script = launcher.script("raise ValueError('mine')")
    options = "--nproc-per-node=1", "--max-restarts=1", "--retry-same-start"
    code, output = run(launcher, node, *options, script)
    assert code == exit_codes.BUDGET_SPENT, output
    assert "attempt 2 of 2: the job has failed, no restarts left" in output


def test_a_node_with_a_broken_gpu_leaves_and_the_others_go_on(
    launcher: Launcher, node: GpuNode, tmp_path: Path
) -> None:
    other = GpuNode(tmp_path / "other")
    other.nvml.tell({3: {"failed": 1}})
    script = launcher.script("""
        if os.environ["WORLD_SIZE"] == "2":
            time.sleep(60)
        print("ran on", os.environ["WORLD_SIZE"])
    """)
    conf = QUICK.replace("last_call_timeout=0.5", "last_call_timeout=10")
    launcher.environ["CUDA_VISIBLE_DEVICES"] = "0,3"
    with Job.over_tcp(launcher, "1:2", "--nproc-per-node=1", conf=conf) as job:
        well = job.start(script, within=node.within)
        well.wait_for("serves the job's store")
        broken = job.start(script, within=other.within)
        code, output = broken.end()
        assert code == exit_codes.GPU_BROKEN, output
        assert "GPU 1 (0000:4b:00.0): row remapping failed" in output
        code, output = well.end()
        assert code == 0, output
        assert "GPU 1 (0000:4b:00.0): row remapping failed" in output
        assert "ran on 1" in output


def test_a_gpu_that_breaks_costs_the_others_no_restart(
    launcher: Launcher, node: GpuNode, tmp_path: Path
) -> None:
    other = GpuNode(tmp_path / "other")
    script = launcher.script("""
        if os.environ["WORLD_SIZE"] == "1":
            print("ran on, restarts:", os.environ["TORCHELASTIC_RESTART_COUNT"])
            sys.exit()
        if os.environ["BREAKS"]:
            open(os.environ["BREAKS"], "a").write("xid 0 79\\n")
            raise RuntimeError("CUDA error: unspecified launch failure")
        time.sleep(60)
    """)
    conf = QUICK.replace("last_call_timeout=0.5", "last_call_timeout=10")
    options = "--nproc-per-node=1", "--max-restarts=1"
    with Job.over_tcp(launcher, "1:2", *options, conf=conf) as job:
        well = job.start(script, within=["env", "BREAKS=", *node.within])
        well.wait_for("serves the job's store")
        broken = job.start(script, within=["env", f"BREAKS={other.state}", *other.within])
        code, output = broken.end()
        assert code == exit_codes.GPU_BROKEN, output
        assert "this node leaves the job, as its GPUs cannot be used" in output
        code, output = well.end()
        assert code == 0, output
        assert "Xid 79, fallen off the bus" in output
        assert "ran on, restarts: 0" in output


def test_metrics_tell_of_gpus_at_each_scrape(launcher: Launcher, node: GpuNode) -> None:
    script = launcher.script("""
        open("running", "w")
        while not os.path.exists("end"):
            time.sleep(0.05)
    """)
    port = free_port()
    options = "--nproc-per-node=1", f"--metrics-port={port}"
    process = launcher.start(*options, script, within=node.within)
    launcher.wait_for("running")
    assert 'torsh_gpu_temperature{gpu="0",rank="0"} 61.0' in scraped(port)
    node.nvml.tell({0: {"power": 99_000}}, ["xid 0 31"])
    text = scraped(port)
    assert 'torsh_gpu_power_watts{gpu="0",rank="0"} 99.0' in text
    assert 'torsh_gpu_xid_total{gpu="0",rank="0"} 1.0' in text
    launcher.make("end")
    assert process.wait(60) == 0


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as response:
        return str(response.read().decode())
