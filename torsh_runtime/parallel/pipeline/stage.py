"""Runs one stage of a model: forward and backward passes of the microbatches under way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.framework import Module
from torsh_runtime.parallel.pipeline.autograd import Autograd, Spec
from torsh_runtime.parallel.pipeline.table import Kind
from torsh_runtime.parallel.regions.arrays import copied

REDUCES, HOLDS, LETS_GO = "reduce_gradients", "_hold", "reshard"
"""Methods of wrappers for data parallelism: the first one reduces what no_sync() has left, or what
has come since the second one made parameters whole."""


class Wrapper(Protocol):
    """Declares what wrappers for data parallelism have. Which of these a module has tells how it
    reduces its gradients."""

    process_group: ProcessGroup

    def no_sync(self) -> AbstractContextManager[object]:
        """Leave the reduction of gradients out in this block."""

    def _hold(self) -> object:
        """Make parameters whole."""

    def reshard(self) -> object:
        """Keep this rank's parts of parameters alone."""


@dataclass
class _Passage:
    """A microbatch that has gone forward."""

    inputs: Sequence[Any]
    outputs: Sequence[Any] | None
    """None if they are to be computed again."""
    target: Any
    weight: float
    call: Any = None
    random: Any = None
    later: Callable[[], None] | None = None


