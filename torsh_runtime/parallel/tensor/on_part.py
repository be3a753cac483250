"""Layers that compute on a part of their input, without a framework."""

from __future__ import annotations

from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Tensor
from torsh_runtime.layout import Shard
from torsh_runtime.parallel import regions
from torsh_runtime.parallel.tensor.axis import Axis
from torsh_runtime.parallel.tensor.layer import Layer
from torsh_runtime.parallel.tensor.plan import Part
from torsh_runtime.parallel.tensor.streams import drawing_part


class _OnPart(Layer):
    """A layer on a part of its input, which does the same on all of them."""

    def _shared(self, parameter: Tensor) -> Any:
        """Return a parameter as each rank uses it for its part."""
        return None if parameter is None else regions.copy(parameter, self.axis.group)


class NormOnPart(_OnPart):
    """LayerNorm or RMSNorm of a part of the sequence."""

    @classmethod
    def shards(cls, plain: Any, entry: Part, axis: Axis) -> dict[str, Shard]:
        if -len(plain.normalized_shape) <= entry.dim < 0:
            raise ConfigError(f"dimension {entry.dim} is normalised")
        return {}


class LayerNormOnPart(NormOnPart):
    """Normalizes a part like LayerNorm (see NormOnPart)."""

    bias: Any
    normalized_shape: tuple[int, ...]
    eps: float

    def forward(self, input: Tensor) -> Any:
        """Normalize an input of shape (…, *normalized_shape)."""
        weight, bias = self._shared(self.weight), self._shared(self.bias)
        return self.functional.layer_norm(input, self.normalized_shape, weight, bias, self.eps)


class RMSNormOnPart(NormOnPart):
    """Normalizes a part like RMSNorm (see NormOnPart)."""

    normalized_shape: tuple[int, ...]
    eps: Any

    def forward(self, input: Tensor) -> Any:
        """Normalize an input of shape (…, *normalized_shape)."""
        weight = self._shared(self.weight)
        return self.functional.rms_norm(input, self.normalized_shape, weight, self.eps)


class EmbeddingOnPart(_OnPart):
    """An Embedding of which each rank gets a part of the results, as those of positions."""

    padding_idx: int | None

    def forward(self, indices: Tensor) -> Any:
        """Return this rank's part of the rows. indices: integers of any shape, equal on all
        ranks."""
        found = self.functional.embedding(indices, self.weight, self.padding_idx)
        length = self._equal_part(found, self.entry.dim)
        parts = [length] * self.axis.size
        return regions.scatter(found, self.axis.group, self.entry.dim, parts)


class DropoutOnPart(_OnPart):
    """Dropout of a part of what it is for."""

    p: float

    def forward(self, input: Tensor) -> Any:
        """Apply dropout to an input of any shape."""
        if not self.training or not self.p:
            return input
        with drawing_part(input, self.axis, self.entry.dim, self.entry.cuts):
            return self.functional.dropout(input, self.p, True)
