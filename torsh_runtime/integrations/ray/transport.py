"""Tensors that go from actor to actor over our messages, without Ray's object store."""

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
    """Ray's transport over collective groups, with groups that are ours."""

    def tensor_transport_backend(self) -> str:
        """Its name for Ray."""
        return collective.NAME


def register_tensor_transport() -> None:
    """Make "torsh" a tensor transport of this driver's actors. Call it before their classes are
    defined.

    The actors have to be in one group, which create_collective_group() here makes. Tensors are
    torch's, on the processor. Calling it again is harmless. BackendUnavailable without torch.
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
    """Make a group of these actors, now, as ray.experimental.collective makes one, and return
    Ray's handle. In the actors the functions of `collective` take its name.

    CommTimeout names the ranks that did not come within a minute, GetTimeoutError comes of actors
    that are busy for as long.
    """
    ray.get([actor.__ray_call__.remote(_know) for actor in actors], timeout=MEET)
    groups = import_module("ray.experimental.collective")
    return groups.create_collective_group(list(actors), backend=collective.NAME, name=name)


def _know(actor: Any) -> None:
    """Do nothing: the actor that is to call this loads this module, and knows our backend then."""
