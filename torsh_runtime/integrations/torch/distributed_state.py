"""Refuses torch's collecting of an optimizer's state of which each rank has a part."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework.parts import Marks

_MODULE = "torch.distributed.checkpoint.state_dict"
_NAMES = ("_get_optim_state_dict", "_load_optim_state_dict")
MarksOf = Callable[[Any], Marks | None]


def correct_state(marks_of: MarksOf) -> None:
    """Change torch's functions once the program has loaded them; this does not load them, which
    takes seconds. marks_of: returns a parameter's marks."""
    found = sys.modules.get(_MODULE)
    for name in _NAMES if found is not None else ():
        theirs = getattr(found, name, None)
        if theirs is not None and not hasattr(theirs, "is_of_torsh"):
            setattr(found, name, _refusing(theirs, marks_of))


def _refusing(theirs: Callable[..., Any], marks_of: MarksOf) -> Callable[..., Any]:
    @wraps(theirs)
    def call(model: Any, optimizers: Any, *given: Any, **named: Any) -> Any:
        """Call torch's own. Raises ConfigError for parameters of which each rank has a part."""
        for optimizer in optimizers:
            for parameter in (each for group in optimizer.param_groups for each in group["params"]):
                marks = marks_of(parameter)
                if marks and marks.parts:
                    raise ConfigError(
                        f"torch.distributed.checkpoint would take this rank's part of the "
                        f"optimizer's state of {marks.parts[-1].name!r} for all of it: keep the "
                        f"model and the optimizer with a tr.checkpoint.Checkpointer"
                    )
        return theirs(model, optimizers, *given, **named)

    marked: Any = call
    marked.is_of_torsh = True
    return call
