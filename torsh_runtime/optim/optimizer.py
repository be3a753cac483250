"""Defines the base class of all optimizers: groups of parameters and their state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from torsh_runtime.nn.arrays import Array, computable, is_array, write
from torsh_runtime.nn.grad_mode import enable_grad, no_grad
from torsh_runtime.nn.graph import Variable
from torsh_runtime.nn.tensor import Tensor
from torsh_runtime.optim.pieces import zeros_for

Group = dict[str, Any]
"""Options of some parameters, and under "params" the parameters."""


class Optimizer:
    """Serves as the base of optimizers, as torch.optim.Optimizer: subclasses define update().

    Attributes:
        defaults: The options of groups that have none of their own.
        param_groups: The groups: dicts with "params" and options.
        state: Names and arrays by parameter.

    Example:
        ```python
        class SignDescent(tr.optim.Optimizer):
            def update(self, param, gradient, group, state):
                param.data -= group["lr"] * np.sign(gradient)

        optimizer = SignDescent(model.parameters(), {"lr": 1e-3})
        ```
    """

    def __init__(self, params: Iterable[Any], defaults: Mapping[str, Any]) -> None:
        """Create the optimizer.

        Args:
            params: The tensors to train, or dicts with "params" and options that differ from
                `defaults`.
            defaults: The options by name.

        Raises:
            ValueError: Without parameters, and if one is given twice.
            TypeError: For tensors that are no leaves.
        """
        self.defaults = dict(defaults)
        self.param_groups: list[Group] = []
        self.state: dict[Tensor, dict[str, Any]] = {}
        given = list(params)
        if not given:
            raise ValueError("an optimizer needs parameters, and was given none")
        groups = given if isinstance(given[0], dict) else [{"params": given}]
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Add parameters with options of their own.

        Args:
            param_group: A dict with "params" and options.

        Raises:
            ValueError: For parameters that the optimizer has already.
            TypeError: For tensors that are no leaves.

        Example:
            ```python
            optimizer.add_param_group({"params": head.parameters(), "lr": 1e-4})
            ```
        """
        params = param_group["params"]
        params = [params] if isinstance(params, Variable) else list(params)
        known = {param for group in self.param_groups for param in group["params"]}
        for param in params:
            if not isinstance(param, Tensor) or param.node is not None:
                raise TypeError("an optimizer takes leaves: tensors that no operation has made")
            if param in known:
                raise ValueError("a parameter belongs to one group only, and once")
            known.add(param)
        self.param_groups.append({**self.defaults, **param_group, "params": params})

    def update(self, param: Tensor, gradient: Array, group: Group, state: dict[str, Any]) -> None:
        """Change one parameter in place. Subclasses define this.

        Args:
            param: The parameter.
            gradient: Its gradient, an array.
            group: The options of its group.
            state: Its state, which is empty at first and may be changed.

        Raises:
            NotImplementedError: If the subclass does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no update()")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have gradients.

        Args:
            closure: A function that computes the loss and the gradients first, or None.

        Returns:
            The loss of `closure`, or None.

        Example:
            ```python
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ```
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with no_grad():
            for group in self.param_groups:
                for param in group["params"]:
                    if param.grad is not None:
                        state = self.state.setdefault(param, {})
                        self.update(param, param.grad.data, group, state)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, or with set_to_none=False fill them with zeros."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None and not set_to_none:
                    param.grad.zero_()
                elif set_to_none:
                    param.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return options and state in torch's layout, without copying arrays.

        Parameters are numbered across all groups.
        """
        numbers = self._numbers()
        groups = [
            {**group, "params": [numbers[param] for param in group["params"]]}
            for group in self.param_groups
        ]
        state = {numbers[param]: dict(values) for param, values in self.state.items()}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load copies of what state_dict() returned, here or in torch.

        Args:
            state_dict: The state.

        Raises:
            ValueError: If the groups do not match.

        Example:
            ```python
            state = optimizer.state_dict()
            other.load_state_dict(state)
            ```
        """
        self._load(state_dict, _loaded)

    def _adopt(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state whose arrays nobody else has: those that fit become the optimizer's own.

        An optimizer with a load_state_dict() of its own gets copies.
        """
        if type(self).load_state_dict is Optimizer.load_state_dict:
            self._load(state_dict, _adopted)
        else:
            self.load_state_dict(state_dict)

    def _load(self, state_dict: Mapping[str, Any], loaded: Callable[[Any, Tensor], Any]) -> None:
        groups, own = state_dict["param_groups"], self.param_groups
        sizes = [[len(group["params"]) for group in each] for each in (groups, own)]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"the state is of groups of {sizes[0]} parameters, the optimizer has {sizes[1]}"
            )
        for group, saved in zip(own, groups, strict=True):
            group.update({name: value for name, value in saved.items() if name != "params"})
        params = {number: param for param, number in self._numbers().items()}
        self.state = {}
        for number, values in state_dict["state"].items():
            param = params[int(number)]
            self.state[param] = {name: loaded(value, param) for name, value in values.items()}

    def _numbers(self) -> dict[Tensor, int]:
        params = [param for group in self.param_groups for param in group["params"]]
        return {param: number for number, param in enumerate(params)}


def _loaded(value: Any, param: Tensor) -> Any:
    """Return a copy. One of the parameter's shape is placed beside it, in the dtype of
    computation."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    array = value if is_array(value) else np.asarray(value)
    if array.shape != param.shape or not array.shape:
        return array.copy()
    copy = zeros_for(param.data)
    write(copy, array)
    return copy


def _adopted(value: Any, param: Tensor) -> Any:
    """Return the value itself if it is what _loaded() would make of it, or else that."""
    if type(value) is not np.ndarray or not isinstance(param.data, np.ndarray):
        return _loaded(value, param)
    wanted = computable(np.empty(0, param.dtype)).dtype
    is_own = value.flags.c_contiguous and value.flags.writeable
    fits = value.shape == param.shape and value.dtype == wanted and is_own
    return value if fits and value.shape else _loaded(value, param)
