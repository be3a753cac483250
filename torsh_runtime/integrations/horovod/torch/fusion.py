"""Combines an optimizer's gradients in flat memory, so that few operations reduce them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from torsh_runtime.arrays.torch import part_like
from torsh_runtime.integrations.horovod.torch.calls import Call, Operand
from torsh_runtime.integrations.horovod.torch.collectives import (
    Handle,
    allreduce_async_,
    sparse_allreduce_async,
    synchronize,
)
from torsh_runtime.integrations.horovod.torch.compression import Compression, Compressor
from torsh_runtime.integrations.horovod.torch.world import ProcessSet
from torsh_runtime.parallel.ddp.plan import Gradient, Kind, Span, limits_of, spans

Tensor = torch.Tensor

_MOST_MEBIBYTES = 64.0


class Bucket:
    """Holds gradients that are reduced together."""

    def __init__(self, name: str, flat: Tensor, parameters: Sequence[Tensor]) -> None:
        self.name = name
        starts = [0, *accumulate(each.numel() for each in parameters)]
        self.views = {
            each: part_like(flat, start, each)
            for start, each in zip(starts, parameters, strict=False)
        }
        only = self.views[parameters[0]]
        self.whole = only if len(parameters) == 1 and only.is_contiguous() else flat
        """The tensor to reduce, in the gradient's shape if there is only one."""
        self.missing = {*parameters}
        self.sent: tuple[Any, Any] | None = None
        """The handle of the reduction, and the context to decompress its result."""

    @torch.no_grad()
    def put(self, parameter: Tensor) -> None:
        """Copy the parameter's gradient to its place unless it is there; zeros if there is none."""
        view, gradient = self.views[parameter], parameter.grad
        self.missing.discard(parameter)
        if gradient is None:
            view.zero_()
        elif gradient.is_sparse:
            view.copy_(gradient.to_dense())
        elif gradient.data_ptr() != view.data_ptr():
            view.copy_(gradient)

    @torch.no_grad()
    def take(self, compression: type[Compressor]) -> None:
        """Wait for the result, if it was sent, and set it as the parameters' gradients."""
        self.missing = {*self.views}
        if self.sent is None:
            return
        (handle, context), self.sent = self.sent, None
        result = compression.decompress(synchronize(handle), context)
        if result is not self.whole:
            self.whole.copy_(result)
        for parameter, view in self.views.items():
            is_sparse = parameter.grad is not None and parameter.grad.is_sparse
            parameter.grad = view.to_sparse() if is_sparse else view


