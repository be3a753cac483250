"""Turns Python objects into arrays of bytes with a proof that a rank of the job made them.

Unpickling runs what the sender chose. So each pickle carries an HMAC-SHA256 under a key of the job,
whatever way it takes, and is not unpickled unless that is correct. The proof covers sender,
receiver, group, call, and the number of the pickle among those of the same four. So it is worthless
in a different place, in the other direction or a second time.
"""

from __future__ import annotations

import hmac
import pickle
import struct
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.errors import CommError, ConfigError
from torsh_runtime.store.keys import derive

Bytes = NDArray[np.uint8]

ALL = -1
"""The receiver that means all ranks of the group."""
_NUMBER = struct.Struct("<Q")
_HEAD = _NUMBER.size + 32
"""Bytes in front of a pickle: its number and the proof."""


class AuthenticatedMessage(NamedTuple):
    """Identifies the purpose of a pickle."""

    group: str
    """The group's name."""
    call: str
    """The operation that carries it."""
    sender: int
    """The group's rank."""
    receiver: int
    """The group's rank, or ALL."""


class _Numbers:
    """Holds the received numbers of a sequence that is mostly received in order."""

    def __init__(self) -> None:
        self._below = 0
        self._beyond: set[int] = set()

    def take(self, number: int) -> bool:
        """Return whether the number is new, and note it."""
        if number < self._below or number in self._beyond:
            return False
        self._beyond.add(number)
        while self._below in self._beyond:
            self._beyond.discard(self._below)
            self._below += 1
        return True


class AuthenticatedPickle:
    """Packs and unpacks the pickles of one rank, for the life of its job."""

    def __init__(self, secret: bytes) -> None:
        """Create it with the `secret` that only the job's ranks know; empty means none."""
        self._key = derive(secret, "objects")
        self._lock = threading.Lock()
        self._sent: Counter[AuthenticatedMessage] = Counter()
        self._received: defaultdict[AuthenticatedMessage, _Numbers] = defaultdict(_Numbers)

    def check(self) -> None:
        """Raise ConfigError in a job that can prove nothing."""
        if not self._key:
            raise ConfigError(
                "Python objects are not exchanged in a job without a secret whose store other "
                "machines can reach: whoever reaches the ports could run code here. Start it with "
                "torshrun, set TORSH_SECRET to the same random hexadecimal number for all ranks "
                "(openssl rand -hex 32), or, if all ranks run here, MASTER_ADDR=127.0.0.1."
            )

    def pack(self, value: object, letter: AuthenticatedMessage) -> Bytes:
        """Return the pickled value with the proof; uint8 of shape (bytes,).

        Raises ConfigError as `check` does.
        """
        self.check()
        body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        with self._lock:
            number = self._sent[letter]
            self._sent[letter] += 1
        digest = self._digest(body, letter, number)
        return np.frombuffer(bytearray(_NUMBER.pack(number) + digest + body), np.uint8)

    def unpack(self, packed: Bytes, letter: AuthenticatedMessage) -> Any:
        """Return the value that pack() packed. Raises CommError if the proof is wrong."""
        return self.unpack_all([packed], [letter])[0]

    def unpack_all(
        self, packed: Sequence[Bytes], letters: Sequence[AuthenticatedMessage]
    ) -> list[Any]:
        """Return several values. None is unpickled unless the proofs of all are correct.

        Raises CommError if a proof is wrong, ConfigError as `check` does.
        """
        self.check()
        bodies = [self._open(*each) for each in zip(packed, letters, strict=True)]
        return [pickle.loads(body) for body in bodies]  # noqa: S301  (of ranks, as they proved)

    def forget(self, group: str) -> None:
        """Forget the group of this name, whose pickles will no longer be packed or unpacked."""
        with self._lock:
            for known in (self._sent, self._received):
                for letter in [letter for letter in known if letter.group == group]:
                    del known[letter]

    def _open(self, packed: Bytes, letter: AuthenticatedMessage) -> memoryview:
        data = packed.data
        number = _NUMBER.unpack(data[: _NUMBER.size])[0] if data.nbytes > _HEAD else 0
        digest, body = data[_NUMBER.size : _HEAD], data[_HEAD:]
        is_right = hmac.compare_digest(digest, self._digest(body, letter, number))
        if not (is_right and self._take(letter, number)):
            raise CommError(
                f"a Python object was received in {letter.call} that rank {letter.sender} of this "
                f"job has not sent there and then, and was thrown away unread. Somebody has got at "
                f"the connections of the group, or its ranks have different values of TORSH_SECRET."
            )
        return body

    def _take(self, letter: AuthenticatedMessage, number: int) -> bool:
        """Return whether the number is new; threads may open the pickles in any order."""
        with self._lock:
            return self._received[letter].take(number)

    def _digest(self, body: bytes | memoryview, letter: AuthenticatedMessage, number: int) -> bytes:
        words = (letter.call, str(letter.sender), str(letter.receiver), str(number))
        return hmac.digest(derive(self._key, letter.group, *words), body, "sha256")
