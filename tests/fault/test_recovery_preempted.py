"""Nodes that a real Slurm preempts, while the workers of the others keep their processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ports import free_port
from support.processes import soon
from support.slurm import Job, SlurmCluster
from support.trainings import SCRIPT, START, TOGETHER, check_as_undisturbed, outcome

pytestmark = pytest.mark.slurm

STEPS, NODES = 300, 4
BATCH = """#!/bin/bash
#SBATCH --nodes=1 --ntasks=1 --cpus-per-task=4 --time=30 --requeue --open-mode=append
exec torshrun --nnodes 2:{nodes} --nproc-per-node 1 --max-restarts 3 --rdzv-backend tcp \\
    --rdzv-endpoint 127.0.0.1:{port} --rdzv-conf {conf} {script} nn {steps}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with SlurmCluster() as running:
        yield running


def sees(jobs: list[Job], size: int) -> bool:
    """Whether steps are committed by so many ranks now."""
    steps = outcome([job.output for job in jobs]).steps
    return bool(steps) and len(next(iter(steps[max(steps)])).split()) - 1 == 12 // size


def test_two_of_four_nodes_are_preempted_and_come_back(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    fast = tmp_path / "fast"
    environ = {"PAUSE": "0.4", "FAST": str(fast)}
    batch = BATCH.format(nodes=NODES, port=free_port(), conf=TOGETHER, script=SCRIPT, steps=STEPS)
    first = cluster.submit(batch, environ=environ)
    first.wait_for("serves the job's store")
    jobs = [first, *(cluster.submit(batch, environ=environ) for _ in range(NODES - 1))]
    assert soon(lambda: sees(jobs, 4), 60), first.told()
    for job in jobs[2:]:
        cluster.call("scontrol", "requeue", job.number)
    assert soon(lambda: sees(jobs[:2], 2), 60), first.told()
    for job in jobs[2:]:
        job.wait_until("Restarts", "1")
    assert soon(lambda: sees(jobs[:2], 4), 150), first.told()
    fast.touch()
    assert [job.end() for job in jobs] == ["COMPLETED"] * NODES, first.told()
    starts = [len(START.findall(job.output)) for job in jobs]
    assert starts == [1, 1, 2, 2], "\n".join(job.told() for job in jobs)
    sizes = check_as_undisturbed(outcome([job.output for job in jobs]), tmp_path)
    assert sizes[-1] == 4
    assert 2 in sizes[sizes.index(4) :]
