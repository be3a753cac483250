"""Makes plans for models whose attributes, or whose type, say how their layers may be cut."""

from torsh_runtime.parallel.automatic.planning import plan_of, resolved

__all__ = ["plan_of", "resolved"]
