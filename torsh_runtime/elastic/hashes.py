"""Compares checksums of the state between ranks, which are to have the same bits, and finds the
ranks whose memory or processor has changed some."""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from torsh_runtime.arrays.raw import copy_out, dtype_name, is_array, memory_of
from torsh_runtime.checkpoint.tensor_file import ITEMSIZES
from torsh_runtime.comm.agreement import texts_of_all
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.elastic.healing import Holding, digests_of
from torsh_runtime.elastic.parts_of_job import Parts
from torsh_runtime.elastic.rounds import Rounds
from torsh_runtime.errors import ConfigError, StateCorrupted
from torsh_runtime.layout import ShardedTensor
from torsh_runtime.numpy_or_cupy import array_module
from torsh_runtime.parallel.state.models import is_model, unwrapped
from torsh_runtime.parallel.state.optimizers import is_optimizer
from torsh_runtime.parallel.state.plain import check_dense, encode

NOT_CHECKED = -1
"""In place of a checksum, for a step in which none is compared."""
MOST_TIMES = 3
"""Number of times that a state may be corrupt at the same step: each of the times it was healed."""

Digests = dict[str, int]
"""The checksums of what the state consists of, by name, in the same order on all ranks."""


class Checks:
    """Computes checksums of the state that a step begins with, every so many steps.

    A thread does it while the step's passes run, which change nothing of that state. It holds
    Python's lock only between tensors.
    """

    def __init__(self, parts: Parts, every: int, on_corruption: str) -> None:
        """Prepare to check the parts every `every` steps; 0 is never. on_corruption: see join().

        Raises ConfigError for tensors that are not in the CPU's memory, and for other options.
        """
        if every < 0 or on_corruption not in ("heal", "end"):
            raise ConfigError(
                f"join() takes check_every=0 and more, and on_corruption='heal' or 'end': got "
                f"{every} and {on_corruption!r}"
            )
        self._parts, self._every, self._heals = parts, every, on_corruption == "heal"
        self._running: Future[Digests] | None = None
        self._models = {name: each for name, each in parts.named.items() if is_model(each)}
        self._optimizers = {name: each for name, each in parts.named.items() if is_optimizer(each)}
        self._corrupt_at, self._times = -1, 0
        if every and parts.is_sharded:
            raise ConfigError(
                "join(check_every=…) compares what ranks have alike, and of a sharded model each "
                "rank has other parts: leave check_every out"
            )
        if every:
            self._contents()

    def begin(self, number: int) -> None:
        """Begin to compute the checksums of step `number`, if it is one in which they are due."""
        self._running = None  # of an attempt that was lost
        if self._every and number and number % self._every == 0:
            self.compute()

    def compute(self) -> None:
        """Begin to compute the checksums of the present state, in a thread."""
        if not self._every:
            return
        contents, self._running = self._contents(), Future()
        thread = threading.Thread(
            target=_compute, args=(contents, self._running), name="torsh-checksums", daemon=True
        )
        thread.start()

    def checksum(self) -> int:
        """Return the checksum of the whole state, once it is computed; NOT_CHECKED if none is."""
        if self._running is None:
            return NOT_CHECKED
        text = json.dumps(self._running.result())
        return xxh3_64_intdigest(text.encode()) >> 1

    def compare(self, group: ProcessGroup, number: int, checksums: Sequence[int]) -> None:
        """Raise StateCorrupted on all ranks unless the checksums of all ranks are the same.

        All ranks call it with the same checksums, by rank. Raises ConfigError if some have none.
        """
        if len({*checksums}) == 1:
            return
        if NOT_CHECKED in checksums or self._running is None:
            raise ConfigError(
                f"step {number} is checked on some ranks alone: give join() the same check_every= "
                f"on all ranks"
            )
        raise self._found(group, number, dict(enumerate(checksums)), self._running.result())

    def compare_held(
        self, group: ProcessGroup, number: int, whole: Sequence[int], own: Holding | None
    ) -> StateCorrupted | None:
        """Return what is wrong if the states of the ranks `whole` differ when ranks meet again.

        All ranks call it, and get the same. own: the state on these ranks.
        """
        if not self._every:
            return None
        digests = {} if own is None else digests_of(own)
        checksum = xxh3_64_intdigest(json.dumps(digests).encode()) >> 1
        told = group.all_gather_numbers(np.array([checksum], np.int64))[:, 0].tolist()
        checksums = {rank: told[rank] for rank in whole}
        if len({*checksums.values()}) == 1:
            return None
        return self._found(group, number, checksums, digests)

    def _found(
        self, group: ProcessGroup, number: int, checksums: Mapping[int, int], own: Digests
    ) -> StateCorrupted:
        """Return the error about states that differ, by the checksums of these ranks."""
        text = json.dumps([os.uname().nodename, own])
        told = [json.loads(text) for text in texts_of_all(group, text)]
        agreeing = _majority(checksums)
        odd = [rank for rank in checksums if rank not in agreeing]
        right = told[next(iter(agreeing or checksums))][1]
        first = next(filter(None, (_first_difference(told[rank][1], right) for rank in odd)), "")
        self._times = self._times + 1 if number == self._corrupt_at else 1
        self._corrupt_at = number
        hosts = [told[rank][0] for rank in odd]
        healthy = agreeing if self._heals and self._times < MOST_TIMES else ()
        return StateCorrupted(number, odd, hosts, first, healthy, bool(agreeing))

    def _contents(self) -> list[tuple[str, Any]]:
        return [each for name, value in self._walk() for each in _buffers(name, value)]

    def _walk(self) -> Iterator[tuple[str, Any]]:
        """Yield what the state consists of: arrays and plain values, with their names."""
        names = {}
        for part, model in self._models.items():
            for name, parameter in unwrapped(model).named_parameters():
                names[id(parameter)] = name
                yield f"{part}/{name}", parameter.data
        for part, optimizer in self._optimizers.items():
            for number, group in enumerate(optimizer.param_groups):
                yield f"{part}/param_groups/{number}", {**group, "params": ()}
                for parameter in group["params"]:
                    state = optimizer.state.get(parameter) or {}
                    for key in sorted(state):
                        yield f"{part}/state/{names.get(id(parameter))}/{key}", state[key]
        yield from self._parts.states().items()