class Stage:
    """Runs a stage of the model on its rank. `module` takes the first stage's inputs, or what the
    stage before returned: a tensor, or a tuple of tensors, which become its arguments.
    """

    def __init__(
        self,
        number: int,
        module: Module,
        autograd: Autograd,
        loss_fn: Callable[[Any, Any], Any] | None,
        checkpoints: bool,
    ) -> None:
        """Make a stage.

        loss_fn: given for the last stage. checkpoints: whether only inputs are kept, and the
        forward pass is computed again when its backward pass is due.
        """
        self.number, self.module = number, module
        self._wrapper = cast(Wrapper, module)
        self.autograd, self._loss_fn, self._checkpoints = autograd, loss_fn, checkpoints
        self.splits = False
        self.last: int | None = None
        """Microbatch whose backward pass is the last one of a step; None: any could be."""
        self._passages: dict[int, _Passage] = {}
        self.peak = 0
        """Largest number of microbatches that were alive at once."""
        self.is_sampling = False
        """True if passes store their inputs and gradients in `sample` and `sample_gradients`."""
        self.held = self.sent_bytes = 0
        """Bytes of a microbatch: held until its backward pass has ended, and of its outputs."""
        self.sample: _Passage | None = None
        self.sample_gradients: Sequence[Any] = ()

    def begin(self, last: int | None) -> None:
        """Begin a step of training, whose last backward pass in one part is that of `last`."""
        self.last = last
        if self._is_held:
            self._wrapper._hold()

    @property
    def _is_held(self) -> bool:
        """Return whether sharded parameters are kept whole for a step.

        This is needed if backward passes are in two parts, because gradients may come at any time.
        """
        return self.splits and all(hasattr(self.module, each) for each in (REDUCES, HOLDS, LETS_GO))

    def evaluate(self, inputs: Sequence[Any], call: Any = None) -> Any:
        """Return what the module returns, which cannot be differentiated."""
        with self.autograd.recording(False):
            return self.module(*inputs, **_microbatch(call))

    def kept(self, output: Any) -> Any:
        """Return an output of the last stage that stays as it is while other microbatches pass."""
        if isinstance(output, tuple):
            return tuple(map(self.kept, output))
        if not hasattr(output, "requires_grad"):
            return output
        return self.autograd.leaf(self.autograd.lasting(output), False)

    def loss(self, output: Any, target: Any) -> Any:
        """Return the loss of a microbatch. ValueError if it is not a tensor of one number."""
        assert self._loss_fn is not None, "the executor asks the last stage"
        loss = self._loss_fn(output, target)
        if not hasattr(loss, "requires_grad") or math.prod(loss.shape) != 1:
            shape = getattr(loss, "shape", None)
            what = type(loss).__qualname__ if shape is None else f"tensor of shape {tuple(shape)}"
            raise ValueError(
                f"loss_fn returned a {what}: it is to return a tensor of one number, the mean over "
                f"the microbatch"
            )
        return loss

    def forward(
        self,
        microbatch: int,
        inputs: Sequence[Any],
        target: Any,
        weight: float,
        call: Any = None,
    ) -> tuple[Any, ...]:
        """Return the outputs, or the loss in the last stage.

        inputs: leaves, whose gradients backward() returns. call: the whole model's arguments, for a
        stage that needs them.
        """
        passage = _Passage(inputs, None, target, weight, call)
        if self._checkpoints:
            passage.random = self.autograd.random_state()
        if self.is_sampling:
            self._note_bytes(passage)
            self.sample = passage
        outputs = self._computed(passage, record=not self._checkpoints)
        if not self._checkpoints:
            passage.outputs = outputs
        self._passages[microbatch] = passage
        self.peak = max(self.peak, len(self._passages))
        return outputs

    def sent(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Spec]:
        """Describe the outputs for the rank that receives them.

        If they are computed again, all floating-point tensors count as wanting gradients, if
        anything here does. Raises TypeError for outputs that are no tensors, or more than their
        values.
        """
        other = next((each for each in outputs if not hasattr(each, "requires_grad")), outputs)
        if other is not outputs:
            raise TypeError(
                f"the last layer of stage {self.number} returned a {type(other).__qualname__}: "
                f"layers of a pipeline return a tensor, or a tuple of tensors, which the next one "
                f"gets as its arguments"
            )
        beyond = next(filter(None, map(self.autograd.beyond, outputs)), "")
        if beyond:
            raise TypeError(
                f"the last layer of stage {self.number} returned a {beyond}, of which the next "
                f"stage would get the values alone: return a plain tensor, or cut the model "
                f"where its layers do"
            )
        specs = [self.autograd.spec(each) for each in outputs]
        if not self._checkpoints:
            return specs
        wanting = [*self.module.parameters(), *self._tensors(inputs)]
        wants = any(each.requires_grad for each in wanting)
        return [spec._replace(wants_gradient=wants and spec.is_continuous) for spec in specs]

    def backward(self, microbatch: int, gradients: Sequence[Any]) -> list[Any]:
        """Return gradients of the inputs that want them, and accumulate those of parameters."""
        passage = self._passages.pop(microbatch)
        if self.is_sampling:
            self.sample_gradients = gradients
        outputs, wanted = self._differentiable(passage, gradients)
        if outputs:
            with self._reducing(microbatch):
                self.autograd.backward(outputs, wanted)
        return self._of_inputs(passage)

    def backward_inputs(self, microbatch: int, gradients: Sequence[Any]) -> list[Any]:
        """Return gradients as backward() does, but leave those of parameters to weights() if
        possible.
        """
        passage = self._passages[microbatch]
        outputs, wanted = self._differentiable(passage, gradients)
        passage.outputs = None
        if outputs:
            leaves = self._leaves(passage)
            passage.later = self.autograd.backward_inputs(outputs, wanted, leaves)
        return self._of_inputs(passage)

    def weights(self, microbatch: int) -> None:
        """Accumulate the gradients of parameters that backward_inputs() has left."""
        later = self._passages.pop(microbatch).later
        if later is not None:
            later()

    def again(self, splits: bool) -> Iterator[tuple[Kind, Callable[[], object]]]:
        """Yield steps of the sample, some of them twice, to be taken in order and timed."""
        assert self.sample is not None, "it has been taken before"
        target, weight, call = self.sample.target, self.sample.weight, self.sample.call
        gradients = self.sample_gradients
        for self.splits in (False, True)[: 1 + splits]:
            self.begin(0)
            inputs = [self._fresh(each) for each in self.sample.inputs]
            yield Kind.FORWARD, partial(self.forward, 0, inputs, target, weight, call)
            if self.splits:
                yield Kind.INPUT, partial(self.backward_inputs, 0, gradients)
                yield Kind.WEIGHT, partial(self.weights, 0)
            else:
                yield Kind.BACKWARD, partial(self.backward, 0, gradients)
            if self._is_held:
                self.module.zero_grad()
                self._wrapper.reshard()

    def _fresh(self, value: Any) -> Any:
        """Return a leaf with the same values, without a gradient."""
        if not hasattr(value, "requires_grad"):
            return value
        return self.autograd.leaf(self.autograd.values(value), value.requires_grad)

    def forget(self) -> None:
        """Forget all microbatches that are under way."""
        self._passages.clear()

    def _computed(self, passage: _Passage, record: bool) -> tuple[Any, ...]:
        with ExitStack() as held:
            held.enter_context(self.autograd.recording(record))
            held.enter_context(self.autograd.splitting() if self.splits else nullcontext())
            held.enter_context(self._unreduced())
            output = self.module(*passage.inputs, **_microbatch(passage.call))
            if self._loss_fn is not None:
                output = self.loss(output, passage.target)
        return output if isinstance(output, tuple) else (output,)

    def _note_bytes(self, passage: _Passage) -> None:
        inputs = map(self.autograd.values, self._tensors(passage.inputs))
        self.held = sum(each.nbytes for each in inputs)
        if not self._checkpoints:
            forward = partial(self._computed, passage, record=True)
            self.held += self.autograd.held_bytes(forward, self.module)
        outputs = self._computed(passage, record=False)
        self.sent_bytes = sum(self.autograd.values(each).nbytes for each in outputs)

    def _unreduced(self) -> AbstractContextManager[object]:
        """Let a wrapper for data parallelism leave its reduction to the step of the table."""
        is_left = hasattr(self.module, REDUCES)
        return self._wrapper.no_sync() if is_left else nullcontext()

    def _reducing(self, microbatch: int) -> AbstractContextManager[object]:
        """Let a wrapper that reduces within backward passes do so in the last one only."""
        is_told = self.last not in (None, microbatch) and self._reduces_within
        held: AbstractContextManager[object] = self._wrapper.no_sync() if is_told else nullcontext()
        return held

    @property
    def _reduces_within(self) -> bool:
        """Return whether a wrapper for data parallelism reduces within backward passes."""
        waits = hasattr(self.module, REDUCES) and not hasattr(self.module, HOLDS)
        return hasattr(self.module, "no_sync") and not (waits or self._is_held)

    def _again(self, passage: _Passage) -> tuple[Any, ...]:
        present = self.autograd.random_state()
        self.autograd.set_random_state(passage.random)
        try:
            with self._buffers_kept():
                return self._computed(passage, record=True)
        finally:
            self.autograd.set_random_state(present)

    @contextmanager
    def _buffers_kept(self) -> Iterator[None]:
        """Replace buffers, as those of running means, by copies within the block: they have
        changed.
        """
        kept = [(buffer, buffer.data) for _, buffer in self.module.named_buffers()]
        for buffer, _ in kept:
            buffer.data = copied(buffer.data)
        try:
            yield
        finally:
            for buffer, values in kept:
                buffer.data = values

    def _differentiable(
        self, passage: _Passage, gradients: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Return outputs that depend on anything, and their gradients."""
        if self._loss_fn is not None and passage.weight == 0 and not self._reduces_within:
            return [], []  # the mean over nothing is no number, nor is its gradient
        again = passage.outputs is None
        outputs = self._again(passage) if passage.outputs is None else passage.outputs
        if self._loss_fn is not None:
            gradients = [self.autograd.weight(outputs[0], passage.weight)]
        elif again:
            outputs = tuple(o for o in outputs if self.autograd.spec(o).is_continuous)
        else:
            outputs = tuple(o for o in outputs if o.requires_grad)
        pairs = zip(outputs, gradients, strict=True) if gradients else ()
        wanted = [pair for pair in pairs if pair[0].requires_grad]
        return [pair[0] for pair in wanted], [pair[1] for pair in wanted]

    def _tensors(self, inputs: Sequence[Any]) -> list[Any]:
        return [each for each in inputs if hasattr(each, "requires_grad")]

    def _leaves(self, passage: _Passage) -> list[Any]:
        return [each for each in self._tensors(passage.inputs) if each.requires_grad]

    def _of_inputs(self, passage: _Passage) -> list[Any]:
        return list(map(self.autograd.gradient, self._leaves(passage)))


def _microbatch(call: Any) -> dict[str, Any]:
    return {} if call is None else {"microbatch": call}
