"""What this project uses of psutil."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

CONN_LISTEN: str

class Error(Exception): ...

class snicaddr(NamedTuple):  # noqa: N801  (psutil's name)
    family: int
    address: str
    netmask: str | None

class snicstats(NamedTuple):  # noqa: N801
    isup: bool
    speed: int
    mtu: int

class addr(NamedTuple):  # noqa: N801
    ip: str
    port: int

class sconn(NamedTuple):  # noqa: N801
    laddr: addr
    status: str
    pid: int | None

class Process:
    pid: int
    def __init__(self, pid: int | None = None) -> None: ...
    def name(self) -> str: ...
    def children(self, recursive: bool = False) -> list[Process]: ...

def net_if_addrs() -> Mapping[str, Sequence[snicaddr]]: ...
def net_if_stats() -> Mapping[str, snicstats]: ...
def net_connections(kind: str = "inet") -> list[sconn]: ...
