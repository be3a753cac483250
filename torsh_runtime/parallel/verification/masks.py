"""Compares dropout masks of a spread torch model: equal on replicas, different on parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torsh_runtime.framework import framework_of
from torsh_runtime.parallel.streams import draws
from torsh_runtime.parallel.verification.difference import Difference
from torsh_runtime.parallel.verification.place import Place
from torsh_runtime.parallel.verification.recording import array_of
from torsh_runtime.parallel.verification.spreading import Spread

FEWEST = 64
"""Number of elements from which two masks are not equal by chance."""


@contextmanager
def without_dropout(model: Any) -> Iterator[None]:
    """Keep a model from dropping anything within the block."""
    drops = [each for _, each in model.named_modules() if each.training and draws(each)]
    for module in drops:
        module.training = False
    try:
        yield
    finally:
        for module in drops:
            module.training = True


def masks_that_differ(
    spread: Spread, forward: Callable[[], object], place: Place, is_cut: Callable[[str], bool]
) -> list[Difference]:
    """Return the differences between masks of Dropout layers, if the model is of torch.

    Those of nn are compared like everything else.

    forward: calls the spread model. is_cut(name): whether ranks have parts of what that module
    returns.
    """
    if framework_of(spread.module).draws_for_whole or not any(place.of_all(bool(_drops(spread)))):
        return []
    own = _masks(spread, forward)
    everyone = place.of_all(own)
    found = []
    for name in own:
        for axis, ranks in place.along(place.group.rank).items():
            if axis in (*place.data_axes, place.stage_axis) or len(ranks) == 1:
                continue
            masks = [everyone[rank].get(name) for rank in ranks]
            text = _judged(masks, axis, is_cut(name))
            if text:
                found.append((name, text))
    return _of_all(found, place)


def _of_all(found: list[tuple[str, str]], place: Place) -> list[Difference]:
    first: dict[str, tuple[int, str]] = {}
    for rank, rows in enumerate(place.of_all(found)):
        for name, text in rows:
            first.setdefault(name, (rank, text))
    return [
        Difference(kind="mask", name=name, rank=rank, coordinate=place.told(rank), text=text)
        for name, (rank, text) in first.items()
    ]


def _judged(masks: list[Any], axis: str, is_cut: bool) -> str:
    """Return what is wrong with the masks of the ranks along an axis; "" if nothing is."""
    alike = all(each is not None and each == masks[0] for each in masks)
    if not is_cut and not alike:
        return f"differs between ranks along {axis}, which have to drop the same"
    if is_cut and alike and masks[0] is not None and len(masks[0]) >= FEWEST:
        return f"is the same on all ranks along {axis}, which have different parts"
    return ""


def _drops(spread: Spread) -> list[tuple[str, Any]]:
    """Return the names and the Dropout layers that drop something."""
    return [
        (name, module)
        for name, module in spread.modules.items()
        if module.training and hasattr(module, "p") and draws(module)
    ]


def _masks(spread: Spread, forward: Callable[[], object]) -> dict[str, bytes]:
    """Return what each Dropout layer drops in a forward pass, by its name."""
    found: dict[str, bytes] = {}
    with ExitStack() as held:
        for name, module in _drops(spread):
            held.callback(module.register_forward_hook(_noting(found, name)).remove)
        forward()
    return found


def _noting(found: dict[str, bytes], name: str) -> Callable[[Any, Any, Any], None]:
    def note(_: Any, given: Any, returned: Any) -> None:
        dropped = (array_of(returned) == 0) & (array_of(given[0]) != 0)
        found.setdefault(name, dropped.tobytes())

    return note
