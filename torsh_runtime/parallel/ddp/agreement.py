"""What ranks tell each other about a model, over any backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.modules.base import ModuleAdapter


def texts_of_all(group: ProcessGroup, text: str) -> list[str]:
    """Everyone's text, by rank. It blocks."""
    own = np.frombuffer(text.encode(), np.uint8)
    sizes = group.all_gather_numbers(np.array([own.size], np.int64))[:, 0]
    padded = np.zeros((int(sizes.max()) // 8 + 1) * 8, np.uint8)
    padded[: own.size] = own
    rows = group.all_gather_numbers(padded.view(np.int64))
    return [
        rows[rank].tobytes()[:size].decode(errors="replace")
        for rank, size in enumerate(sizes.tolist())
    ]


def check_same_model(adapter: ModuleAdapter[Any], group: ProcessGroup) -> None:
    """ConfigError on all ranks if the parameters or buffers differ from rank 0's in name, order,
    shape or dtype: it names the first that does and the ranks."""
    own = "\n".join(_lines(adapter))
    everyone = [text.splitlines() for text in texts_of_all(group, own)]
    first = everyone[0]
    longest = max(map(len, everyone))
    for number in range(longest):
        wanted = _line(first, number)
        others = [rank for rank, lines in enumerate(everyone) if _line(lines, number) != wanted]
        if others:
            raise ConfigError(
                f"the model is not the same on all ranks: {wanted} on rank 0, "
                f"{_line(everyone[others[0]], number)} on rank(s) {_listed(others)}. Build the "
                f"same model on every rank"
            )


def _lines(adapter: ModuleAdapter[Any]) -> list[str]:
    kinds = {
        "parameter": adapter.parameters(),
        "parameter without gradient": adapter.constants(),
        "buffer": adapter.buffers(),
    }
    return [
        f"{what} {name!r} of shape {adapter.shape(tensor)} and dtype {adapter.kind(tensor)[0]}"
        for what, named in kinds.items()
        for name, tensor in named
    ]


def _line(lines: Sequence[str], number: int) -> str:
    return lines[number] if number < len(lines) else "nothing more"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def send_from(
    rank: int, adapter: ModuleAdapter[Any], tensors: Sequence[Any], group: ProcessGroup
) -> None:
    """Give everyone the rank's values."""
    values = [adapter.values(tensor) for tensor in tensors]
    works = [group.broadcast(each, rank, async_op=True) for each in values]
    for work in works:
        work.wait()
