"""Compressors among ranks: the same bits, nothing lost, few bytes, and models that learn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.compressed import (
    COMPRESSORS,
    WITH_FEEDBACK,
    alone,
    average,
    bucket_of,
    gradients,
    on_ranks,
    residual,
)
from support.hosts import INTERFACE, Host, needs_hosts, plugged, run_on_hosts

import torsh_runtime as tr
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.compression import Compressor, FlatBucket, OneBit, from_name
from torsh_runtime.compression.arrays import half_dtype
from torsh_runtime.errors import ConfigError

SHAPES = [(20, 30), (7,), (20, 30), (4, 5, 10)]
SIZE = 1407
LARGE = [(768, 512), (768,), (512, 768)]
LARGE_SIZE = 787_200
ROUNDED = ("fp16", "bf16", "powersgd-float16")
"""Their sums are, and no rank has what that lost."""
AT_MOST = {
    "topk:0.01": 0.05,
    "randomk:0.01": 0.011,
    "threshold:3": 0.06,
    "onebit": 0.05,
    "int8": 0.27,
    "fp16": 0.501,
    "bf16": 0.501,
    "powersgd:4": 0.03,
}
"""Of what a dense float32 all_reduce between two ranks takes."""


def several_steps(name: str, group: ProcessGroup, dtype: Any = np.float32) -> list[Any]:
    compressor = COMPRESSORS[name]()
    got = [
        average(compressor, group, gradients(step, group.rank, SIZE, dtype), SHAPES)
        for step in range(4)
    ]
    return [got, compressor]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_all_ranks_get_the_same_bits(name: str, ranks: int) -> None:
    outcomes = on_ranks(ranks, lambda group: several_steps(name, group))
    for got, _ in outcomes[1:]:
        assert [array.tobytes() for array in got] == [a.tobytes() for a in outcomes[0][0]]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", [name for name in WITH_FEEDBACK if name not in ROUNDED])
def test_what_was_averaged_and_what_is_kept_make_up_the_average(name: str, ranks: int) -> None:
    outcomes = on_ranks(ranks, lambda group: several_steps(name, group))
    given = sum(
        gradients(step, rank, SIZE, np.float64) for step in range(4) for rank in range(ranks)
    )
    got = np.sum(outcomes[0][0], axis=0, dtype=np.float64)
    kept = sum(residual(compressor) for _, compressor in outcomes)
    np.testing.assert_allclose(got + kept / ranks, given / ranks, atol=1e-4)


@pytest.mark.parametrize("make", [lambda: tr.compression.OneBit(32), lambda: tr.compression.Int8()])
def test_two_ranks_lose_nothing_but_by_their_own_codes(make: Any) -> None:
    size, signs = 4096, np.random.default_rng(0).choice([-1, 1], (2, 4096))
    given = (signs * [[1], [3]]).astype(np.float32)  # which codes have as they are, not their mean
    got = on_ranks(2, lambda group: average(make(), group, given[group.rank].copy(), [(size,)]))
    np.testing.assert_allclose(got, [given.mean(axis=0)] * 2, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, half_dtype("bfloat16")])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_other_dtypes(name: str, dtype: Any) -> None:
    outcomes = on_ranks(2, lambda group: several_steps(name, group, dtype)[0])
    assert outcomes[0][0].dtype == dtype
    for ours, theirs in zip(*outcomes, strict=True):
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("name", COMPRESSORS)
def test_one_ranks_nan_reaches_all(name: str) -> None:
    def body(group: ProcessGroup) -> list[bool]:
        compressor, found = COMPRESSORS[name](), []
        for step in range(3):
            gradient = gradients(step, group.rank, SIZE)
            if (group.rank, step) == (1, 1):
                gradient[1000] = np.nan
            found.append(bool(np.isfinite(average(compressor, group, gradient, SHAPES)).all()))
        return found

    assert on_ranks(3, body) == [[True, False, True]] * 3


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("size", [1, 5, 100, 4099])
def test_one_bit_of_few_elements_is_of_their_magnitude(ranks: int, size: int) -> None:
    given = np.tile(np.array([2, -2], np.float32), size)[:size]

    def body(group: ProcessGroup) -> list[float]:
        return list(average(OneBit(block=64), group, given.copy()))

    assert on_ranks(ranks, body) == [given.tolist()] * ranks


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("size", [0, 1, 5])
def test_buckets_smaller_than_the_group(name: str, size: int) -> None:
    def body(group: ProcessGroup) -> bytes:
        return average(COMPRESSORS[name](), group, gradients(0, group.rank, size)).tobytes()

    assert len({*on_ranks(3, body)}) == 1


@pytest.mark.parametrize("name", COMPRESSORS)
def test_ranks_go_on_after_a_restart(name: str) -> None:
    def steps(compressor: Compressor, group: ProcessGroup, some: range) -> list[bytes]:
        return [
            average(compressor, group, gradients(step, group.rank, SIZE), SHAPES).tobytes()
            for step in some
        ]

    def uninterrupted(group: ProcessGroup) -> list[bytes]:
        return steps(COMPRESSORS[name](), group, range(4))[2:]

    def before(group: ProcessGroup) -> dict[str, Any]:
        compressor = COMPRESSORS[name]()
        steps(compressor, group, range(2))
        return compressor.state_dict()

    def after(group: ProcessGroup) -> list[bytes]:
        compressor = COMPRESSORS[name]()
        compressor.load_state_dict(states[group.rank])
        return steps(compressor, group, range(2, 4))

    states = on_ranks(2, before)
    assert on_ranks(2, after) == on_ranks(2, uninterrupted)


def test_ranks_that_differ_are_told() -> None:
    def body(group: ProcessGroup) -> str:
        compressor = from_name("topk:0.1" if group.rank < 2 else "topk:0.2")
        with pytest.raises(ConfigError) as caught:
            average(compressor, group, gradients(0, group.rank, SIZE))
        return str(caught.value)

    for text in on_ranks(3, body):
        assert "the compressor differs between ranks: " in text
        assert text.count("on rank(s) 2. Make compressors alike") == 1


def test_a_rank_without_the_others_steps_is_told() -> None:
    def body(group: ProcessGroup) -> str:
        compressor = from_name("randomk:0.1")
        if group.rank == 0:
            compressor.load_state_dict({"steps": 7, "world_size": 2, "rank": 0})
        with pytest.raises(ConfigError) as caught:
            average(compressor, group, gradients(0, group.rank, SIZE))
        return str(caught.value)

    assert "steps=7 on rank(s) 0, steps=0 on rank(s) 1" in on_ranks(2, body)[1]


def test_a_rank_with_another_q_is_told() -> None:
    states = on_ranks(2, lambda group: several_steps("powersgd", group)[1].state_dict())
    states[1]["q"]["g0"][0] += 1

    def body(group: ProcessGroup) -> None:
        compressor = COMPRESSORS["powersgd"]()
        compressor.load_state_dict(states[group.rank])
        with pytest.raises(ConfigError, match="what all ranks share, of checksum"):
            average(compressor, group, gradients(0, group.rank, SIZE), SHAPES)

    on_ranks(2, body)


def test_in_another_group_what_was_a_ranks_own_is_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, compressor = on_ranks(2, lambda group: several_steps("topk", group))[1]
    assert residual(compressor).any()
    zeros = np.zeros(SIZE, np.float32)
    assert not average(compressor, alone(), zeros, SHAPES).any()
    assert "TopK was rank 1 of 2 and is rank 0 of 1: it discards" in caplog.text


def test_rounding_to_half_precision_is_kept() -> None:
    for got, compressor in on_ranks(3, lambda group: several_steps("bf16", group)):
        kept = np.abs(residual(compressor))
        assert 0 < kept.max() < 0.02 * np.abs(gradients(3, 0, SIZE)).max()
        assert len(got) == 4


def test_chances_differ_from_rank_to_rank() -> None:
    def body(group: ProcessGroup) -> bytes:
        compressor = tr.compression.Int8(levels=1, error_feedback=True)
        average(compressor, group, np.linspace(0, 1, 192, dtype=np.float32))
        return residual(compressor)[128:].tobytes()  # the third rank's, which adds to its own

    assert len({*on_ranks(3, body)[:2]}) == 2


def test_each_rank_clips_to_its_share() -> None:
    def body(group: ProcessGroup) -> float:
        compressor = tr.compression.MomentumCorrection(tr.compression.TopK(1.0), clip_norm=1.0)
        return float(np.linalg.norm(average(compressor, group, np.full(10, 7, np.float32))))

    assert on_ranks(2, body) == pytest.approx([0.5**0.5] * 2)


def test_the_default_group_and_several_buckets_under_way(process_world: Any) -> None:
    def body(rank: int) -> list[bytes]:
        compressor = tr.compression.from_name("topk:0.1")
        for step in range(3):
            buckets = [
                FlatBucket(gradients(step, rank, 100_000), [(100_000,)], [f"g{i}"], i, i == 2)
                for i in range(3)
            ]
            works = [compressor(None, bucket) for bucket in buckets]
            tr.waitall(works, 30)
        assert compressor.stats().steps == 3
        return [bucket.array.tobytes() for bucket in buckets]

    first, second = process_world(2, body)
    assert first == second


@pytest.mark.parametrize("name", ["topk:0.1", "threshold:1", "int8", "powersgd:1"])
def test_a_lost_rank_is_the_works_error(process_world: Any, name: str) -> None:
    def body(rank: int) -> str:
        compressor = from_name(name)
        for step in range(2 - rank):  # rank 1 leaves before the second
            work = compressor(None, bucket_of(gradients(step, rank, SIZE), SHAPES))
            if step == 1:
                with pytest.raises(tr.PeerLost) as caught:
                    work.wait(30)
                return str(caught.value)
            work.wait(30)
        return ""

    assert "rank 1 was lost" in process_world(2, body)[0]


@pytest.mark.parametrize("name", AT_MOST)
def test_few_bytes(name: str) -> None:
    def body(group: ProcessGroup) -> Any:
        compressor = from_name(name)
        draw = np.random.default_rng(group.rank)
        for _ in range(2):
            average(compressor, group, draw.standard_normal(LARGE_SIZE, np.float32), LARGE)
        return compressor.stats()

    for stats in on_ranks(2, body):
        assert stats.dense_bytes == 2 * 4 * LARGE_SIZE
        assert 0 < stats.ratio <= AT_MOST[name]


@pytest.mark.parametrize("name", ["onebit", "int8"])
def test_no_more_bytes_for_each_of_many_ranks(name: str) -> None:
    def body(group: ProcessGroup) -> float:
        compressor = from_name(name)
        average(compressor, group, np.ones(LARGE_SIZE, np.float32))
        return compressor.stats().ratio

    assert max(on_ranks(5, body)) <= AT_MOST[name]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with plugged(2) as found:
        yield found


@pytest.mark.netns
@needs_hosts
@pytest.mark.parametrize("name", AT_MOST)
def test_so_many_bytes_are_sent_between_nodes(hosts: list[Host], name: str) -> None:
    def sent() -> int:
        lines = Path("/proc/self/net/dev").read_text().splitlines()
        (ours,) = (line for line in lines if line.strip().startswith(f"{INTERFACE}:"))
        return int(ours.split()[9])

    def body(rank: int) -> tuple[int, int]:
        compressor = from_name(name)
        gradient = np.random.default_rng(rank).standard_normal(LARGE_SIZE, np.float32)
        tr.barrier()
        before = sent()
        for _ in range(4):
            compressor(None, bucket_of(gradient.copy(), LARGE)).wait()
        tr.barrier()
        return sent() - before, compressor.stats().bytes_sent

    for wire, counted in run_on_hosts(hosts, body):
        # Headers of packets and messages, and what acknowledges the other rank's.
        assert counted <= wire <= 1.1 * counted + 60_000


def loss_and_gradient(weights: Any, inputs: Any, wanted: Any) -> tuple[float, Any]:
    """Of a logistic regression, with a penalty."""
    found, penalty = inputs @ weights, 0.003 * weights
    loss = np.sum(np.logaddexp(0, found) - wanted * found) / len(wanted)
    loss += (penalty * weights).sum() / 2
    return float(loss), inputs.T @ (1 / (1 + np.exp(-found)) - wanted) / len(wanted) + penalty


def trained(compressor: Compressor | None, group: ProcessGroup, momentum: float = 0.0) -> float:
    """The loss over all ranks' samples after training on one's own; None: dense."""
    draw = np.random.default_rng(0)
    features, classes = 40, 4
    inputs = draw.standard_normal((400, features))
    wanted = (inputs @ draw.standard_normal((features, classes)) > 0).astype(np.float64)
    mine = slice(group.rank, None, group.world_size)
    weights = np.zeros((features, classes))
    velocity = np.zeros(weights.size)
    for _ in range(600):
        _, gradient = loss_and_gradient(weights, inputs[mine], wanted[mine])
        flat = gradient.astype(np.float32).ravel()
        if compressor is None:
            group.all_reduce(flat, tr.ReduceOp.AVG)
        else:
            average(compressor, group, flat, [gradient.shape])
        velocity = momentum * velocity + flat
        weights -= 0.3 * velocity.reshape(weights.shape)
    return loss_and_gradient(weights, inputs, wanted)[0]


@pytest.mark.parametrize("name", ["topk", "randomk", "threshold", "onebit", "int8", "powersgd"])
def test_a_model_learns_as_without(name: str) -> None:
    """Without error feedback most losses are a fifth to a half higher."""
    make = {
        "threshold": lambda: from_name("threshold:0.02"),
        "onebit": lambda: tr.compression.OneBit(block=32),
        "powersgd": lambda: tr.compression.PowerSGD(1, min_compression_rate=1),
    }.get(name, COMPRESSORS[name])
    dense = on_ranks(2, lambda group: trained(None, group))[0]
    losses = on_ranks(2, lambda group: trained(make(), group))
    assert losses[0] == losses[1]
    assert abs(losses[0] - dense) < 0.01 * dense


def test_a_model_learns_with_momentum_correction() -> None:
    def body(group: ProcessGroup) -> float:
        sparse = tr.compression.TopK(0.05)
        corrected = tr.compression.MomentumCorrection(sparse, clip_norm=10.0, warmup_steps=20)
        return trained(corrected, group)

    dense = on_ranks(2, lambda group: trained(None, group, momentum=0.9))[0]
    assert abs(on_ranks(2, body)[0] - dense) < 0.02 * dense
