"""JAX under torshrun: scripts call jax.distributed.initialize() without arguments."""

from __future__ import annotations

import importlib.util
import re
import socket
from pathlib import Path

import pytest
from support.hosts import needs_address
from support.launchers import Bench

pytestmark = [
    pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="needs jax"),
    needs_address(socket.gethostname()),  # jax looks for its own
]

EXAMPLE = Path(__file__).parents[2] / "examples/jax_psum.py"
ON_CPU = {"JAX_PLATFORMS": "cpu"}
INSIDE_SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NODELIST": "elsewhere[1-9]",
    "SLURM_NTASKS": "9",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "0",
}
REPORT = """
import jax
jax.distributed.initialize()
print(jax.process_index(), "of", jax.process_count(), jax.devices("cpu")[-1].process_index)
"""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_sum_over_two_processes(bench: Bench) -> None:
    run = bench.run("torshrun", "--nproc-per-node=2", str(EXAMPLE), environ=ON_CPU)
    assert run.code == 0, run.err
    assert sorted(line for line in run.out.splitlines() if "holds" in line) == [
        f"[{rank}] process {rank} of 2: holds {held}, the sum is 15, peers [0, 1]"
        for rank, held in enumerate([[0, 1, 2], [3, 4, 5]])
    ]


def test_inside_a_slurm_job_the_agent_is_not_taken_for_the_worker(bench: Bench) -> None:
    given = {**ON_CPU, **INSIDE_SLURM}
    run = bench.run("torshrun", "--nproc-per-node=2", "probe.py", then=REPORT, environ=given)
    assert run.code == 0, run.err
    assert sorted(run.out.splitlines()) == ["[0] 0 of 2 1", "[1] 1 of 2 1"]


def test_after_a_restart_the_processes_meet_again(bench: Bench) -> None:
    then = REPORT + "restart == 0 and rank == 1 and os._exit(3)"
    options = ("--nproc-per-node=2", "--max-restarts=1", "--shutdown-timeout=1", "-m", "probe")
    run = bench.run("torshrun", *options, then=then, environ=ON_CPU)
    assert run.code == 0, run.err
    assert sorted(run.out.splitlines())[-2:] == ["[1] 1 of 2 1", "[1] 1 of 2 1"]
    assert len(run.seen) == 4


def test_a_python_that_ignores_the_environment_registers_by_itself(bench: Bench) -> None:
    by_hand = "from torsh_runtime.integrations import jax as door\ndoor.register()\n" + REPORT
    script = bench.folder / "isolated.py"
    for text, code in ((by_hand, 0), (REPORT, 1)):
        script.write_text(text)
        run = bench.run(
            "torshrun",
            "--no-python",
            "--role",
            f"expects-{code}",
            *isolated(str(script)),
            environ=ON_CPU,
        )
        assert run.code == code, run.err
    assert re.search("Number of processes must be defined", run.err)


def isolated(script: str) -> list[str]:
    import sys

    return [sys.executable, "-I", script]


def test_each_of_several_processes_is_given_one_gpu(bench: Bench) -> None:
    then = REPORT + (
        "from jax._src.xla_bridge import CUDA_VISIBLE_DEVICES as gpus; print('sees', gpus.value)"
    )
    run = bench.run("torshrun", "--nproc-per-node=2", "probe.py", then=then, environ=ON_CPU)
    assert run.code == 0, run.err
    assert sorted(line for line in run.out.splitlines() if "sees" in line) == [
        "[0] sees 0",
        "[1] sees 1",
    ]
