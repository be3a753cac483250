"""Programs for Horovod on our process groups: what its operations and optimizers give."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.forked import Raised
from support.worlds import run_in_one_world, run_processes

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
RANKS = 4


@cache
def ran() -> dict[str, list[Any]]:
    from support import horovod_ranks

    return run_in_one_world(RANKS, horovod_ranks.OPERATIONS, 60.0)


@cache
def trained() -> dict[str, list[Any]]:
    from support import horovod_ranks as bodies

    named = {way: bodies.training(way, 2) for way in bodies.WAYS}
    named |= {"adasum": bodies.adasum_training, "sparse": bodies.sparse_training}
    named |= {"mistakes": bodies.mistakes, "batch_norm": bodies.batch_norm}
    named |= {"changing": bodies.changing_training, "uneven": bodies.uneven_training}
    named |= {"twice": bodies.started_twice, "names": bodies.alike_names}
    return run_in_one_world(2, named, 60.0)


@cache
def alone() -> dict[str, list[Any]]:
    from support import horovod_ranks as bodies

    return run_in_one_world(1, {way: bodies.training(way, 2) for way in bodies.WAYS}, 60.0)


def of(name: str, results: dict[str, list[Any]] | None = None) -> list[Any]:
    """By rank; an error is raised here."""
    found = (ran() if results is None else results)[name]
    for each in found:
        if isinstance(each, Raised):
            raise AssertionError(str(each))
    return found


def test_operations() -> None:
    for rank, got in enumerate(of("operations")):
        assert got["average"] == [1.5, 1.0]
        assert got["sum"] == [6.0, 4.0]
        assert got["integers"] == [1, 7]
        assert got["scaled"] == [9.0, 6.0]
        assert got["product"] == [24.0, 16.0]
        assert got["max"] == [3.0, 1.0]
        assert got["gathered"] == [0, 1, 3, 2, 4, 6, 3, 5, 7, 9]
        assert got["sent"] == [2.0, 1.0]
        rows = [[0], [], [1, 2, 3], [4, 5]][rank]
        assert got["alltoall"] == [10 * sender + row for sender in range(4) for row in rows]
        assert got["came"] == [len(rows)] * 4
        whole = (np.arange(10.0).reshape(5, 2) * 4 + 6).tolist()
        assert got["scattered"] == [whole[:2], whole[2:3], whole[3:4], whole[4:]][rank]
        assert got["grouped"] == [6.0, 4.0, 12.0, 8.0]
        assert got["half"] == [1.5, 1.0]
        assert got["number"] == 1.5
        assert got["nothing"] == []


def test_calls_are_matched_by_name_in_whatever_order() -> None:
    assert of("names") == [[float(4 * n) for n in range(8)] + [3.0]] * 4


def test_disagreements_are_errors_on_all_ranks_and_harm_nothing() -> None:
    for rank, (found, after) in enumerate(of("disagreements")):
        shape, op, root, name, *twice = found
        assert "rank 3 called allreduce('shape', float32[4], op=Average)" in shape
        assert "rank 0 called allreduce('shape', float32[3], op=Average)" in shape
        assert "op=Sum" in op
        assert "op=Average" in op
        assert "root_rank=1" in root
        assert "each waits for what the other has not called" in name
        assert "'one'" in name
        assert "'other'" in name
        assert rank or "under way already" in twice[0]
        assert after == [4.0, 4.0, 4.0]


def test_gradients_flow_as_horovods_do() -> None:
    results = of("gradients")
    weights = np.array([np.arange(16) + rank for rank in range(4)], float)
    for rank, got in enumerate(results):
        assert got["sum"] == got["grouped"] == weights.sum(0)[:2].tolist()
        assert got["average"] == weights.mean(0)[:2].tolist()
        first = sum(range(rank + 1))
        assert got["allgather"] == weights.mean(0)[first : first + rank + 1].tolist()
        assert got["broadcast"] == (weights.mean(0)[:2] if rank == 1 else np.zeros(2)).tolist()
        assert got["alltoall"] == weights[:, rank].tolist()
        assert got["reducescatter"] == [4.0 * receiver for receiver in range(4)]


def test_objects() -> None:
    for sent, gathered in of("objects"):
        assert (sent["rank"], sent["tensor"].tolist(), gathered) == (1, [1], [0, 2, 4, 6])


def test_ranks_that_joined_give_zeros() -> None:
    expected = [[4.0, 4.0], [3.0, 3.0], [2.0, 2.0], [1.0, 1.0]]
    for rank, (sums, last, after, again) in enumerate(of("joined")):
        assert sums[: rank + 1] == expected[: rank + 1]
        assert rank < 3 or "allgather" in sums[4]
        assert rank < 3 or "join()" in sums[4]
        assert (last, after, again) == (3, 4.0, True)


def test_a_rank_that_has_gone_is_named_to_those_that_wait() -> None:
    from support import horovod_ranks

    results = run_processes(2, horovod_ranks.left_alone, 60.0)
    name, notes, after = results[0]
    assert name == "PeerLost"
    assert notes[0].endswith("waited for other ranks: allreduce('x', float32[1], op=Average)")
    assert "rank 1 was lost" in after


def test_mistakes_are_told_before_other_ranks_hear_of_them() -> None:
    expected = (
        "not torch.float32",
        "how many of 4 rows",
        "give `splits`",
        "at least one dimension",
        "has no op=Adasum",
        "'Median' is no reduction; there are Average, Sum",
        "and not both",
        "rank 4 is not in the set",
        "not a Tensor",
        "MPI is not used",
    )
    for told, after in of("refusals"):
        for text, words in zip(told, expected, strict=True):
            assert words in text
        assert after == [1.0] * 4


def test_process_sets() -> None:
    for rank, (included, place, total, sent, gathered, *rest) in enumerate(of("process_sets")):
        odd = rank % 2
        assert (included, place) == (True, rank // 2)
        assert (total, sent) == (2.0 + 2 * odd, 2.0 + odd)
        assert gathered == [0.0 + odd, 2.0 + odd]
        foreign, twice, unknown, removed, removed_global, after = rest
        assert f"rank {rank} is not in it" in foreign
        assert "already" in twice
        assert "has not been added" in unknown
        assert (removed, removed_global, after) == (True, False, 1.5)


def test_adasum_adds_what_is_orthogonal_and_averages_what_is_the_same() -> None:
    for (orthogonal, same), integers in of("adasum"):
        assert orthogonal == [2.0] * 4
        assert same == [3.0, 4.0]
        assert "floating-point" in integers


def test_places_and_capabilities() -> None:
    for rank, (numbers, mpi, gloo, timeline) in enumerate(of("places")):
        assert numbers == (rank, 4, rank, 1, True)
        assert (mpi, gloo) == (False, True)
        assert "torshctl trace" in timeline
    for told, initialized in of("outside"):
        assert "call hvd.init() first" in told
        assert not initialized


@pytest.mark.parametrize(
    "way", ["plain", "unnamed", "two passes", "predivided", "summed", "half", "clipped"]
)
def test_an_optimizer_steps_as_one_process_would(way: str) -> None:
    (expected,) = of(way, alone())
    first, second = of(way, trained())
    assert first == second
    np.testing.assert_allclose(first, expected, rtol=1e-5, atol=5e-4 if way == "half" else 1e-6)


def test_an_optimizer_with_adasum_combines_steps() -> None:
    np.testing.assert_allclose(of("adasum", trained()), [[[-2.0, -2.0]]] * 2, rtol=1e-6)


def test_sparse_gradients() -> None:
    assert of("sparse", trained()) == [[[-0.5, -0.5, 0.0, -1.0]] * 2] * 2


def test_mistakes_with_optimizers_are_told() -> None:
    for zeroed, twice, same, missing, passes in of("mistakes", trained()):
        assert "zero_grad() was called while gradients are reduced" in zeroed
        assert "raise backward_passes_per_step" in twice
        assert "more than one a" in same
        assert "leaves out 1 of the optimizer's parameters" in missing
        assert "at least 1" in passes


def test_batch_norm_over_ranks() -> None:
    assert of("batch_norm", trained()) == ["as one process"] * 2


def test_optimizers_follow_what_is_trained() -> None:
    for found, expected in of("changing", trained()):
        assert found == pytest.approx(expected)


def test_a_rank_that_had_no_batch_yet_trains_later() -> None:
    expected = 1.0 - 2 * 0.05 - 0.1 - 2 * 0.05
    assert of("uneven", trained()) == [[pytest.approx(expected)] * 4] * 2


def test_optimizers_outlive_what_they_were_made_in() -> None:
    assert of("twice", trained()) == [[pytest.approx(0.8)] * 4] * 2


def test_networks_may_have_parameters_of_the_same_names() -> None:
    assert of("names", trained()) == [True, True]
