"""Models of transformers that ranks have parts of: out to files that all can read, and in."""

from torsh_runtime.checkpoint.pretrained.saving import save_pretrained, save_pretrained_of

__all__ = ["save_pretrained", "save_pretrained_of"]
