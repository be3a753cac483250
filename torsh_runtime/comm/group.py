"""A process group: a set of ranks that call collectives together."""

from __future__ import annotations

from collections.abc import Sequence

from torsh_runtime.arrays import check_alike, distribute, joined, room_for
from torsh_runtime.backends.base import Backend, ReduceOp
from torsh_runtime.backends.work import Work


class ProcessGroup:
    """Collectives over one backend. See Backend for what arrays may be and what may be raised.

    Today every operation is complete when its call returns; `Work` is there so that callers need
    not change when it is not.
    """

    def __init__(self, backend: Backend, timeout: float) -> None:
        """`timeout`: how long, in seconds, an operation may take before it is CommTimeout."""
        self._backend = backend
        self._timeout = timeout

    @property
    def rank(self) -> int:
        """This process's rank in the group."""
        return self._backend.rank

    @property
    def world_size(self) -> int:
        """Number of ranks in the group."""
        return self._backend.world_size

    @property
    def timeout(self) -> float:
        """Seconds that an operation may take."""
        return self._timeout

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self._backend.type.value

    def all_reduce(self, tensor: object, op: ReduceOp = ReduceOp.SUM) -> Work:
        """Reduce in place over all ranks. Same shape and dtype everywhere."""
        return self._backend.all_reduce(tensor, op, self._timeout)

    def broadcast(self, tensor: object, src: int) -> Work:
        """Copy rank src's tensor into everyone's. Same shape and dtype everywhere."""
        if src not in range(self.world_size):
            raise ValueError(f"src={src!r} is not a rank of the group (0 to {self.world_size - 1})")
        return self._backend.broadcast(tensor, src, self._timeout)

    def all_gather_into_tensor(self, output_tensor: object, input_tensor: object) -> Work:
        """Gather everyone's input, in order of rank, into output: world_size × its elements."""
        return self._backend.all_gather(output_tensor, input_tensor, self._timeout)

    def all_gather(self, tensor_list: Sequence[object], tensor: object) -> Work:
        """Copy rank r's tensor into tensor_list[r], for each r; all of one shape and dtype."""
        check_alike("tensor_list", tensor_list, tensor, self.world_size, writable=True)
        gathered = room_for(tensor_list)
        work = self._backend.all_gather(gathered, tensor, self._timeout)
        distribute(gathered, tensor_list)
        return work

    def reduce_scatter_tensor(
        self, output: object, input: object, op: ReduceOp = ReduceOp.SUM
    ) -> Work:
        """Reduce everyone's input, world_size × output's elements; rank r gets part r."""
        return self._backend.reduce_scatter(output, input, op, self._timeout)

    def reduce_scatter(
        self, output: object, input_list: Sequence[object], op: ReduceOp = ReduceOp.SUM
    ) -> Work:
        """Reduce everyone's input_list[r] into rank r's output; all of one shape and dtype."""
        check_alike("input_list", input_list, output, self.world_size, writable=False)
        return self._backend.reduce_scatter(output, joined(input_list), op, self._timeout)

    def barrier(self) -> Work:
        """Return when every rank has called it."""
        return self._backend.barrier(self._timeout)

    def abort(self) -> None:
        """End all ranks' pending and later operations with CommAborted. From any thread."""
        self._backend.abort()

    def close(self) -> None:
        """Leave the group; a peer that still needs this rank gets PeerLost."""
        self._backend.close()
