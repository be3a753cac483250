"""Measures the cost of the recorder of operations.

    python benchmarks/recorder.py --bars

Two ranks have the same group twice, with the recorder and without (TORSH_RECORDER=off). They call
all_reduce of 8 bytes and of 1 MiB in both in turns, and send messages to each other. The cost of a
recorder that is off is measured by a small program (recorder_off.cpp), and a training step
(recorder_ddp.py) with both in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

import numpy as np

import torsh_runtime as tr
from benchmarks.bars import Check, all_pass
from benchmarks.peers import ONE_THREAD, SPAWN
from benchmarks.table import render
from torsh_runtime.backends.native.backend import NativeBackend
from torsh_runtime.monitoring import recording
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.hosted import HostedStore

_REDUCE, _SEND, _RECEIVE = "all_reduce of 8 B", "send of 8 B", "recv of 8 B"
_BURST, _BURSTS = 200, 20
"""Messages in a row, which fit into a ring, and bursts in each round."""
_MOST_NS, _MOST_OFF_NS, _MOST_OF_STEP = 50.0, 5.0, 0.5
_CASES = {_REDUCE: (1, 2_000), "all_reduce of 1 MiB": (1 << 17, 200)}
"""Number of elements of 8 bytes, and calls in a batch, by name."""


def groups_of(ranks: Sequence[int]) -> dict[str, tr.ProcessGroup]:
    """Return the same group twice: with the recorder and without."""
    found = {}
    for value in ("on", "off"):
        os.environ[recording.VARIABLE] = value
        recording.own_recording.cache_clear()
        found[value] = tr.new_group(ranks)
    return found


def measured(
    calls: Mapping[str, Callable[[], object]], batch: int, rounds: int
) -> dict[str, list[float]]:
    """Return the nanoseconds of a call, as the mean of each batch, in turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            begin = time.perf_counter()
            for _ in range(batch):
                call()
            if number:  # the first batch warms up
                found[name].append((time.perf_counter() - begin) / batch * 1e9)
    return found


def both_ranks(value: str) -> list[NativeBackend]:
    """Return two ranks in this process."""
    os.environ[recording.VARIABLE] = value
    recording.own_recording.cache_clear()
    secret = os.urandom(16)
    hosted = HostedStore.start(f"unix:@torsh-recorder-{secret.hex()}", secret)
    clients = [StoreClient.connect(hosted.endpoint, secret, 10.0) for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        made = list(
            pool.map(lambda rank: NativeBackend.connect(clients[rank], rank, 2, 30.0), range(2))
        )
    for client in clients:
        client.close()
    hosted.close()
    return made


def messages(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the nanoseconds of each send and recv of 8 bytes.

    Both ranks are one thread, so none waits for the other.
    """
    found: dict[str, dict[str, list[float]]] = {_SEND: {}, _RECEIVE: {}}
    array, ranks = np.zeros(1), {name: both_ranks(name) for name in ("on", "off")}
    for number in range(_BURSTS * rounds):
        for name, (sender, receiver) in sorted(ranks.items(), reverse=bool(number % 2)):
            send = partial(sender.send, array, 1, 0, 30.0)
            receive = partial(receiver.recv, array, 0, 0, 30.0)
            for what, call in ((_SEND, send), (_RECEIVE, receive)):
                begin = time.perf_counter()
                for _ in range(_BURST):
                    call()
                took = (time.perf_counter() - begin) / _BURST * 1e9
                found[what].setdefault(name, []).append(took)
    return found


def be_rank(rounds: int) -> None:
    tr.init_process_group()
    groups, found = groups_of([0, 1]), {}
    for what, (count, batch) in _CASES.items():
        array = np.zeros(count)
        calls = {name: partial(group.all_reduce, array) for name, group in groups.items()}
        found[what] = measured(calls, batch, rounds)
    if tr.get_rank() == 0:
        print(json.dumps(found), flush=True)


def report(found: dict[str, dict[str, list[float]]]) -> list[Check]:
    """Print a line for each case, and return the checks."""
    rows, checks = [], []
    for what, times in found.items():
        on, off = (statistics.median(times[name]) for name in ("on", "off"))
        each = [a - b for a, b in zip(times["on"], times["off"], strict=True)]
        more = statistics.median(each)
        rows.append([what, f"{on:.0f}", f"{off:.0f}", f"{more:.0f}", f"{on / off:.3f}"])
        if what in (_REDUCE, _SEND, _RECEIVE):
            checks.append(_check(f"{what}: ns more", more, _MOST_NS))
    print(render(["call", "on ns", "off ns", "more ns", "ratio"], rows))
    return checks


def report_off() -> list[Check]:
    """Measure the cost of a recorder that is off."""
    compiler = shutil.which("c++")
    if compiler is None:
        return [_check("off: ns more", None, _MOST_OFF_NS)]
    source = Path(__file__).with_name("recorder_off.cpp")
    with TemporaryDirectory() as folder:
        program, root = f"{folder}/recorder_off", source.parents[1]
        make = [sys.executable, "-P", str(root / "cmake" / "enumerations.py"), folder]
        subprocess.run(make, check=True)
        places = ["-I", folder, "-I", str(root / "torsh_runtime" / "csrc"), "-o", program]
        subprocess.run([compiler, "-std=c++20", "-O2", *places, str(source)], check=True)
        told = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [_check("off: ns more", float(told), _MOST_OFF_NS)]


def report_step(rounds: int, entry_ns: float) -> list[Check]:
    """Print the cost in a training step, as measured and as calculated from its entries."""
    if find_spec("torch") is None:
        return [_check("step of DDP: % more", None, _MOST_OF_STEP)]
    found = json.loads(_ranks(Path(__file__).with_name("recorder_ddp.py"), str(rounds)))
    on, off = statistics.median(found["on"]), statistics.median(found["off"])
    ratios = [a / b for a, b in zip(found["on"], found["off"], strict=True)]
    spread = statistics.stdev(ratios) / len(ratios) ** 0.5 * 100
    more = (statistics.median(ratios) - 1) * 100
    by_entries = found["entries"] * entry_ns / off / 1e4
    print(
        f"step of DDP: {on:.2f} ms on, {off:.2f} ms off, {more:+.2f} % (+- {spread:.2f} %); "
        f"{found['entries']} entries, by whose cost it is {by_entries:.4f} %"
    )
    return [
        _check("step of DDP: % more, less two standard errors", more - 2 * spread, _MOST_OF_STEP),
        _check("step of DDP: % more by its entries", by_entries, _MOST_OF_STEP),
    ]


def _check(what: str, value: float | None, most: float) -> Check:
    return Check(what, value, most, at_most=True, bar="recorder")


def _ranks(script: Path, *words: str) -> str:
    """Return the output of two ranks of the script."""
    return subprocess.run(
        [sys.executable, str(SPAWN), "2", str(script), *words],
        env={**os.environ, **ONE_THREAD, "TORSH_SECRET": "00" * 16},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    ).stdout


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--bars", action="store_true", help="end with 1 if a bar is not reached")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    rounds = 3 if options.quick else options.rounds
    if options.rank:
        be_rank(rounds)
        return 0
    told = _ranks(Path(__file__).resolve(), "--rank", "--rounds", str(rounds))
    checks = report({**messages(rounds), **json.loads(told)})
    entry_ns = max(check.value or 0.0 for check in checks)
    checks += [*report_off(), *report_step(rounds, entry_ns)]
    print("\n".join(map(str, checks)))
    return 0 if all_pass(checks) or not options.bars else 1


if __name__ == "__main__":
    raise SystemExit(main())
