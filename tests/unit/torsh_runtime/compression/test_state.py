"""What is kept from step to step, over restarts and changes of buckets."""

from __future__ import annotations

import numpy as np
import pytest
from support.compressed import COMPRESSORS, alone, average, bucket_of, gradients, residual

from torsh_runtime.compression import MomentumCorrection, OneBit, PowerSGD, TopK
from torsh_runtime.errors import ConfigError

SHAPES = [(20, 30), (7,), (20, 30), (4, 5, 10)]
SIZE = 1407


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_restart_goes_on_with_the_same_bits(name: str) -> None:
    group, first = alone(), COMPRESSORS[name]()
    for step in range(3):
        average(first, group, gradients(step, 0, SIZE), SHAPES)
    second = COMPRESSORS[name]()
    second.load_state_dict(first.state_dict())
    for step in range(3, 6):
        wanted = average(first, group, gradients(step, 0, SIZE), SHAPES)
        got = average(second, group, gradients(step, 0, SIZE), SHAPES)
        assert got.tobytes() == wanted.tobytes()


def test_state_is_plain_and_a_copy() -> None:
    compressor, group = MomentumCorrection(PowerSGD(2)), alone()
    average(compressor, group, gradients(0, 0, SIZE), SHAPES)
    state = compressor.state_dict()
    assert {*state} == {"steps", "world_size", "rank", "velocity", "residuals", "q"}
    before = {name: array.copy() for name, array in state["residuals"].items()}
    average(compressor, group, gradients(1, 0, SIZE), SHAPES)
    for name, array in state["residuals"].items():
        assert type(array) is np.ndarray
        assert (array == before[name]).all()


def test_residuals_follow_gradients_into_other_buckets() -> None:
    compressor, group = TopK(k=1), alone()
    names = ["a", "b", "c"]

    def step(order: list[str], values: dict[str, float]) -> None:
        array = np.array([values[name] for name in order], np.float32)
        compressor(group, bucket_of(array, [(1,)] * len(order), order)).wait()

    step(names, {"a": 1, "b": 2, "c": 3})
    step(["b", "a"], {"a": 0, "b": 0})
    kept = compressor.state_dict()["residuals"]
    assert {name: float(array[0]) for name, array in kept.items()} == {"a": 1, "b": 0, "c": 0}
    again = TopK(k=1)
    again.load_state_dict(compressor.state_dict())
    bucket = bucket_of(np.zeros(3, np.float32), [(1,)] * 3, ["c", "a", "b"])
    again(group, bucket).wait()
    assert bucket.array.tolist() == [0, 1, 0]


def test_buckets_may_come_back() -> None:
    compressor, group = TopK(k=1), alone()
    for names, wanted in (["ab", [0, 2]], ["a", [1]], ["b", [0]], ["ab", [0, 0]]):
        values = {"ab": [1, 2], "a": [0], "b": [0]}[names]
        first = not compressor.state_dict()["steps"]
        bucket = bucket_of(np.array(values, np.float32) * first, [(1,)] * len(names), [*names])
        compressor(group, bucket).wait()
        assert bucket.array.tolist() == wanted


def test_velocities_that_are_not_finite_are_forgotten() -> None:
    compressor, group = MomentumCorrection(OneBit()), alone()
    assert np.isnan(average(compressor, group, np.full(5, np.nan, np.float32))).all()
    assert np.isfinite(average(compressor, group, np.ones(5, np.float32))).all()


def test_the_state_of_another_model_is_refused() -> None:
    compressor, group = TopK(), alone()
    average(compressor, group, gradients(0, 0, 8))
    with pytest.raises(ConfigError, match="8 elements for gradient 'g0', which has 9"):
        average(compressor, group, gradients(0, 0, 9))


def test_of_another_rank_only_what_is_shared_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    first, second = PowerSGD(2), PowerSGD(2)
    average(first, alone(), gradients(0, 0, SIZE), SHAPES)
    second.load_state_dict({**first.state_dict(), "rank": 1, "world_size": 2})
    average(second, alone(), np.zeros(SIZE, np.float32), SHAPES)
    assert "PowerSGD was rank 1 of 2 and is rank 0 of 1: it discards" in caplog.text
    assert not residual(second).any()
    assert second.state_dict()["steps"] == 2
    assert second.state_dict()["world_size"] == 1
