"""The list forms of the collectives, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from torsh_runtime.backends.single import SingleBackend
from torsh_runtime.comm.group import ProcessGroup


@pytest.fixture
def group() -> ProcessGroup:
    return ProcessGroup(SingleBackend(), 10.0)


def test_all_gather_fills_strided_targets(group: ProcessGroup) -> None:
    targets = np.zeros((4, 6), np.float32)
    group.all_gather([targets[::2, ::3]], np.full((2, 2), 7, np.float32)).wait()
    assert targets.sum() == 4 * 7
    assert (targets[::2, ::3] == 7).all()


def test_reduce_scatter_takes_a_list(group: ProcessGroup) -> None:
    output = np.zeros(3, np.int64)
    group.reduce_scatter(output, [np.arange(3)]).wait()
    assert output.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        ([np.zeros(3), np.zeros(3)], "has 2 arrays; it needs one per rank, 1"),
        ([np.zeros((2, 3))], r"tensor_list\[0\] is float64\[2, 3\]"),
        ([np.zeros(3, np.float32)], r"tensor_list\[0\] is float32\[3\]"),
    ],
)
def test_lists_that_do_not_fit_are_refused(
    group: ProcessGroup, targets: list[np.ndarray], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        group.all_gather(targets, np.zeros(3))
