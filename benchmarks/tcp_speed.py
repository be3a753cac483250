"""Measures the network itself: `tcp_speed.py listen` and `tcp_speed.py HOST PORT`.

Measures two plain sockets: the round trip of 8 bytes, and the speed of large writes one way and
    both ways at once. The listener prints its port and then, as JSON, the results in us and GB/s
    (10^9 bytes a second, of one direction).
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable

_TRIPS, _WARM = 2000, 200
_WRITE, _TOTAL, _REPEATS = 1 << 20, 1 << 27, 5
_TIMEOUT = 60.0


def receive(link: socket.socket, nbytes: int) -> None:
    """Receive `nbytes` bytes, and discard them."""
    room = memoryview(bytearray(min(nbytes, _WRITE)))
    while nbytes:
        taken = link.recv_into(room[: min(nbytes, len(room))])
        if not taken:
            raise EOFError("the other side has gone")
        nbytes -= taken


def send(link: socket.socket) -> None:
    """Send the whole amount in large writes."""
    block = bytes(_WRITE)
    for _ in range(_TOTAL // _WRITE):
        link.sendall(block)


def both_ways(link: socket.socket) -> None:
    """Send and receive the whole amount at the same time."""
    sender = threading.Thread(target=send, args=(link,))
    sender.start()
    receive(link, _TOTAL)
    sender.join()


def measure(link: socket.socket) -> dict[str, float]:
    """Run the side that measures, and return the median round trip and the best speeds."""
    trips = [_seconds(lambda: ask(link)) for _ in range(_WARM + _TRIPS)]
    one_way = [_seconds(lambda: receive(link, _TOTAL)) for _ in range(_REPEATS)]
    both = [_seconds(lambda: both_ways(link)) for _ in range(_REPEATS)]
    return {
        "round_trip_us": statistics.median(trips[_WARM:]) * 1e6,
        "one_way_gbs": _TOTAL / min(one_way) / 1e9,
        "both_ways_gbs": _TOTAL / min(both) / 1e9,
    }


def ask(link: socket.socket) -> None:
    """Do one round trip."""
    link.sendall(bytes(8))
    receive(link, 8)


def _seconds(action: Callable[[], None]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def answer(link: socket.socket) -> None:
    """Run the other side, which answers the measurements."""
    for _ in range(_WARM + _TRIPS):
        receive(link, 8)
        link.sendall(bytes(8))
    for _ in range(_REPEATS):
        send(link)
    for _ in range(_REPEATS):
        both_ways(link)


def main() -> None:
    if sys.argv[1] == "listen":
        with socket.create_server(("", 0)) as server:
            server.settimeout(_TIMEOUT)
            print(server.getsockname()[1], flush=True)
            link, _ = server.accept()
    else:
        link = socket.create_connection((sys.argv[1], int(sys.argv[2])), _TIMEOUT)
    with link:
        link.settimeout(_TIMEOUT)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sys.argv[1] == "listen":
            print(json.dumps(measure(link)))
        else:
            answer(link)


if __name__ == "__main__":
    main()
