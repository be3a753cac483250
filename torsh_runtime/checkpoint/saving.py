"""Coordinates the ranks that write one checkpoint together."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from torsh_runtime.arrays.raw import dtype_name
from torsh_runtime.checkpoint.directory import (
    create,
    explained,
    held_alone,
    opened,
    publish,
    temporary,
)
from torsh_runtime.checkpoint.manifest import (
    NAME,
    Manifest,
    StoredFile,
    StoredTensor,
    piece_from,
)
from torsh_runtime.checkpoint.plan import Held, check_whole, share_out
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.checkpoint.retention import Retention
from torsh_runtime.checkpoint.sameness import as_number, difference, digests
from torsh_runtime.checkpoint.tensor_file import ITEMSIZES, check_dtype
from torsh_runtime.checkpoint.writer import FileLayout, Snapshot
from torsh_runtime.comm.agreement import said
from torsh_runtime.errors import CheckpointError
from torsh_runtime.parallel.state import Contents, contents_of, merged_values

T = TypeVar("T")


class Begun(NamedTuple, Generic[T]):
    """Holds what all ranks have agreed to save."""

    token: int
    """Equal on all ranks, and different for every save."""
    plan: T
    """Stays the same object as long as nothing changes."""
    contents: Contents


class _Own(NamedTuple):
    """Holds what this rank has to save, or the error why it cannot."""

    contents: Contents
    held: list[Held]
    digests: dict[str, str]
    """Digest of each state that is saved once for all ranks, by name: see sameness.digests()."""
    error: Exception | None


class _Told(NamedTuple):
    """Holds what a rank reported that it has to save."""

    held: list[Held]
    by_pieces: list[str]
    node: str


class Planner(Generic[T]):
    """Agrees with the other ranks on who saves what, and repeats this only when that changes."""

    def __init__(
        self,
        ranks: Ranks,
        lay_out: Callable[[list[list[Held]], list[str]], T],
        node: str = "",
    ) -> None:
        """Prepare to plan. `lay_out` makes the plan from all ranks' pieces and nodes."""
        self._ranks, self._lay_out, self._node = ranks, lay_out, node
        self._held: list[Held] = []
        self._by_pieces: frozenset[str] = frozenset()
        """Names that some rank saves by pieces, and therefore all ranks do."""
        self._plan: T | None = None

    def begin(self, step: int, state: Mapping[str, Any], async_op: bool) -> Begun[T]:
        """Agree with all ranks on what they save.

        Raises CheckpointError on all ranks if they save different steps, differ in a state that is
        saved once for all, or one cannot save its state.
        """
        own = self._look(state)
        is_new = own.held != self._held or self._plan is None or own.error is not None
        numbers = [step, async_op, is_new, secrets.randbits(62), as_number(own.digests)]
        told = self._ranks.numbers(numbers)
        if len({(each[0], each[1]) for each in told}) > 1:
            raise CheckpointError(
                f"ranks save different steps, or only some of them with async_op: "
                f"{', '.join(f'step {s}, async_op={bool(a)}' for s, a, *_ in told)}, by rank"
            )
        plan = self._plan
        if plan is None or any(each[2] for each in told):
            own, plan = self._agree(state, own)
        if len({each[4] for each in told}) > 1:
            self._check_same(own.digests)
        return Begun(told[0][3], plan, own.contents)

    def _check_same(self, own: Mapping[str, str]) -> None:
        failed = difference([json.loads(each) for each in self._ranks.texts(json.dumps(own))])
        if failed:
            raise CheckpointError(f"nothing was kept: {failed}")

    def _look(self, state: Mapping[str, Any]) -> _Own:
        try:
            contents = contents_of(state, self._ranks, self._by_pieces)
            return _Own(contents, _held(contents), digests(contents), None)
        except Exception as reason:  # the program's own state_dict() may raise anything
            return _Own(Contents(), [], {}, reason)

    def _agree(self, state: Mapping[str, Any], own: _Own) -> tuple[_Own, T]:
        """Return what this rank has, and the new plan. A name saved by pieces by one rank is so on
        all."""
        self._plan = None
        told = self._tell(own)
        by_pieces = frozenset(name for each in told for name in each.by_pieces)
        if by_pieces != self._by_pieces:
            self._by_pieces = by_pieces
            own = self._look(state)
            told = self._tell(own)
        held = [each.held for each in told]
        check_whole(held)
        plan = self._plan = self._lay_out(held, [each.node for each in told])
        self._held = own.held
        return own, plan

    def _tell(self, own: _Own) -> list[_Told]:
        """Return what each rank has. Raises CheckpointError if one cannot save its state."""
        held, by_pieces = [asdict(each) for each in own.held], sorted(own.contents.by_pieces)
        text = json.dumps([held, by_pieces, said(own.error), self._node])
        told = [json.loads(each) for each in self._ranks.texts(text)]
        for rank, (_, _, failed, _) in enumerate(told):
            if failed:
                raise CheckpointError(f"rank {rank} cannot save: {failed}") from own.error
        return [_Told([*map(_told, own)], names, node) for own, names, _, node in told]


class Saver:
    """Begins the saves of a training run, all in the same memory."""

    def __init__(self, ranks: Ranks) -> None:
        self._rank = ranks.rank
        self._planner = Planner(ranks, _files)
        self._layouts: list[FileLayout] = []
        self._snapshot: Snapshot | None = None

    def begin(self, step: int, state: Mapping[str, Any], async_op: bool) -> Save:
        """Copy what this rank writes. Raises CheckpointError as Planner.begin() does."""
        begun = self._planner.begin(step, state, async_op)
        if self._snapshot is None or begun.plan is not self._layouts:
            self._snapshot = None  # gives its memory back
            self._snapshot = Snapshot(begun.plan[self._rank])
            self._layouts = begun.plan
        self._snapshot.take(begun.contents.tensors, ITEMSIZES)
        return Save(step, begun.token, self._snapshot, begun.plan, begun.contents)


