"""Copies states into models and optimizers of which ranks have parts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from torsh_runtime.arrays.raw import is_array
from torsh_runtime.checkpoint.memory import FromFirst, InMemory
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.checkpoint.state_dicts.options import (
    MODEL,
    OPTIMIZER,
    StateDictOptions,
    several,
)
from torsh_runtime.checkpoint.whole import model_in
from torsh_runtime.comm.agreement import Attempt
from torsh_runtime.errors import CheckpointError
from torsh_runtime.framework import framework_of
from torsh_runtime.layout import ShardedTensor
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.state import Contents
from torsh_runtime.parallel.state.contents import NotedReads
from torsh_runtime.parallel.state.models import ModelState
from torsh_runtime.parallel.state.optimizers import OptimizerState, settle
from torsh_runtime.parallel.state.plain import encode
from torsh_runtime.parallel.state.whole_optimizers import (
    WholeOptimizer,
    as_piece,
    by_names,
    is_of_optimizer,
)


def set_model_state_dict(
    model: Any,
    model_state_dict: Mapping[str, Any],
    *,
    options: Any = None,
    mesh: DeviceMesh | None = None,
    process_group: Any = None,
) -> Any:
    """Copy a state into a model of which ranks have parts, as torch's function. All ranks call it.

    Each rank takes its own parts; nothing is gathered.

    Args:
        model: The model, as get_model_state_dict() takes it.
        model_state_dict: Whole tensors by name, on all ranks, or with `broadcast_from_rank0` on
            rank 0, where the others pass an empty dict; or the ShardedTensors of a model that is
            cut in the same way.
        options: As get_model_state_dict().
        mesh: As get_model_state_dict().
        process_group: As get_model_state_dict().

    Returns:
        A named tuple of missing_keys and unexpected_keys, over all ranks.

    Raises:
        CheckpointError: On all ranks, before anything has changed, if names are missing or
            unexpected and `strict` is set, for tensors of another shape or dtype, or if rank 0 is
            to broadcast tensors that are not whole. Floating point numbers are cast.

    Example:
        ```python
        options = tr.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        state = torch.load("model.pt", weights_only=True) if tr.get_rank() == 0 else {}
        tr.set_model_state_dict(model, state, options=options)
        ```
    """
    chosen, ranks = StateDictOptions.of(options), Ranks.of_model(process_group)
    what = "tr.set_model_state_dict()"
    with Attempt() as attempt:
        own = ModelState(MODEL, model_in(model), mesh)
        given = _contents_of_model(model_state_dict, own)
        _check_broadcast(given, chosen, ranks)
    ranks.agree(f"cannot begin {what}", attempt.error)
    source = _source(given, chosen, ranks)
    with Attempt() as attempt:
        noted = NotedReads(source, strict=False)
        finish = own.restore(noted)
    ranks.agree(f"cannot carry out {what}", attempt.error)
    missing, unexpected = _misfits(ranks, noted, own.names, _names_in(source))
    if chosen.strict and (missing or unexpected):
        raise CheckpointError(_misfit_text(what, missing, unexpected))
    source.read_all(noted.reads)
    for each in finish:
        each()
    return _incompatible_keys(model_in(model), missing, unexpected)


def set_optimizer_state_dict(
    model: Any,
    optimizers: Any,
    optim_state_dict: Mapping[str, Any],
    *,
    options: Any = None,
    mesh: DeviceMesh | None = None,
    process_group: Any = None,
) -> None:
    """Load a state into the optimizers of a model of which ranks have parts, as torch's function.

    All ranks call it. Each takes its own parts; nothing is gathered.

    Args:
        model: The model, as get_model_state_dict() takes it.
        optimizers: As get_optimizer_state_dict().
        optim_state_dict: The state by names of parameters, as get_optimizer_state_dict() of this
            library or torch's gives it, or by their numbers, as state_dict() of one optimizer of
            the whole model does. Which ranks pass it is as with set_model_state_dict().
        options: As get_model_state_dict(). Unless `strict`, parameters that are not in the state
            begin anew.
        mesh: As get_model_state_dict().
        process_group: As get_model_state_dict().

    Raises:
        CheckpointError: On all ranks if parameters are missing and `strict` is set, and for state
            of another shape or dtype.

    Example:
        ```python
        options = tr.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        state = torch.load("optimizer.pt", weights_only=True) if tr.get_rank() == 0 else {}
        tr.set_optimizer_state_dict(model, optimizer, state, options=options)
        ```
    """
    chosen, ranks = StateDictOptions.of(options), Ranks.of_model(process_group)
    is_given = ranks.rank == 0 or not chosen.broadcast_from_rank0
    settle(several(optimizers))
    for optimizer in several(optimizers):
        what = "tr.set_optimizer_state_dict()"
        with Attempt() as attempt:
            pieces = ModelState(MODEL, model_in(model), mesh).pieces
            own = OptimizerState(OPTIMIZER, optimizer, pieces)
        shapes = _shapes(ranks, pieces if attempt.error is None else {})
        given = Contents()
        if attempt.error is None and is_given:
            with attempt:
                named = _named(optim_state_dict, optimizer, pieces)
                WholeOptimizer(OPTIMIZER, named, shapes).keep(given)
                _check_broadcast(given, chosen, ranks)
        ranks.agree(f"cannot begin {what}", attempt.error)
        source = _source(given, chosen, ranks)
        with Attempt() as attempt:
            noted = NotedReads(source)
            load = own.restore(noted, chosen.strict)
        ranks.agree(f"cannot carry out {what}", attempt.error)
        source.read_all(noted.reads)
        load()


def _contents_of_model(given: Mapping[str, Any], own: ModelState) -> Contents:
    """Return a state's tensors, and other values as the extra state that they are of modules."""
    found = Contents()
    for name, value in given.items():
        key = f"{MODEL}/{name}"
        if key in own.extra or not (is_array(value) or isinstance(value, ShardedTensor)):
            found.values[key] = encode(value, key, found.tensors)
        else:
            found.tensors[key] = as_piece(value)
    for name, to in own.aliases.items():  # a file may have either name
        if to not in found.tensors and name in found.tensors:
            found.aliases[to] = name
    return found


