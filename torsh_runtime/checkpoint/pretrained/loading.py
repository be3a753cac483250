"""Defines from_pretrained(), with which each rank reads only its part of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from torsh_runtime.checkpoint.pretrained.conventions import opened_model, weight_files
from torsh_runtime.checkpoint.pretrained.lazy import Lazy
from torsh_runtime.checkpoint.pretrained.sources import WeightFiles
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.comm.agreement import Attempt
from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.framework.torch import FRAMEWORK
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.layouts import coordinates_by_id, layouts_by_id, piece_of
from torsh_runtime.parallel.tensor import parallelize
from torsh_runtime.parallel.tensor.plan import Entry

_NOT_HERE = ("device_map", "quantization_config", "tp_plan", "state_dict", "gguf_file")


def from_pretrained(
    model_class: Any,
    path: str | Path,
    mesh: DeviceMesh | Any = None,
    plan: Mapping[str, Entry] | Literal["auto"] = "auto",
    **options: Any,
) -> Any:
    """Load a model of transformers from files, each rank only its part.

    The result is that of parallelize(model_class.from_pretrained(path), mesh, plan), but no rank
    ever has a whole model: it is created without memory, cut by the plan, and then each parameter's
    part is read from the safetensors files in turn. All ranks call it.

    Args:
        model_class: A class of transformers, or one of its AutoModel classes.
        path: The files, as its from_pretrained() takes it.
        mesh: As parallelize().
        plan: As parallelize().
        **options: As its from_pretrained() takes them, such as dtype.

    Returns:
        The model, in evaluation mode, as transformers returns it: call model.train() to train it.

    Raises:
        ConfigError: On all ranks as parallelize(), and for options that place or quantise the
            model.
        CheckpointError: If files cannot be read.

    Example:
        ```python
        model = tr.from_pretrained(AutoModelForCausalLM, "checkpoints/llama", mesh)
        model.train()
        ```
    """
    given = [name for name in _NOT_HERE if options.get(name) is not None]
    if given:
        raise ConfigError(f"from_pretrained() of a model that is cut takes no {', '.join(given)}")
    ranks = Ranks.of(None)
    with ExitStack() as open_files:
        with _same_on_all(ranks):
            files = WeightFiles(weight_files(str(path), options))
            open_files.callback(files.close)
            model = opened_model(model_class, str(path), files.tensors, options)
            later = _without_memory(model)
        parallelize(model, mesh, plan)
        with _same_on_all(ranks):
            _read(model, mesh if isinstance(mesh, DeviceMesh) else None, later)
    return model


@contextmanager
def _same_on_all(ranks: Ranks) -> Iterator[None]:
    """Raise an error of the block on any rank on all ranks."""
    with Attempt() as attempt:  # the model's own code may raise anything
        yield
    try:
        ranks.agree("from_pretrained()", attempt.error)
    except CheckpointError as error:
        if attempt.error is not None:
            raise attempt.error from None
        raise ConfigError(f"{error}") from None


def _without_memory(model: Any) -> dict[int, Lazy]:
    """Put parameters that are yet to be read on the meta device; tied names share one parameter.

    Returns the lazy tensors to read them from, by the parameters' id().
    """
    made: dict[int, Any] = {}
    later: dict[int, Lazy] = {}
    for module in model.modules():
        for name, parameter in [*module._parameters.items()]:
            if not isinstance(parameter, Lazy):
                continue
            if id(parameter) not in made:
                empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
                made[id(parameter)] = torch.nn.Parameter(empty, parameter.requires_grad)
                later[id(made[id(parameter)])] = parameter
            module._parameters[name] = made[id(parameter)]
        for name, buffer in [*module._buffers.items()]:
            if isinstance(buffer, Lazy):
                module._buffers[name] = buffer.values()
    return later


@torch.no_grad()
def _read(model: Any, mesh: DeviceMesh | None, later: dict[int, Lazy]) -> None:
    """Read each parameter's part into it."""
    layouts, known = layouts_by_id(model), coordinates_by_id(model)
    for name, parameter in model.named_parameters():
        lazy = later.get(id(parameter))
        if lazy is None:
            continue
        layout, own = layouts.get(id(parameter)), known.get(id(parameter))
        piece = None if layout is None else piece_of(name, layout, mesh, own)
        FRAMEWORK.give_memory(parameter, lazy.values(piece))
