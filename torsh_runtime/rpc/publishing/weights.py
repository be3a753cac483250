"""Presents a version of published weights to a reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Self

from torsh_runtime.arrays.raw import is_array
from torsh_runtime.errors import CheckpointError
from torsh_runtime.layout import Piece, ShardedTensor
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.state.contents import NotedReads
from torsh_runtime.parallel.state.models import ModelState, is_model
from torsh_runtime.parallel.state.plain import KEY, decode
from torsh_runtime.rpc.publishing.description import ROOT, child, items
from torsh_runtime.rpc.publishing.versions import Version, host_framework


class Weights(Mapping[str, Any]):
    """Maps names to the arrays and values of a state that was published; they are read only.

    Within the writer's node the arrays are views of its memory, which nobody copies. numpy refuses
    to write to them. Tensors of torch can be written to, which only this process sees, and only
    until the version is released. From another node each array is fetched when it is asked for.

    A version is held, and its memory not used again, until close() is called or a `with` block ends
    and none of its arrays is left. Hold versions briefly: each one that is held costs the writer as
    much memory, and once readers hold most of its slots it waits for them.

    Example:
        ```python
        with tr.rpc.subscribe("policy").latest() as weights:
            print(weights.version, list(weights))
            weights.copy_to(model)
        ```
    """

    def __init__(self, version: Version) -> None:
        """Present a version; use Subscription.latest() or wait().

        Args:
            version: The version.
        """
        self._version: Version | None = version
        self._number = version.number
        self._nodes = {decode(key, None, version): node for key, node in items(version.tree)}
        self._made: dict[Any, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_version", None) is not None:
            self.close()

    @property
    def version(self) -> int:
        """Return the version's number. Later versions have higher numbers, also those of another
        writer."""
        return self._number

    def __getitem__(self, key: str) -> Any:
        if key not in self._made:
            node = self._nodes[key]
            self._made[key] = decode(node, None, _Views(self._held()))
        return self._made[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<Weights: version {self._number} of {len(self)} entries>"

    def piece(self, name: str, piece: Piece) -> Any:
        """Return only this piece of an array: a view if its elements are contiguous, else a copy.

        Args:
            name: The array's name; in nested dicts it is "encoder/weight".
            piece: The piece, such as TensorLayout.piece() returns it.

        Raises:
            CheckpointError: For an array that was not published or does not have the piece's shape,
                and after close().

        Example:
            ```python
            layout = tr.TensorLayout((8, 4), (("tp", 2, tr.Shard(0)),))
            with policy.latest() as weights:
                own = np.array(weights.piece("layer/weight", layout.piece({"tp": 1})))
            ```
        """
        version = self._held()
        shape = version.kind(f"{ROOT}/{name}")[1]
        if shape != piece.global_shape:
            raise CheckpointError(
                f"{version.where}: {name!r} is of shape {shape}, and the piece is of a tensor of "
                f"shape {piece.global_shape}"
            )
        framework = str(version.values.get(f"{ROOT}/{name}", {}).get("framework", "numpy"))
        return version.piece((f"{ROOT}/{name}", piece, host_framework(framework)))

    def copy_to(self, target: Any, mesh: DeviceMesh | None = None) -> None:
        """Copy what the target has into it, in place.

        Floating point numbers are cast. What else was published is left out.

        Args:
            target: A model, wrapped or not, of torch or of tr.nn, which gets the pieces that this
                rank has of its parameters, and its persistent buffers; or a dict, nested as the
                state is, of arrays and tensors of any device, of ShardedTensors, which get their
                pieces, of models, and of other values, which are replaced.
            mesh: The mesh of the model's layouts, if it has any.

        Raises:
            CheckpointError: For what was not published, or has a different shape or dtype, before
                anything is changed, and after close().

        Example:
            ```python
            with policy.latest() as weights:
                weights.copy_to(model)
            ```
        """
        version = self._held()
        noted = NotedReads(version)
        finish = list(_Target(noted, mesh, version.where).parts(target, version.tree, ROOT))
        version.read_all(noted.reads)
        for each in finish:
            each()

    def close(self) -> None:
        """Release the version; nothing further can be read.

        Arrays that were taken out of it stay as they are, and the version is held until they are
        gone.
        """
        self._made.clear()
        version, self._version = self._version, None
        if version is not None:
            version.close()

    def _held(self) -> Version:
        if self._version is None:
            raise CheckpointError(
                f"version {self._number} has been closed: read what is needed within the `with` "
                f"block, or take the newest version again"
            )
        return self._version


class _Views:
    """Presents a version in the form that decode() reads: whole arrays of the installed
    frameworks.
    """

    def __init__(self, version: Version) -> None:
        self._version = version
        self.values = version.values
        self.names, self.kind = version.names, version.kind
        self.check, self.read = version.check, version.read

    def whole(self, name: str, framework: str) -> Any:
        """Return a whole array, as parallel.state.contents.Source does."""
        return self._version.whole(name, host_framework(framework))


class _Target:
    """Notes what is to be read into a target."""

    def __init__(self, source: NotedReads, mesh: DeviceMesh | None, where: str) -> None:
        self._source, self._mesh, self._where = source, mesh, where

    def parts(self, target: Any, tree: Any, name: str) -> Iterator[Any]:
        """Note what is to be read, and yield the functions to call when all has been read. Raises
        CheckpointError as copy_to() does."""
        if is_model(target):
            yield from ModelState(name, target, self._mesh).restore(self._source)
        elif isinstance(target, ShardedTensor):
            self._source.read(self._array(tree, name), target)
        elif is_array(target):
            whole = Piece.whole(tuple(target.shape))
            self._source.read(self._array(tree, name), ShardedTensor(target, whole))
        elif isinstance(target, Mapping):
            for key, each in target.items():
                yield from self._entry(target, key, each, tree, name)
        elif isinstance(target, list | tuple) and isinstance(tree, list):
            for number, (each, node) in enumerate(zip(target, tree, strict=False)):
                yield from self.parts(each, node, f"{name}/{number}")
        else:
            raise CheckpointError(
                f"{self._where}: {name.removeprefix(ROOT)!r} cannot be copied to a "
                f"{type(target).__module__}.{type(target).__qualname__}"
            )

    def _entry(
        self, target: Mapping[Any, Any], key: Any, each: Any, tree: Any, name: str
    ) -> Iterator[Any]:
        try:
            node = child(tree, key)
        except KeyError:
            there = ", ".join(str(other) for other, _ in items(tree)) if tree else "nothing"
            raise CheckpointError(
                f"{self._where}: {name}[{key!r}] was not published; there are {there}"
            ) from None
        is_nested = isinstance(each, Mapping | ShardedTensor | list | tuple) or is_model(each)
        if is_nested or is_array(each):
            yield from self.parts(each, node, f"{name}/{key}")
        elif isinstance(target, MutableMapping):
            value = decode(node, None, self._source)
            yield lambda: target.__setitem__(key, value)

    def _array(self, tree: Any, name: str) -> str:
        if isinstance(tree, dict) and tree.get(KEY) == "tensor":
            return str(tree["name"])
        raise CheckpointError(f"{self._where}: {name.removeprefix(f'{ROOT}/')!r} is no array there")
