"""What a job of one node decides for itself."""

from __future__ import annotations

import asyncio

import pytest
from support.ports import GivenPorts

from torsh_runtime.errors import ConfigError
from torshrun import exit_codes
from torshrun.config.job import LaunchConfig
from torshrun.rendezvous.alone import Alone
from torshrun.rendezvous.base import (
    JobOver,
    NodeAssignment,
    RendezvousEvent,
    Report,
    ReportOutcome,
    RoundClosing,
    RoundFormed,
    RoundMended,
    Verdict,
)
from torshrun.rendezvous.ports import HeldPorts


def make(max_restarts: int = 0, backoff: float = 0.0) -> Alone:
    """Of a job with the master port 1, where any other port is 2."""
    config = LaunchConfig(
        target="train.py",
        nproc_per_node=3,
        master_port=1,
        max_restarts=max_restarts,
        restart_backoff=backoff,
    )
    return Alone(config, GivenPorts(), lambda: 0.5)


def alone(max_restarts: int = 0, backoff: float = 0.0) -> tuple[Alone, list[RendezvousEvent]]:
    """One that has started, and where it posts."""
    rendezvous, posted = make(max_restarts, backoff), []
    rendezvous.start(posted.append)
    return rendezvous, posted


def place(number: int) -> NodeAssignment:
    return NodeAssignment(
        round=number,
        restarts=number,
        node_rank=0,
        num_nodes=1,
        first_rank=0,
        world_size=3,
        master_addr="127.0.0.1",
        master_port=1,
        jax_port=2,
        store_endpoint="",
    )


def failed(number: int, startup: str = "", code: int = 3) -> Report:
    return Report(round=number, outcome="failed", code=code, startup=startup, cause="rank 0: bad")


def test_a_failure_is_followed_by_another_round_while_the_budget_lasts() -> None:
    rendezvous, posted = alone(max_restarts=1)
    rendezvous.report(failed(0))
    closing = RoundClosing(round=0, reason="rank 0: bad", failed=True, restarts=1)
    assert posted == [RoundFormed(place(0)), closing, RoundFormed(place(1))]
    rendezvous.report(failed(1))
    verdict = Verdict(
        outcome="failed",
        code=exit_codes.BUDGET_SPENT,
        reason="rank 0: bad",
        sequel="budget spent",
    )
    assert posted[3:] == [JobOver(verdict)]


def test_the_same_failure_at_the_start_is_not_tried_a_third_time() -> None:
    rendezvous, posted = alone(max_restarts=5)
    rendezvous.report(failed(0, "a"))
    rendezvous.report(failed(1, "a"))
    assert isinstance(posted[-1], JobOver)
    assert (posted[-1].verdict.code, posted[-1].verdict.sequel) == (3, "same start")


def test_the_second_restart_in_a_row_waits() -> None:
    async def scenario() -> None:
        posted: asyncio.Queue[RendezvousEvent] = asyncio.Queue()
        rendezvous = make(max_restarts=5, backoff=0.01)
        rendezvous.start(posted.put_nowait)
        rendezvous.report(failed(0))
        rendezvous.report(failed(1))
        async with asyncio.timeout(10):
            events = [await posted.get() for _ in range(5)]
        delays = [event.delay for event in events if isinstance(event, RoundClosing)]
        assert delays == [0.0, 0.01]
        assert events[-1] == RoundFormed(place(2))
        await rendezvous.close()

    asyncio.run(scenario())


def test_leaving_during_the_pause_ends_the_job() -> None:
    async def scenario() -> None:
        rendezvous, posted = alone(max_restarts=5, backoff=0.01)
        rendezvous.report(failed(0))
        rendezvous.report(failed(1))
        rendezvous.leave("stopped", 130, "interrupted")
        over = JobOver(Verdict(outcome="stopped", code=130, reason="interrupted"))
        assert posted[-1] == over
        await asyncio.sleep(0.05)
        assert posted[-1] == over

    asyncio.run(scenario())


def test_leaving_a_round_waits_for_its_report() -> None:
    rendezvous, posted = alone()
    rendezvous.leave("preempted", 75, "got SIGTERM")
    assert len(posted) == 1
    rendezvous.report(failed(0))
    assert posted[1:] == [JobOver(Verdict(outcome="preempted", code=75, reason="got SIGTERM"))]
    rendezvous.leave("stopped", 130, "too late")
    assert len(posted) == 2


@pytest.mark.parametrize(
    ("outcome", "code", "ending"),
    [
        ("succeeded", 0, "succeeded"),
        ("noticed", 75, "preempted"),
        ("lost", exit_codes.LOST, "lost"),
        ("lost", exit_codes.NOT_FOUND, "failed"),
    ],
)
def test_other_ends_are_not_tried_again(outcome: ReportOutcome, code: int, ending: str) -> None:
    rendezvous, posted = alone(max_restarts=5)
    rendezvous.report(Report(round=0, outcome=outcome, code=code))
    assert isinstance(posted[-1], JobOver)
    assert (posted[-1].verdict.outcome, posted[-1].verdict.code) == (ending, code)


def test_without_a_port_there_is_no_round() -> None:
    class NoPorts(HeldPorts):
        def take(self, wanted: int = 0) -> tuple[int, int]:
            raise ConfigError(f"master port {wanted} cannot be used")

    posted: list[RendezvousEvent] = []
    Alone(LaunchConfig(target="train.py", master_port=1), NoPorts()).start(posted.append)
    reason = "cannot start the workers: master port 1 cannot be used"
    assert posted == [JobOver(Verdict(outcome="lost", code=exit_codes.LOST, reason=reason))]


def test_the_port_that_was_given_stays_where_rank_0_may_still_serve_on_it() -> None:
    rendezvous, posted = alone(max_restarts=1)
    rendezvous.ports.take = no_port  # type: ignore[method-assign]
    rendezvous.mend(0, "parked", 1.0, True)
    assert posted[1:] == [RoundMended(place(1))]


def no_port(wanted: int = 0) -> tuple[int, int]:
    raise ConfigError(f"master port {wanted} cannot be used")
