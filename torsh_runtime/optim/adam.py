"""Implements Adam, and AdamW with decoupled weight decay."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from torsh_runtime.nn.arrays import Array, array_module
from torsh_runtime.nn.tensor import Tensor
from torsh_runtime.optim.optimizer import Group, Optimizer
from torsh_runtime.optim.pieces import pieces, zeros_for


class Adam(Optimizer):
    """Steps by the mean gradient over the root of the mean squared one.

    See Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015.

    Example:
        ```python
        optimizer = tr.optim.Adam(model.parameters(), lr=1e-3)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ```
    """

    decoupled = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        """Create the optimizer.

        Args:
            params: The tensors to train, or dicts with "params" and options of their own.
            lr: The learning rate.
            betas: The factors of the running means of the gradient and its square, in [0, 1).
            eps: Added to the root.
            weight_decay: The factor of the parameters that is added to the gradient.

        Raises:
            ValueError: For options out of range, and without parameters.
            TypeError: For tensors that are no leaves.
        """
        if min(lr, eps, weight_decay) < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError("Adam: lr, eps, weight_decay are not negative, betas are in [0, 1)")
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    def update(self, param: Tensor, gradient: Array, group: Group, state: dict[str, Any]) -> None:
        """Update one parameter and its moments in place; see Optimizer.update()."""
        if not state:
            state["step"] = np.zeros((), np.float32)
            state["exp_avg"], state["exp_avg_sq"] = zeros_for(param.data), zeros_for(param.data)
        state["step"] += 1
        first, second = group["betas"]
        rate = group["lr"] / (1 - first ** float(state["step"]))
        widening = 1 / math.sqrt(1 - second ** float(state["step"]))
        decay = group["weight_decay"]
        xp = array_module(param.data)
        for p, g, m, v in pieces(param.data, gradient, state["exp_avg"], state["exp_avg_sq"]):
            if decay and self.decoupled:
                p *= 1 - group["lr"] * decay
            direction = g + decay * p if decay and not self.decoupled else g
            m *= first
            m += (1 - first) * direction
            change = direction * direction
            change *= 1 - second
            v *= second
            v += change
            xp.sqrt(v, out=change)
            change *= widening
            change += group["eps"]
            xp.divide(m, change, out=change)
            change *= rate
            p -= change


class AdamW(Adam):
    """Works as Adam, but weight_decay shrinks the parameters directly.

    See Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019.

    Example:
        ```python
        optimizer = tr.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ```
    """

    decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        """Create the optimizer.

        Args:
            params: The tensors to train, or dicts with "params" and options of their own.
            lr: The learning rate.
            betas: The factors of the running means of the gradient and its square, in [0, 1).
            eps: Added to the root.
            weight_decay: The part by which lr · weight_decay shrinks the parameters in each step.

        Raises:
            ValueError: For options out of range, and without parameters.
            TypeError: For tensors that are no leaves.
        """
        super().__init__(params, lr, betas, eps, weight_decay)
