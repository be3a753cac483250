"""The walk: what is accumulated where and when, hooks, errors, memory."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from torsh_runtime import nn
from torsh_runtime.nn import functional as F  # noqa: N812


def leaf(*values: float) -> nn.Tensor:
    return nn.tensor(np.array(values), requires_grad=True)


def test_a_graph_of_ten_thousand_operations() -> None:
    x = leaf(1.0)
    y = x
    for _ in range(10_000):
        y = y + 1
    y.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0]


def test_a_long_graph_that_is_never_walked_is_forgotten() -> None:
    y = leaf(1.0)
    for _ in range(100_000):
        y = y * 1.0
    del y


def test_what_the_walk_used_is_freed() -> None:
    x = leaf(1.0, 2.0)
    middle = x.exp()
    saved = weakref.ref(middle.data)
    result = (middle * middle).sum()
    del middle
    assert saved() is not None
    gc.disable()
    try:
        result.backward()
        assert saved() is None
    finally:
        gc.enable()


FORGETFUL: dict[str, Callable[[nn.Tensor], Any]] = {
    "add": lambda x: x + x,
    "subtract": lambda x: 1 - x,
    "multiply": lambda x: x * 2,
    "divide": lambda x: x / 2,
    "cast": lambda x: x.float(),
    "where": lambda x: nn.where(nn.tensor(True), x, 0),
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(),
    "max": lambda x: x.max(1)[0],
    "rows": lambda x: x[np.array([0, 1])],
    "concat": lambda x: nn.concat([x, x]),
    "relu": F.relu,
    "gelu": F.gelu,
    "softmax": F.softmax,
    "layer norm": lambda x: F.layer_norm(x, (3,)),
    "cross entropy": lambda x: F.cross_entropy(x, nn.tensor(np.array([0, 1]))),
    "max pool": lambda x: F.max_pool2d(x.reshape(1, 1, 2, 3).contiguous() * 1, 2),
}


@pytest.mark.parametrize("name", FORGETFUL)
def test_operands_are_not_kept_without_need(name: str) -> None:
    operand = nn.tensor(np.ones((2, 3)), requires_grad=True) * 1
    kept = weakref.ref(operand.data)
    result = FORGETFUL[name](operand)
    del operand
    assert kept() is None
    result.sum().backward()


def test_a_second_walk_needs_the_graph() -> None:
    x = leaf(2.0)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [8.0]
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        y.backward()


def test_a_gradient_is_implied_for_scalars_only() -> None:
    x = leaf(1.0, 2.0)
    with pytest.raises(RuntimeError, match=r"shape \(2,\).*reduce it"):
        (x * 2).backward()
    with pytest.raises(RuntimeError, match=r"shape \(3,\), the tensor \(2,\)"):
        (x * 2).backward(nn.randn(3))
    with pytest.raises(RuntimeError, match="does not depend"):
        nn.tensor([1.0]).backward()


def test_an_existing_gradient_is_added_to_in_place() -> None:
    bucket = np.zeros(6)
    x = leaf(1.0, 2.0)
    x.grad = nn.from_numpy(bucket[2:4])
    (x * x).sum().backward()
    (x * x).sum().backward()
    assert bucket.tolist() == [0, 0, 4, 8, 0, 0]


def test_nobody_elses_array_becomes_a_gradient() -> None:
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    weight = nn.tensor(np.array([1.0, 2.0]))
    (x + y).backward(weight)
    (x + x.detach()).backward(weight)
    assert x.grad is not None
    assert y.grad is not None
    assert x.grad.tolist() == [2.0, 4.0]
    assert y.grad.tolist() == [1.0, 2.0]
    assert weight.tolist() == [1.0, 2.0]


def test_an_arriving_array_is_not_copied() -> None:
    x = nn.tensor(np.ones(100_000), requires_grad=True)
    y, weight = x * 3.0, nn.tensor(np.ones(100_000))
    tracemalloc.start()
    try:
        y.backward(weight)
        assert tracemalloc.get_traced_memory()[1] < 1.5 * x.data.nbytes
    finally:
        tracemalloc.stop()


def test_hooks_run_while_the_walk_goes_on() -> None:
    order: list[str] = []
    first, last = leaf(2.0), leaf(3.0)

    class Mark(nn.Function):
        @staticmethod
        def forward(ctx: Any, x: nn.Tensor) -> nn.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: nn.Tensor) -> nn.Tensor:
            order.append("middle")
            return gradient

    first.register_post_accumulate_grad_hook(lambda p: order.append(f"first {p.grad.item()}"))
    last.register_post_accumulate_grad_hook(lambda p: order.append(f"last {p.grad.item()}"))

    def later(gradient: nn.Tensor) -> None:
        nn.queue_callback(lambda: order.append("end"))

    last.register_hook(later)
    (Mark.apply(first * 2) * last).sum().backward()
    assert order == ["last 4.0", "middle", "first 6.0", "end"]
    with pytest.raises(RuntimeError, match="for the time of a backward pass"):
        nn.queue_callback(order.clear)


def test_callbacks_of_nested_passes_wait_for_the_outermost() -> None:
    order: list[str] = []

    class Nested(nn.Function):
        @staticmethod
        def forward(ctx: Any, x: nn.Tensor) -> nn.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: nn.Tensor) -> nn.Tensor:
            with nn.enable_grad():
                inner = leaf(1.0)
                inner.register_hook(lambda g: nn.queue_callback(lambda: order.append("called")))
                (inner * 2).backward()
            order.append("inner pass")
            return gradient

    x = leaf(1.0)
    x.register_hook(lambda g: order.append("outer leaf"))
    Nested.apply(x * 2).backward()
    assert order == ["inner pass", "outer leaf", "called"]


def test_a_leaf_that_is_used_often_is_complete_once() -> None:
    x, calls = leaf(3.0), []
    x.register_post_accumulate_grad_hook(lambda p: calls.append(p.grad.item()))
    (x * x + x.exp() * 0 + x).sum().backward()
    assert calls == [7.0]


def test_hooks_replace_gradients_and_are_removed() -> None:
    x = leaf(1.0)
    y = x * 2
    with y.register_hook(lambda g: g * 10) as handle:
        y.retain_grad()
        y.backward(retain_graph=True)
        assert x.grad is not None
        assert x.grad.item() == 20
        assert y.grad is not None
        assert y.grad.item() == 10
    handle.remove()
    x.grad = None
    y.backward()
    assert x.grad.item() == 2
    with pytest.raises(RuntimeError, match="no hook"):
        nn.tensor([1.0]).register_hook(print)
    with pytest.raises(RuntimeError, match="leaves"):
        (x * 2).register_post_accumulate_grad_hook(print)


def test_what_a_hook_saw_or_returned_is_not_written() -> None:
    x, y, kept, seen = leaf(1.0), leaf(1.0), nn.tensor(np.array([5.0])), []
    x.register_hook(lambda g: kept)
    y.register_hook(seen.append)
    for _ in range(2):
        (x * 2 + y * 3).backward()
    assert x.grad is not None
    assert y.grad is not None
    assert (x.grad.item(), y.grad.item()) == (10, 6)
    assert kept.item() == 5
    assert [g.item() for g in seen] == [3, 3]


def test_an_error_in_a_hook_ends_the_walk_and_spoils_nothing() -> None:
    x = leaf(1.0)

    def fail(gradient: nn.Tensor) -> None:
        nn.queue_callback(lambda: pytest.fail("the pass did not end well"))
        raise ValueError("no")

    handle = x.register_hook(fail)
    with pytest.raises(ValueError, match="no"):
        (x * 2).backward()
    handle.remove()
    (x * 2).backward()
    assert x.grad is not None
    assert x.grad.item() == 2
    assert nn.is_grad_enabled()


def test_leaves_of_a_result() -> None:
    a, b, c = leaf(1.0), leaf(2.0), leaf(3.0)
    result = (a * b).exp() + a
    assert set(nn.leaves([result, result * 2])) == {a, b}
    assert set(nn.leaves([c, nn.tensor([1.0])])) == {c}
    with nn.no_grad():
        assert not set(nn.leaves([a * 2]))


def test_nothing_is_recorded_within_no_grad_and_only_in_this_thread() -> None:
    x, found = leaf(1.0), []
    with nn.no_grad():
        assert not (x * 2).requires_grad
        thread = threading.Thread(target=lambda: found.append((x * 2).requires_grad))
        thread.start()
        thread.join(10)
        with nn.enable_grad():
            assert (x * 2).requires_grad
        assert not nn.is_grad_enabled()
    assert found == [True]


def test_functions_of_several_results() -> None:
    class Parts(nn.Function):
        @staticmethod
        def forward(ctx: Any, x: nn.Tensor, at: int) -> tuple[Any, ...]:
            ctx.save_for_backward(x)
            ctx.at = at
            place = nn.tensor(np.array(at))
            ctx.mark_non_differentiable(place)
            return x[:at] * 2, x[at:] * 3, place

        @staticmethod
        def backward(ctx: Any, left: nn.Tensor, right: nn.Tensor) -> tuple[Any, ...]:
            assert ctx.needs_input_grad == (True, False)
            (x,) = ctx.saved_tensors
            assert x.shape == (3,)
            return nn.concat([left * 2, right * 3]), None

    x = leaf(1.0, 2.0, 3.0)
    _, right, place = Parts.apply(x, 1)
    assert not place.requires_grad
    right.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 3, 3]


def test_a_functions_gradients_must_fit() -> None:
    class Wrong(nn.Function):
        @staticmethod
        def forward(ctx: Any, x: nn.Tensor, y: nn.Tensor) -> nn.Tensor:
            return x * y

        @staticmethod
        def backward(ctx: Any, gradient: nn.Tensor) -> Any:
            return gradient if gradient.item() > 0 else (gradient.expand(2), None)

    with pytest.raises(RuntimeError, match=r"returned 1 gradients.*takes 2"):
        Wrong.apply(leaf(1.0), leaf(2.0)).backward()
    with pytest.raises(RuntimeError, match=r"shape \(2,\) for an argument of shape \(1,\)"):
        Wrong.apply(leaf(1.0), leaf(2.0)).backward(nn.tensor(np.array([-1.0])))


def test_a_function_keeps_its_own_arrays() -> None:
    kept = np.array([5.0])

    class Constant(nn.Function):
        @staticmethod
        def forward(ctx: Any, x: nn.Tensor) -> nn.Tensor:
            return x

        @staticmethod
        def backward(ctx: Any, gradient: nn.Tensor) -> nn.Tensor:
            return nn.from_numpy(kept)

    x = leaf(1.0)
    for _ in range(2):
        (Constant.apply(x) + Constant.apply(x)).backward()
    assert kept.tolist() == [5.0]
    assert x.grad is not None
    assert x.grad.tolist() == [20.0]


def test_what_needs_gradients_is_floating_and_unwritten() -> None:
    with pytest.raises(TypeError, match="int64"):
        nn.tensor([1, 2], requires_grad=True)
    x = leaf(1.0)
    with pytest.raises(RuntimeError, match="no_grad"):
        x.copy_(2)
    with pytest.raises(RuntimeError, match="detach"):
        x.numpy()
    with nn.no_grad():
        x.copy_(np.array([4.0]))
    assert x.detach().numpy().tolist() == [4.0]
    with pytest.raises(RuntimeError, match="use detach"):
        (x * 2).requires_grad_(False)


def test_arrays_meet_tensors() -> None:
    x = leaf(1.0, 2.0)
    total = (np.array([1.0, 1.0]) + x) * np.array(2.0) - np.float64(1)
    assert isinstance(total, nn.Tensor)
    assert total.tolist() == [3.0, 5.0]
    assert np.asarray(total.detach()).tolist() == [3.0, 5.0]
    assert (x > 1).tolist() == [False, True]
    assert (x == x).tolist() == [True, True]
    assert x != "x"
    assert len(x) == x.numel() == 2
    assert float(x[0]) == int(x[0]) == 1
    with pytest.raises(ValueError, match="one element"):
        x.item()
    assert repr(x) == "tensor([1., 2.], requires_grad=True)"


def test_python_numbers_are_float32_and_integers_mix() -> None:
    assert nn.tensor([1.0, 2.0]).dtype == np.float32
    assert nn.tensor(np.float64(1)).dtype == np.float64
    assert (nn.tensor([1.0]) * nn.tensor([2])).dtype == np.float32
    assert (nn.tensor([1.0]) * 2.5 / 3).dtype == np.float32
    assert (nn.tensor([1.0]) / np.sqrt(2)).dtype == np.float32


@pytest.mark.torch
@pytest.mark.parametrize("shapes", [((), (2,)), ((2,), ()), ((2,), (2,)), ((), ())])
@pytest.mark.parametrize("first", ["float32", "float64", "int64", "bool"])
@pytest.mark.parametrize("second", ["float32", "float64", "int32"])
def test_types_mix_as_torchs(shapes: tuple[Any, Any], first: str, second: str) -> None:
    torch = pytest.importorskip("torch")
    arrays = [np.ones(s, d) for s, d in zip(shapes, (first, second), strict=True)]
    ours, theirs = [*map(nn.tensor, arrays)], [*map(torch.from_numpy, arrays)]
    expected = (theirs[0] + theirs[1]).numpy().dtype
    assert (ours[0] + ours[1]).dtype == expected
    assert nn.where(ours[0] == 1, ours[0], ours[1]).dtype == expected


@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((3,), (4, 3)), ((), (3,))])
def test_products_of_shapes_that_do_not_fit(shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match=r"fit|vectors and matrices"):
        nn.matmul(nn.randn(*shapes[0]), nn.randn(*shapes[1]))