def _check_broadcast(given: Contents, chosen: StateDictOptions, ranks: Ranks) -> None:
    """Raise CheckpointError if rank 0 is to broadcast what is no whole tensor."""
    if not chosen.broadcast_from_rank0 or ranks.rank:
        return
    for name, each in given.tensors.items():
        if not each.piece.is_whole:
            raise CheckpointError(
                f"{name.partition('/')[2]!r} is elements {each.piece.label} of a tensor, and with "
                f"broadcast_from_rank0 the other ranks need all of it: pass whole tensors, as with "
                f"full_state_dict=True, or let each rank pass its own parts without "
                f"broadcast_from_rank0"
            )


def _source(given: Contents, chosen: StateDictOptions, ranks: Ranks) -> InMemory:
    return FromFirst(given, ranks) if chosen.broadcast_from_rank0 else InMemory(given)


def _names_in(source: InMemory) -> list[str]:
    """Return the names of tensors and of values, without those of arrays within values."""
    values = [*source.values]
    tensors = source.names("")
    return [n for n in tensors if not any(n.startswith(f"{v}/") for v in values)] + values


def _misfits(
    ranks: Ranks, noted: NotedReads, known: Iterable[str], given: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Return the names that some rank misses, and those in the state that no rank knows."""
    own = [noted.missing, sorted(known), sorted(given)]
    told = [json.loads(each) for each in ranks.texts(json.dumps(own))]
    all_known = {name for _, each, _ in told for name in each}
    missing = dict.fromkeys(name for each, _, _ in told for name in each)
    unexpected = dict.fromkeys(n for *_, each in told for n in each if n not in all_known)
    plain = [[name.removeprefix(f"{MODEL}/") for name in each] for each in (missing, unexpected)]
    return plain[0], plain[1]


def _incompatible_keys(model: Any, missing: list[str], unexpected: list[str]) -> Any:
    """Return what load_state_dict() of the model's framework returns."""
    if framework_of(model).name == "torch":
        from torch.nn.modules import module as of_torch

        return of_torch._IncompatibleKeys(missing, unexpected)
    from torsh_runtime.nn.module import IncompatibleKeys

    return IncompatibleKeys(missing, unexpected)


def _misfit_text(what: str, missing: list[str], unexpected: list[str]) -> str:
    told = [
        f"{which} {', '.join(map(repr, names[:10]))}" + (", …" if len(names) > 10 else "")
        for which, names in (("it lacks", missing), ("the model has no", unexpected))
        if names
    ]
    return f"{what}: the state does not fit: {'; '.join(told)}; strict=False loads the rest"


def _shapes(ranks: Ranks, pieces: Mapping[int, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all ranks' whole parameters by name."""
    own = {name: piece.global_shape for name, piece in pieces.values()}
    told = [json.loads(each) for each in ranks.texts(json.dumps(own))]
    return {name: tuple(shape) for each in told for name, shape in each.items()}


def _named(state: Mapping[str, Any], optimizer: Any, pieces: Mapping[int, Any]) -> Any:
    if not is_of_optimizer(state):
        return state  # WholeOptimizer says what is wrong
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    known = [pieces[id(each)][0] for each in parameters if id(each) in pieces]
    return by_names(state, known)
