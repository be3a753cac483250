"""Defines Module: parameters, buffers and modules under names, and hooks around forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

from torsh_runtime.nn.arrays import Array, dtype_named, to_device, write
from torsh_runtime.nn.module_hooks import Hooked, call
from torsh_runtime.nn.parameter import Buffer, Parameter, array_of, as_dtype
from torsh_runtime.nn.tensor import Tensor

_KINDS: dict[type, str] = {Parameter: "_parameters", Buffer: "_buffers"}


class IncompatibleKeys(NamedTuple):
    """Holds names that the state lacks, and names that the module does not have."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module(Hooked):
    """Serves as the base of all layers and models, as torch.nn.Module.

    Subclasses call super().__init__(), assign parameters, buffers and modules to attributes, and
    define forward().

    Attributes:
        training: True in training, False after eval().

    Example:
        ```python
        class Scaled(tr.nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = tr.nn.Parameter(np.ones(8, np.float32))
            def forward(self, x):
                return self.scale * x
        ```
    """

    training: bool

    def __init__(self) -> None:
        for name in ("_parameters", "_buffers", "_modules", "_forward_pre_hooks"):
            object.__setattr__(self, name, {})
        for name in ("_forward_hooks", "_backward_pre_hooks", "_backward_hooks"):
            object.__setattr__(self, name, {})
        self.training = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the results; a subclass defines it.

        Args:
            *args: The arguments of the call.
            **kwargs: The arguments of the call by name.

        Raises:
            NotImplementedError: If the subclass does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no forward()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call(self, args, kwargs)

    # Members

    def __setattr__(self, name: str, value: Any) -> None:
        home = self._home_of(value)
        if home is None and value is None and name in self.__dict__.get("_parameters", ()):
            home = "_parameters"
        if home is None:
            self._forget(name)
            object.__setattr__(self, name, value)
            return
        members = self.__dict__.get(home)
        if members is None:
            raise AttributeError(f"{type(self).__name__}: call super().__init__() first")
        if name not in members:
            self._forget(name)
        members[name] = value

    @staticmethod
    def _home_of(value: Any) -> str | None:
        if isinstance(value, Module):
            return "_modules"
        return next((home for kind, home in _KINDS.items() if isinstance(value, kind)), None)

    def _forget(self, name: str) -> None:
        self.__dict__.pop(name, None)
        for home in ("_parameters", "_buffers", "_modules"):
            self.__dict__.get(home, {}).pop(name, None)

    def __getattr__(self, name: str) -> Any:
        for home in ("_parameters", "_buffers", "_modules"):
            members = self.__dict__.get(home, {})
            if name in members:
                return members[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        getattr(self, name)
        self._forget(name)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Set a parameter.

        Args:
            name: The attribute's name.
            param: The parameter, or None to say that there is none.
        """
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Set a buffer.

        Args:
            name: The attribute's name.
            tensor: A tensor or an array, or None to say that there is none.
            persistent: Whether it is a part of state_dict().

        Example:
            ```python
            self.register_buffer("mean", np.zeros(8, np.float32))
            ```
        """
        self._buffers[name] = None if tensor is None else Buffer(tensor, persistent=persistent)

    def add_module(self, name: str, module: Module | None) -> None:
        """Set a module under a name that need not be an identifier.

        Args:
            name: The name.
            module: The module, or None to say that there is none.
        """
        self._modules[name] = module

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """Yield this module and all below it with their dotted names.

        Args:
            memo: Modules to leave out, to which those that were yielded are added.
            prefix: The name of this module.
            remove_duplicate: Whether to yield each module once.

        Example:
            ```python
            for name, module in model.named_modules():
                print(name, type(module).__name__)
            ```
        """
        seen = set() if memo is None else memo
        if self in seen:
            return
        if remove_duplicate:
            seen.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                below = f"{prefix}.{name}" if prefix else name
                yield from module.named_modules(seen, below, remove_duplicate)

    def _named_members(
        self, home: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[Any] = set()
        modules = (
            self.named_modules(None, prefix, remove_duplicate) if recurse else [(prefix, self)]
        )
        for path, module in modules:
            for name, member in module.__dict__[home].items():
                if member is None or member in seen:
                    continue
                if remove_duplicate:
                    seen.add(member)
                yield f"{path}.{name}" if path else name, member

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield all parameters with their dotted names.

        Args:
            prefix: The name of this module.
            recurse: Whether to yield those of modules below, too.
            remove_duplicate: Whether to yield shared ones once.

        Example:
            ```python
            for name, parameter in model.named_parameters():
                print(name, parameter.shape)
            ```
        """
        return self._named_members("_parameters", prefix, recurse, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Buffer]]:
        """Yield all buffers with their dotted names.

        Args:
            prefix: The name of this module.
            recurse: Whether to yield those of modules below, too.
            remove_duplicate: Whether to yield shared ones once.
        """
        return self._named_members("_buffers", prefix, recurse, remove_duplicate)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield the modules directly below with their names, each once."""
        seen: set[Module] = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield all parameters, shared ones once; with recurse=False only this module's own."""
        return (parameter for _, parameter in self.named_parameters(recurse=recurse))

    def buffers(self, recurse: bool = True) -> Iterator[Buffer]:
        """Yield all buffers, shared ones once; with recurse=False only this module's own."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def modules(self) -> Iterator[Module]:
        """Yield this module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def children(self) -> Iterator[Module]:
        """Yield the modules directly below, each once."""
        return (module for _, module in self.named_children())

    # State

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        for path, module in self.named_modules(remove_duplicate=False):
            prefix = f"{path}." if path else ""
            for name, member in (module._parameters | module._buffers).items():
                if member is not None and getattr(member, "persistent", True):
                    yield prefix + name, member

    def state_dict(self) -> dict[str, Array]:
        """Return the arrays of all parameters and persistent buffers, under torch's names.

        They are not copied.

        Example:
            ```python
            np.savez("model.npz", **model.state_dict())
            ```
        """
        return {name: member.data for name, member in self._state()}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> IncompatibleKeys:
        """Copy arrays into the parameters and buffers.

        Args:
            state_dict: Arrays, tensors, or what numpy can read as such, by name.
            strict: Whether missing and unknown names are errors.

        Returns:
            The names that do not fit.

        Raises:
            RuntimeError: With nothing loaded, for other shapes and, if `strict`, for missing and
                unknown names.

        Example:
            ```python
            with np.load("model.npz") as state:
                model.load_state_dict(state)
            ```
        """
        own = dict(self._state())
        missing = [name for name in own if name not in state_dict]
        unknown = [name for name in state_dict if name not in own]
        given = {name: array_of(state_dict[name]) for name in own if name in state_dict}
        wrong = [
            f"{name} has shape {array.shape} instead of {own[name].shape}"
            for name, array in given.items()
            if array.shape != own[name].shape
        ]
        if strict:
            wrong += [f"{name} is missing" for name in missing]
            wrong += [f"{name} is not known" for name in unknown]
        if wrong:
            raise RuntimeError(f"{type(self).__name__} cannot load this state: {'; '.join(wrong)}")
        for name, array in given.items():
            write(own[name].data, array)
        return IncompatibleKeys(missing, unknown)

    # The whole module

    def apply(self, fn: Callable[[Module], object]) -> Self:
        """Call fn(module) for all modules below this one and then for this one.

        Returns:
            This module.

        Example:
            ```python
            model.apply(lambda module: print(type(module).__name__))
            ```
        """
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def train(self, mode: bool = True) -> Self:
        """Set the mode of this module and all below it, and return this module.

        Dropout, for example, depends on it.

        Args:
            mode: True for training, False for evaluation.

        Example:
            ```python
            model.train()
            loss = model(batch).mean()
            model.eval()
            ```
        """
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Set evaluation mode: call train(False).

        Returns:
            This module.
        """
        return self.train(False)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, or with set_to_none=False write zeros into them."""
        for parameter in self.parameters():
            if parameter.grad is not None and not set_to_none:
                parameter.grad.zero_()
            elif set_to_none:
                parameter.grad = None

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether the parameters are trained, and return this module.

        Args:
            requires_grad: Whether they get gradients.
        """
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    def to(self, target: Any) -> Self:
        """Change all parameters and buffers in place, and return this module.

        Args:
            target: "cpu" or "cuda", or a dtype, which the floating point ones get.

        Example:
            ```python
            model.to("cuda")
            ```
        """
        if isinstance(target, str) and target.startswith(("cpu", "cuda")):
            return self._convert(lambda array: to_device(array, target))
        return self._convert(lambda array: as_dtype(array, dtype_named(target)))

    def _convert(self, change: Callable[[Array], Array]) -> Self:
        for tensor in [*self.parameters(), *self.buffers()]:
            tensor.data = change(tensor.data)
            if tensor.grad is not None:
                tensor.grad.data = change(tensor.grad.data)
        return self

    # Hooks

    def extra_repr(self) -> str:
        """Return what repr() shows of this module besides its name and modules."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({name}): {module!r}" for name, module in self._modules.items()]
        if not lines:
            return f"{type(self).__name__}({self.extra_repr()})"
        inner = "\n".join(lines).replace("\n", "\n  ")
        return f"{type(self).__name__}(\n  {inner}\n)"