def tell(found: StateCorrupted, rounds: Rounds | None) -> None:
    """Tell the agent of a corrupt state, or the program's user if there is no agent to tell."""
    if rounds is not None:
        rounds.note_corrupted(found)
    elif found.healthy:
        warnings.warn(
            f"{found.account()}. They were healed from the others", RuntimeWarning, stacklevel=2
        )


def _compute(contents: Sequence[tuple[str, Any]], result: Future[Digests]) -> None:
    try:
        result.set_result({name: xxh3_64_intdigest(buffer) for name, buffer in contents})
    except BaseException as error:
        result.set_exception(error)


def _buffers(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the bytes of an array, in its own memory if possible, or of a plain value."""
    if is_array(value):
        yield name, _memory(name, value)
        return
    tensors: dict[str, ShardedTensor] = {}
    yield name, json.dumps(encode(value, name, tensors), sort_keys=True).encode()
    for within, each in tensors.items():
        yield f"{within} (tensor)", _memory(within, each.values)


def _memory(name: str, values: Any) -> Any:
    check_dense(name, values)
    memory = memory_of(values)
    if memory is not None:
        return memory.data
    device = getattr(values, "device", "cpu")
    if getattr(device, "type", "cpu") != "cpu" or array_module(values) is not np:
        raise ConfigError(
            f"join(check_every=…) compares what is in the CPU's memory, and {name!r} is on a "
            f"{getattr(device, 'type', 'GPU')} device: leave check_every out"
        )
    copied = np.empty(
        int(np.prod(tuple(values.shape), dtype=np.int64)) * ITEMSIZES[dtype_name(values)], np.uint8
    )
    copy_out(values, copied)
    return copied.data


def _majority(checksums: Mapping[int, int]) -> list[int]:
    """Return the ranks that have the checksum of more than half of all; [] if there is none."""
    most, count = Counter(checksums.values()).most_common(1)[0]
    ranks = [rank for rank, each in checksums.items() if each == most]
    return ranks if 2 * count > len(checksums) else []


def _first_difference(digests: Mapping[str, int], right: Mapping[str, int]) -> str:
    """Return the name of the first thing that has another checksum, or that only one side has."""
    differing = (name for name in {**right, **digests} if digests.get(name) != right.get(name))
    return next(differing, "")
