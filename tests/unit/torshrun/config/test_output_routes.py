"""Who is shown and what is kept."""

from __future__ import annotations

import pytest

from torsh_runtime.contract import WorkerEnv
from torshrun.config.job import OutputConfig, StreamRule, Streams

BOTH, OUT, ERR, NONE = Streams.BOTH, Streams.STDOUT, Streams.STDERR, Streams.NONE


def place(rank: int, local_rank: int | None = None) -> WorkerEnv:
    local = rank if local_rank is None else local_rank
    return WorkerEnv(rank=rank, world_size=16, local_rank=local, local_world_size=8)


@pytest.mark.parametrize(
    ("output", "on_console", "in_files"),
    [
        (OutputConfig(), BOTH, NONE),
        (OutputConfig(log_dir="d"), BOTH, BOTH),
        (
            OutputConfig(redirects=StreamRule(everyone=OUT)),
            ERR,
            OUT,
        ),
        (
            OutputConfig(log_dir="d", tee=StreamRule(everyone=ERR)),
            BOTH,
            ERR,
        ),
        (
            OutputConfig(redirects=StreamRule(everyone=BOTH), tee=StreamRule(everyone=OUT)),
            OUT,
            BOTH,
        ),
        (OutputConfig(ranks_filter=frozenset({1})), NONE, NONE),
        (
            OutputConfig(local_ranks_filter=frozenset({1}), log_dir="d"),
            NONE,
            BOTH,
        ),
        (OutputConfig(ranks_filter=frozenset()), NONE, NONE),
    ],
)
def test_routes_of_rank_0(output: OutputConfig, on_console: Streams, in_files: Streams) -> None:
    assert (output.shown(place(0)), output.kept(place(0))) == (on_console, in_files)


def test_global_and_local_ranks() -> None:
    rule = StreamRule(by_local_rank={1: BOTH}, by_rank={9: OUT})
    output = OutputConfig(redirects=rule)
    assert (output.shown(place(1)), output.kept(place(1))) == (NONE, BOTH)
    assert (output.shown(place(9, 1)), output.kept(place(9, 1))) == (ERR, OUT)
    assert (output.shown(place(2)), output.kept(place(2))) == (BOTH, NONE)


def test_both_filters_have_to_agree() -> None:
    output = OutputConfig(ranks_filter=frozenset({8, 9}), local_ranks_filter=frozenset({1}))
    visible = [rank for rank in range(16) if output.shown(place(rank, rank % 8))]
    assert visible == [9]


def test_when_a_folder_is_needed() -> None:
    assert not OutputConfig(ranks_filter=frozenset({1})).needs_folder()
    assert OutputConfig(log_dir="d").needs_folder()
    assert OutputConfig(tee=StreamRule(by_rank={3: OUT})).needs_folder()
    assert OutputConfig(duplicate_stderr_filters=("x",)).needs_folder()
