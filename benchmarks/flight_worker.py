"""Runs a rank of flight_faults.py, which trains and makes one mistake at one place.

FAULT in the environment is JSON: library (ours, torch), kind, rank, step, at (index of a call in a
    step), variant, seed, folder. The calls of a step are the same on all ranks, and no two
    successive ones in a group are alike. Before the fault its rank writes the call's number in its
    group to folder/truth.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

STEPS = 5
ENDINGS = ("kill", "memory", "exception")
"""Faults that end the rank at once, after which its agent stops the other ranks."""
PAUSE = 0.25
LONGEST = 30.0
"""Seconds to wait for another rank's fault."""
GROUPS = {"all": [[0, 1, 2, 3]], "tp": [[0, 1], [2, 3]], "dp": [[0, 2], [1, 3]]}
OPERATIONS = ("all_reduce", "broadcast", "all_gather")
DTYPES = ("float32", "float64", "int32")


class Call(NamedTuple):
    """Describes a call of a collective, which is the same on all ranks of its group."""

    group: str
    operation: str
    dtype: str
    elements: int
    reduction: str = "SUM"


def plan(seed: int) -> list[Call]:
    """Return the calls of a step: several in each group, and no two alike."""
    chance = random.Random(seed)
    sizes = chance.sample(range(16, 4096), 8)
    groups = ["all", "tp", "tp", "dp", "dp", "all", "all", "tp"]
    first, rest = groups[:1], groups[1:]
    chance.shuffle(rest)
    return [
        Call(group, chance.choice(OPERATIONS), chance.choice(DTYPES), elements)
        for group, elements in zip(first + rest, sizes, strict=True)
    ]


def wrong(call: Call, variant: str) -> Call:
    """Return the call with one mistake."""
    if variant == "dtype":
        return call._replace(dtype=DTYPES[(DTYPES.index(call.dtype) + 1) % len(DTYPES)])
    if variant == "size" and call.operation != "all_gather":
        return call._replace(elements=call.elements + 1)
    if variant == "reduction" and call.operation == "all_reduce":
        return call._replace(reduction="MAX")
    others = [each for each in OPERATIONS if each != call.operation]
    return call._replace(operation=others[call.elements % len(others)])


class Rank:
    """Runs the steps of one rank.

    `make` calls a collective, `sequence` returns the number of a group's next one, and `begun` how
    many this rank has started.
    """

    def __init__(
        self,
        fault: dict[str, Any],
        rank: int,
        make: Callable[[Call], None],
        sequence: Callable[[str], int],
        begun: Callable[[], int],
    ) -> None:
        self.fault, self.rank, self.make, self.sequence = fault, rank, make, sequence
        self.begun = begun
        self.calls = plan(fault["seed"])
        self.folder = Path(fault["folder"])

    def run(self) -> None:
        for call in self.calls:  # connects each group
            self.make(call)
        for step in range(STEPS):
            for at in range(len(self.calls)):
                if not self.strike(step, at):
                    self.make(self.calls[at])

    def strike(self, step: int, at: int) -> bool:
        """Make the mistake if it is time; return whether the call was made or is left out."""
        fault = self.fault
        kind, call, after = fault["kind"], self.calls[at], self.calls[(at + 1) % len(self.calls)]
        if kind == "crosswise":
            return self.cross(step, at)
        inside = kind == "kill" and fault["variant"] == "inside"
        if (step, at) != (fault["step"], fault["at"]):
            is_second = (step, at) == (fault["step"], fault["at"] + 1)
            return kind == "swap" and is_second and self.rank == fault["rank"]
        if self.rank != fault["rank"]:
            (self.folder / f"here-{self.rank}").touch()
            if inside:
                self.await_death()
            time.sleep(PAUSE if kind == "cut" else 0.0)
            return False
        self.note(call)
        if kind in ENDINGS and not inside:
            self.await_others(call.group)
        instead = {"skip": [], "swap": [after, call], "wrong": [wrong(call, fault["variant"])]}
        for each in instead.get(kind, []):
            self.make(each)
        if kind not in instead:
            self.suffer(kind, inside)
        return kind in instead

    def suffer(self, kind: str, inside: bool) -> None:
        """Carry out a fault before this rank's call, or in it."""
        if kind == "cut":
            (self.folder / "cut").touch()
            time.sleep(2 * PAUSE)
        elif kind == "kill":
            self.kill(inside)
        elif kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif kind == "memory":
            self.fill()
        elif kind == "exception":
            raise RuntimeError("the loss is no number")
        else:
            time.sleep(600)

    def note(self, call: Call) -> None:
        """Record the call as it should have been."""
        truth = {**call._asdict(), "sequence": self.sequence(call.group)}
        (self.folder / "truth").write_text(json.dumps(truth))

    def kill(self, inside: bool) -> None:
        """Kill this process at once, or when it is inside the call."""
        if not inside:
            os.kill(os.getpid(), signal.SIGKILL)
        (self.folder / "pid").write_text(str(os.getpid()))
        (self.folder / "pid").rename(self.folder / "struck")
        threading.Thread(target=self.kill_inside, args=(self.begun(),), daemon=True).start()

    def kill_inside(self, before: int) -> None:
        """Kill this process a moment after it has started one more call."""
        self.wait_until(lambda: self.begun() > before, "this rank came to no call")
        time.sleep(PAUSE / 2)
        os.kill(os.getpid(), signal.SIGKILL)

    def await_death(self) -> None:
        """Wait until the rank that is killed inside its call is gone, as it cannot have left the
        call.
        """
        struck = self.folder / "struck"
        self.wait_until(
            lambda: struck.exists() and not Path(f"/proc/{struck.read_text()}/exe").exists(),
            "no rank was killed",
        )

    def await_others(self, group: str) -> None:
        """Wait until the other ranks of its group are at the call, and a moment longer.

        In that moment they start the call: an agent would stop a late one before it shows that it
            is waiting.
        """
        members = next(ranks for ranks in GROUPS[group] if self.rank in ranks)
        others = [self.folder / f"here-{rank}" for rank in members if rank != self.rank]
        self.wait_until(lambda: all(each.exists() for each in others), "the others did not come")
        time.sleep(PAUSE / 2)

    def wait_until(self, condition: Callable[[], bool], else_: str) -> None:
        end = time.monotonic() + LONGEST
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"{else_} within {LONGEST:g} s")
            time.sleep(0.01)

    def fill(self) -> None:
        """Use more memory than available, in a cgroup with a small limit if there is one."""
        if self.fault["variant"]:
            Path(self.fault["variant"], "cgroup.procs").write_text(str(os.getpid()))
            held = [bytearray(os.urandom(1 << 20)) for _ in range(1 << 12)]
            raise AssertionError(len(held))
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel would

    def cross(self, step: int, at: int) -> bool:
        """Let two ranks make two calls in different order, in groups to which both belong."""
        fault = self.fault
        if (step, at) != (fault["step"], fault["at"]):
            return False
        pair = [fault["rank"], fault["rank"] ^ (1 if fault["variant"] == "tp" else 2)]
        two = [Call(group, "all_reduce", "float32", 8) for group in (fault["variant"], "all")]
        if self.rank not in pair:
            self.make(two[1])
            return True
        first, second = two if self.rank == pair[0] else two[::-1]
        if self.rank == pair[0]:
            self.note(first)
        self.make(first)
        self.make(second)
        return True


