"""from_pretrained() of which each rank reads what it gets."""

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
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.modules import adapter_class
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
    """A model of transformers out of files, of which each rank has its part and reads no more.

        model = tr.from_pretrained(AutoModelForCausalLM, "checkpoints/llama", mesh)

    It is what parallelize(model_class.from_pretrained(path), mesh, plan) gives, without a whole
    model anywhere: it is made without memory, cut by the plan, and each parameter is read from the
    safetensors files, in one piece after the other. All ranks call it.

    model_class: a class of transformers, or one of its AutoModel classes. path: as its
        from_pretrained() takes it. mesh, plan: as parallelize().
    options: as its from_pretrained() takes them, such as dtype; with those that say where a model
        is to be, or that quantise it, it is a ConfigError.

    Raises ConfigError on all ranks as parallelize(), and CheckpointError for files that cannot be
    read. Like transformers' it gives a model in evaluation mode: call model.train().
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
    """A block whose errors are errors on all ranks."""
    with Attempt() as attempt:  # also of the model's own code
        yield
    try:
        ranks.agree("from_pretrained()", attempt.error)
    except CheckpointError as error:
        if attempt.error is not None:
            raise attempt.error from None
        raise ConfigError(f"{error}") from None


def _without_memory(model: Any) -> dict[int, Lazy]:
    """Let parameters that are to be read be on the meta device, several names of one as one.
    Returns what they are to be read from, by their id()."""
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
    """Give each parameter its part of what there is to be read."""
    layouts, known = layouts_by_id(model), coordinates_by_id(model)
    adapter: Any = adapter_class(model)(model)
    for name, parameter in model.named_parameters():
        lazy = later.get(id(parameter))
        if lazy is None:
            continue
        layout, own = layouts.get(id(parameter)), known.get(id(parameter))
        piece = None if layout is None else piece_of(name, layout, mesh, own)
        adapter.give_memory(parameter, lazy.values(piece))
