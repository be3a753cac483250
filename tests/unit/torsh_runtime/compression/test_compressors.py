"""What one rank's compressors send, keep and say."""

from __future__ import annotations

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
    residual,
)

from torsh_runtime.compression import (
    Int8,
    MomentumCorrection,
    OneBit,
    PowerSGD,
    RandomK,
    Threshold,
    TopK,
)
from torsh_runtime.compression.arrays import half_dtype

SHAPES = [(20, 30), (7,), (20, 30), (4, 5, 10)]
SIZE = 1407


@pytest.mark.parametrize("name", WITH_FEEDBACK)
def test_what_was_sent_and_what_is_kept_make_up_the_gradients(name: str) -> None:
    compressor, group = COMPRESSORS[name](), alone()
    given = np.zeros(SIZE)
    got = np.zeros(SIZE)
    for step in range(6):
        gradient = gradients(step, 0, SIZE)
        given += gradient
        got += average(compressor, group, gradient, SHAPES)
    assert residual(compressor).any()
    np.testing.assert_allclose(got + residual(compressor), given, atol=1e-4)


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("shapes", [[(1,)], [(2,), (1, 1)], [(3, 0), (5,)], [(33,)]])
def test_tiny_buckets(name: str, shapes: list[tuple[int, ...]]) -> None:
    compressor, group = COMPRESSORS[name](), alone()
    size = sum(int(np.prod(shape)) for shape in shapes)
    for step in range(3):
        assert np.isfinite(average(compressor, group, gradients(step, 0, size), shapes)).all()


@pytest.mark.parametrize("name", COMPRESSORS)
def test_an_empty_bucket(name: str) -> None:
    compressor = COMPRESSORS[name]()
    assert average(compressor, alone(), np.empty(0, np.float32)).size == 0
    assert compressor.stats().steps == 1


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("dtype", [np.float64, np.float16, half_dtype("bfloat16")])
def test_other_dtypes_are_as_float32(name: str, dtype: Any) -> None:
    given = gradients(0, 0, SIZE, dtype)
    wanted = average(COMPRESSORS[name](), alone(), given.astype(np.float32), SHAPES)
    got = average(COMPRESSORS[name](), alone(), given, SHAPES)
    assert got.dtype == dtype
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_passed_on_and_not_kept(name: str, odd: float) -> None:
    compressor, group = COMPRESSORS[name](), alone()
    gradient = gradients(0, 0, SIZE)
    gradient[700] = odd
    assert not np.isfinite(average(compressor, group, gradient, SHAPES)).all()
    for step in range(1, 4):
        after = average(compressor, group, gradients(step, 0, SIZE), SHAPES)
        assert np.isfinite(after).all()
        assert after.any()


def test_no_integers() -> None:
    with pytest.raises(TypeError, match="int32 cannot be compressed"):
        TopK()(alone(), bucket_of(np.ones(3, np.int32)))


def test_shapes_have_to_fill_the_bucket() -> None:
    bucket = bucket_of(np.ones(3, np.float32))
    bucket.shapes = [(2,)]
    with pytest.raises(ValueError, match="has 3 elements, its shapes have 2"):
        TopK()(alone(), bucket).wait()


@pytest.mark.parametrize(
    ("make", "deviation"),
    [
        (lambda seed: Int8(levels=2, seed=seed), 0.5),  # by at most a level, of half the largest
        (lambda seed: RandomK(0.25, error_feedback=False, seed=seed), 3**0.5),
    ],
)
def test_unbiased_without_feedback(make: Any, deviation: float) -> None:
    given = gradients(0, 0, 64)
    total = np.zeros(64)
    for seed in range(800):
        total += average(make(seed), alone(), given.copy())
    most = np.abs(given).max() * deviation / 800**0.5
    assert np.abs(total / 800 - given).max() < 5 * most


@pytest.mark.parametrize("make", [lambda: RandomK(0.1), lambda: Int8(levels=1)])
def test_chances_differ_from_step_to_step_and_bucket_to_bucket(make: Any) -> None:
    compressor, group, results = make(), alone(), set()
    for _ in range(3):
        for index in range(2):
            bucket = bucket_of(np.linspace(0, 1, 64, dtype=np.float32), names=[f"g{index}"])
            bucket.number, bucket.last = index, index == 1
            compressor(group, bucket).wait()
            results.add((bucket.array != 0).tobytes())
    assert len(results) == 6


def test_int8_never_overflows() -> None:
    class Highest:
        def random(self, shape: Any, dtype: Any) -> np.ndarray:
            return np.full(shape, np.nextafter(dtype(1), dtype(0)))

    rows = np.random.default_rng(0).random((10_000, 32), np.float32)
    _, codes = Int8()._encode(rows, np.full((len(rows), 1), rows.shape[1]), Highest())
    assert (codes.view(np.int8) >= 0).all()


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("size", [1e-40, 1e30])
def test_magnitudes_at_the_ends_of_a_dtype(name: str, size: float) -> None:
    size = min(size, 1e3) if "16" in name else size
    gradient = (gradients(0, 0, SIZE) * size).astype(np.float32)
    assert np.isfinite(average(COMPRESSORS[name](), alone(), gradient, SHAPES)).all()