def ours(fault: dict[str, Any]) -> Rank:
    import numpy as np

    import torsh_runtime as tr

    tr.init_process_group()
    rank = tr.get_rank()
    groups = {
        name: next(
            made for ranks, made in [(each, tr.new_group(each)) for each in sets] if rank in ranks
        )
        for name, sets in GROUPS.items()
        if name != "all"
    }
    arrays: dict[Call, Any] = {}

    def make(call: Call) -> None:
        group = groups.get(call.group)
        array = arrays.setdefault(call, np.ones(call.elements, call.dtype))
        if call.operation == "all_reduce":
            tr.all_reduce(array, tr.ReduceOp[call.reduction], group)
        elif call.operation == "broadcast":
            tr.broadcast(array, group=group, group_src=0)
        else:
            size = tr.get_world_size(group)
            tr.all_gather([np.empty_like(array) for _ in range(size)], array, group)
        last[call.group] = tr.monitoring.recent_operations()[-1].sequence

    last: dict[str, int] = {}

    def begun() -> int:
        return tr.monitoring.recent_operations()[-1].number

    return Rank(fault, rank, make, lambda group: last[group] + 1, begun)


def torchs(fault: dict[str, Any]) -> Rank:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=fault["timeout"]))
    rank = dist.get_rank()
    groups = {
        name: next(
            made for ranks, made in [(each, dist.new_group(each)) for each in sets] if rank in ranks
        )
        for name, sets in GROUPS.items()
        if name != "all"
    }
    counts: dict[str, int] = {}

    def make(call: Call) -> None:
        group = groups.get(call.group)
        array = torch.ones(call.elements, dtype=getattr(torch, call.dtype))
        counts[call.group] = counts.get(call.group, 0) + 1
        if call.operation == "all_reduce":
            dist.all_reduce(array, getattr(dist.ReduceOp, call.reduction), group)
        elif call.operation == "broadcast":
            dist.broadcast(array, group=group, group_src=0)
        else:
            size = dist.get_world_size(group)
            dist.all_gather([torch.empty_like(array) for _ in range(size)], array, group)

    return Rank(fault, rank, make, lambda group: counts[group] + 1, lambda: sum(counts.values()))


def dump(folder: str, rank: int) -> None:
    """Write torch's flight recorder in the format that its analyser reads.

    With Gloo it has no names and members of groups, without which the analyser ends with a
    KeyError, so they are added.
    """
    import pickle

    import torch.distributed as dist
    from torch._C._distributed_c10d import _dump_fr_trace

    world = dist.distributed_c10d._world
    held = pickle.loads(_dump_fr_trace(True, True, False))  # noqa: S301  (this process's own)
    held["pg_config"] = {
        name: {
            "name": name,
            "desc": "undefined" if int(name) else "default_pg",
            "ranks": str([*world.pg_group_ranks[group]]),
        }
        for group, name in world.pg_names.items()
        if group in world.pg_group_ranks
    }
    Path(folder, f"fr_{rank}").write_bytes(pickle.dumps(held))


def main() -> None:
    fault = json.loads(os.environ["FAULT"])
    if fault["library"] == "ours":
        ours(fault).run()
        return
    made = torchs(fault)
    try:
        made.run()
    finally:
        dump(fault["folder"], made.rank)


if __name__ == "__main__":
    main()
