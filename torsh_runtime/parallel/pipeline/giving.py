"""Makes ranks agree on what they are given for a step, before any of them begins it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.comm.agreement import agree
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module
from torsh_runtime.parallel.pipeline import batches
from torsh_runtime.parallel.pipeline.sharing import Sharing, check_wanted

_SHAPES, _COUNT, _PROBLEM, _FROZEN, _ROWS, _TARGETS, _SCALE, _PIPELINE, _CONTENT = range(9)
"""Columns of the numbers that each rank contributes."""


class Purpose(NamedTuple):
    """Holds what a step is for."""

    trains: bool
    has_losses: bool
    scale: float = 1.0


class Given(NamedTuple):
    """Holds this rank's microbatches."""

    inputs: list[Any]
    targets: list[Any]
    key: Any
    """Key of the shapes that all ranks have."""
    microbatches: int

    def first(self, most: int | None) -> Given:
        """Return the first microbatches, `most` at most."""
        return self._replace(
            inputs=self.inputs[:most],
            targets=self.targets[:most],
            microbatches=min(self.microbatches, most or self.microbatches),
        )


class Giving:
    """Divides batches into microbatches, after all ranks of a mesh have agreed."""

    def __init__(
        self,
        group: ProcessGroup,
        everyone: ProcessGroup,
        ends: tuple[int, int],
        is_whole: bool,
        has_own_loss: bool,
        counts_rows: bool,
    ) -> None:
        """Prepare to divide batches.

        ends: the ranks of the first and the last stage. is_whole: whether stages run the model's
        own forward(), for which all of them need the batch. counts_rows: whether microbatches'
        losses count by rows of their targets.
        """
        self._group, self._everyone, self._ends = group, everyone, ends
        self.is_whole, self.has_own_loss = is_whole, has_own_loss
        self._counts_rows = counts_rows

    def agreed(
        self,
        batch: Any,
        target: Any,
        most: int,
        purpose: Purpose,
        module: Module,
        sharing: Sharing,
        problem: str,
    ) -> Given:
        """Agree in one exchange of numbers, and return this rank's microbatches.

        No rank begins what others do not. In training all ranks of the mesh take part, because
        replicas would wait for each other's gradients. Raises ConfigError on all of them.
        """
        inputs: list[Any] = []
        targets: list[Any] = []
        count = most
        try:
            count = _count(batch, target, most, purpose.trains)
            inputs = [] if batch is None else self._dealt(batch, count)
            targets = [] if target is None else batches.microbatches(target, count)
            self._check(inputs, targets, purpose)
        except ConfigError as error:
            problem = problem or str(error)
        said = (self._shapes if self.is_whole else batches.shapes)(inputs)
        content = batches.digest(batches.contents(inputs)) if self.is_whole else 0
        own = [batches.digest(said) if inputs else 0, count if inputs or targets else 0]
        own += [bool(problem), _frozen(module), batches.dealt(batch), batches.dealt(target)]
        own += [int(np.float64(purpose.scale).view(np.int64)), self._group.ranks[0]]
        own += [content if inputs else 0, *sharing.wanted()]
        asked = self._everyone if purpose.trains else self._group
        told = asked.all_gather_numbers(np.array(own, np.int64))
        text = f"a batch of {batches.dealt(batch)} rows, {said}"
        if self.is_whole:
            text += f", of contents {content:x}"
        text += f", whose loss is scaled by {purpose.scale}"
        _check_one(asked, told, problem, text)
        check_wanted(asked, told[:, _CONTENT + 1 :])
        if not self.is_whole:
            self._check_together(told)
        rows = told[told[:, _PIPELINE] == self._group.ranks[0]]
        keys, counts = _said_of_batches(rows)
        return Given(inputs, targets, (keys.pop(), *rows[:, _FROZEN].tolist()), counts.pop())

    def _dealt(self, batch: Any, count: int) -> list[Any]:
        return batches.calls(batch, count) if self.is_whole else batches.microbatches(batch, count)

    def _shapes(self, calls: list[Any]) -> str:
        return "; ".join(map(batches.shapes_of_call, calls))

    def _check(self, inputs: list[Any], targets: list[Any], purpose: Purpose) -> None:
        if self.is_whole and not inputs:
            raise ConfigError(
                "this rank has no batch: each stage runs the model's own forward() and computes "
                "masks and positions of it, so pass all ranks of the pipeline the same batch"
            )
        if self._ends[0] == self._group.rank and not inputs:
            raise ConfigError("the rank of the first stage has no batch: pass it one")
        is_due = purpose.trains and not self.has_own_loss
        if self._ends[1] == self._group.rank and is_due and not targets:
            raise ConfigError("the rank of the last stage has no target: pass it one")
        if self._counts_rows and batches.is_uneven([single(each) for each in targets]):
            raise ConfigError(
                f"some microbatches have more labels of {batches.IGNORED} than others, which "
                f"losses leave out, so that their means are not of all rows: pass "
                f"tokens=lambda target: (target != {batches.IGNORED}).sum(), or tokens=len if "
                f"loss_fn is the mean over all rows"
            )

    def _check_together(self, told: NDArray[np.int64]) -> None:
        for rows in _pipelines(told):
            first, last = rows[self._ends[0], _ROWS], rows[self._ends[1], _TARGETS]
            batches.check_together(int(first), int(last), max(_said_of_batches(rows)[1]))


