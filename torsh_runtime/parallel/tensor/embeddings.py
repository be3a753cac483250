"""Embeddings of which each rank has a part, without a framework."""

from __future__ import annotations

from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Tensor
from torsh_runtime.layout import Shard
from torsh_runtime.parallel import regions
from torsh_runtime.parallel.tensor.axis import Axis
from torsh_runtime.parallel.tensor.cuts import cuts, sharded, sizes, unit_of
from torsh_runtime.parallel.tensor.layer import Layer
from torsh_runtime.parallel.tensor.parts import Layouts
from torsh_runtime.parallel.tensor.plan import Column, Vocabulary


class ColumnParallelEmbedding(Layer):
    """An Embedding of which each rank has some columns, as biases of its own heads."""

    padding_idx: int | None

    @classmethod
    def shards(cls, plain: Any, entry: Column, axis: Axis) -> dict[str, Shard]:
        check_embedding(plain)
        if entry.sequence_dim is not None or entry.query_heads is not None:
            raise ConfigError("an Embedding has no sequence_dim and no query_heads")
        size = plain.weight.shape[1]
        unit = unit_of(entry, size, axis.size)
        return {"weight": sharded(size, axis.size, unit, entry.sections, 1)}

    def forward(self, indices: Tensor) -> Any:
        """Look up rows. indices: integers of any shape, equal on all ranks."""
        self._compare_first(indices)
        found = self.functional.embedding(indices, self.weight, self.padding_idx)
        if not self.entry.gather_output:
            return found
        shard: Any = self.parameter_layouts["weight"].axes[0][2]
        return regions.gather(found, self.axis.group, -1, sizes(shard))


class VocabParallelEmbedding(Layer):
    """Looks up rows of an Embedding of which each rank has some; all get the results.

    Attributes:
        weight: The weight (own rows, embedding_dim).

    Example:
        ```python
        embedding = tr.VocabParallelEmbedding(32000, 512, mesh=mesh)
        vectors = embedding(tokens)  # tokens: integers (batch, length), the same on all ranks
        ```
    """

    padding_idx: int | None

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        mesh: Any = None,
        sequence_dim: int | None = None,
        dtype: Any = None,
        framework: str | None = None,
    ) -> None:
        """Create the layer.

        All ranks make the whole first and keep their parts, so they are seeded alike.

        Args:
            num_embeddings: The number of rows, on all ranks together.
            embedding_dim: The width of a row.
            padding_idx: The row that gets no gradient; None: there is none.
            mesh: A mesh with one axis, or with one called "tp", or a group; None is the default
                group.
            sequence_dim: The dimension of the output of which each rank gets an equal part; None if
                all get all.
            dtype: The dtype of the parameters; None is the framework's default.
            framework: "torch" or "nn"; None is torch if it is loaded.

        Raises:
            ConfigError: On all ranks if they were not seeded alike.
        """
        super().__init__(num_embeddings, embedding_dim, padding_idx, dtype=dtype)
        self._divide(Vocabulary(sequence_dim), mesh)

    @classmethod
    def shards(cls, plain: Any, entry: Vocabulary, axis: Axis) -> dict[str, Shard]:
        check_embedding(plain)
        return {"weight": sharded(plain.weight.shape[0], axis.size)}

    def become(self, entry: Vocabulary, axis: Axis, where: str, lie: Layouts) -> None:
        super().become(entry, axis, where, lie)
        self.rows = lie["weight"].shape[0]
        self.start, self.end = cuts(self.rows, axis.size)[axis.index :][:2]
        padding = self.padding_idx
        is_here = padding is not None and self.start <= padding < self.end
        self.own_padding = padding - self.start if padding is not None and is_here else None

    def forward(self, indices: Tensor) -> Any:
        """Look up rows.

        Args:
            indices: Integers of any shape, equal on all ranks.

        Returns:
            The rows (*indices.shape, embedding_dim), or this rank's part of them.

        Raises:
            IndexError: For indices that are no rows.
            CommError: If an exchange among the ranks fails.
        """
        self._compare_first(indices)
        places, elsewhere = self.own_places(indices)
        found = self.functional.embedding(places, self.weight, self.own_padding)
        return self._summed(found.masked_fill(elsewhere, 0.0), self.entry.sequence_dim)

    def own_places(self, indices: Any) -> tuple[Any, Any]:
        """Return the indices of this rank's rows that are meant, and a mask of those that it
        lacks."""
        raise NotImplementedError


def check_range(lowest: int, highest: int, rows: int, where: str) -> None:
    """Raise IndexError for indices that are no rows."""
    if lowest < 0 or highest >= rows:
        raise IndexError(
            f"{where}: indices from {lowest} to {highest} came, and there are {rows} rows on all "
            f"ranks together"
        )


def check_embedding(plain: Any) -> None:
    """Raise ConfigError for an Embedding that cannot be cut."""
    for option in ("max_norm", "scale_grad_by_freq", "sparse"):
        if getattr(plain, option, None):
            raise ConfigError(f"an Embedding with {option} cannot be cut")
