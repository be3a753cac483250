"""A program: one rank meets the others and writes on every link who it is; prints what it found.

Arguments: rank, number of ranks, the store's endpoint, seconds it may take.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Mapping, Sequence

from torsh_runtime.backends.native.bootstrap import Bootstrap, bootstrap
from torsh_runtime.backends.native.host_info import Terms
from torsh_runtime.backends.native.network import Network
from torsh_runtime.errors import TorshError
from torsh_runtime.store.base import Entry
from torsh_runtime.store.client import StoreClient

PATIENCE = 60.0


class Stopping:
    """A store that stops this process, if MEETING_STOPS is set, when it is to tell its address."""

    def __init__(self, store: StoreClient) -> None:
        self._store = store
        self.endpoint = store.endpoint

    def put(self, key: str, value: bytes) -> object:
        if key.startswith("link/") and os.environ.get("MEETING_STOPS"):
            os.kill(os.getpid(), signal.SIGSTOP)
        return self._store.put(key, value)

    def get(self, key: str) -> Entry | None:
        return self._store.get(key)

    def wait(self, keys: Sequence[str], timeout: float) -> Mapping[str, Entry]:
        return self._store.wait(keys, timeout)


def main(rank: int, ranks: int, endpoint: str, timeout: float) -> dict[str, object]:
    network = Network.from_environ(os.environ)
    with StoreClient.connect(endpoint, network.secret, PATIENCE) as store:
        try:
            with bootstrap(
                Stopping(store.scoped("group/")),
                rank,
                ranks,
                timeout,
                segment_sizes=lambda local: (4096 * local,),
                network=network,
                terms=Terms(),
                name="test",
            ) as meeting:
                found = account(meeting)
                store.put(f"over/{rank}", b"")  # who leaves earlier is lost to those on the way
                store.wait([f"over/{each}" for each in range(ranks)], PATIENCE)
                return found
        except TorshError as error:
            return {"error": type(error).__name__, "text": str(error)}


def account(meeting: Bootstrap) -> dict[str, object]:
    for peer, lanes in meeting.links.items():
        for number, lane in enumerate(lanes):
            os.write(lane, f"{meeting.rank} {peer} {number}".encode())
    heard = {
        peer: [hear(lane) == f"{peer} {meeting.rank} {number}" for number, lane in enumerate(lanes)]
        for peer, lanes in meeting.links.items()
    }
    return {
        "nodes": meeting.nodes,
        "links": {peer: len(lanes) for peer, lanes in meeting.links.items()},
        "heard": all(all(lanes) for lanes in heard.values()),
        "bytes": os.fstat(meeting.file).st_size,
        "blocking": [fd for lanes in meeting.links.values() for fd in lanes if os.get_blocking(fd)],
    }


def hear(lane: int) -> str:
    select.select([lane], [], [], PATIENCE)
    return os.read(lane, 100).decode()


if __name__ == "__main__":
    rank, ranks, endpoint, timeout = sys.argv[1:]
    print(json.dumps(main(int(rank), int(ranks), endpoint, float(timeout))))