def test_top_k_sends_the_largest() -> None:
    compressor = TopK(k=2)
    got = average(compressor, alone(), np.array([1, -5, 2, 4], np.float32))
    assert got.tolist() == [0, -5, 0, 4]
    got = average(compressor, alone(), np.array([1, 0, 2, 0], np.float32))
    assert got.tolist() == [2, 0, 4, 0]


def test_threshold_sends_what_reaches_it() -> None:
    compressor, group = Threshold(2.0), alone()
    assert average(compressor, group, np.array([1, -2, 0], np.float32)).tolist() == [0, -2, 0]
    assert average(compressor, group, np.array([1, 0, 1], np.float32)).tolist() == [2, 0, 0]
    assert average(compressor, group, np.zeros(3, np.float32)).tolist() == [0, 0, 0]


def test_one_bit_sends_mean_magnitudes() -> None:
    got = average(OneBit(), alone(), np.tile(np.array([3, -1], np.float32), 16))
    assert got.tolist() == [2, -2] * 16


@pytest.mark.parametrize("size", [1, 31, 33, 2049, 5000])
def test_one_bit_takes_no_mean_of_more_than_there_is(size: int) -> None:
    given = np.tile(np.array([2, -2], np.float32), size)[:size]
    assert average(OneBit(), alone(), given.copy()).tolist() == given.tolist()


def test_int8_is_near() -> None:
    given = gradients(0, 0, 5000)
    got = average(Int8(), alone(), given.copy())
    assert np.abs(got - given).max() <= 2.1 * np.abs(given).max() / 127


def test_power_sgd_finds_a_matrix_of_low_rank() -> None:
    draw = np.random.default_rng(0)
    matrix = (draw.standard_normal((40, 3)) @ draw.standard_normal((3, 50))).astype(np.float32)
    group = alone()
    wanted = matrix.ravel()
    for rank in (3, 5):  # of more columns some depend on others
        got = average(PowerSGD(rank, min_compression_rate=1), group, wanted.copy(), [(40, 50)])
        np.testing.assert_allclose(got, wanted, atol=1e-3)


@pytest.mark.parametrize("size", [1e-6, 1e3])
def test_power_sgd_sends_halves_of_gradients_of_any_size(size: float) -> None:
    draw = np.random.default_rng(0)
    matrix = draw.standard_normal((40, 1)) @ draw.standard_normal((1, 50)) * size
    wanted = matrix.astype(np.float32).ravel()
    compressor, group = PowerSGD(1, values="float16"), alone()
    for _ in range(2):  # the second begins with the first one's Q
        got = average(compressor, group, wanted.copy(), [(40, 50)])
    np.testing.assert_allclose(got, wanted, rtol=0.02, atol=0.01 * np.abs(wanted).max())


def test_power_sgd_of_zeros_begins_anew() -> None:
    compressor, group = PowerSGD(2), alone()
    assert not average(compressor, group, np.zeros(1200, np.float32), [(30, 40)]).any()
    assert average(compressor, group, gradients(0, 0, 1200), [(30, 40)]).any()


def test_power_sgd_is_exact_until_it_starts() -> None:
    compressor, group = PowerSGD(1, start_iteration=2), alone()
    kept = []
    for step in range(3):
        given = gradients(step, 0, SIZE)
        got = average(compressor, group, given.copy(), SHAPES)
        kept.append((got == given).all())
        assert (got[600:607] == given[600:607]).all()  # of one dimension
    assert kept == [True, True, False]


def test_momentum_is_that_of_each_element_since_it_was_sent() -> None:
    compressor, group = MomentumCorrection(TopK(k=1), momentum=0.5), alone()
    gradient = np.array([4, 1], np.float32)
    got = [average(compressor, group, gradient.copy()).tolist() for _ in range(3)]
    # The second one's velocity is 1, 1.5, 1.75, whose sum is sent when it exceeds the first's 4.
    assert got == [[4, 0], [4, 0], [0, 4.25]]


def test_gradients_are_clipped_before_they_accumulate() -> None:
    compressor = MomentumCorrection(TopK(1.0), clip_norm=1.0)
    got = average(compressor, alone(), np.array([30, 40], np.float32))
    np.testing.assert_allclose(got, [0.6, 0.8], rtol=1e-6)


def test_sparsity_warms_up() -> None:
    compressor, group = MomentumCorrection(TopK(0.01), warmup_steps=3), alone()
    sent = [
        np.count_nonzero(average(compressor, group, gradients(step, 0, 10_000)))
        for step in range(5)
    ]
    assert sent == [2500, 855, 292, 100, 100]


def test_alone_nothing_is_sent() -> None:
    compressor = TopK()
    average(compressor, alone(), gradients(0, 0, SIZE))
    stats = compressor.stats()
    assert (stats.bytes_sent, stats.dense_bytes, stats.steps, stats.ratio) == (0, 0, 1, 1.0)
