from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.backends.work import Work

MAX_LOCAL_RANKS: int
ANY_SOURCE: int

def segment_bytes(ranks: int, tuning: Tuning) -> int: ...
def abandon(segment: int, index: int, ranks: int, rank: int) -> None: ...
def is_reducible(dtype: int, op: int) -> bool: ...
def reduce(
    targets: Sequence[object],
    sources: Sequence[object],
    dtype: int,
    op: int,
    divisor: int,
    factor: float,
) -> None: ...
def least_block(ranks: int) -> int: ...

class Typed:
    def __init__(self, buffer: object, dtype: int, name: str | None = None) -> None: ...

class Tuning:
    def __init__(self, ranks: int) -> None: ...

    whole_limit: int
    crowded_whole_limit: int
    block_bytes: int

class Limits:
    leader: int
    tree: int
    segment: int
    block: int

class Pending:
    def wait(self, timeout: float | None) -> bool: ...
    def done(self) -> bool: ...
    def check(self) -> None: ...
    def source(self) -> int: ...
    def message(self) -> tuple[int, int, int, NDArray[np.uint8] | None] | None: ...
    def when_over(self, completions: Completions, number: int) -> None: ...

class Completions:
    def __init__(self) -> None: ...
    def wait(self, seconds: float) -> list[int]: ...

class Group:
    def __init__(
        self,
        rank: int,
        nodes: Sequence[Sequence[int]],
        segment: int,
        tuning: Tuning,
        pids: Sequence[int],
        links: Sequence[Sequence[int]],
        neighbours: int,
        heartbeat: float,
        strategy: int,
        limits: Limits,
        record: memoryview | None,
        number: int,
        stage: Callable[[object, bool], tuple[Any, Callable[[], None] | None]],
        failure: Callable[..., BaseException],
        complete: Work,
        begun: Callable[[Pending], Work],
    ) -> None: ...
    @property
    def failed(self) -> bool: ...
    def meet(self, timeout: float) -> None: ...
    def all_reduce(self, array: object, op: object, timeout: float, async_op: bool) -> Work: ...
    def all_reduce_coalesced(
        self, arrays: Sequence[object], op: object, timeout: float, async_op: bool
    ) -> list[Work]: ...
    def reduce(
        self, array: object, root: int, op: object, timeout: float, async_op: bool
    ) -> Work: ...
    def broadcast(self, array: object, root: int, timeout: float, async_op: bool) -> Work: ...
    def all_gather(
        self, outputs: object, array: object, timeout: float, async_op: bool
    ) -> Work: ...
    def gather(
        self,
        outputs: Sequence[object] | None,
        array: object,
        root: int,
        timeout: float,
        async_op: bool,
    ) -> Work: ...
    def scatter(
        self,
        array: object,
        inputs: Sequence[object] | None,
        root: int,
        timeout: float,
        async_op: bool,
    ) -> Work: ...
    def reduce_scatter(
        self, output: object, inputs: object, op: object, timeout: float, async_op: bool
    ) -> Work: ...
    def all_to_all(
        self, outputs: object, inputs: object, timeout: float, async_op: bool
    ) -> Work: ...
    def send(
        self, array: object, dst: int, tag: int, timeout: float, async_op: bool
    ) -> Pending: ...
    def recv(
        self, array: object, src: int, tag: int | None, timeout: float, async_op: bool
    ) -> Pending: ...
    def send_object(
        self, bytes: object, dst: int, tag: int, timeout: float, async_op: bool
    ) -> Pending: ...
    def take_object(self, src: int, tag: int, timeout: float, async_op: bool) -> Pending: ...
    def probe(
        self, src: int, tag: int | None, timeout: float, only_now: bool
    ) -> Pending | None: ...
    def barrier(self, timeout: float, async_op: bool) -> Work: ...
    def all_come(self) -> bool: ...
    def run(self, call: Callable[[], None]) -> Pending: ...
    def add_region(self, memory: object, stride: int, bytes: int, timeout: float) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...

class SharedArrays:
    def __init__(
        self,
        file: int,
        offset: int,
        stride: int,
        kept: int,
        rank: int,
        pids: list[int],
        number: int,
    ) -> None: ...
    @staticmethod
    def possible() -> bool: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...
