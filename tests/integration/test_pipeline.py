"""PipelineParallel: what comes out is what one process computes."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from support import pipeline_lanes, pipeline_tables, pipeline_training, pipeline_traps
from support.forked import Raised
from support.worlds import run_in_one_world, run_processes

KINDS = ("nn", *(("torch",) if importlib.util.find_spec("torch") else ()))
WAYS = {"interleaved": 4, "zbv": 4}


@pytest.fixture(autouse=True, scope="module")
def _torch_is_loaded() -> None:
    """Before ranks are forked, each of which would load it."""
    if "torch" in KINDS:
        import torch  # noqa: F401


def whole(results: list[Any]) -> list[Any]:
    for result in results:
        assert not isinstance(result, Raised), result.error.args[0]
    return results


@cache
def found(ranks: int) -> dict[Any, list[Any]]:
    """All that is trained in a world of so many ranks."""
    together = pipeline_training.together
    bodies: dict[Any, Any] = {}
    for kind in KINDS:
        for clips in (True, False):
            bodies[kind, "alone", clips] = partial(alone, kind, clips)
        for schedule in pipeline_training.SCHEDULES if ranks != 3 else ("1f1b", "zb-h1"):
            stages = WAYS.get(schedule, 3 if ranks == 3 else 2)
            for tied in (True, False):
                bodies[kind, schedule, tied] = partial(
                    together,
                    kind=kind,
                    schedule=schedule,
                    stages=stages,
                    tied=tied,
                    clips=tied or ranks == 4,
                    dp=ranks == 4,
                )
        for schedule in ("1f1b", "gpipe") if ranks == 4 else ():
            bodies[kind, "sharded", schedule] = partial(
                pipeline_training.sharded, kind=kind, schedule=schedule
            )
    return run_in_one_world(ranks, bodies, 60.0)


def alone(kind: str, clips: bool, rank: int) -> Any:
    return pipeline_training.alone(kind, clips, clips=clips) if rank == 0 else None


CASES = [
    (ranks, schedule)
    for ranks in (2, 3, 4)
    for schedule in (("1f1b", "zb-h1") if ranks == 3 else pipeline_training.SCHEDULES)
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ranks", "schedule"), CASES)
def test_trains_as_one_process_does(kind: str, ranks: int, schedule: str) -> None:
    """With tied parameters and clipping; on four ranks two replicas of each stage."""
    results = whole(found(ranks)[kind, schedule, True])
    expected = whole(found(ranks)[kind, "alone", True])[0]
    got = pipeline_training.joined(results)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-9, atol=1e-9, err_msg=name)
    assert len({(*each["losses"],) for each in results}) == 1
    tied = [each["tokens.weight"] for each in results if "tokens.weight" in each]
    assert len(tied) == ranks if ranks == 4 and schedule != "zbv" else len(tied) > 0
    assert all((each == tied[0]).all() for each in tied)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("ranks", "schedule"),  # those in two parts, which "auto" may choose, add up in another order
    [case for case in CASES if case[0] < 4 and not case[1].startswith(("zb", "auto"))],
)
def test_bits_are_those_of_one_process(kind: str, ranks: int, schedule: str) -> None:
    got = pipeline_training.joined(whole(found(ranks)[kind, schedule, False]))
    for name, value in whole(found(ranks)[kind, "alone", False])[0].items():
        assert np.array_equal(got[name], value), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_stages_are_sharded(kind: str, schedule: str) -> None:
    for losses, expected in whole(found(4)[kind, "sharded", schedule]):
        np.testing.assert_allclose(losses, expected, rtol=1e-9)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_any_table_runs(ranks: int) -> None:
    body = partial(pipeline_tables.run, seeds=range(20))
    for results in whole(run_processes(ranks, body, 60.0)):
        assert len(results) > 20
        for name, got, expected in results:
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12, err_msg=name)


@cache
def found_on_lanes(ranks: int) -> dict[Any, list[Any]]:
    """The same, where messages go as they do between GPUs; for a few schedules, tables, and a stage
    that raises."""
    together = pipeline_training.together
    bodies: dict[Any, Any] = {"tables": partial(pipeline_tables.run, seeds=range(40))}
    for kind in KINDS:
        for schedule in pipeline_training.SCHEDULES if ranks == 2 else ("1f1b", "zb-h1"):
            stages = WAYS.get(schedule, ranks)
            how = {"kind": kind, "schedule": schedule, "stages": stages, "tied": True}
            bodies[kind, schedule] = partial(together, **how)
    if ranks == 3:  # of which nothing is left
        bodies["failing"] = partial(pipeline_training.failing, backward=True)
    on_lanes = {key: partial(pipeline_lanes.on_lanes, body=body) for key, body in bodies.items()}
    return run_in_one_world(ranks, on_lanes, 60.0)


@pytest.mark.parametrize("ranks", [2, 3])
def test_messages_need_no_tags(ranks: int) -> None:
    results = found_on_lanes(ranks)
    for (kind, schedule), trained in ((k, v) for k, v in results.items() if len(k) == 2):
        expected = whole(found(ranks)[kind, "alone", True])[0]
        got = pipeline_training.joined(whole(trained))
        for name, value in expected.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-9, atol=1e-9, err_msg=schedule)
    for tables in whole(results["tables"]):
        assert len(tables) > 40
        for name, got, wanted in tables:
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12, err_msg=name)
    if ranks == 3:
        assert {each[:3] for each in whole(results["failing"])} == {(2, 2, 1)}


def test_models_on_gpus_want_groups_of_both_kinds_on_all_ranks() -> None:
    results = whole(run_processes(2, pipeline_lanes.without_lanes, 60.0))
    for there, partly, in_one_queue in results:
        assert "the group's backend is 'native': make the default group with 'cpu:" in there
        assert "device='CPU' on rank(s) 0, device='GPU' on rank(s) 1" in partly
        assert "CUDA_DEVICE_MAX_CONNECTIONS is less than 8: messages" in in_one_queue


def test_a_model_on_a_gpu_may_be_one_stage() -> None:
    body = partial(pipeline_training.together, kind="nn", schedule="gpipe", stages=2)
    [alone] = whole(run_processes(1, partial(on_one_rank, body=body), 60.0))
    assert alone["losses"]


def on_one_rank(rank: int, body: Any) -> Any:
    return pipeline_lanes.on_lanes(rank, partial(body, placement=[0, 0]))


def test_no_more_microbatches_are_alive_than_simulated() -> None:
    peaks = [each["peaks"] for each in found(3)["nn", "1f1b", True]]
    assert peaks == [{0: 3}, {1: 2}, {2: 1}]


@pytest.mark.parametrize("kind", KINDS)
def test_losses_keep_nothing_else(kind: str) -> None:
    assert whole(run_processes(2, partial(pipeline_training.kept, kind=kind), 60.0)) == [0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_uneven_microbatches_count_by_their_elements(kind: str) -> None:
    for each in whole(run_processes(2, partial(pipeline_training.odd, kind=kind), 60.0)):
        for name, (got, expected) in each.items():
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12, err_msg=name)


def test_what_is_wrong_is_said_on_all_ranks() -> None:
    texts = (
        "'blocks.7'",
        "in their order",
        "6 microbatches",
        "zbv",
        "no schedule is named '2f2b'",
        "each rank a stage",
        "pass a list of modules",
        "pass the example",
        "5 rows",
        "a batch of",
        "has no batch",
        "no loss_fn",
    )
    for said in whole(run_processes(2, pipeline_training.refusals, 60.0)):
        for text, found_text in zip(texts, said, strict=True):
            assert text in found_text


@pytest.mark.parametrize("kind", KINDS)
def test_what_users_do_is_what_one_process_does(kind: str) -> None:
    traps = {
        "accumulated": partial(pipeline_traps.accumulated, kind=kind),
        "buffered": partial(pipeline_traps.buffered, kind=kind),
        "without tokens": partial(pipeline_traps.without_tokens, kind=kind),
    }
    if kind == "torch":
        traps["of torch"] = pipeline_traps.of_torch
    for name, results in run_in_one_world(2, traps, 60.0).items():
        for each in whole(results):
            for what, (got, expected) in each.items():
                wanted = {"rtol": 1e-9, "atol": 1e-12, "err_msg": f"{name}: {what}"}
                np.testing.assert_allclose(got, expected, **wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_hooks_of_gradients_are_called_as_in_one_process(kind: str) -> None:
    cases = [(name, "") for name in ("1f1b", "interleaved", "zb-h1", "zbv")]
    cases += [("1f1b", "DistributedDataParallel"), ("zb-h1", "DistributedDataParallel")]
    cases += [("zb-h1", "FullyShardedDataParallel")]
    bodies = {
        f"{schedule} {wrapper}": partial(
            pipeline_traps.hooked, kind=kind, schedule=schedule, wrapper=wrapper
        )
        for schedule, wrapper in cases
    }
    for name, results in run_in_one_world(2, bodies, 60.0).items():
        for each in whole(results):
            for what, (got, expected) in each.items():
                np.testing.assert_allclose(
                    got, expected, rtol=1e-9, atol=1e-12, err_msg=f"{name}: {what}"
                )


@pytest.mark.parametrize("kind", KINDS)
def test_a_tied_weight_of_wrapped_stages_is_that_of_one_process(kind: str) -> None:
    wrappers = ("DistributedDataParallel", "FullyShardedDataParallel")
    bodies = {each: partial(pipeline_traps.wrapped, kind=kind, wrapper=each) for each in wrappers}
    for name, results in run_in_one_world(4, bodies, 60.0).items():
        for each in whole(results):
            for what, (got, expected) in each.items():
                np.testing.assert_allclose(got, expected, rtol=1e-9, err_msg=f"{name}: {what}")


def test_what_would_be_wrong_numbers_is_refused() -> None:
    texts = (
        "do not give what its forward() gives",
        "names first more than once",
        "/nowhere.csv cannot be read: No such file or directory. Name a file",
        "one of several stages",
        "a batch without rows",
        "a batch of 24 rows has targets of 12",
        "nothing averages their gradients",
        "gradients are averaged over",
        "loss_fn returned a tensor of shape (4,)",
    )
    for said in whole(run_processes(2, pipeline_traps.refusals, 60.0)):
        for text, found_text in zip(texts, said, strict=True):
            assert text in found_text


def test_a_stage_that_nobody_averages_is_told_on_the_ranks_of_all_stages() -> None:
    for said in whole(run_processes(4, pipeline_traps.partly_averaged, 5.0)):
        assert "nothing averages their gradients" in said


def test_a_stage_that_cannot_be_wrapped_is_told_on_the_ranks_of_all_stages() -> None:
    for said in whole(run_processes(2, pipeline_traps.wrapped_in_vain, 5.0)):
        assert "rank 1: ValueError: no wrapper for this stage" in said


@pytest.mark.parametrize("wrapper", ["DistributedDataParallel", "FullyShardedDataParallel"])
def test_replicas_do_not_wait_for_one_that_cannot_be_wrapped(wrapper: str) -> None:
    body = partial(pipeline_traps.wrapped_on_some_replicas, wrapper=wrapper)
    for said in whole(run_processes(4, body, 5.0)):
        assert "ValueError: no wrapper here" in said


def test_costs_are_measured_and_the_same_on_all_ranks() -> None:
    first, second = whole(run_processes(2, pipeline_training.measured, 60.0))
    assert {*first["own"]} | {*second["own"]} == {
        f"{layer}.{name}" for layer in range(6) for name in ("weight", "bias")
    }
    for key in ("costs", "table", "spans", "simulated"):
        assert first[key] == second[key]
    assert all(size > 16 * 256 * 4 for size in first["costs"].activation)


@pytest.mark.parametrize("backward", [False, True])
def test_a_stage_that_raises_ends_all_ranks(backward: bool) -> None:
    body = partial(pipeline_training.failing, backward=backward)
    for said in whole(run_processes(3, body, 60.0)):
        rank, stage, microbatch, text = said
        assert (rank, stage, microbatch) == ((2, 2, 1) if backward else (2, 2, 2))
        assert ("B1: ArithmeticError: no way" if backward else "F2: ArithmeticError: no") in text
