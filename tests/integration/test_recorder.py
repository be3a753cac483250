"""What workers of real jobs record of messages, waits, batches and groups, with each backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import marked, soon
from support.recorded_job import RecordedJob

SCRIPT = """
import os, sys, time
import numpy as np
import torsh_runtime as tr
from torsh_runtime.monitoring.notes import groups_of
from torsh_runtime.monitoring.recording import own_recording

def recent(*names):
    return [each for each in tr.monitoring.recent_operations() if each.operation in names]

def groups():
    return {(each.name, each.size, each.ranks) for each in groups_of(own_recording().words())}
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RecordedJob]:
    made = RecordedJob(tmp_path, SCRIPT)
    yield made
    assert soon(lambda: not marked(made.mark)), marked(made.mark)


def test_messages_batches_and_groups_of_the_native_backend(job: RecordedJob) -> None:
    err = job.run(
        4,
        """
        world = tr.init_process_group()
        rank, peer = tr.get_rank(), tr.get_rank() ^ 1
        pair = tr.new_group([0, 1], group_desc="first two")
        odd = tr.new_group([3, 1], sort_ranks=False)
        mesh = tr.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        mesh["tp"].get_group().all_reduce(np.ones(1))
        both = np.zeros((2, 4), np.float32)
        ops = [tr.P2POp(tr.isend, both[0], peer), tr.P2POp(tr.irecv, both[1], peer)]
        for work in tr.batch_isend_irecv(ops):
            work.wait()
        with tr.coalesce(async_op=True) as work:
            for array in both:
                tr.all_reduce(array)
        work.wait()
        (first, second) = recent("batch")
        assert (first.elements, first.nbytes, first.sequence) == (2, 0, 1), first
        assert (second.elements, second.sequence, second.group) == (2, 2, 0), second
        (sent,), (received,) = recent("send"), recent("recv")
        for each in (sent, received):
            told = (each.root, each.sequence, each.nbytes, each.in_background, each.path)
            assert told == (peer, 1, 16, True, "shared memory"), each
        assert received.came is not None and sent.came is None
        (reduced,) = (each for each in recent("all_reduce") if each.group == 0)
        assert (reduced.arrays, reduced.in_background) == (2, True), reduced
        numbers = {each.number: each for each in tr.monitoring.recent_operations()}
        for wait in recent("wait"):
            assert wait.sequence == numbers[wait.awaited].sequence, wait
        expected = {("default", 4, "0-3"), ("tp", 2, f"{rank & 2}-{rank | 1}")}
        expected |= {("first two", 2, "0-1")} if rank < 2 else set()
        expected |= {("", 2, "3,1")} if rank % 2 else set()
        assert groups() == expected, groups()
        stats = tr.monitoring.DistributedMonitor().get_stats()
        assert stats.total_communications == 0
        tr.barrier()
        if os.fork() == 0:  # what a fork does is not its parent's
            try:
                world.barrier()
            except tr.CommError:
                os._exit(0)
        assert os.wait()[1] == 0
        assert len(recent("barrier")) == len([each for each in numbers.values()
                                              if each.operation == "barrier"]) + 1
        """,
    )
    assert err == ""


def test_who_never_sent_is_named(job: RecordedJob) -> None:
    job.run(
        3,
        """
        tr.init_process_group(timeout=3)
        rank, array = tr.get_rank(), np.ones(8, np.float32)
        group = tr.new_group([2, 1], sort_ranks=False)
        if rank == 1:
            tr.recv(array, src=2, group=group)
            tr.recv(array, src=2, group=group)
        if rank == 2:
            tr.send(array, dst=1, group=group)
        tr.barrier()
        """,
    )
    found = job.told()["suspicions"]
    (message,) = (each for each in found if each["operation"]["operation"] == "recv")
    assert (message["kind"], message["ranks"], message["waiting"]) == ("missing", [2], [1])


@pytest.mark.torch
def test_operations_of_gloo(job: RecordedJob) -> None:
    err = job.run(
        2,
        """
        tr.init_process_group("gloo")
        rank, array = tr.get_rank(), np.ones(3, np.float32)
        tr.all_reduce(array)
        try:
            tr.broadcast(array, src=7)
        except ValueError:
            pass
        tr.all_gather([np.zeros(3), np.zeros(3)], np.ones(3), async_op=True).wait()
        if rank == 0:
            tr.send(array, dst=1)
            tr.isend(array, dst=1).wait()
        else:
            tr.recv(array, src=0)
            assert tr.recv(array) == 0
        reduced, gathered = recent("all_reduce", "all_gather", "broadcast")
        assert (reduced.dtype, reduced.nbytes, reduced.reduction) == ("float32", 12, "SUM")
        assert (reduced.sequence, reduced.path, reduced.came) == (1, "gloo", None), reduced
        assert (gathered.sequence, gathered.nbytes, gathered.in_background) == (2, 24, True)
        told = [(each.root, each.sequence, each.state) for each in recent("send", "recv")]
        assert told == [(1 - rank, 1, "done"), (1 - rank, 2, "done")], told
        assert groups() == {("default", 2, "0-1")}
        if rank == 0:
            tr.barrier()
        """,
    )
    assert "rank 1" in err  # it left while rank 0 waited
    assert [each["ranks"] for each in job.told()["suspicions"]] == [[1]]


@pytest.mark.torch
def test_operations_of_torchs_backend(job: RecordedJob) -> None:
    err = job.run(
        2,
        """
        import torch
        import torch.distributed as dist
        dist.init_process_group("torsh")
        rank, peer, tensor = dist.get_rank(), 1 - dist.get_rank(), torch.ones(5)
        dist.all_reduce(tensor)
        group = dist.new_group([0, 1], group_desc="pair")
        dist.all_reduce(tensor, group=group, async_op=True).wait()
        ops = [dist.P2POp(dist.isend, tensor, peer), dist.P2POp(dist.irecv, torch.ones(5), peer)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        first, second = recent("all_reduce")
        assert (first.in_background, second.in_background) == (False, True)
        (sent,), (received,) = recent("send"), recent("recv")
        assert (sent.root, sent.sequence, sent.nbytes) == (peer, 1, 20), sent
        assert (received.root, received.sequence) == (peer, 1), received
        assert groups() == {("default", 2, "0-1"), ("pair", 2, "0-1")}, groups()
        """,
    )
    assert err == ""
