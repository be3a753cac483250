"""Declares what parallel code needs of an optimizer, under torch's names."""

from __future__ import annotations

from typing import Any, Protocol


class Optimizer(Protocol):
    """Updates parameters by their gradients."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Return the groups of parameters, each with its options."""

    @property
    def state(self) -> Any:
        """Return what is kept of each parameter."""

    def step(self) -> Any:
        """Update the parameters."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with numbers in the place of parameters."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Take over what state_dict() returned."""