def _count(batch: Any, target: Any, most: int, trains: bool) -> int:
    """Return the number of microbatches, which is smaller for fewer rows."""
    given = target if batch is None else batch
    if given is None or (trains and isinstance(given, list)):
        return most
    return batches.count_of(given, most)


def _check_one(asked: ProcessGroup, told: NDArray[np.int64], problem: str, text: str) -> None:
    is_one = all(len(each) < 2 for rows in _pipelines(told) for each in _said_of_batches(rows))
    is_one &= all(len({*rows[:, _CONTENT].tolist()}) == 1 for rows in _pipelines(told))
    if told[:, _PROBLEM].any() or not is_one or (told[:, _SCALE] != told[0, _SCALE]).any():
        error = ConfigError(problem) if problem else None
        agree(asked, "the batch of PipelineParallel", text, error)


def _pipelines(told: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    firsts = {*told[:, _PIPELINE].tolist()}
    return [told[told[:, _PIPELINE] == first] for first in firsts]


def _said_of_batches(rows: NDArray[np.int64]) -> tuple[set[int], set[int]]:
    """Return the keys of shapes, and the numbers of microbatches, that a pipeline's ranks have."""
    keys, counts = ({*column.tolist()} - {0} for column in rows.T[:2])
    return keys, counts


def _frozen(module: Module) -> int:
    """Return a key of which parameters want no gradients, which determines what stages send."""
    wanted = "".join("01"[each.requires_grad] for each in module.parameters())
    return batches.digest(wanted)


def single(arguments: tuple[Any, ...]) -> Any:
    """Reverse arguments(): return a single argument itself, others as a tuple."""
    return arguments[0] if len(arguments) == 1 else arguments


def loss_of(output: Any) -> Any:
    """Return the loss in a model's output; None if there is none.

    It has this name, or is the only number in a tuple.
    """
    if isinstance(output, tuple) and not hasattr(output, "loss"):
        numbers = [each for each in output if getattr(each, "shape", None) == ()]
        return numbers[0] if len(numbers) == 1 else None
    return output.get("loss") if hasattr(output, "get") else getattr(output, "loss", None)


def own_loss(output: Any, _: Any) -> Any:
    """Return the loss that a model has computed itself. ValueError if there is none."""
    loss = loss_of(output)
    if loss is None:
        raise ValueError(
            f"the model returned a {type(output).__qualname__} without a loss: give the batch its "
            f"labels, or the pipeline a loss_fn"
        )
    return loss


def result_of(output: Any) -> Any:
    """Return the main tensor of a model's output: logits, where it has these."""
    if not hasattr(output, "get") or not hasattr(output, "values"):
        return output
    found = next((output[name] for name in ("logits", "last_hidden_state") if name in output), None)
    tensors = (each for each in output.values() if len(getattr(each, "shape", ())))
    return next(tensors, None) if found is None else found
