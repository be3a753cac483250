"""Plans for models that say, or whose kind says, how their layers may be cut."""

from torsh_runtime.parallel.automatic.planning import plan_of, resolved

__all__ = ["plan_of", "resolved"]
