"""Keys: one for each use, and none that can be had by cutting the words differently."""

from __future__ import annotations

import hmac

from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.store.keys import KEY_BYTES, derive

WORDS = st.lists(st.text(max_size=5) | st.binary(max_size=5), min_size=1, max_size=4)


def as_bytes(words: list[str | bytes]) -> list[bytes]:
    return [word.encode() if isinstance(word, str) else word for word in words]


@given(
    WORDS.filter(lambda words: isinstance(words[0], str)),
    WORDS.filter(lambda words: isinstance(words[0], str)),
)
def test_other_words_or_other_cuts_are_another_key(
    one: list[str | bytes], two: list[str | bytes]
) -> None:
    keys = [derive(b"secret", str(words[0]), *words[1:]) for words in (one, two)]
    assert (keys[0] == keys[1]) is (as_bytes(one) == as_bytes(two))
    assert len(keys[0]) == KEY_BYTES


def test_it_is_hkdf() -> None:
    extracted = hmac.digest(b"torsh keys 1", b"secret", "sha256")
    info = b"\0\0\0\x04link\0\0\0\x011"
    assert derive(b"secret", "link", "1") == hmac.digest(extracted, info + b"\x01", "sha256")


def test_other_secrets_are_other_keys() -> None:
    assert derive(b"secret", "link") != derive(b"secret\0", "link")


def test_an_empty_secret_proves_nothing() -> None:
    assert derive(b"", "link", "context") == b""
