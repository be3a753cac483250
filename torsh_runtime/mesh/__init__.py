"""Ranks along named axes: layout (pure arithmetic of ranks) and mesh (the groups of the axes)."""
