"""Makes small batches for models that describe their inputs, as those of transformers do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torsh_runtime.parallel.pipeline.batches import Call

ROWS, LENGTH = 2, 16


def examples_of(model: Any) -> Iterator[Call]:
    """Yield possible calls, the better ones first.

    There are none for a model that does not describe its inputs.
    """
    config, main = getattr(model, "config", None), getattr(model, "main_input_name", None)
    if config is None or main not in _INPUTS:
        return
    yield from _labelled(model, [str(main)], str(main))
    every = [name for name in _INPUTS if _names(model, name)]
    if len(every) > 1:  # of texts and pictures, say
        yield from _labelled(model, every, str(main))


def _labelled(model: Any, names: Sequence[str], main: str) -> Iterator[Call]:
    """Yield calls with these arguments, with labels and without.

    There are none if the model's configuration does not describe the arguments.
    """
    like, config = next(model.parameters(), torch.zeros(())), model.config
    device = like.device if like.device.type != "meta" else torch.device("cpu")
    try:
        inputs = {name: _INPUTS[name](config, like.dtype).to(device) for name in names}
    except (AttributeError, TypeError):
        return
    is_of_text = main == "input_ids" or getattr(config, "is_encoder_decoder", False)
    for labels in _labels(is_of_text) if takes(model, "labels") else ():
        yield Call((), {**inputs, "labels": labels.to(device)})
    yield Call((), inputs)


def takes(model: Any, name: str) -> bool:
    """Return whether a model's forward() takes this argument."""
    found = inspect.signature(model.forward).parameters
    return name in found or any(each.kind is each.VAR_KEYWORD for each in found.values())


def _names(model: Any, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters


def _labels(is_of_text: bool) -> Iterator[torch.Tensor]:
    """Yield labels of tokens, for texts, and of whole rows."""
    if is_of_text:
        yield torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) % 2
    yield torch.arange(ROWS) % 2


def _ids(config: Any, _: torch.dtype) -> torch.Tensor:
    size = int(getattr(config.get_text_config(), "vocab_size", 2))
    ids = torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) * 7 % 101
    return ids % max(1, size - 3) + min(3, size - 1)


def _pixels(config: Any, dtype: torch.dtype) -> torch.Tensor:
    config = getattr(config, "vision_config", config)
    size = config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    return _wave((ROWS, config.num_channels, height, width), dtype)


def _features(config: Any, dtype: torch.dtype) -> torch.Tensor:
    return _wave((ROWS, config.num_mel_bins, 2 * config.max_source_positions), dtype)


def _wave(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.arange(count, dtype=torch.float64).sin().view(shape).to(dtype)


_INPUTS: dict[str, Callable[[Any, torch.dtype], torch.Tensor]] = {
    "input_ids": _ids,
    "pixel_values": _pixels,
    "input_features": _features,
}
