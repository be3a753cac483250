"""What is found out about a round that is over, and that the loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from torsh_runtime.contract import WorkerEnv
from torshrun.agent.announcer import Announcer
from torshrun.agent.diagnosis import Diagnosis, Findings
from torshrun.agent.protocol import ReportFailure
from torshrun.agent.round import Round
from torshrun.config.job import LaunchConfig, OutputConfig
from torshrun.failure.memory import MemoryWatch
from torshrun.health.pages import WorkerStatus
from torshrun.health.recordings import Recordings
from torshrun.safe_files import Folder
from torshrun.workers.logs.stream import TAIL_BYTES, Stream
from torshrun.workers.spec import Assignment
from torshrun.workers.worker import Worker

Result = TypeVar("Result")

TRACE = b"Traceback (most recent call last):\n" + b'  File "a.py", line 1, in f\n    x()\n' * 400
FULL = (TRACE + b"ConnectionResetError: connection reset by peer\n\n")[-TAIL_BYTES:]
FULL = (FULL * (TAIL_BYTES // len(FULL) + 1))[-TAIL_BYTES:]


def ending(rank: int, code: int, stderr: bytes = b"", error_file: str = "") -> Worker:
    place = WorkerEnv(
        rank=rank, world_size=600, local_rank=rank, local_world_size=600, error_file=error_file
    )
    assignment = Assignment(
        worker=place, argv=("/bin/x",), environ={}, cpus=frozenset(), folder=f"/logs/{rank}"
    )
    streams = cast(tuple[Stream, Stream], (None, SimpleNamespace(tail=stderr)))
    return Worker(assignment, streams, pid=1000 + rank, alive=False, status=code << 8, seconds=1.0)


async def turns_of_the_loop_during(work: Awaitable[Result]) -> tuple[int, Result]:
    turns, over = 0, False

    async def count() -> None:
        nonlocal turns
        while not over:
            turns += 1
            await asyncio.sleep(0.001)

    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    turns = 0
    result = await work
    over = True
    await counting
    return turns, result


def test_the_loop_goes_on_while_hundreds_of_last_words_are_read() -> None:
    """The dead-man timer and the other nodes want signs of life: work that is done in the loop
    would leave it a turn or two.
    """
    said: list[str] = []
    diagnosis = Diagnosis(OutputConfig(), None)
    announcer = Announcer(LaunchConfig(target="t"), said.append, None)
    endings = [ending(rank, 1, FULL) for rank in range(300)]

    turns, found = asyncio.run(turns_of_the_loop_during(diagnosis.findings(endings)))
    assert turns > 5
    announcer.failed(ReportFailure(0, "no budget"), found)  # they have been read by now
    assert found.cause
    assert (found.cause.rank, found.kind) == (0, "peer lost")
    assert said[0].startswith("torshrun: undecided between rank 0, rank 1, ")


def test_nothing_is_looked_for_where_nothing_failed() -> None:
    found = asyncio.run(Diagnosis(OutputConfig(), None).findings([ending(0, 0), ending(1, 0)]))
    assert (found.cause, found.finding, found.summary) == (None, None, "")


def test_without_threads_it_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    found = asyncio.run(Diagnosis(OutputConfig(), None).findings([ending(0, 3)]))
    assert found.summary == "rank 0: exit code 3 (exit code)"


def test_the_line_about_ranks_that_failed_alike_names_all_of_them() -> None:
    endings = [ending(0, 3), ending(1, 0), ending(2, 3)]
    found = asyncio.run(Diagnosis(OutputConfig(), None).findings(endings))
    assert found.summary == "ranks 0, 2: exit code 3 (exit code)"


def test_an_error_file_is_read_and_kept_once(tmp_path: Path) -> None:
    left = tmp_path / "error_0_3.json"
    left.write_text(json.dumps({"message": "OutOfLuck: x"}))
    folder = Folder.make(str(tmp_path / "run"))
    failed = ending(3, 1, error_file=str(left))
    failed = replace(
        failed, assignment=replace(failed.assignment, folder=f"{folder.path}/attempt_0/3")
    )
    diagnosis = Diagnosis(OutputConfig(), folder)
    for _ in range(2):
        found = asyncio.run(diagnosis.findings([failed]))
        assert found.cause
        assert found.cause.account.text == "OutOfLuck: x"
    kept = tmp_path / "run" / "attempt_0" / "3" / "error.json"
    assert kept.read_text() == left.read_text()
    folder.close()


@pytest.mark.parametrize(("initialised", "said"), [(True, False), (False, True)])
def test_a_failure_before_any_group_was_made_is_one_at_the_start(
    initialised: bool, said: bool
) -> None:
    diagnosis = Diagnosis(OutputConfig(), None)
    statuses = (WorkerStatus(), WorkerStatus(initialised=initialised))
    pages = SimpleNamespace(read=lambda: statuses)
    a_round = cast(
        Round, SimpleNamespace(memory=MemoryWatch(), pages=pages, recordings=Recordings(None, 0))
    )
    found = asyncio.run(diagnosis.findings([ending(0, 3, b"boom\n")], a_round))
    assert bool(found.startup) == said


def test_findings_wait_until_it_is_known_who_has_what_a_rank_could_not_have() -> None:
    """All workers may have ended before that has been looked up."""
    order: list[str] = []
    findings_began = threading.Event()

    class Ordered(Diagnosis):
        def _all_blame(self, failed: Sequence[Worker], ranks: Mapping[int, int]) -> bool:
            findings_began.wait(30)
            time.sleep(0.05)  # which findings that do not wait would use
            order.append("looked")
            return False

        def _examine(self, *facts: Any) -> Findings:
            order.append("examined")
            return super()._examine(*facts)

    async def both() -> None:
        diagnosis = Ordered(OutputConfig(), None)
        looking = asyncio.create_task(diagnosis.only_follow([ending(0, 1)], {}))
        await asyncio.sleep(0)
        findings = asyncio.create_task(diagnosis.findings([ending(0, 1)]))
        await asyncio.sleep(0)
        findings_began.set()
        await asyncio.gather(looking, findings)

    asyncio.run(both())
    assert order == ["looked", "examined"]