class Fusion:
    """Holds an optimizer's gradients in buckets that are the same on all ranks.

    The reduced parameters are those that require gradients when the first gradient of a step is
    ready. If they have changed, new buckets are made once all gradients are ready. Sparse gradients
    are in no bucket.
    """

    def __init__(
        self,
        names: Mapping[Tensor, str],
        options: Mapping[str, Any],
        compression: type[Compressor],
        sparse_as_dense: bool,
    ) -> None:
        """Take the parameters with their names. `options`: arguments of the reductions."""
        self._names, self._options, self._compression = names, options, compression
        self._process_set: ProcessSet = options["process_set"]
        self._name = f"optimizer {self._process_set.number('optimizer')}"
        self._sparse_as_dense = sparse_as_dense
        self._sparse: set[Tensor] = set()
        self._gathering: dict[Tensor, Any] = {}
        self._memory: dict[tuple[str, str], Tensor] = {}
        self._buckets: list[Bucket] = []
        self._bucket_of: dict[Tensor, Bucket] = {}
        self._engine: Any = None
        self._members: list[Tensor] = []
        self._is_open = False

    def come(self, parameter: Tensor) -> None:
        """Record that a parameter's gradient is complete, and reduce its bucket if that is
        complete.
        """
        self._open()
        bucket, gradient = self._bucket_of.get(parameter), parameter.grad
        if bucket is not None:
            bucket.put(parameter)
            self._send_complete(bucket)
        elif gradient is not None and gradient.is_sparse and not self._sparse_as_dense:
            self._sparse.add(parameter)
            self._gather(parameter, gradient)

    def finish(self) -> None:
        """Wait until the gradients of all parameters are reduced.

        Errors are raised once no operation is under way.
        """
        self._open()
        try:
            self._send_rest()
        finally:
            self._is_open = False
            self._take_all()

    def _send_rest(self) -> None:
        for parameter in self._members:
            if parameter in self._sparse and parameter not in self._gathering:
                self._gather(parameter, _no_rows(parameter))  # another rank may have used it
        if not self._buckets:
            self._lay([each for each in self._members if each not in self._sparse])
        for bucket in self._buckets:
            for parameter in [*bucket.missing]:
                bucket.put(parameter)
            self._send_complete(bucket)

    def _take_all(self) -> None:
        gathering, self._gathering = self._gathering, {}
        error: Exception | None = None
        for bucket in self._buckets:
            try:
                bucket.take(self._compression)
            except Exception as problem:
                error = error or problem
        for parameter, handle in gathering.items():
            try:
                parameter.grad = synchronize(handle)
            except Exception as problem:
                error = error or problem
        if error is not None:
            raise error

    def _open(self) -> None:
        """Prepare buckets for the gradients to come, at the first gradient of a step."""
        if self._is_open:
            return
        self._is_open = True
        members = [each for each in self._names if each.requires_grad]
        dense = [each for each in members if each not in self._sparse]
        engine = self._process_set.engine
        if engine is not self._engine:  # init() was called again
            self._engine = engine
            self._memory.clear()
            self._forget_buckets()
        if [*map(id, dense)] != [*map(id, self._bucket_of)]:
            self._forget_buckets()
        self._members = members

    def _forget_buckets(self) -> None:
        self._buckets, self._bucket_of = [], {}

    def _lay(self, parameters: Sequence[Tensor]) -> None:
        """Make buckets of parameters, in the order in which backward passes usually reach them."""
        found = [_gradient(each) for each in parameters]
        limits = limits_of(
            _MOST_MEBIBYTES if self._is_elementwise() else 0.0,
            False,
            sum(each.elements * each.itemsize for each in found),
            overlaps=not self._engine.is_in_node,
        )
        laid = spans(found, [*reversed(range(len(found)))], limits)
        ends = {span.kind: span.end for span in laid}
        memory = {kind: self._memory_of(kind, end) for kind, end in ends.items()}
        self._buckets = [self._bucket(span, memory[span.kind], parameters) for span in laid]
        of = {each: bucket for bucket in self._buckets for each in bucket.views}
        self._bucket_of = {each: of[each] for each in parameters}

    def _bucket(self, span: Span, memory: Tensor, parameters: Sequence[Tensor]) -> Bucket:
        members = [parameters[number] for number in span.members]
        first, last = self._names[members[0]], self._names[members[-1]]
        name = f"{self._name}: {first}" + (f" to {last}" if len(members) > 1 else "")
        return Bucket(name, memory[span.start : span.end], members)

    def _memory_of(self, kind: Kind, elements: int) -> Tensor:
        """Return memory for `elements` elements, shared by the set's ranks if it is on the CPU."""
        dtype, device, _ = kind
        known = self._memory.get((dtype, device))
        if known is None or known.numel() < elements:
            known = self._new_memory(getattr(torch, dtype), device, elements)
            self._memory[dtype, device] = known
        return known[:elements]

    def _new_memory(self, dtype: torch.dtype, device: str, elements: int) -> Tensor:
        if device != "cpu":
            return torch.empty(elements, dtype=dtype, device=device)
        name = str(dtype).removeprefix("torch.")
        operand = Operand(name, (elements,), "cpu")
        call = Call("shared_memory", f"{name} gradients of {self._name}", (operand,))
        made: Tensor = synchronize(Handle(self._process_set, call, ()))
        return made

    def _is_elementwise(self) -> bool:
        """Return whether compressing several gradients at once is the same as compressing each."""
        return self._compression in (Compression.none, Compression.fp16)

    def _send_complete(self, bucket: Bucket) -> None:
        if bucket.missing or bucket.sent is not None:
            return
        sent, context = self._compression.compress(bucket.whole)
        handle = allreduce_async_(sent, name=bucket.name, **self._options)
        bucket.sent = handle, context

    def _gather(self, parameter: Tensor, gradient: Tensor) -> None:
        how = {key: self._options[key] for key in ("op", "process_set")}
        name = f"{self._name}: {self._names[parameter]}"
        self._gathering[parameter] = sparse_allreduce_async(gradient, name, **how)


def _gradient(parameter: Tensor) -> Gradient:
    kind = (str(parameter.dtype).removeprefix("torch."), str(parameter.device), 0)
    return Gradient(parameter.numel(), parameter.dtype.itemsize, kind)


def _no_rows(parameter: Tensor) -> Tensor:
    """Return a sparse gradient without rows."""
    indices = torch.empty(1, 0, dtype=torch.int64, device=parameter.device)
    values = torch.empty(0, *parameter.shape[1:], dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(indices, values, parameter.shape)
