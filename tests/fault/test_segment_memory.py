"""What the memory that a node's ranks share really takes."""

from __future__ import annotations

import pytest
from support.segment_memory import segment_memory


@pytest.mark.slow
def test_many_ranks_take_memory_as_they_use_it() -> None:
    made, talked = segment_memory(64, 100_000)
    assert made <= 24
    assert talked <= 100
