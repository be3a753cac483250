"""Finds out whether a loss function is a mean, as what pipelines make of microbatches' losses
supposes, or a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from torsh_runtime.comm.agreement import agree
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework.trees import leaves, mapped
from torsh_runtime.parallel.pipeline.autograd import Autograd
from torsh_runtime.parallel.pipeline.giving import own_loss

_SUM = (
    "loss_fn is a sum over the microbatch: it grows with each row by as much. A pipeline takes the "
    "mean over all rows of the microbatches' losses, each of which is to be a mean: return a mean, "
    "and multiply gradients or the learning rate by the number of rows if you want those of a sum"
)

_ROUNDING = 0.02
"""The share of a loss by which it changes although it is a mean, in the least precise dtype."""
_ALIKE = 0.1
"""The share of one growth by which two of them differ that are the same. That of losses that
compare rows with each other, which is a logarithm, differs by 0.4."""

_TRIES = 8


class Judged:
    """A loss function that is tried with a microbatch's first row, once, twice and three times: a
    mean stays as it is, and what grows by the same each time has a sum in it.

    Attributes: problem (what is wrong with it, "" while nothing is known to be).
    """

    def __init__(self, loss_fn: Callable[[Any, Any], Any], autograd: Autograd) -> None:
        self._loss_fn, self._autograd = loss_fn, autograd
        self._tries = 0 if loss_fn is own_loss else _TRIES
        self.problem = ""

    def __call__(self, output: Any, target: Any) -> Any:
        """Return the loss, and judge the function in the first call that tells something."""
        loss = self._loss_fn(output, target)
        if self._tries:
            self._judge(output, target)
        return loss

    def _judge(self, output: Any, target: Any) -> None:
        self._tries -= 1
        random = self._autograd.random_state()
        try:
            with self._autograd.recording(False):
                losses = [self._of_copies(output, target, number) for number in (1, 2, 3)]
        except Exception:  # of whatever a stranger's function makes of other rows
            return
        finally:
            self._autograd.set_random_state(random)
        if not losses[0] or not all(map(math.isfinite, losses)):
            return  # as of a row whose labels are all left out
        self._tries = 0
        first, second = losses[1] - losses[0], losses[2] - losses[1]
        if abs(first) > _ROUNDING * abs(losses[0]) and abs(second - first) <= _ALIKE * abs(first):
            self.problem = _SUM

    def _of_copies(self, output: Any, target: Any, number: int) -> float:
        """Return the loss of so many copies of the first row."""
        count, each_has = _rows(output), _rows(target) // _rows(output)
        outputs = _mapped(partial(self._copied, count, 1, number), output)
        targets = _mapped(partial(self._copied, count * each_has, each_has, number), target)
        return float(self._loss_fn(outputs, targets).item())

    def _copied(self, rows: int, own: int, number: int, value: Any) -> Any:
        """Return a value with copies of its first rows alone, if it has rows."""
        shape: tuple[int, ...] = getattr(value, "shape", ())
        has_rows = len(shape) and shape[0] == rows
        return self._autograd.joined([value[:own]] * number) if has_rows else value


def _rows(values: Any) -> int:
    return next(len(each) for each in leaves(values) if len(getattr(each, "shape", ())))


def _mapped(call: Callable[[Any], Any], value: Any) -> Any:
    """Return mapped() of a value, with the class of a model's output."""
    found = mapped(call, value)
    is_output = isinstance(value, dict) and type(value) is not dict
    return type(value)(**found) if is_output else found


def agree_on_loss(judged: Judged | None, asked: ProcessGroup) -> None:
    """Raise ConfigError on all ranks if the loss function is no mean, which one of them has found
    out."""
    problem = judged.problem if judged is not None else ""
    agree(asked, "the loss of PipelineParallel", problem=ConfigError(problem) if problem else None)
