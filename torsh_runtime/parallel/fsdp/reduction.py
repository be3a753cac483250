"""Reduces the gradients of units in a backward pass, and checks that ranks do it alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import CommMismatch, GradientError
from torsh_runtime.monitoring.marks import section
from torsh_runtime.parallel.fsdp.fsdp_param_group import FSDPParamGroup
from torsh_runtime.parallel.fsdp.record import SAME_PARAMETERS, Record
from torsh_runtime.parallel.operations import is_finite
from torsh_runtime.parallel.replicas import Replicas

_MOST_UNDER_WAY = 1


class Reduction:
    """Reduces units of a model one after the other, in the order in which they are complete."""

    def __init__(
        self,
        units: Sequence[FSDPParamGroup],
        group: ProcessGroup,
        replicas: Replicas | None,
        checks_nan: bool,
    ) -> None:
        """Create it. units: those of the model, to which others may be added. replicas: the ranks
        that have the same part."""
        self._units, self._group, self._replicas = units, group, replicas
        self._checks_nan = checks_nan
        self.alike = [group, replicas.group] if replicas is not None else [group]
        """The groups whose ranks have to use the same parameters."""
        self._under_way: list[FSDPParamGroup] = []
        self._record = Record()

    def void(self) -> None:
        """Discard what came in a backward pass."""
        self._record = Record()
        self._under_way.clear()

    def note(self, unit: FSDPParamGroup, number: int) -> None:
        """Note that a gradient was reduced when it came."""
        self._record.note(self._units.index(unit), number)

    def begin(self, unit: FSDPParamGroup, is_over: bool = True) -> None:
        """Begin with this unit's gradients, while at most one other's are on their way."""
        numbers = unit.finish(is_over)
        if numbers:
            self._record.note_all(self._units.index(unit), numbers)
            self._under_way.append(unit)
        while len(self._under_way) > _MOST_UNDER_WAY:
            self._wait_for(self._under_way.pop(0))

    def end(self) -> None:
        """Reduce what is left, and wait until all is reduced."""
        for unit in self._units:
            self.begin(unit)
        while self._under_way:
            self._wait_for(self._under_way.pop(0))

    def settle(self) -> None:
        """Let gradients be the averages over all ranks that have some, and check them."""
        record, self._record = self._record, Record()
        for group in self.alike:
            record.check_same([unit.names() for unit in self._units], group)
        for unit in self._units:
            unit.settle()
        if self._replicas is not None:
            for unit in self._units:
                unit.average(self._replicas)
            with section("fsdp.wait"):
                for unit in self._units:
                    unit.wait_for_replicas()
        if self._checks_nan:
            gradients = [each for unit in self._units for each in unit.gradients()]
            are_finite = all(is_finite(each.data) for each in gradients)
            record.check_finite(are_finite, self._group)

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Raise GradientError if other ranks make different calls in their backward passes."""
        try:
            yield
        except CommMismatch as error:
            text = f"{SAME_PARAMETERS}, and they made different calls in a backward pass: {error}"
            raise GradientError({self._group.rank: text}) from error

    def _wait_for(self, unit: FSDPParamGroup) -> None:
        """Wait until a unit's gradients are reduced, and begin to average them over replicas."""
        with section("fsdp.wait"):
            unit.wait()
        if self._replicas is not None and not unit.averages_late:
            unit.average(self._replicas)
