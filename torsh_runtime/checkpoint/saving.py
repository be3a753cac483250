"""How the ranks write one checkpoint together."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torsh_runtime.arrays.raw import dtype_name
from torsh_runtime.checkpoint.directory import publish, retire, synchronise, temporary
from torsh_runtime.checkpoint.manifest import (
    NAME,
    Manifest,
    StoredFile,
    StoredTensor,
    piece_from,
)
from torsh_runtime.checkpoint.plan import Held, check_whole, share_out
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.checkpoint.tensor_file import ITEMSIZES, check_dtype
from torsh_runtime.checkpoint.writer import FileLayout, Snapshot
from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.parallel.state import Contents, contents_of


class Planner:
    """Agrees with the other ranks on who writes what, anew only when that changes."""

    def __init__(
        self,
        ranks: Ranks,
        make: Callable[[FileLayout, int], Snapshot] = lambda layout, _: Snapshot(layout),
        num_slots: int = 1,
        node: str = "",
    ) -> None:
        """make: gives memory for a rank's file, in one of so many slots that take turns by step.
        node: ranks of one node write together all that they have."""
        self._ranks, self._make, self._num_slots, self._node = ranks, make, num_slots, node
        self._text = ""
        self._snapshots: dict[int, Snapshot] = {}
        self._layouts: list[FileLayout] = []
        self._layout: FileLayout | None = None

    def begin(self, step: int, state: Mapping[str, Any], async_op: bool) -> Save:
        """Copy what this rank writes. CheckpointError on all ranks if they save different steps or
        one cannot save its state."""
        contents, text, error = Contents(), "", ""
        try:
            contents = contents_of(state, self._ranks.rank)
            text = _told(contents)
        except (ConfigError, CheckpointError) as reason:
            error = str(reason)
        is_new = text != self._text or bool(error)
        own = [step, async_op, is_new, secrets.randbits(62)]
        told = self._ranks.numbers(own)
        if len({(each[0], each[1]) for each in told}) > 1:
            raise CheckpointError(
                f"ranks save different steps, or only some of them with async_op: "
                f"{', '.join(f'step {s}, async_op={bool(a)}' for s, a, *_ in told)}, by rank"
            )
        if any(each[2] for each in told):
            self._plan(text, error)
        slot = step % self._num_slots
        if self._layout is not None and slot not in self._snapshots:
            self._snapshots[slot] = self._make(self._layout, slot)
        self._snapshots[slot].take(contents.tensors, ITEMSIZES)
        return Save(step, told[0][3], self._snapshots[slot], self._layouts, contents)

    def _plan(self, text: str, error: str) -> None:
        self._text, self._layout = "", None
        self._snapshots.clear()
        own = json.dumps([text, error, self._node])
        told = [json.loads(each) for each in self._ranks.texts(own)]
        for rank, (_, failed, _) in enumerate(told):
            if failed:
                raise CheckpointError(f"rank {rank} cannot save: {failed}")
        held = [_held(each) for each, *_ in told]
        check_whole(held)
        here = [rank for rank, (*_, node) in enumerate(told) if node == self._node]
        shares = share_out([held[rank] for rank in here], ITEMSIZES)
        named = {rank: FileLayout.of(rank, share) for rank, share in zip(here, shares, strict=True)}
        self._layouts, self._layout = list(named.values()), named[self._ranks.rank]
        self._text = text


@dataclass(frozen=True)
class Save:
    """One checkpoint on its way to the disk."""

    step: int
    token: int
    snapshot: Snapshot
    layouts: list[FileLayout]
    contents: Contents
    """Only its values are looked at: tensors may have changed."""
    retired: list[Path] = field(default_factory=list)
    """On rank 0, what may be removed when it is written."""

    def write(self, directory: Path, ranks: Ranks, keep_last: int | None) -> Path:
        """Write it, with all ranks. Returns where it is.

        CheckpointError on all ranks if one cannot write; then nothing of it stays.
        """
        written = temporary(directory, self.step, self.token)
        try:
            return self._write(written, ranks, keep_last)
        except CheckpointError:
            shutil.rmtree(written, ignore_errors=True)
            raise

    def _write(self, written: Path, ranks: Ranks, keep_last: int | None) -> Path:
        own = _outcome(lambda: self._write_own(written))
        told = [json.loads(each) for each in ranks.texts(json.dumps(own))]
        _check(told)
        files = {each["name"]: StoredFile(**each["file"]) for each in told}
        values: dict[str, Any] = {}
        for each in reversed(told):
            values |= each["values"]
        own = {}
        if ranks.rank == 0:
            own = _outcome(lambda: self._publish(written, files, values, keep_last))
        told = [json.loads(each) for each in ranks.texts(json.dumps(own))]
        _check(told)
        return Path(told[0]["path"])

    def _write_own(self, written: Path) -> dict[str, Any]:
        written.mkdir(parents=True, exist_ok=True)
        file = self.snapshot.write(written)
        return {
            "name": self.snapshot.layout.name,
            "file": asdict(file),
            "values": self.contents.values,
        }

    def _publish(
        self,
        written: Path,
        files: Mapping[str, StoredFile],
        values: Mapping[str, Any],
        keep_last: int | None,
    ) -> dict[str, Any]:
        missing = [name for name in files if not (written / name).exists()]
        if missing:
            raise CheckpointError(
                f"{written} has no {', '.join(missing)}, which other ranks have written: it must "
                f"be in a file system that all nodes share"
            )
        manifest = Manifest(
            self.step,
            len(self.layouts),
            time.time(),
            tensors_of(self.layouts),
            values,
            self.contents.aliases,
            files,
        )
        path = written / NAME
        path.write_bytes(manifest.to_bytes())
        synchronise(path)
        final = publish(written, self.step)
        self.retired.extend(retire(written.parent, keep_last))
        return {"path": str(final)}


def _told(contents: Contents) -> str:
    """What a rank has, for the others."""
    held = []
    for name, tensor in contents.tensors.items():
        dtype = dtype_name(tensor.values)
        check_dtype(name, dtype)
        if tensor.piece.size or tensor.piece.is_whole:
            held.append([name, dtype, asdict(tensor.piece)])
    return json.dumps(held)


def _held(text: str) -> list[Held]:
    return [Held(name, dtype, piece_from(piece)) for name, dtype, piece in json.loads(text)]


def tensors_of(layouts: Sequence[FileLayout]) -> dict[str, StoredTensor]:
    """Where all of them lie."""
    pieces: dict[tuple[str, str, tuple[int, ...]], list[Any]] = {}
    for layout in layouts:
        for held, stored in layout.stored().items():
            key = held.name, held.dtype, held.piece.global_shape
            pieces.setdefault(key, []).append(stored)
    return {
        name: StoredTensor(dtype, shape, tuple(parts))
        for (name, dtype, shape), parts in pieces.items()
    }


def _outcome(call: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = call()
    except (OSError, CheckpointError) as error:
        return {"error": str(error)}
    return found


def _check(told: list[dict[str, Any]]) -> None:
    failed = [f"rank {rank}: {each['error']}" for rank, each in enumerate(told) if "error" in each]
    if failed:
        raise CheckpointError(f"nothing was saved, for {'; '.join(failed)}")
