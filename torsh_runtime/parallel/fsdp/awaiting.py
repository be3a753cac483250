"""Lets a program give values to parameters that were sharded on the meta device.

It calls functions that know nothing of parts, as reset_parameters(). So a unit becomes whole when
its values are touched. When the next one is touched, all ranks take rank 0's values of the first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Framework
from torsh_runtime.framework.models import kind_of
from torsh_runtime.parallel.fsdp.fsdp_param_group import FSDPParamGroup


class Awaiting:
    """Describes units whose parameters have memory and no values yet."""

    def __init__(
        self,
        framework: Framework,
        units: Sequence[FSDPParamGroup],
        send: Callable[[Sequence[Any]], None],
    ) -> None:
        """Create the description. send: gives all ranks rank 0's values of tensors."""
        self.units, self.send = units, send
        here = weakref.ref(self)
        self.among: AwaitedValues | None = None

        def use(parameter: Any) -> None:
            if (found := here()) is not None and found.among is not None:
                found.among.touch(found, parameter)

        self.kind = framework.watched(use)
        self.watch()

    def watch(self) -> None:
        """Watch for operations with parameters that are not whole."""
        for unit in self.units:
            unit.watch(self.kind)

    def unwatch(self) -> None:
        """End that."""
        for unit in self.units:
            unit.unwatch()


class AwaitedValues:
    """Holds what awaits values in a model, and the unit that is whole to get them."""

    def __init__(self) -> None:
        self._awaiting: list[Awaiting] = []
        self._whole: tuple[Awaiting, FSDPParamGroup] | None = None
        self._are_given = False

    def add(self, awaiting: Awaiting) -> None:
        """Let its units await values."""
        self._awaiting.append(awaiting)
        awaiting.among = self

    def absorb(self, inner: AwaitedValues) -> None:
        """Take over what awaits values in a part of the model."""
        inner._settle()
        self._are_given |= inner._are_given
        for each in inner._awaiting:
            self.add(each)
        inner._awaiting = []

    def note_values(self) -> None:
        """Note that the program gives values from now on."""
        self._are_given = True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not take operations with parameters for their use in this block."""
        for each in self._awaiting:
            each.unwatch()
        try:
            yield
        finally:
            for each in self._awaiting:
                each.watch()

    def touch(self, awaiting: Awaiting, parameter: Any) -> None:
        """Make the unit of the parameter whole, because an operation is about to use it."""
        for unit in awaiting.units:
            if any(parameter is each for each in unit.parameters):
                self._settle()
                unit.unwatch()
                unit.summon()
                self._whole = awaiting, unit
                self._are_given = True

    def end(self) -> None:
        """Let values be those that were given. All ranks call it at the same time."""
        if not self._awaiting:
            return
        if not self._are_given:
            device = kind_of(self._awaiting[0].units[0].parameters[0])[1]
            raise ConfigError(
                f"parameters were on the meta device when they were sharded, and have no values: "
                f"call model.to_empty(device={device!r}) and then what initialises the model, as "
                f"model.reset_parameters(), or model.load_state_dict()"
            )
        self._settle()
        for each in self._awaiting:
            each.unwatch()
        self._awaiting = []

    def _settle(self) -> None:
        if self._whole is None:
            return
        (awaiting, unit), self._whole = self._whole, None
        awaiting.send(unit.parameters)
        unit.dismiss(writeback=True)
        awaiting.watch()
