"""The tag that pickles of calls are sealed with."""

from __future__ import annotations

import pytest

from torsh_runtime.backends.native.compiled import _native

KEY = bytes(range(16))
VECTORS = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    63: "5150d1772f50834a503e069a973fbd7c",
}
"""Of the reference implementation (vectors_sip128): messages are 00 01 02 …"""


@pytest.mark.parametrize("size", VECTORS)
def test_it_is_siphash_2_4_with_128_bits(size: int) -> None:
    assert _native.siphash(KEY, bytes(range(size))).hex() == VECTORS[size]


def test_every_bit_of_a_message_counts() -> None:
    message = bytes(range(40))
    tags = {_native.siphash(KEY, message)}
    for at in range(8 * len(message)):
        changed = bytearray(message)
        changed[at // 8] ^= 1 << at % 8
        tags.add(_native.siphash(KEY, bytes(changed)))
    assert len(tags) == 8 * len(message) + 1


def test_a_key_must_be_long_enough() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        _native.siphash(b"short", b"")
