"""Computes for stages in their framework, on the device of their parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from torsh_runtime.arrays.raw import name_of
from torsh_runtime.framework import Framework, Module, Tensor, Values, framework_of
from torsh_runtime.parallel.regions.arrays import copied


class Spec(NamedTuple):
    """Describes a tensor that comes from another stage."""

    shape: tuple[int, ...]
    dtype: str
    wants_gradient: bool

    @property
    def is_continuous(self) -> bool:
        """Return whether such a tensor can want gradients."""
        return "float" in self.dtype or "complex" in self.dtype


class Autograd:
    """Computes for a stage. `values` are what collectives take: arrays, or tensors outside any
    graph.

    What the framework does as it is, it has as attributes: steps call it often.
    """

    def __init__(self, framework: Framework, like: Tensor | None) -> None:
        """Compute on the device of `like`; None: on the CPU."""
        self.framework, self._like = framework, like
        self.leaf, self.values, self.beyond = framework.leaf, framework.values, framework.beyond
        self.recording, self.backward = framework.set_grad_enabled, framework.backward
        self.weight = framework.full_like
        splitter = framework.splitter()
        self.splitting, self.backward_inputs = splitter.splitting, splitter.backward_inputs
        self.nbytes = lru_cache(partial(_nbytes, framework))
        """Returns the number of bytes of a tensor that a Spec describes."""

    def lasting(self, tensor: Tensor) -> Values:
        """Return values() that do not change until they have been taken.

        Values outside any graph are copied, such as those of a buffer that the next microbatch
        changes.
        """
        values = self.values(tensor)
        return values if tensor.requires_grad else copied(values)

    def spec(self, tensor: Tensor) -> Spec:
        """Return what another rank has to know to receive the tensor. Raises TypeError for what is
        no tensor of the framework."""
        if not isinstance(tensor, self.framework.tensor_type):
            raise TypeError(f"a {type(tensor).__qualname__} is no tensor")
        return Spec(tuple(tensor.shape), name_of(tensor.dtype), bool(tensor.requires_grad))

    def empty(self, spec: Spec) -> Values:
        """Return memory for the values of such a tensor, where the stage's parameters are."""
        return self.framework.empty(spec.shape, spec.dtype, self._like)

    def gradient(self, leaf: Tensor) -> Values:
        """Return the values of the leaf's accumulated gradient: zeros if nothing depends on it."""
        if leaf.grad is not None:
            return self.values(leaf.grad)
        spec = self.spec(leaf)
        return self.framework.zeros(spec.shape, spec.dtype, self._like)

    def unfit(self) -> str:
        """Return why computations cannot be differentiated at present; "" if they can."""
        if not self.framework.is_inference_mode_enabled():
            return ""
        return "step() in torch.inference_mode() has no gradients: call it outside, or evaluate()"

    def random_state(self) -> object:
        """Return the state of the generators that dropout uses."""
        return self.framework.get_rng_state(self._like)

    def set_random_state(self, state: object) -> None:
        """Restore the state of the generators that dropout uses."""
        self.framework.set_rng_state(state)

    def joined(self, outputs: Sequence[Tensor]) -> Tensor:
        """Concatenate outputs along dimension 0."""
        return self.framework.cat(outputs)

    def held_bytes(self, forward: Callable[[], object], module: Module) -> int:
        """Return how many bytes a backward pass needs of this forward pass, besides parameters of
        the module."""
        own = [parameter for _, parameter in module.named_parameters()]
        return self.framework.held_bytes(forward, own)

    def synchronise(self) -> None:
        """Wait until the device has done all its work."""
        self.framework.synchronize(self._like)


def _nbytes(framework: Framework, spec: Spec) -> int:
    return math.prod(spec.shape) * framework.dtype(spec.dtype).itemsize


def autograd_of(module: Module, like: Values | None = None) -> Autograd:
    """Return the Autograd of a model of torch or of torsh_runtime.nn.

    It computes on the device of `like`; None: on that of the parameters.
    """
    framework = framework_of(module)
    if like is not None:
        return Autograd(framework, framework.tensor(like))
    return Autograd(framework, next((each for _, each in module.named_parameters()), None))
