"""Measures publishing weights to readers on the same node, compared with a memcpy of them.

    python benchmarks/rpc_publish.py --bars

This process publishes; the readers are separate processes. First they only take each version: the
time is from the call of publish() until the last reader has arrays of the version. Then they copy
each version to their own memory and check it, and the next one is published while all are in the
middle of that: undisturbed, and as one of them is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

import numpy as np

import torsh_runtime as tr
from benchmarks import machine
from benchmarks.bars import Check, all_pass
from benchmarks.processes import INTERRUPTED, RunError, interrupt_on_term
from benchmarks.spawn import free_port
from benchmarks.table import ratio, render

NAME = "weights"
ARRAYS = 64
WARM_UP = 3
"""Versions after which all slots have been made, and mapped by readers."""
TAKE, COPY = "take", "copy"
"""Ways in which readers use a version."""
MEMCPY, PUBLISH, ALL, FIRST = "memcpy", "publish()", "all readers have it", "first publish()"
ALONE, KILLED = "nobody is killed", "a reader is killed"
Times = dict[str, list[float]]
"""Milliseconds by kind of time."""


# ---- a reader


def be_reader(name: str, place: str, way: str) -> None:
    """Take versions as they come, and report for each when it arrived and whether it was right."""
    tr.rpc.init_rpc(name, rpc_backend_options=tr.rpc.RpcBackendOptions(init_method=place))
    subscription = tr.rpc.subscribe(NAME)
    own: dict[str, np.ndarray] = {}
    while True:
        with subscription.wait(timeout=600) as weights:
            arrays = {key: weights[key] for key in weights if key != "number"}
            tell("has", weights["number"], time.monotonic())
            if way == COPY:
                own = own or {key: np.zeros_like(array) for key, array in arrays.items()}
                weights.copy_to(own)
            number, values = weights["number"], own or arrays
            is_right = all((array[::4096] == number).all() for array in values.values())
            del arrays, values
        tell("right" if is_right else "WRONG", number, time.monotonic())


def tell(what: str, number: int, moment: float) -> None:
    print(what, number, moment, flush=True)


class Reader:
    """Represents a reader to the writer."""

    def __init__(self, name: str, place: str, way: str, cpus: set[int] | None = None) -> None:
        """Start the reader. `cpus`: those on which it may run; None: all."""
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--reader", name, place, way],
            stdout=subprocess.PIPE,
            text=True,
        )
        if cpus:
            os.sched_setaffinity(self.process.pid, cpus)

    def told(self, what: str, number: int) -> float:
        """Return the time of this line, and skip others.

        Raises RunError for a wrong version, or if the reader has ended.
        """
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, version, moment = line.split()
            if word == "WRONG":
                raise RunError(f"a reader got a wrong version {version}")
            if word == what and int(version) >= number:
                return float(moment)
        raise RunError("a reader has ended")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


# ---- the writer


class Writer:
    """Publishes versions of a state that are filled with their numbers."""

    def __init__(self, num_bytes: int) -> None:
        size = num_bytes // ARRAYS // 4
        self.states = [
            {f"layer{i}": np.zeros(size, np.int32) for i in range(ARRAYS)} for _ in range(2)
        ]
        self.copy = {key: np.ones_like(array) for key, array in self.states[0].items()}
        self.filled = self.published = 0

    def fill(self) -> int:
        """Make a version, and return its number."""
        self.filled += 1
        for array in self.states[self.filled % 2].values():
            array.fill(self.filled)
        return self.filled

    def memcpy(self) -> float:
        """Copy a version to existing memory, and return the milliseconds."""
        began = time.monotonic()
        for key, array in self.states[self.filled % 2].items():
            np.copyto(self.copy[key], array)
        return (time.monotonic() - began) * 1e3

    def publish(self) -> tuple[float, float]:
        """Publish the next version, and return when that started and its milliseconds."""
        self.published += 1
        state = {**self.states[self.published % 2], "number": self.published}
        began = time.monotonic()
        tr.rpc.publish(NAME, state)
        return began, (time.monotonic() - began) * 1e3


@contextlib.contextmanager
def apart() -> Iterator[set[int]]:
    """Restrict the writer to one processor, and yield the other ones for the readers.

    So the readers' computing does not affect the times.
    """
    allowed = os.sched_getaffinity(0)
    own = {min(allowed)}
    os.sched_setaffinity(0, own)
    try:
        yield allowed - own or allowed
    finally:
        os.sched_setaffinity(0, allowed)


@contextlib.contextmanager
def readers(
    count: int, place: str, way: str, cpus: set[int] | None = None
) -> Iterator[list[Reader]]:
    found = [Reader(f"{way}{number}", place, way, cpus) for number in range(count)]
    try:
        yield found
    finally:
        for each in found:
            each.end()


def taking(writer: Writer, place: str, count: int, rounds: int) -> Times:
    """Publish to readers that only take versions."""
    times: Times = {MEMCPY: [], PUBLISH: [], ALL: []}
    with readers(count, place, TAKE) as found:
        for turn in range(WARM_UP + rounds):
            number = writer.fill()
            plain = writer.memcpy()
            began, own = writer.publish()
            last = max(each.told("has", number) for each in found)
            for each in found:
                each.told("right", number)
            if turn == 0:
                times[FIRST] = [own]
            if turn >= WARM_UP:
                times[MEMCPY].append(plain)
                times[PUBLISH].append(own)
                times[ALL].append((last - began) * 1e3)
    return times


def killing(writer: Writer, place: str, count: int, rounds: int) -> Times:
    """Publish while readers copy the previous version; every other time one of them is killed."""
    times: Times = {ALONE: [], KILLED: []}
    with apart() as others, readers(count, place, COPY, others) as found:
        for turn in range(2 * (WARM_UP + rounds)):
            case = KILLED if turn % 2 else ALONE
            first, number = writer.fill(), writer.fill()
            writer.publish()
            for each in found:
                each.told("has", first)
            if case == KILLED:
                os.kill(found[0].process.pid, signal.SIGKILL)
            _, own = writer.publish()
            if case == KILLED:
                found[0].end()
                found[0] = Reader(f"copy{count + turn}", place, COPY, others)
            for each in found:
                each.told("right", number)
            if turn >= 2 * WARM_UP:
                times[case].append(own)
    return times


# ---- both


def table(times: Times) -> str:
    median = {what: statistics.median(taken) for what, taken in times.items()}
    bases = {PUBLISH: MEMCPY, ALL: MEMCPY, FIRST: MEMCPY, KILLED: ALONE}
    body = [
        [
            what,
            f"{median[what]:.1f}",
            f"{min(taken):.1f}",
            f"{max(taken):.1f}",
            _ratio(median, what, bases),
        ]
        for what, taken in times.items()
    ]
    return render(["", "median ms", "least", "most", "ratio"], body)


def _ratio(median: dict[str, float], what: str, bases: dict[str, str]) -> str:
    return ratio(median[what] / median[bases[what]] if what in bases else None)


def checks(times: Times) -> list[Check]:
    median = {what: statistics.median(taken) for what, taken in times.items()}
    return [
        Check("until all readers have it, in memcpys", median[ALL] / median[MEMCPY], 1.3, True),
        Check(
            "publish() as a reader is killed, beside publish() as none is",
            median[KILLED] / median[ALONE],
            1.01,
            at_most=True,
        ),
    ]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=512, help="of a version; default: 512")
    parser.add_argument("--readers", type=int, default=3, help="default: 3")
    parser.add_argument("--rounds", type=int, default=20, help="versions of each kind; default: 20")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    parser.add_argument("--quick", action="store_true", help="a few small versions")
    parser.add_argument("--bars", action="store_true", help="exit status 1 unless all bars pass")
    options = parser.parse_args(arguments)
    if options.quick:
        options.mib, options.rounds = 8, 2
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    place = f"tcp://127.0.0.1:{free_port()}"
    backend = tr.rpc.RpcBackendOptions(init_method=place)
    tr.rpc.init_rpc("writer", rank=0, rpc_backend_options=backend)
    try:
        writer = Writer(options.mib << 20)
        times = taking(writer, place, options.readers, options.rounds)
        times |= killing(writer, place, options.readers, options.rounds)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        tr.rpc.shutdown(graceful=False)
    print(f"{options.mib} MiB to {options.readers} readers\n{table(times)}")
    found_checks = checks(times)
    if options.bars:
        print("\n" + "\n".join(map(str, found_checks)))
    if options.json:
        record = {"machine": machine.describe(), "mib": options.mib, "times": times}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(options.bars and not all_pass(found_checks))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--reader"]:
        be_reader(*sys.argv[2:5])
    raise SystemExit(main())