def _files(held: list[list[Held]], _: list[str]) -> list[FileLayout]:
    return [FileLayout.of(rank, share) for rank, share in enumerate(share_out(held, ITEMSIZES))]


@dataclass(frozen=True)
class Save:
    """Represents one checkpoint on its way to the disk."""

    step: int
    token: int
    snapshot: Snapshot
    layouts: list[FileLayout]
    contents: Contents
    """Only its plain values may be read: the tensors may have changed since."""
    retired: list[Path] = field(default_factory=list)
    """On rank 0, paths that may be removed once the checkpoint is written."""
    refused: list[OSError] = field(default_factory=list)
    """On rank 0, the errors because of which other old checkpoints remain."""

    def write(self, directory: Path, ranks: Ranks, retention: Retention) -> Path:
        """Write the checkpoint together with all ranks, and return its path.

        Raises CheckpointError on all ranks if one cannot write; nothing of the checkpoint remains
        then.
        """
        written = temporary(directory, self.step, self.token)
        with ExitStack() as alone:
            try:
                self._begin(written, ranks, alone)
                return self._write(written, ranks, retention)
            except CheckpointError:
                shutil.rmtree(written, ignore_errors=True)
                raise

    def _begin(self, written: Path, ranks: Ranks, alone: ExitStack) -> None:
        """Have rank 0 make sure that no other job saves there before any rank writes."""
        own = {}
        if ranks.rank == 0:
            own = outcome(lambda: self._make(written, alone), written.parent)
        _check([json.loads(each) for each in ranks.texts(json.dumps(own))])

    def _make(self, written: Path, alone: ExitStack) -> dict[str, Any]:
        written.parent.mkdir(parents=True, exist_ok=True)
        alone.enter_context(held_alone(written.parent))
        written.mkdir(exist_ok=True)
        return {}

    def _write(self, written: Path, ranks: Ranks, retention: Retention) -> Path:
        own = outcome(lambda: self._write_own(written), written.parent)
        told = [json.loads(each) for each in ranks.texts(json.dumps(own))]
        _check(told)
        files = {each["name"]: StoredFile(**each["file"]) for each in told}
        values = merged_values([each["values"] for each in told])
        aliases = {name: other for each in told for name, other in each["aliases"].items()}
        own = {}
        if ranks.rank == 0:
            publish = partial(self._publish, written, files, values, aliases, retention)
            own = outcome(publish, written.parent)
        told = [json.loads(each) for each in ranks.texts(json.dumps(own))]
        _check(told)
        return Path(told[0]["path"])

    def _write_own(self, written: Path) -> dict[str, Any]:
        written.mkdir(
            parents=True, exist_ok=True
        )  # on nodes that do not share it: _publish() reports that
        file = self.snapshot.write(written)
        return {
            "name": self.snapshot.layout.name,
            "file": asdict(file),
            "values": self.contents.values,
            "aliases": self.contents.aliases,
        }

    def _publish(
        self,
        written: Path,
        files: Mapping[str, StoredFile],
        values: Mapping[str, Any],
        aliases: Mapping[str, str],
        retention: Retention,
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
            aliases,
            files,
        )
        with (
            opened(written, os.O_DIRECTORY | os.O_NOFOLLOW) as folder,
            os.fdopen(create(folder, NAME), "wb") as file,
        ):
            file.write(manifest.to_bytes())
            file.flush()
            os.fsync(file.fileno())
        final = publish(written, self.step)
        left, refused = retention.retire(final)
        self.retired.extend(left)
        self.refused.extend(refused)
        return {"path": str(final)}


def _held(contents: Contents) -> list[Held]:
    """Return the pieces that this rank has."""
    held = []
    for name, tensor in contents.tensors.items():
        dtype = dtype_name(tensor.values)
        check_dtype(name, dtype)
        if tensor.piece.size or tensor.piece.is_whole:
            held.append(Held(name, dtype, tensor.piece, name in contents.of_first))
    return held


def _told(each: Mapping[str, Any]) -> Held:
    return Held(each["name"], each["dtype"], piece_from(each["piece"]), each["is_of_first"])


def tensors_of(layouts: Sequence[FileLayout]) -> dict[str, StoredTensor]:
    """Return all tensors of these files, with the places of their pieces."""
    pieces: dict[tuple[str, str, tuple[int, ...]], list[Any]] = {}
    for layout in layouts:
        for held, stored in layout.stored().items():
            key = held.name, held.dtype, held.piece.global_shape
            pieces.setdefault(key, []).append(stored)
    return {
        name: StoredTensor(dtype, shape, tuple(parts))
        for (name, dtype, shape), parts in pieces.items()
    }


def outcome(call: Callable[[], dict[str, Any]], directory: Path) -> dict[str, Any]:
    """Return the call's result, or {"error": reason} for the other ranks."""
    try:
        return call()
    except OSError as error:
        return {"error": explained(error, directory)}
    except CheckpointError as error:
        return {"error": str(error)}


def _check(told: list[dict[str, Any]]) -> None:
    failed = [f"rank {rank}: {each['error']}" for rank, each in enumerate(told) if "error" in each]
    if failed:
        raise CheckpointError(f"nothing was saved, for {'; '.join(failed)}")
