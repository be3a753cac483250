"""Keeps models, under the names of the model within its wrappers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Set
from functools import partial
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, framework_of, framework_of_model
from torsh_runtime.layout import Piece, ShardedTensor
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.ddp.wrapper import DistributedDataParallel
from torsh_runtime.parallel.fsdp.sharding import shardings_of
from torsh_runtime.parallel.fsdp.wrapper import FullyShardedDataParallel
from torsh_runtime.parallel.layouts import coordinates_by_id, layouts_by_id, part_of
from torsh_runtime.parallel.parts_of_state import parts_are_meant
from torsh_runtime.parallel.state.contents import Contents, NotedReads
from torsh_runtime.parallel.state.plain import decode, encode


class ModelState:
    """Keeps a model's parameters, persistent buffers, and its modules' extra state."""

    def __init__(self, name: str, model: Module, mesh: DeviceMesh | None = None) -> None:
        """Look up the model's tensors.

        mesh: that of the model's layouts, needed where its modules do not know this rank's
        coordinates. Raises ConfigError if they do not fit it.
        """
        self._name, self._mesh = name, mesh
        self.pieces: dict[int, tuple[str, Piece]] = {}
        """For the id() of each parameter: its name, and the piece that this rank has."""
        self.frozen: set[str] = set()
        """Names of parameters that need no gradients."""
        self._tensors: dict[str, ShardedTensor] = {}
        self._places: list[tuple[Any, Any]] = []
        """Parameters, and the values that they had when they were looked at."""
        self._buffers: set[str] = set()
        """Names of the buffers among the tensors."""
        self.aliases: dict[str, str] = {}
        """Further names of parameters that modules share, with their first."""
        self.extra: dict[str, Any] = {}
        """Modules of torch that have a get_extra_state(), by the name of its result."""
        self._layouts, self._parts = layouts_by_id(model), _parts(model)
        self._known = coordinates_by_id(model)
        whole = unwrapped(model)
        _check_tensors(name, whole, self._parts.keys())
        self._look(whole)

    def keep(self, contents: Contents) -> None:
        """Add the model's state to what is kept."""
        contents.tensors.update(self._tensors)
        contents.of_first |= self._buffers
        for name, module in self.extra.items():
            contents.values[name] = encode(module.get_extra_state(), name, contents.tensors)
        contents.aliases.update(self.aliases)

    @property
    def is_in_place(self) -> bool:
        """Return whether the parameters have the memory in which they were found."""
        is_at = framework_of(self._places[0][0]).is_at if self._places else None
        return is_at is None or all(is_at(each.data, found) for each, found in self._places)

    @property
    def names(self) -> set[str]:
        """Return all names by which the model's tensors and extra state are kept."""
        return {*self._tensors, *self.aliases, *self.extra}

    def restore(self, source: NotedReads) -> list[Callable[[], None]]:
        """Read what was kept into the tensors, and return functions to call after that."""
        for name, target in self._tensors.items():
            source.read(name, target)
        return [
            partial(self.extra[name].set_extra_state, decode(value, None, source))
            for name, value in source.values_of(self.extra).items()
        ]

    def _look(self, model: Module) -> None:
        with parts_are_meant():
            unknown = {_without_wrappers(key): key for key in model.state_dict()}
        for key, parameter in model.named_parameters(remove_duplicate=False):
            name = _without_wrappers(key)
            unknown.pop(name, None)
            if id(parameter) in self.pieces:
                first = self.pieces[id(parameter)][0]
                self.aliases[f"{self._name}/{name}"] = f"{self._name}/{first}"
                continue
            if not getattr(parameter, "requires_grad", True):
                self.frozen.add(name)
            piece = self._piece(name, id(parameter), tuple(parameter.shape))
            self.pieces[id(parameter)] = name, piece
            values = parameter.data
            if math.prod(values.shape) != piece.size:
                raise ConfigError(
                    f"{name!r} has {math.prod(values.shape)} elements now, and this rank's part of "
                    f"it has {piece.size}: call this outside of summon_full_params(), and after "
                    f"reshard()"
                )
            self._tensors[f"{self._name}/{name}"] = ShardedTensor(values, piece)
            self._places.append((parameter, values))
        for key, buffer in _buffers(model):
            plain = _without_wrappers(key)
            if unknown.pop(plain, None):
                whole = Piece.whole(tuple(buffer.shape))
                name = f"{self._name}/{plain}"
                self._tensors[name] = ShardedTensor(buffer.data, whole)
                self._buffers.add(name)
        for plain in [each for each in unknown if each.rpartition(".")[2] == "_extra_state"]:
            whole_model: Any = model  # of torch, which alone has such state
            module = whole_model.get_submodule(unknown.pop(plain).rpartition(".")[0])
            self.extra[f"{self._name}/{plain}"] = unwrapped(module)
        if unknown:
            raise ConfigError(
                f"the model's state has {', '.join(sorted(unknown))}, which are no parameters or "
                f"buffers of it and cannot be kept"
            )

    def _piece(self, name: str, key: int, shape: tuple[int, ...]) -> Piece:
        """Return this rank's piece of a parameter: the wrapper's part of its module's part."""
        part = self._parts.get(key, Piece.whole(shape))
        if key not in self._layouts:
            return part
        return part_of(name, self._layouts[key], self._mesh, part, self._known.get(key))


def is_model(thing: object) -> bool:
    """Return whether the object is a model, wrapped or not."""
    try:
        framework_of_model(thing)
    except TypeError:
        return False
    return True


def _check_tensors(name: str, model: Module, known: Set[int]) -> None:
    """Raise ConfigError for tensors that cannot be kept.

    These are tensors made of other tensors, whose elements alone would be kept, and
    parts of parameters that no wrapper in the model knows. known: id() of those that wrappers know.
    """
    framework = framework_of(model)
    for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if framework.is_piece_of_wrapper(tensor) and id(tensor) not in known:
            raise ConfigError(
                f"'{name}/{key}' is a part of what FullyShardedDataParallel or fully_shard() has "
                f"cut, for a module around this one: pass that in its place"
            )
        if not framework.is_made_of_others(tensor):
            continue
        from torsh_runtime.arrays.subclasses import refusal_of_distributed  # which loads torch

        kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
        raise ConfigError(
            refusal_of_distributed(f"{name}/{key}", tensor)
            or f"'{name}/{key}' is a {kind}, of which a checkpoint would keep the elements that it "
            f"stands for, and not what it is made of: keep such a model with torch.save() or "
            f"torch.distributed.checkpoint, or keep the model that it was made from"
        )


def _buffers(model: Module) -> Iterator[tuple[str, Any]]:
    for prefix, module in model.named_modules(remove_duplicate=False):
        for key, buffer in module.named_buffers(recurse=False):
            yield f"{prefix}.{key}" if prefix else key, buffer


def unwrapped(model: Module) -> Any:
    """Return the model within its wrappers."""
    while True:
        if isinstance(model, DistributedDataParallel | FullyShardedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):  # of torch.compile()
            model = model._orig_mod
        elif hasattr(model, "_checkpoint_wrapped_module"):  # of torch's checkpoint_wrapper()
            model = model._checkpoint_wrapped_module
        else:
            return model


def _parts(model: Module) -> dict[int, Piece]:
    """Return the pieces of parameters that wrappers have left, by id()."""
    found = shardings_of(model)
    return {key: piece for each in found for key, piece in each.pieces().items()}


def _without_wrappers(name: str) -> str:
    """Return a name without what torch.compile() and torch's checkpoint_wrapper() add to it."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")
