"""Asks for the units that a pass needs next before they are needed."""

from __future__ import annotations

from collections.abc import Sequence

from torsh_runtime.parallel.fsdp.config import BackwardPrefetch, FsdpConfig
from torsh_runtime.parallel.fsdp.fsdp_param_group import FSDPParamGroup


class Prefetching:
    """Remembers the order in which forward passes use units, and gathers ahead of it."""

    def __init__(self, config: FsdpConfig) -> None:
        self._config = config
        self._order: list[FSDPParamGroup] = []
        self._last_order: list[FSDPParamGroup] = []

    def begin(self) -> None:
        """Begin a forward pass."""
        self._order, self._last_order = [], self._order or self._last_order

    def in_forward(self, unit: FSDPParamGroup) -> None:
        """Note that a forward pass has come to this unit, and ask for what follows."""
        self._order.append(unit)
        if chosen := unit.options.forward_prefetch:
            _ask_for(chosen)
        else:
            self._ask_for_some(self._last_order[len(self._order) :])

    def before_backward(self, unit: FSDPParamGroup) -> None:
        """Ask for what follows before the unit's gradients are computed."""
        if chosen := unit.options.backward_prefetch:
            _ask_for(chosen)
        elif self._config.backward_prefetch is BackwardPrefetch.BACKWARD_PRE:
            self._ask_before(unit)

    def after_backward(self, unit: FSDPParamGroup) -> None:
        """Ask for what follows when the unit's gradients are on their way."""
        if self._config.backward_prefetch is BackwardPrefetch.BACKWARD_POST:
            self._ask_before(unit)

    def _ask_before(self, unit: FSDPParamGroup) -> None:
        """Ask for units that a backward pass reaches after this one."""
        if unit in self._order:
            self._ask_for_some(self._order[: self._order.index(unit)][::-1])

    def _ask_for_some(self, following: Sequence[FSDPParamGroup]) -> None:
        is_limited = self._config.memory_config.limit_all_gathers
        _ask_for(following[:1] if is_limited else following)


def _ask_for(units: Sequence[FSDPParamGroup]) -> None:
    for unit in units:
        unit.begin_unshard()
