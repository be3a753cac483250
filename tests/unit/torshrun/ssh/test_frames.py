"""Frames come out as they went in, however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.framing import MOST_BYTES, DamagedFrame
from torshrun.ssh.frames import Frames, frame

PARTS = st.lists(st.tuples(st.sampled_from([b"O", b"R", b"B"]), st.binary(max_size=50)))


@given(PARTS, st.integers(1, 20))
def test_any_cut(parts: list[tuple[bytes, bytes]], step: int) -> None:
    data = b"".join(frame(kind, content) for kind, content in parts)
    frames = Frames()
    found = [
        each for cut in range(0, len(data), step) for each in frames.feed(data[cut : cut + step])
    ]
    assert found == parts


def test_one_that_is_too_long_is_refused_before_it_has_come() -> None:
    with pytest.raises(DamagedFrame, match="bytes"):
        list(Frames().feed(b"O" + (MOST_BYTES + 1).to_bytes(4, "big")))
