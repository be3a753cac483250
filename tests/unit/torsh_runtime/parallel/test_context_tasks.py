"""Who looks at whom, and which token goes where: arithmetic of context parallelism and experts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from torsh_runtime.parallel.context.sequence import (
    Documents,
    Runs,
    Sight,
    Task,
    banded_tasks,
    chunks,
    lengths,
    needed,
    seen,
    tasks,
)
from torsh_runtime.parallel.dispatch.routing import Assignment, Exchange, highest, reverse

LENGTH = 23


def places(ranks: int, rank: int) -> list[int]:
    return [
        at for first, _, size in chunks(LENGTH, ranks, rank) for at in range(first, first + size)
    ]


def wanted(row: tuple[int, ...], is_causal: bool) -> np.ndarray:
    found = np.zeros((LENGTH, LENGTH), int)
    for start, end in pairwise(row):
        found[start:end, start:end] = 1
    return np.tril(found) if is_causal else found


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(
    "documents",
    [(), ((0, 4, 4, 17, 23),), ((0, 1, 2, 23), (0, 12, 23))],
    ids=["one", "several", "rows"],
)
def test_tasks_are_each_pair_once(documents: Documents, is_causal: bool, ranks: int) -> None:
    rows = documents if len(documents) == 2 else (documents or ((0, LENGTH),)) * 2
    found = np.zeros((2, LENGTH, LENGTH), int)
    for rank in range(ranks):
        for source in range(ranks):
            mine, its = places(ranks, rank), places(ranks, source)
            for task in tasks(LENGTH, ranks, rank, source, documents, is_causal):
                assert task.keys.stop <= seen(LENGTH, ranks, is_causal)[source][rank]
                queries, keys = mine[task.queries], its[task.keys]
                part = np.ones((len(queries), len(keys)), int)
                found[np.ix_(range(2)[task.rows], queries, keys)] += (
                    np.tril(part) if task.is_causal else part
                )
    assert (found == np.stack([wanted(row, is_causal) for row in rows])).all()


def shown(task: Task) -> np.ndarray:
    """Which keys the queries of a task look at."""
    queries, keys = (np.arange(each.stop - each.start) for each in (task.queries, task.keys))
    distance = queries[:, None] - keys
    if task.is_causal:
        return (distance >= 0).astype(int)
    if task.band is None:
        return np.ones(distance.shape, int)
    offset, least, most = task.band
    return ((distance + offset >= least) & (distance + offset <= most)).astype(int)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 3, 9, 22])
@pytest.mark.parametrize("runs", [(), (((0, 9), (11, 23)), ((4, 20),))], ids=["all", "padded"])
def test_bands_are_each_pair_once(runs: Runs, window: int, is_causal: bool, ranks: int) -> None:
    documents = ((0, 4, 4, 17, 23),)
    sight = Sight(documents, is_causal, window, runs)
    order = np.arange(LENGTH)
    near = abs(order[:, None] - order) < (window or LENGTH)
    expected = np.stack([wanted(documents[0], is_causal) * near] * 2)
    for row, some in enumerate(runs):
        for key in set(range(LENGTH)) - {at for run in some for at in range(*run)}:
            expected[row, :, key] = 0
    found = np.zeros((2, LENGTH, LENGTH), int)
    for rank in range(ranks):
        for source in range(ranks):
            mine, its = places(ranks, rank), places(ranks, source)
            sent = needed(LENGTH, ranks, rank, source, sight)
            for task in banded_tasks(LENGTH, ranks, rank, source, sight):
                assert any(a.start <= task.keys.start and task.keys.stop <= a.stop for a in sent)
                part = shown(task)
                assert part.any(1).all()
                where = np.ix_(range(2)[task.rows], mine[task.queries], its[task.keys])
                found[where] += part
    assert (found == expected).all()


def test_a_window_saves_work_and_messages() -> None:
    size, ranks, window = 1 << 12, 4, 256
    sight = Sight(window=window)
    work = sent = 0
    for rank in range(ranks):
        for source in range(ranks):
            for task in banded_tasks(size, ranks, rank, source, sight):
                work += shown(task).size
            for some in needed(size, ranks, rank, source, sight):
                sent += (some.stop - some.start) * (rank != source)
    assert work < 1.7 * size * window
    assert sent == 6 * (window - 1)


def test_ranks_have_as_much_to_do() -> None:
    size = 1 << 12
    work = [
        sum(
            (task.queries.stop - task.queries.start)
            * (task.keys.stop - task.keys.start)
            / (2 if task.is_causal else 1)
            for source in range(4)
            for task in tasks(size, 4, rank, source, (), True)
        )
        for rank in range(4)
    ]
    assert max(work) == min(work)
    assert lengths(size, 4) == (size // 4,) * 4


def test_rows_go_to_their_experts_and_back() -> None:
    random, cuts = np.random.default_rng(0), (0, 3, 3, 5)
    chosen = [highest(random.random((size, 5)), 2) for size in (4, 0, 7)]
    own = [Assignment.of(each, 5) for each in chosen]
    counts = np.stack([each.counts for each in own])
    exchanges = [Exchange.of(counts, cuts, rank) for rank in range(3)]
    for rank, exchange in enumerate(exchanges):
        assert exchange.sent == [other.received[rank] for other in exchanges]
        own_experts = slice(cuts[rank], cuts[rank + 1])
        assert exchange.groups.counts == counts.sum(axis=0)[own_experts].tolist()
        assert (exchange.order[reverse(exchange.order)] == np.arange(len(exchange.order))).all()
    for assignment, experts in zip(own, chosen, strict=True):
        sent = experts.reshape(-1)[assignment.order]
        assert (np.diff(sent) >= 0).all()
        assert (sent[assignment.places] == experts).all()


def test_an_expert_takes_no_more_than_its_capacity() -> None:
    chosen = np.array([[0], [1], [0], [0]])
    found = Assignment.of(chosen, 2, np.array([1, 0]), 2)
    assert found.places.reshape(-1).tolist() == [0, 1, -1, -1]
    assert found.counts.tolist() == [1, 1]
