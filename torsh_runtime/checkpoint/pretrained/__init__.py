"""Models of transformers that ranks have parts of: out to files that all can read, and in."""

from torsh_runtime.checkpoint.pretrained.loading import from_pretrained
from torsh_runtime.checkpoint.pretrained.saving import save_pretrained, save_pretrained_of

__all__ = ["from_pretrained", "save_pretrained", "save_pretrained_of"]
