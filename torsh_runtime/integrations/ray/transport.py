"""Sends tensors from actor to actor through torsh's groups, without Ray's object store."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import ray

from torsh_runtime.errors import BackendUnavailable
from torsh_runtime.integrations.ray import collective
from torsh_runtime.integrations.ray.actors import MEET

try:
    _rdt: Any = import_module("ray.experimental.rdt.util")
    _Base: Any = import_module("ray.experimental.rdt.collective_tensor_transport")
except ImportError as error:
    raise BackendUnavailable(
        "a tensor transport between Ray actors",
        f"{error}. Ray's interface for it is alpha; install the version that this was tried with: "
        f"`pip install ray==2.60.0`.",
    ) from error


class TorshTensorTransport(_Base.CollectiveTensorTransport):
    """Implements Ray's transport over collective groups with torsh's groups."""

    def tensor_transport_backend(self) -> str:
        """Return the backend's name for Ray."""
        return collective.NAME


def register_tensor_transport() -> None:
    """Register "torsh" as a tensor transport of this driver's actors, before their classes exist.

    The actors must be in one group of create_collective_group() in this module. Tensors are
    torch's, on the CPU. Calling it again is harmless. Raises BackendUnavailable without torch.
    """
    try:
        torch: Any = import_module("torch")
    except ImportError as error:
        raise BackendUnavailable(
            "a tensor transport between Ray actors", f"{error}. Install torch: `pip install torch`."
        ) from None
    if collective.NAME not in _rdt.transport_manager_info:
        _rdt.register_tensor_transport(collective.NAME, ["cpu"], TorshTensorTransport, torch.Tensor)


def create_collective_group(actors: Sequence[Any], name: str | None = None) -> Any:
    """Create a group of these actors at once, like ray.experimental.collective, and return its
    handle.

    In the actors the functions of `collective` take the group's name.

    Raises CommTimeout naming the ranks that did not connect within a minute, or GetTimeoutError if
    actors are busy for that long.
    """
    ray.get([actor.__ray_call__.remote(_know) for actor in actors], timeout=MEET)
    groups = import_module("ray.experimental.collective")
    return groups.create_collective_group(list(actors), backend=collective.NAME, name=name)


def _know(actor: Any) -> None:
    """Do nothing: an actor that is to call this loads this module, which registers the backend."""
