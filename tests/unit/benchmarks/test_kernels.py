import pytest

pytest.importorskip("torsh_runtime.backends.native._native")
from benchmarks.kernels import MOST_MEMCPYS, Figure, checks, parse
from torsh_runtime.enumerations import DTYPES


def figure(dtype: str, operation: str, memcpys: float) -> Figure:
    return Figure(dtype, operation, 2, 131072, memcpys * 3.0, memcpys)


def test_bandwidth_counts_what_is_read() -> None:
    assert figure("float32", "SUM", 1.0).gbs == pytest.approx(2 * 131072 / 3e3)


def test_a_kernel_that_is_many_times_slower_than_a_copy_fails() -> None:
    slow, fast = MOST_MEMCPYS + 1, MOST_MEMCPYS - 1
    figures = [figure("bfloat16", "SUM", slow), figure("float16", "MAX", fast)]
    assert [check.passed for check in checks(figures)] == [False, True]


def test_products_and_complex_numbers_have_no_bar() -> None:
    assert not checks([figure("int8", "PRODUCT", 99.0), figure("complex64", "SUM", 99.0)])


def test_all_dtypes_unless_said_otherwise() -> None:
    assert parse([]).dtype == DTYPES
    assert parse(["--dtype", "int8"]).dtype == ("int8",)
    with pytest.raises(SystemExit):
        parse(["--dtype", "int4"])
