"""Python objects as arrays of bytes, and the proof that a rank of the job has made them.

Unpickling runs what the sender chose. So each pickle carries an HMAC-SHA256 under the job's secret,
whatever way it takes, and is not looked at unless that is right. A job without a secret may have
none but ranks of this machine: its store must be out of others' reach.
"""

from __future__ import annotations

import hmac
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.errors import CommError, ConfigError

Bytes = NDArray[np.uint8]

_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Seal:
    """One job's."""

    secret: bytes
    """The job's; empty is none."""
    local: bool
    """Whether only processes of this machine can have joined the job."""

    def check(self) -> None:
        """Raise ConfigError in a job that can prove nothing and is not of one machine."""
        if not (self.secret or self.local):
            raise ConfigError(
                "Python objects are not exchanged in a job of several machines without a secret: "
                "whoever reaches the ports could run code here. Start it with torshrun, or set "
                "TORSH_SECRET to the same random hexadecimal number for all ranks."
            )

    def pack(self, value: object, group: str) -> Bytes:
        """The pickled value with the proof; shape (bytes,). ConfigError as `check`.

        group: its name; what is made for one group is not taken in another.
        """
        self.check()
        body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        return np.frombuffer(bytearray(self._digest(body, group) + body), np.uint8)

    def unpack(self, packed: Bytes, group: str) -> Any:
        """The counterpart of pack. CommError when the proof is wrong."""
        self.check()
        data = packed.data
        body = data[_DIGEST_BYTES:]
        if not hmac.compare_digest(data[:_DIGEST_BYTES], self._digest(body, group)):
            raise CommError(
                "a Python object was received that no rank of this job has sent, and was thrown "
                "away unread. Somebody has got at the connections of the group, or its ranks have "
                "different values of TORSH_SECRET."
            )
        return pickle.loads(body)  # noqa: S301  (the sender has proved that it is one of us)

    def _digest(self, body: bytes | memoryview, group: str) -> bytes:
        digest = hmac.new(self.secret, f"torsh object\0{group}\0".encode(), "sha256")
        digest.update(body)
        return digest.digest()
