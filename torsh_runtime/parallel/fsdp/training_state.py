"""Names the states of a sharded model's parameters, and what they are whole for."""

from __future__ import annotations

from enum import Enum, StrEnum, auto


class TrainingState(Enum):
    """Tells for whom a model's parameters are made whole, after torch's class of this name."""

    FORWARD_BACKWARD = auto()
    """Passes gather and reduce."""
    HELD = auto()
    """Parameters are whole since unshard(): passes neither gather nor reduce."""
    SUMMON_FULL_PARAMS = auto()
    """Parameters are whole copies in a block, in which no pass may begin."""


class ShardedState(StrEnum):
    """Tells where the parameters of a unit are, after torch's class of this name."""

    SHARDED = "sharded"
    """Ranks have their parts, and may be gathering the rest."""
    GATHERED = "gathered"
    """Whole values are here, and the parameters show this rank's part."""
    UNSHARDED = "unsharded"
    """Whole values are here, and the parameters show them."""
