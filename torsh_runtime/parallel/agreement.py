"""What ranks tell each other about a model and its wrapper, over any backend."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from torsh_runtime.arrays import raw
from torsh_runtime.comm.agreement import by_rank, texts_of_all
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import disagreement
from torsh_runtime.framework import Module, Tensor, framework_of
from torsh_runtime.framework.models import constant_parameters, kind_of, trained_parameters

__all__ = ["check_agreed", "digest", "send_from", "texts_of_all"]


def check_agreed(
    options: Mapping[str, object],
    model: Module | None,
    group: ProcessGroup,
    sends: bool,
    without: Set[int] = frozenset(),
) -> None:
    """ConfigError on all ranks if their options differ, or whose framework's models they are, which
    names these, or else their models, if given, in the names, order, shapes or dtypes of parameters
    and, if it is sent, of all else: it names the first that differs. without: id() of tensors that
    may differ. It blocks.
    """
    framework = {} if model is None else {"framework": framework_of(model).name}
    own = [f"{name}={value!r}" for name, value in {**options, **framework}.items()]
    text = "\n".join([*own, *(() if model is None else _lines(model, sends, without))])
    everyone = [each.splitlines() for each in texts_of_all(group, text)]
    found, accounts = [], dict[int, str]()
    for number in range(max(map(len, everyone))):
        here = [_line(lines, number) for lines in everyone]
        if len({*here}) == 1:
            continue
        found.append(by_rank(here, group))
        accounts = accounts or dict(enumerate(here))
        if number >= len(own):
            break
    if found:
        raise disagreement(
            f"models are not wrapped alike on all ranks: {'; '.join(found)}. Build the same model "
            f"on every rank, and give it the same options",
            accounts,
            group.job_ranks,
        )


def _lines(model: Module, sends: bool, without: Set[int]) -> list[str]:
    kinds = {"parameter": trained_parameters(model)}
    if sends:
        kinds |= {
            "parameter without gradient": constant_parameters(model),
            "buffer": [*model.named_buffers()],
        }
    return [
        f"{what} {name!r} of shape {tuple(tensor.shape)} and dtype {kind_of(tensor)[0]}"
        for what, named in kinds.items()
        for name, tensor in named
        if id(tensor) not in without
    ]


def _line(lines: Sequence[str], number: int) -> str:
    return lines[number] if number < len(lines) else "nothing more"


def send_from(rank: int, tensors: Sequence[Tensor], group: ProcessGroup) -> None:
    """Give everyone the rank's values."""
    values = [tensor.data for tensor in tensors]
    works = [group.broadcast(each, rank, async_op=True) for each in values]
    for work in works:
        work.wait()


def digest(values: Any) -> int:
    """Of an array's or a tensor's elements; 0 without memory."""
    if getattr(values, "is_meta", False):
        return 0
    if (memory := raw.memory_of(values)) is None:
        memory = np.empty(values.nbytes, np.uint8)
        raw.copy_out(values, memory)
    return zlib.crc32(memory.data)
