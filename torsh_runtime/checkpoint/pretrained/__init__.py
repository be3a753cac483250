"""Saves and loads models of transformers that are spread over ranks, in transformers' files."""

from torsh_runtime.checkpoint.pretrained.loading import from_pretrained
from torsh_runtime.checkpoint.pretrained.saving import save_pretrained, save_pretrained_of

__all__ = ["from_pretrained", "save_pretrained", "save_pretrained_of"]
