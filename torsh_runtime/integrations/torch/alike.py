"""Checks that gradients of parameters that several ranks have are the same on these ranks."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from torsh_runtime.comm.agreement import texts_of_all
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework.parts import Same
from torsh_runtime.layout import even_cuts

_SEGMENTS = 8


class Alike:
    """Compares the gradients of one optimizer's parameters between ranks."""

    def __init__(self, marked: list[tuple[Any, list[Same]]]) -> None:
        self._open: dict[ProcessGroup, dict[str, Any]] = {}
        for parameter, same in marked:
            for each in same:
                self._open.setdefault(each.group, {})[each.name] = parameter

    def check(self) -> bool:
        """Return whether all gradients that are not zero have been compared.

        Raises ConfigError on all ranks that share a parameter if its gradients differ by more than
        rounding.
        """
        for group, parameters in self._open.items():
            differing = _compared(group, parameters)
            if differing:
                raise ConfigError(_text(differing, group))
        return not any(self._open.values())


def _compared(group: ProcessGroup, parameters: dict[str, Any]) -> list[str]:
    """Return the names of differing gradients, and remove equal gradients that are not zero."""
    own = {name: _norms(each.grad) for name, each in parameters.items() if each.grad is not None}
    lines = [f"{name}\t{norms.tobytes().hex()}" for name, norms in own.items()]
    told = [
        dict(line.split("\t") for line in text.splitlines())
        for text in texts_of_all(group, "\n".join(lines))
    ]
    differing = []
    for name in [name for name in own if all(name in each for each in told)]:
        rows = np.array([np.frombuffer(bytes.fromhex(each[name]), np.float64) for each in told])
        total = float(np.sqrt((rows**2).sum(1)).max())
        if float(np.ptp(rows, axis=0).max()) > _rounding(parameters[name].grad.dtype) * total:
            differing.append(name)
        elif total and math.isfinite(total):
            del parameters[name]
    return differing


def _rounding(dtype: torch.dtype) -> float:
    """Return the share of its norm by which a gradient computed in another order may differ."""
    return 4 * math.sqrt(torch.finfo(dtype).eps)


def _norms(gradient: Any) -> Any:
    """Return the norms of the gradient's segments.

    They differ between two gradients by no more than the norm of the gradients' difference.
    """
    flat = (gradient.to_dense() if gradient.is_sparse else gradient).detach().reshape(-1)
    cuts = even_cuts(flat.numel(), _SEGMENTS)
    parts = [torch.linalg.vector_norm(flat[start:end].float()) for start, end in pairwise(cuts)]
    return torch.stack(parts).double().cpu().numpy()


def _text(differing: list[str], group: ProcessGroup) -> str:
    names = ", ".join(map(repr, differing[-5:]))
    more = f"{len(differing) - 5} more and " if len(differing) > 5 else ""
    ranks = ", ".join(map(str, group.ranks))
    return (
        f"ranks {ranks} all have {more}{names}, and other gradients of them: each rank has those "
        f"of its own heads, features or tokens only, and their weights would part. What lies "
        f"between a Column and its Row has to be in the plan as well: keys and values as Column(), "
        f"with query_heads where these are more; norms of queries and keys, biases by head and "
        f"whatever else each rank uses on its own part as Shared(), or Part(dim). "
        f"tr.verify() shows where gradients differ first"
    )
