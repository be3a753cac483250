"""The JSON of etcd's gateway: bytes are base64, 64-bit numbers are text, and zeros are omitted."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any, NamedTuple

from torsh_runtime.store.base import Compare, Entry, Event, Put, Write

Message = dict[str, Any]


class KeyRange(NamedTuple):
    """Selects a single key, or all keys with a prefix."""

    text: str
    is_prefix: bool

    def message(self) -> Message:
        """Return the fields that name the range in a request."""
        if not self.is_prefix:
            return {"key": encode(self.text.encode())}
        if not self.text:
            return {"key": "AA==", "range_end": "AA=="}  # from "\0" on
        start = self.text.encode()
        end = start[:-1] + bytes((start[-1] + 1,))  # UTF-8 has no byte 0xff
        return {"key": encode(start), "range_end": encode(end)}

    def __str__(self) -> str:
        return repr(self.text)


def encode(value: bytes) -> str:
    """Return bytes as a message contains them: base64 text."""
    return b64encode(value).decode()


def transaction(
    compares: Sequence[Compare], writes: Sequence[Write], otherwise: Sequence[KeyRange] = ()
) -> Message:
    """Return a transaction that reads the ranges `otherwise` if a condition does not hold."""
    return {
        "compare": [_compare(compare) for compare in compares],
        "success": [_write(write) for write in writes],
        "failure": [{"request_range": keys.message()} for keys in otherwise],
    }


def put(write: Put) -> Message:
    """Return a single write."""
    return {
        "key": encode(write.key.encode()),
        "value": encode(write.value),
        "lease": str(write.lease),
    }


def reads(ranges: Sequence[KeyRange]) -> Message:
    """Return a transaction that only reads."""
    return {"success": [{"request_range": keys.message()} for keys in ranges]}


def sound(answer: Any) -> Message:
    """Return the answer. Raises ConnectionError if it is no answer of an etcd >= 3.4."""
    try:
        for read in (revision, cluster, entries, entries_read, events):
            read(answer)
        int(answer.get("TTL", 0))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise ConnectionError("what answers there does not speak as etcd >= 3.4 does") from None
    message: Message = answer
    return message


def entries(answer: Message) -> tuple[Entry, ...]:
    """Return the keys that a range request found."""
    return tuple(map(_entry, answer.get("kvs", ())))


def entries_read(answer: Message) -> tuple[Entry, ...]:
    """Return the keys that a transaction's range requests found."""
    found = (part.get("response_range", {}) for part in answer.get("responses", ()))
    return tuple(entry for part in found for entry in entries(part))


def events(answer: Message) -> tuple[Event, ...]:
    """Return the changes in a message of a watch."""
    return tuple(map(_event, answer.get("events", ())))


def revision(answer: Message) -> int:
    """Return the store's revision when it answered; 0 if the answer has none."""
    return int(answer.get("header", {}).get("revision", 0))


def cluster(answer: Message) -> int:
    """Return the id of the cluster that answered; 0 if the answer has none."""
    return int(answer.get("header", {}).get("cluster_id", 0))


def _compare(compare: Compare) -> Message:
    return {
        "key": encode(compare.key.encode()),
        "target": "MOD",
        "mod_revision": str(compare.revision),
    }


def _write(write: Write) -> Message:
    if isinstance(write, Put):
        return {"request_put": put(write)}
    return {"request_delete_range": {"key": encode(write.key.encode())}}


def _entry(kv: Message) -> Entry:
    return Entry(
        b64decode(kv["key"]).decode(errors="surrogateescape"),
        b64decode(kv.get("value", "")),
        int(kv["mod_revision"]),
        int(kv.get("lease", 0)),
    )


def _event(event: Message) -> Event:
    key, value, revision, lease = _entry(event["kv"])
    if event.get("type") == "DELETE":
        return Event("delete", key, b"", revision)
    return Event("put", key, value, revision, lease)
