"""Python and the core have the same numbers for the same names."""

from __future__ import annotations

from torsh_runtime.backends.base import CommunicationStrategy, ReduceOp
from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.backends.native.failures import Kind
from torsh_runtime.status import DTYPES, OPERATIONS, REDUCTIONS


def test_each_name_has_the_number_of_the_core() -> None:
    def numbered(names: tuple[str, ...]) -> dict[str, int]:
        return {name: number for number, name in enumerate(names)}

    assert _native.enumerations() == {
        "operations": numbered(OPERATIONS),
        "dtypes": numbered(DTYPES),
        "reductions": numbered(REDUCTIONS),
        "failures": {each.name: each.value for each in Kind},
        "strategies": numbered(tuple(CommunicationStrategy)),
    }
    assert numbered(REDUCTIONS) == {each.name: each.value for each in ReduceOp}
