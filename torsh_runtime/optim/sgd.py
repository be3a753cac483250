"""Implements stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torsh_runtime.nn.arrays import Array
from torsh_runtime.nn.tensor import Tensor
from torsh_runtime.optim.optimizer import Group, Optimizer
from torsh_runtime.optim.pieces import pieces, zeros_for


class SGD(Optimizer):
    """Makes p -= lr · g, with momentum and L2 regularisation if asked for.

    See Sutskever et al., "On the Importance of Initialization and Momentum in Deep Learning", 2013.

    Example:
        ```python
        optimizer = tr.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ```
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        """Create the optimizer.

        Args:
            params: The tensors to train, or dicts with "params" and options of their own.
            lr: The learning rate.
            momentum: The factor of the velocity.
            dampening: The part of the gradient that does not enter the velocity, except the first
                time.
            weight_decay: The factor of the parameters that is added to the gradient.
            nesterov: Whether the momentum is Nesterov's.

        Raises:
            ValueError: For options out of range, for Nesterov's momentum without a momentum or with
                dampening, and without parameters.
            TypeError: For tensors that are no leaves.
        """
        if min(lr, momentum, weight_decay) < 0:
            raise ValueError("SGD: lr, momentum and weight_decay are not negative")
        if nesterov and (not momentum or dampening):
            raise ValueError("SGD: Nesterov's momentum needs a momentum and no dampening")
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
            },
        )

    def update(self, param: Tensor, gradient: Array, group: Group, state: dict[str, Any]) -> None:
        """Update one parameter and its velocity in place; see Optimizer.update()."""
        momentum = group["momentum"]
        fresh = momentum and state.get("momentum_buffer") is None
        if fresh:
            state["momentum_buffer"] = zeros_for(param.data)
        share = 1.0 if fresh else 1 - group["dampening"]
        others = (state["momentum_buffer"],) if momentum else ()
        for p, g, *velocity in pieces(param.data, gradient, *others):
            direction = g + group["weight_decay"] * p if group["weight_decay"] else g
            for v in velocity:
                v *= momentum
                v += share * direction
                direction = direction + momentum * v if group["nesterov"] else v
            p -= group["lr"] * direction
