"""Who is shown and what is kept."""

from __future__ import annotations

import pytest

from torsh_runtime.contract import WorkerEnv
from torshrun.config.job import OutputConfig, StreamRule, Streams
from torshrun.workers.logs import keeps, needs_folder
from torshrun.workers.logs.routes import Route, routes

BOTH, OUT, ERR = Streams(True, True), Streams(stdout=True), Streams(stderr=True)


def place(rank: int, local_rank: int | None = None) -> WorkerEnv:
    local = rank if local_rank is None else local_rank
    return WorkerEnv(rank=rank, world_size=16, local_rank=local, local_world_size=8)


@pytest.mark.parametrize(
    ("output", "out", "err"),
    [
        (OutputConfig(), Route(True, False), Route(True, False)),
        (OutputConfig(log_dir="d"), Route(True, True), Route(True, True)),
        (
            OutputConfig(redirects=StreamRule(everyone=OUT)),
            Route(False, True),
            Route(True, False),
        ),
        (
            OutputConfig(log_dir="d", tee=StreamRule(everyone=ERR)),
            Route(True, False),
            Route(True, True),
        ),
        (
            OutputConfig(redirects=StreamRule(everyone=BOTH), tee=StreamRule(everyone=OUT)),
            Route(True, True),
            Route(False, True),
        ),
        (OutputConfig(ranks=frozenset({1})), Route(False, False), Route(False, False)),
        (
            OutputConfig(local_ranks=frozenset({1}), log_dir="d"),
            Route(False, True),
            Route(False, True),
        ),
        (OutputConfig(ranks=frozenset()), Route(False, False), Route(False, False)),
    ],
)
def test_routes_of_rank_0(output: OutputConfig, out: Route, err: Route) -> None:
    assert routes(output, place(0)) == (out, err)


def test_global_and_local_ranks() -> None:
    rule = StreamRule(by_local_rank={1: BOTH}, by_rank={9: OUT})
    output = OutputConfig(redirects=rule)
    assert routes(output, place(1))[1] == Route(False, True)
    assert routes(output, place(9, 1)) == (Route(False, True), Route(True, False))
    assert keeps(output, 9, 1) == OUT
    assert keeps(output, 2, 2) == Streams()


def test_both_filters_have_to_agree() -> None:
    output = OutputConfig(ranks=frozenset({8, 9}), local_ranks=frozenset({1}))
    shown = [rank for rank in range(16) if routes(output, place(rank, rank % 8))[0].shown]
    assert shown == [9]


def test_when_a_folder_is_needed() -> None:
    assert not needs_folder(OutputConfig(ranks=frozenset({1})))
    assert needs_folder(OutputConfig(log_dir="d"))
    assert needs_folder(OutputConfig(tee=StreamRule(by_rank={3: OUT})))
    assert needs_folder(OutputConfig(stderr_filters=("x",)))
