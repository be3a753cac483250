"""Collects a model's whole tensors on rank 0 from the ranks that have parts of it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from torsh_runtime.arrays.raw import dtype_name
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.errors import ConfigError
from torsh_runtime.layout import Piece, cover
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.state.contents import Contents
from torsh_runtime.parallel.state.models import ModelState

_PART = "model"


@dataclass
class Held:
    """Records which ranks have which pieces of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    pieces: dict[int, Piece] = field(default_factory=dict)
    """The pieces, by rank."""

    @property
    def given(self) -> dict[int, Piece]:
        """Return the pieces that make up the tensor, rank 0's first. Raises ConfigError if some are
        missing."""
        places = [*self.pieces]
        needed = {place for place, _ in cover(Piece.whole(self.shape), [*self.pieces.values()])}
        return {rank: self.pieces[rank] for at, rank in enumerate(places) if at in needed}


class WholeTensors:
    """Collects the tensors of a model that is cut by layers, heads, experts, stages or FSDP.

    All ranks create it and make the same calls. Attributes: held (by name, in the model's order),
    aliases (further names of parameters that modules share).
    """

    def __init__(self, model: Any, mesh: DeviceMesh | None, process_group: Any, what: str) -> None:
        """Exchange with all ranks which pieces they have.

        what: the name of the call, for errors.

        Raises ConfigError on all ranks for models that cannot be collected.
        """
        self.ranks, self._what = Ranks.of(process_group), what
        contents, problem = Contents(), ""
        try:
            ModelState(_PART, model, mesh).keep(contents)
        except ConfigError as error:
            problem = str(error)
        if contents.values:
            names = ", ".join(map(_plain, contents.values))
            problem = (
                f"{names} is no tensor: save with a tr.checkpoint.Checkpointer, which keeps it"
            )
        without = [n for n, t in contents.tensors.items() if getattr(t.values, "is_meta", False)]
        if without:
            problem = f"{_plain(without[0])!r} is on the meta device, where it has no values"
        self._own = {_plain(name): each for name, each in contents.tensors.items()}
        self._like = next((each.values for each in self._own.values()), None)
        self.aliases = {_plain(name): _plain(to) for name, to in contents.aliases.items()}
        told = self._told(problem, contents)
        self.held: dict[str, Held] = {}
        self._buffers: set[str] = set()
        for rank, each in enumerate(told):
            self._note(rank, each)

    def _told(self, problem: str, contents: Contents) -> list[Any]:
        """Return what each rank has. Raises ConfigError on all ranks if one has a problem."""
        own = [
            [name, dtype_name(each.values), *_told(each.piece)] for name, each in self._own.items()
        ]
        said = {"problem": problem, "own": own, "aliases": self.aliases}
        said["buffers"] = sorted(map(_plain, contents.of_first))
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

    def collect(self, name: str) -> Any:
        """Return the whole tensor in the host's memory on rank 0, and None on the other ranks."""
        held, own = self.held[name], self._own.get(name)
        values = None if own is None else own.values
        return self.ranks.collected(values, held.given, held.dtype, self._like)

    def state_dict(self) -> dict[str, Any]:
        """Return all tensors by name on rank 0, where tied names share a tensor; {} elsewhere."""
        found = {name: self.collect(name) for name in self.held}
        if self.ranks.rank != 0:
            return {}
        return found | {name: found[to] for name, to in self.aliases.items()}


def whole_state_dict(
    model: Any, mesh: DeviceMesh | None = None, process_group: Any = None
) -> dict[str, Any]:
    """Return a model's whole parameters and buffers on rank 0, and an empty dict elsewhere.

    The tensors are in the host's memory, with their own dtypes, under the names that the model has
    in one process. The model may be cut in any way: by parallelize(), into stages
    (`pipeline.module`), with experts, in FullyShardedDataParallel, and in several of these. All
    ranks call this; one tensor at a time is collected from the ranks that have it.
    tr.save_pretrained() needs memory for one tensor only.

    Args:
        model: The model.
        mesh: The mesh of layouts on modules that do not know where this rank is in it.
        process_group: The ranks. None is the default group, or this process alone if there is no
            default group.

    Raises:
        ConfigError: On all ranks if a tensor cannot be made whole, or if other ranks call something
            else.

    Example:
        ```python
        tensors = tr.whole_state_dict(model, mesh)
        if tr.get_rank() == 0:
            torch.save(tensors, "model.pt")
        ```
    """
    return WholeTensors(model, mesh, process_group, "tr.whole_state_dict()").state_dict()


def _plain(name: str) -> str:
    return name.removeprefix(f"{_PART}/")


def _told(piece: Piece) -> list[Any]:
    return [piece.global_shape, piece.offsets, piece.shape, piece.start, piece.end, piece.spans]


def _piece(shape: Any, offsets: Any, box: Any, start: int, end: int, spans: Any) -> Piece:
    found = tuple(tuple((first, last) for first, last in each) for each in spans)
    return Piece(tuple(shape), tuple(offsets), tuple(box), start, end, found)
