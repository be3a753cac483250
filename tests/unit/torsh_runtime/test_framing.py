"""Frames come out as they went in, however they are cut, and no stream makes a reader hold much."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.framing import DamagedFrame, Frames, Order, frame


@given(
    st.lists(st.binary(max_size=50)),
    st.integers(1, 20),
    st.sampled_from([b"", b"K"]),
    st.sampled_from(["big", "little"]),
)
def test_any_cut(payloads: list[bytes], step: int, kind: bytes, order: Order) -> None:
    data = b"".join(frame(payload, kind, order) for payload in payloads)
    frames, found = Frames(kind_bytes=len(kind), order=order), []
    for cut in range(0, len(data), step):
        frames.feed(data[cut : cut + step])
        while (taken := frames.take()) is not None:
            found.append(taken)
    assert found == [kind + payload for payload in payloads]


def test_one_that_is_too_long_is_refused_before_it_has_come() -> None:
    frames = Frames(limit=8)
    frames.feed(frame(bytes(8)) + frame(bytes(9))[:4])
    assert frames.take() == bytes(8)
    with pytest.raises(DamagedFrame, match="a frame of 9 bytes is announced and at most 8"):
        frames.take()
