"""Collects whole tensors of a model or an optimizer on rank 0 from the ranks with parts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from torsh_runtime.arrays.raw import dtype_name, framework_of
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.layout import Piece, ShardedTensor, cover
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.state import Contents, contents_of, merged_values
from torsh_runtime.parallel.state.models import is_model
from torsh_runtime.parallel.state.whole_optimizers import by_pieces


@dataclass
class Held:
    """Records which ranks have which pieces of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    pieces: dict[int, Piece] = field(default_factory=dict)
    """The pieces, by rank."""

    @property
    def given(self) -> dict[int, Piece]:
        """Return the pieces that make up the tensor, rank 0's first; all pieces of one without
        elements. Raises ConfigError if some are missing."""
        if not math.prod(self.shape):
            return self.pieces
        places = [*self.pieces]
        needed = {place for place, _ in cover(Piece.whole(self.shape), [*self.pieces.values()])}
        return {rank: self.pieces[rank] for at, rank in enumerate(places) if at in needed}


class WholeTensors:
    """Collects the tensors of one part of a state, such as a model, that is cut by layers, heads,
    experts, stages or FSDP.

    All ranks create it and make the same calls. Attributes: held (by name, in the order of the
    part), aliases (further names of parameters that modules share), values (plain values, by name,
    with arrays among the tensors).
    """

    def __init__(
        self,
        state: Mapping[str, Any],
        part: str,
        process_group: Any,
        what: str,
        without: Set[str] = frozenset(),
    ) -> None:
        """Exchange with all ranks which pieces they have.

        state: what Checkpointer.save() takes. part: the name in it of what is collected. what: the
        name of the call, for errors. without: names of tensors to leave out.

        Raises ConfigError on all ranks for what cannot be collected.
        """
        self.ranks, self._what, self._prefix = Ranks.of_model(process_group), what, f"{part}/"
        contents, problem = Contents(), ""
        try:
            contents = contents_of(state, self.ranks)
        except (ConfigError, CheckpointError) as error:
            problem = str(error)
        found = {name: each for name, each in contents.tensors.items() if self._is_own(name)}
        self._own = {self._plain(n): each for n, each in found.items()}
        self._own = {name: each for name, each in self._own.items() if name not in without}
        known = (*self._own.values(), *contents.tensors.values())  # the model's if there are none
        self.like = next((each.values for each in known), None)
        self.aliases = {
            self._plain(name): self._plain(to)
            for name, to in contents.aliases.items()
            if self._is_own(name) and self._plain(to) not in without
        }
        told = self._told(problem or self._problem(contents), contents)
        self.held: dict[str, Held] = {}
        self._buffers: set[str] = set()
        self.values = merged_values([each["values"] for each in told])
        for rank, each in enumerate(told):
            self._note(rank, each)

    def _plain(self, name: str) -> str:
        return name.removeprefix(self._prefix)

    def _is_own(self, name: str) -> bool:
        return name.startswith(self._prefix)

    def _problem(self, contents: Contents) -> str:
        without = [n for n, t in self._own.items() if getattr(t.values, "is_meta", False)]
        if without:
            return f"{without[0]!r} is on the meta device, where it has no values"
        return by_pieces(min(contents.by_pieces)) if contents.by_pieces else ""

    def _told(self, problem: str, contents: Contents) -> list[Any]:
        """Return what each rank has. Raises ConfigError on all ranks if one has a problem."""
        own = [
            [name, dtype_name(each.values), *_told(each.piece)] for name, each in self._own.items()
        ]
        kept = contents.values.items()
        values = {n: each for n, each in kept if self._is_own(n) or f"{n}/" == self._prefix}
        said = {"problem": problem, "own": own, "aliases": self.aliases, "values": values}
        said["buffers"] = sorted(map(self._plain, filter(self._is_own, contents.of_first)))
        self.ranks.meet(self._what)
        told = [json.loads(each) for each in self.ranks.texts(json.dumps(said))]
        for rank, each in enumerate(told):
            if each["problem"]:
                raise ConfigError(f"{self._what} on rank {rank}: {each['problem']}")
        return told

    def _note(self, rank: int, told: Any) -> None:
        for name, dtype, *piece in told["own"]:
            found = _piece(*piece)
            held = self.held.setdefault(name, Held(dtype, found.global_shape))
            if (held.dtype, held.shape) != (dtype, found.global_shape):
                raise ConfigError(
                    f"{name!r} is {dtype} of shape {found.global_shape} on rank {rank}, and "
                    f"{held.dtype} of shape {held.shape} on ranks before it"
                )
            held.pieces[rank] = found
        self.aliases |= told["aliases"]
        self._buffers |= {*told["buffers"]}

    @property
    def num_parameters(self) -> int:
        """Return the number of elements of all parameters."""
        held = self.held.items()
        return sum(math.prod(each.shape) for name, each in held if name not in self._buffers)

    def check_tensors_only(self) -> None:
        """Raise ConfigError on all ranks if there are values beside tensors."""
        if self.values:
            names = ", ".join(map(self._plain, self.values))
            raise ConfigError(
                f"{self._what}: {names} is no tensor: save with a tr.checkpoint.Checkpointer, "
                f"which keeps it"
            )

    def collect(self, name: str) -> Any:
        """Return the whole tensor in the host's memory on rank 0, and None on the other ranks."""
        held, own = self.held[name], self._own.get(name)
        values = None if own is None else own.values
        return self.ranks.collected(values, held.given, held.dtype, self.like)

    def contents(self, on_all: bool) -> Contents | None:
        """Return whole tensors and plain values on rank 0 and, if `on_all`, on all ranks, in the
        host's memory, under their names in the state; None elsewhere."""
        found = {}
        for name, held in self.held.items():
            whole = self.collect(name)
            if on_all:
                kind = held.dtype, held.shape, framework_of(self.like)
                whole = self.ranks.broadcast_tensor(whole, *kind)
            if whole is not None:
                found[self._prefix + name] = ShardedTensor(whole, Piece.whole(held.shape))
        if self.ranks.rank != 0 and not on_all:
            return None
        aliases = {self._prefix + name: self._prefix + to for name, to in self.aliases.items()}
        return Contents(found, dict(self.values), aliases)


def state_of(model: Any, mesh: DeviceMesh | None, **others: Any) -> dict[str, Any]:
    """Return a state with a model, the mesh of its layouts if it needs one, and others. Raises
    ConfigError for what is no model."""
    return {"model": model_in(model), **({} if mesh is None else {"mesh": mesh}), **others}


def model_in(model: Any) -> Any:
    """Return the model itself, or a pipeline's stages of it. Raises ConfigError for others."""
    found = getattr(model, "module", model) if hasattr(model, "stages") else model
    if not is_model(found):
        raise ConfigError(
            f"{type(model).__name__!r} is no class of models of torch or torsh_runtime.nn"
        )
    return found


def _told(piece: Piece) -> list[Any]:
    return [piece.global_shape, piece.offsets, piece.shape, piece.start, piece.end, piece.spans]


def _piece(shape: Any, offsets: Any, box: Any, start: int, end: int, spans: Any) -> Piece:
    found = tuple(tuple((first, last) for first, last in each) for each in spans)
    return Piece(tuple(shape), tuple(offsets), tuple(box), start, end, found)
