"""Names what a sharded model's parameters are whole for."""

from __future__ import annotations

from enum import Enum, auto


class TrainingState(Enum):
    """Tells for whom a model's parameters are made whole, after torch's class of this name."""

    FORWARD_BACKWARD = auto()
    """Passes gather and reduce."""
    HELD = auto()
    """Parameters are whole since unshard(): passes neither gather nor reduce."""
    SUMMON_FULL_PARAMS = auto()
    """Parameters are whole copies in a block, in which no pass may begin."""
