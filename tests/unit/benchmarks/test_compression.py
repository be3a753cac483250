import pytest

pytest.importorskip("torsh_runtime.backends.native._native")
from benchmarks.compression import MOST, WIDTH, Figure, checks, parse, shapes


def figure(compressor: str, ms: float, sent: int) -> Figure:
    return Figure(compressor, ms, sent, 1_000_000)


def test_the_bucket_is_of_25_mb() -> None:
    size = sum(rows * (columns or [1])[0] for rows, *columns in shapes(WIDTH))
    assert 24e6 < 4 * size < 26e6


def test_time_saved_is_that_of_bytes_less_the_codecs() -> None:
    assert figure("int8", 0.0, 250_000).speedup(100) == pytest.approx(4)
    assert figure("int8", 80.0, 0).speedup(100) == pytest.approx(1)
    assert figure("int8", 20.0, 250_000).speedup(100) == pytest.approx(2)


def test_what_sends_too_much_fails() -> None:
    figures = [figure("topk:0.01", 1.0, 50_000), figure("onebit", 1.0, 50_001)]
    assert [check.passed for check in checks(figures)] == [True, False]


def test_all_compressors_unless_said_otherwise() -> None:
    assert parse([]).compressors == tuple(MOST)
    assert parse(["--compressors", "int8"]).compressors == ("int8",)
    with pytest.raises(SystemExit):
        parse(["--compressors", "gzip"])
