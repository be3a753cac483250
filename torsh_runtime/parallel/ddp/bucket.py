"""A bucket of gradients, as hooks get it, with the methods of torch's GradBucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.framework import Framework, Values


class Pending(Protocol):
    """Describes what a hook returns: Work, or a future, torch's included."""

    def wait(self) -> Any:
        """Wait until it is over; raises what it ended with."""


class Bucket:
    """Gradients that are averaged together."""

    def __init__(
        self,
        framework: Framework,
        flat: Any,
        views: list[Any],
        parameters: list[tuple[str, Any]],
        place: tuple[int, bool],
        group: ProcessGroup,
    ) -> None:
        self.group = group
        self.flat = flat
        self.names = [name for name, _ in parameters]
        self.views = views
        self.missing = len(parameters)
        self._framework = framework
        self._parameters = [parameter for _, parameter in parameters]
        self._index, self._is_last = place

    @property
    def array(self) -> Any:
        """Return the bucket's memory as a flat array of numpy, or of cupy."""
        return self._framework.array(self.flat)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the gradients, in order."""
        return [tuple(view.shape) for view in self.views]

    def index(self) -> int:
        """Return the bucket's number, from 0: buckets are averaged in this order."""
        return self._index

    def is_last(self) -> bool:
        """Return whether the bucket is the last one of a backward pass."""
        return self._is_last

    def buffer(self) -> Any:
        """Return this rank's gradients in one flat tensor, which a hook may overwrite."""
        return self.flat

    def set_buffer(self, tensor: Values) -> None:
        """Copy the elements of `tensor` into the buffer."""
        if tensor is not self.flat:
            self.flat[...] = tensor.reshape(-1)

    def gradients(self) -> list[Any]:
        """Return views of the buffer, in the parameters' shapes."""
        return list(self.views)

    def parameters(self) -> list[Any]:
        """Return the parameters whose gradients are in the bucket."""
        return list(self._parameters)


Hook = Callable[[Any, Bucket], Pending]
"""hook(state, bucket) starts what makes the bucket hold the average over all ranks. What its wait()
returns, where that is a tensor or a list of one, is copied there."""
