"""Arrays as the backends require them: C-contiguous and aligned."""

from torsh_runtime.arrays.host import is_known, stage, staged

__all__ = ["is_known", "stage", "staged"]
