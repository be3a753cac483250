"""What is recorded of real jobs, and what torshctl flight makes of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import marked, soon
from support.recorded_job import RecordedJob

SCRIPT = """
import os, signal, sys, time
import numpy as np
import torsh_runtime as tr
tr.init_process_group()
rank, array = tr.get_rank(), np.ones(8, np.float32)
pair = tr.new_group([0, 1])
for _ in range(1100):
    tr.all_reduce(array)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RecordedJob]:
    made = RecordedJob(tmp_path, SCRIPT)
    yield made
    assert soon(lambda: not marked(made.mark)), marked(made.mark)


def test_who_never_entered_what_the_others_wait_in(job: RecordedJob) -> None:
    job.run(
        3,
        """
        if rank == 1:
            time.sleep(600)
        tr.all_reduce(array)
        """,
        *("--hang-timeout", "2", "--shutdown-timeout", "1"),
    )
    (found,) = job.told()["suspicions"]
    assert (found["kind"], found["ranks"], found["waiting"]) == ("missing", [1], [0, 2])
    assert (found["operation"]["operation"], found["operation"]["sequence"]) == ("all_reduce", 1101)
    text = job.flight("logs", "--last", "1").stdout
    assert "rank 1 never entered all_reduce(float32[8], SUM) #1101 of the default group" in text
    assert "rank 0: all_reduce(float32[8], SUM) #1101 of the default group, running" in text


def test_all_records_are_there_after_sigkill(job: RecordedJob) -> None:
    err = job.run(
        3,
        """
        from torshrun.health.recordings import read_recordings

        def waiting():
            records = read_recordings(os.environ["TORSH_STATUS_FILE"])[1]
            return [held.operations[-1].sequence for held in records].count(1101)

        if rank == 1:
            while waiting() < 2:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        tr.all_reduce(array)
        """,
    )
    assert "SIGKILL" in err
    told = job.told()
    assert {rank: len(held) for rank, held in told["ranks"].items()} == dict.fromkeys("012", 1024)
    assert told["ranks"]["1"][-1]["sequence"] == 1100
    assert [each["ranks"] for each in told["suspicions"]] == [[1]]
    groups = {(each["size"], tuple(each["members"])) for each in told["groups"]}
    assert groups == {(3, (0, 1, 2))}  # the pair's meeting is held no more


def test_a_call_that_comes_too_late_was_made(job: RecordedJob) -> None:
    """Rank 1 calls it when the group has ended already."""
    job.run(
        3,
        """
        from torshrun.health.recordings import read_recordings

        if rank == 2:
            os._exit(0)
        while rank == 1:
            first = read_recordings(os.environ["TORSH_STATUS_FILE"])[1][0]
            if first.operations[-1].state == "failed":
                break
            time.sleep(0.01)
        for _ in range(3):
            try:
                tr.all_reduce(array)
            except RuntimeError as error:
                late = error
        raise late
        """,
    )
    told = job.told()
    (found,) = told["suspicions"]
    assert (found["ranks"], found["waiting"], found["has_failed"]) == ([2], [0, 1], True)
    assert [each["sequence"] for each in told["ranks"]["1"][-2:]] == [1100, 1101]


def test_another_call_than_the_others(job: RecordedJob) -> None:
    job.run(3, "tr.broadcast(array, src=0) if rank == 2 else tr.all_reduce(array)")
    (found,) = job.told()["suspicions"]
    assert (found["kind"], found["ranks"]) == ("mismatch", [2])
    assert found["last"]["2"]["operation"] == "broadcast"


def test_groups_crosswise(job: RecordedJob) -> None:
    job.run(
        3,
        """
        if rank < 2:
            pair.barrier()
        if rank == 0:
            pair.barrier()
        else:
            tr.barrier()
        """,
        *("--hang-timeout", "2", "--shutdown-timeout", "1"),
    )
    circle, *others = job.told()["suspicions"]
    assert (circle["kind"], circle["ranks"]) == ("crosswise", [0, 1])
    found = {tuple(each["ranks"]): each["operation"]["ranks"] for each in others}
    assert found == {(0,): 3, (1,): 2}


def test_a_running_job_and_where_there_is_nothing(job: RecordedJob) -> None:
    job.run(
        3,
        """
        import subprocess
        tr.barrier()
        if rank == 0:
            command = [sys.executable, "-m", "torshrun.ctl", "flight", str(os.getppid()), "--json"]
            agent = int(open(f"/proc/{os.getppid()}/stat").read().rsplit(")", 1)[1].split()[1])
            command[4] = str(agent)
            with open("live.json", "w") as file:
                subprocess.run(command, stdout=file, check=True)
        tr.barrier()
        """,
    )
    told = json.loads((job.folder / "live.json").read_text())
    reached = {rank: held[-1]["sequence"] >= 1101 for rank, held in told["ranks"].items()}
    assert reached == dict.fromkeys("012", True)
    nothing = job.flight("logs")
    assert nothing.returncode == 1
    assert "there are no recorded operations below logs" in nothing.stderr
    stranger = job.flight(str(os.getpid()))
    assert (stranger.returncode, "is not a torshrun" in stranger.stderr) == (1, True)
    assert job.flight("--last", "x").returncode == 2


def test_without_the_recorder_nothing_is_held(job: RecordedJob) -> None:
    job.environ["TORSH_RECORDER"] = "off"
    err = job.run(3, "if rank == 1: raise SystemExit(3)\ntr.barrier()")
    assert "exit code 3" in err
    assert job.flight("logs").returncode == 1
    assert not list(job.folder.glob("logs/*/*/operations*"))
    job.environ["TORSH_RECORDER"] = "yes"
    assert "TORSH_RECORDER=yes must be on or off" in job.run(3, "")


def test_the_monitor_counts_from_where_it_is_made(job: RecordedJob) -> None:
    err = job.run(
        3,
        """
        monitor = tr.monitoring.DistributedMonitor()
        for _ in range(10):
            tr.all_reduce(array)
        tr.broadcast(np.ones(4), src=1)
        monitor.log_comm_time("of another library", 0.25, 100)
        stats = monitor.get_stats()
        assert stats.total_communications == 12, stats
        assert stats.total_bytes_communicated == 10 * 32 + 32 + 100, stats
        assert stats.operations["all_reduce"].calls == 10
        assert 0.25 < stats.total_comm_time < 30 and stats.total_wait_time > 0
        assert abs(stats.average_latency_ms * 12 - 1e3 * stats.total_comm_time) < 1e-6
        monitor.reset()
        assert monitor.get_stats().total_communications == 0
        last = tr.monitoring.recent_operations()[-1]
        assert (last.operation, last.root, last.state) == ("broadcast", 1, "done")
        for duration in (-1, float("nan")):
            try:
                monitor.log_comm_time("x", duration)
            except ValueError:
                continue
            raise AssertionError
        """,
    )
    assert err == ""
