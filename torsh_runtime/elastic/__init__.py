"""What workers of a job whose nodes come and go tell it."""

from torsh_runtime.elastic.growth import checkpoint_saved

__all__ = ["checkpoint_saved"]
