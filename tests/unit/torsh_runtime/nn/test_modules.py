"""Modules beside torch's with the same state, and what modules do with their members."""

from __future__ import annotations

import copy
import inspect
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from torsh_runtime import nn, optim
from torsh_runtime.nn import functional as F  # noqa: N812

IMAGE = (2, 4, 7, 6)
PAIRS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "linear": (lambda n: n.Linear(4, 3), (2, 5, 4)),
    "no bias": (lambda n: n.Linear(4, 3, bias=False), (5, 4)),
    "conv": (lambda n: n.Conv2d(4, 6, (3, 2), stride=2, padding=1, groups=2), IMAGE),
    "layer norm": (lambda n: n.LayerNorm((7, 6)), IMAGE),
    "plain layer norm": (lambda n: n.LayerNorm(6, elementwise_affine=False), IMAGE),
    "rms norm": (lambda n: n.RMSNorm(6), IMAGE),
    "pools": (lambda n: n.Sequential(n.MaxPool2d(2), n.AvgPool2d(2, 1), n.Flatten()), IMAGE),
    "curves": (
        lambda n: n.Sequential(
            n.ReLU(), n.GELU(), n.GELU("tanh"), n.SiLU(), n.Tanh(), n.Sigmoid(), n.Softmax(-1)
        ),
        (3, 4),
    ),
    "nested": (
        lambda n: n.Sequential(
            n.Linear(4, 8), n.Sequential(n.ReLU(), n.Identity()), n.Linear(8, 2)
        ),
        (3, 4),
    ),
}


def weighted(module: nn.Module) -> dict[str, np.ndarray]:
    """A state with other values than the initial ones."""
    generator = np.random.default_rng(1)
    return {
        name: generator.normal(0, 1, array.shape).astype(array.dtype)
        for name, array in module.state_dict().items()
    }


def exchanged(ours: nn.Module, theirs: Any, torch: Any) -> None:
    """Give both the same state, there and back."""
    state = weighted(ours)
    theirs.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == list(theirs.state_dict())


def compare(ours: nn.Module, theirs: Any, mine: Any, other: Any) -> None:
    """Results and all gradients."""
    np.testing.assert_allclose(mine.data, other.detach().numpy(), rtol=2e-5, atol=2e-5)
    mine.sum().backward()
    other.sum().backward()
    expected = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        gradient = expected[name].grad.numpy()
        largest = max(1.0, np.abs(gradient).max(initial=0))
        np.testing.assert_allclose(parameter.grad.data, gradient, rtol=1e-4, atol=1e-5 * largest)


@pytest.mark.torch
@pytest.mark.parametrize("name", PAIRS)
def test_layers_are_torchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    make, shape = PAIRS[name]
    ours, theirs = make(nn), make(torch.nn)
    exchanged(ours, theirs, torch)
    values = np.random.default_rng(2).normal(0, 1, shape).astype(np.float32)
    x, y = nn.tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    compare(ours, theirs, ours(x) ** 2, theirs(y) ** 2)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.data, y.grad.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.torch
def test_embeddings_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = nn.Embedding(5, 3, padding_idx=1), torch.nn.Embedding(5, 3, padding_idx=1)
    assert not ours.weight.data[1].any()
    exchanged(ours, theirs, torch)
    indices = np.array([[0, 1], [4, 4]])
    compare(ours, theirs, ours(nn.from_numpy(indices)), theirs(torch.from_numpy(indices)))


@pytest.mark.torch
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("cross", [False, True])
def test_multihead_attention_is_torchs(
    batch_first: bool, batched: bool, mask: str | None, cross: bool
) -> None:
    torch = pytest.importorskip("torch")
    ours = nn.MultiheadAttention(8, 2, batch_first=batch_first)
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=batch_first)
    exchanged(ours, theirs, torch)
    shape = (5, 3, 8) if batched else (5, 8)
    arrays = [np.random.default_rng(i).normal(0, 1, shape).astype("f") for i in range(3)]
    arrays = arrays if cross else arrays[:1] * 3
    length = 3 if batched and batch_first else 5
    hidden = np.triu(np.ones((length, length), bool), 1) if mask else None
    mine, _ = ours(*_tensors(arrays), attn_mask=None if hidden is None else nn.tensor(hidden))
    given = {} if hidden is None else {"attn_mask": torch.from_numpy(hidden)}
    other, _ = theirs(*map(torch.from_numpy, arrays), need_weights=False, **given)
    compare(ours, theirs, mine**2, other**2)
    if mask:
        same, _ = ours(*_tensors(arrays), is_causal=True)
        np.testing.assert_allclose((same**2).data, mine.data**2, rtol=1e-5, atol=1e-6)


def _tensors(arrays: list[np.ndarray]) -> list[nn.Tensor]:
    """One tensor for each different array."""
    known = {id(array): nn.from_numpy(array) for array in arrays}
    return [known[id(array)] for array in arrays]


@pytest.mark.torch
def test_a_block_is_torchs_encoder_layer() -> None:
    torch = pytest.importorskip("torch")
    ours = nn.TransformerBlock(8, 2, causal=True).eval()
    theirs = torch.nn.TransformerEncoderLayer(
        8, 2, 32, 0.0, lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        batch_first=True, norm_first=True,
    )  # fmt: skip
    names = {"attention": "self_attn", "mlp.0": "linear1", "mlp.2": "linear2"}
    state = weighted(ours)
    ours.load_state_dict(state)

    def renamed(name: str) -> str:
        prefix = next((p for p in names if name.startswith(p)), "")
        return names.get(prefix, "") + name[len(prefix) :]

    theirs.load_state_dict({renamed(name): torch.from_numpy(a) for name, a in state.items()})
    x = np.random.default_rng(0).normal(0, 1, (2, 5, 8)).astype("f")
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5)
    expected = theirs(torch.from_numpy(x), src_mask=mask).detach().numpy()
    np.testing.assert_allclose(ours(nn.from_numpy(x)).data, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.torch
def test_initial_values_are_distributed_as_torchs() -> None:
    torch = pytest.importorskip("torch")
    nn.manual_seed(0)
    torch.manual_seed(0)
    pairs = [
        (nn.Linear(300, 200), torch.nn.Linear(300, 200)),
        (nn.Conv2d(30, 20, 5), torch.nn.Conv2d(30, 20, 5)),
        (nn.Embedding(300, 50), torch.nn.Embedding(300, 50)),
        (nn.MultiheadAttention(64, 4), torch.nn.MultiheadAttention(64, 4)),
    ]
    for ours, theirs in pairs:
        for name, expected in theirs.state_dict().items():
            found, wanted = ours.state_dict()[name], expected.numpy()
            assert found.mean() == pytest.approx(wanted.mean(), abs=0.02)
            if wanted.size > 1000:
                assert found.std() == pytest.approx(wanted.std(), rel=0.05)
                assert np.abs(found).max() == pytest.approx(np.abs(wanted).max(), rel=0.25)


class Shared(nn.Module):
    """Members of all kinds, some of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(np.ones(1, "f"))
        self.register_buffer("count", nn.tensor(np.zeros(1)))
        self.passing = nn.Buffer(np.zeros(1), persistent=False)
        self.again = self.first
        self.plain = 3

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x)) * self.scale


def test_members_are_found_by_name() -> None:
    module = Shared()
    assert [name for name, _ in module.named_parameters()] == [
        "scale",
        "first.weight",
        "first.bias",
    ]
    assert len([*module.parameters()]) == 3
    assert [name for name, _ in module.named_buffers()] == ["count", "passing"]
    assert [name for name, _ in module.named_modules()] == ["", "first", "second"]
    assert [name for name, _ in module.named_children()] == ["first", "second"]
    assert len([*module.named_parameters(remove_duplicate=False)]) == 6
    layers = ["first.weight", "first.bias", "second.weight", "again.weight", "again.bias"]
    assert list(module.state_dict()) == ["scale", "count", *layers]
    del module.scale
    assert "scale" not in module.state_dict()
    with pytest.raises(AttributeError, match="Shared has no attribute 'scale'"):
        _ = module.scale
    module.first = None
    assert not hasattr(module, "missing")
    assert "first" not in module._modules


def test_an_attribute_may_become_another_kind_of_member() -> None:
    module = Shared()
    module.plain = nn.Linear(1, 1)
    module.scale = nn.Identity()
    module.count = 5
    assert isinstance(module.plain, nn.Linear)
    assert [name for name, _ in module.named_children()] == ["first", "second", "plain", "scale"]
    assert "scale" not in dict(module.named_parameters())
    assert "count" not in module.state_dict()
    assert module.count == 5


def test_a_module_that_was_not_initialised_says_so() -> None:
    class Hasty(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Parameter(np.ones(1))

    with pytest.raises(AttributeError, match=r"super\(\).__init__\(\)"):
        Hasty()
    with pytest.raises(NotImplementedError, match="Module defines no forward"):
        nn.Module()(1)


def test_states_that_do_not_fit_are_named_and_change_nothing() -> None:
    module = nn.Linear(2, 3)
    before = module.weight.data.copy()
    with pytest.raises(RuntimeError, match=r"bias is missing; other is not known") as error:
        module.load_state_dict({"weight": np.zeros((3, 2)), "other": np.zeros(1)})
    assert "Linear" in str(error.value)
    with pytest.raises(RuntimeError, match=r"weight has shape \(2, 2\) instead of \(3, 2\)"):
        module.load_state_dict({"weight": np.zeros((2, 2)), "bias": np.zeros(3)}, strict=False)
    assert np.array_equal(module.weight.data, before)
    assert module.load_state_dict({"other": 1}, strict=False) == (["weight", "bias"], ["other"])


def test_states_are_loaded_in_place() -> None:
    module = nn.Linear(2, 3)
    array = module.weight.data
    module.load_state_dict({"weight": np.ones((3, 2)), "bias": np.ones(3)})
    assert module.weight.data is array
    assert array.tolist() == [[1, 1]] * 3


def test_modes_gradients_and_types_of_all_parts() -> None:
    module = Shared()
    module.eval()
    assert not module.first.training
    module(nn.randn(3, 2)).sum().backward()
    module.zero_grad(set_to_none=False)
    assert all(not p.grad.data.any() for p in module.parameters())
    parameters = [*module.parameters()]
    module.to(np.float64)
    assert all(a is b for a, b in zip(module.parameters(), parameters, strict=True))
    assert {p.dtype.name for p in module.parameters()} == {"float64"}
    assert {p.grad.dtype.name for p in module.parameters()} == {"float64"}
    assert module.to("cpu") is module
    module.zero_grad()
    assert all(p.grad is None for p in module.parameters())
    seen: list[str] = []
    module.apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Linear", "Linear", "Shared"]
    module.requires_grad_(False)
    assert not module(nn.tensor(np.ones((1, 2)))).requires_grad
    with pytest.raises(ValueError, match="device 'cpux'"):
        module.to("cpux")


def test_lists_of_modules() -> None:
    layers = nn.ModuleList(nn.Linear(1, n + 1) for n in range(3))
    assert [name for name, _ in layers.named_children()] == ["0", "1", "2"]
    assert layers[-1].out_features == 3
    assert len(layers[1:]) == 2
    chain = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert isinstance(chain[:2], nn.Sequential)
    assert repr(chain).splitlines()[1] == "  (0): Linear(2, 3, bias=True)"


def calls_of(n: Any, order: list[Any], frozen: bool) -> None:
    """Record every hook of a small model of either library."""

    def note(kind: str) -> Callable[..., None]:
        def hook(module: Any, *values: Any) -> None:
            shapes = [
                [
                    None if v is None else tuple(v.shape)
                    for v in (value if isinstance(value, tuple) else (value,))
                ]
                for value in values
            ]
            order.append((kind, module.name, shapes))

        return hook

    model = n.Sequential(n.Linear(2, 3), n.ReLU(), n.Linear(3, 1))
    for name, module in model.named_modules():
        module.name = name
        module.register_forward_pre_hook(note("forward_pre"))
        module.register_forward_hook(note("forward"))
        module.register_full_backward_pre_hook(note("backward_pre"))
        module.register_full_backward_hook(note("backward"))
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, m=name: order.append(m))
    values = np.ones((4, 2), "f")
    make = n.tensor if n is nn else __import__("torch").tensor
    model(make(values, requires_grad=not frozen)).sum().backward()


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("frozen", [False, True])
def test_hooks_are_called_in_torchs_order(frozen: bool) -> None:
    torch = pytest.importorskip("torch")
    ours: list[Any] = []
    theirs: list[Any] = []
    calls_of(nn, ours, frozen)
    calls_of(torch.nn, theirs, frozen)

    def modules(order: list[Any]) -> list[Any]:
        return [entry for entry in order if isinstance(entry, tuple)]

    assert modules(ours) == modules(theirs)
    assert {e for e in ours if isinstance(e, str)} == {e for e in theirs if isinstance(e, str)}


def test_hooks_change_what_passes() -> None:
    layer = nn.Linear(1, 1, bias=False)
    layer.load_state_dict({"weight": [[3.0]]})
    handles = [
        layer.register_forward_pre_hook(lambda m, args: args[0] * 2),
        layer.register_forward_hook(lambda m, args, out: out + 1),
        layer.register_full_backward_pre_hook(lambda m, g: (g[0] * 10,)),
        layer.register_full_backward_hook(lambda m, into, out: (into[0] * 100,)),
    ]
    x = nn.tensor([[1.0]], requires_grad=True)
    y = layer(x)
    y.backward()
    assert y.item() == 7
    assert x.grad is not None
    assert x.grad.item() == 2 * 3 * 10 * 100
    assert layer.weight.grad.item() == 2 * 10
    for handle in handles:
        handle.remove()
    assert layer(x).item() == 3


def test_what_a_modules_hook_returned_is_not_written() -> None:
    layer, kept = nn.Identity(), nn.tensor([5.0])
    layer.register_full_backward_hook(lambda m, into, out: (kept,))
    x = nn.tensor([1.0], requires_grad=True)
    (layer(x) + layer(x)).backward()
    assert x.grad is not None
    assert x.grad.item() == 10
    assert kept.item() == 5


def test_losses_as_modules() -> None:
    scores, target = nn.randn(3, 4), nn.tensor(np.array([1, 2, 3]))
    assert nn.CrossEntropyLoss()(scores, target).item() == F.cross_entropy(scores, target).item()
    assert nn.MSELoss(reduction="sum")(scores, scores).item() == 0


def test_bfloat16_is_for_storage() -> None:
    pytest.importorskip("ml_dtypes")
    nn.manual_seed(0)
    model = nn.TransformerBlock(8, 2, causal=True).to("bfloat16")
    assert {p.dtype.name for p in model.parameters()} == {"bfloat16"}
    exact = nn.TransformerBlock(8, 2, causal=True)
    exact.load_state_dict(model.state_dict())
    x = nn.randn(2, 5, 8)
    results = [m(x) for m in (model, exact)]
    assert results[0].dtype == np.float32
    assert np.array_equal(results[0].data, results[1].data)
    for result in results:
        (result * result).sum().backward()
    for (name, mine), other in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert mine.grad is not None, name
        assert other.grad is not None
        assert mine.grad.dtype.name == "bfloat16"
        np.testing.assert_array_equal(mine.grad.data, other.grad.data.astype(mine.dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_arrays_of_16_bits_are_computed_with_in_float32(dtype: str) -> None:
    pytest.importorskip("ml_dtypes")
    short = nn.tensor(np.ones(2), dtype=dtype, requires_grad=True)
    assert (short.data * nn.tensor([1, 2])).dtype == np.float32
    assert (short.detach() * short).dtype == np.float32
    (short[:1] * 2).sum().backward()
    short.grad = None
    (short * 4 - 1).reshape(2, 1).sum().backward()
    assert short.grad is not None
    assert short.grad.dtype == short.dtype
    optim.clip_grad_value_([short], 3.0)
    assert optim.clip_grad_norm_([short], 1e9).item() == pytest.approx(18**0.5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_tables_of_any_type(dtype: str) -> None:
    pytest.importorskip("ml_dtypes")
    table = nn.Embedding(4, 2, dtype=dtype)
    table(nn.tensor(np.array([1, 1, 2]))).sum().backward()
    assert table.weight.grad is not None
    assert table.weight.grad.dtype.name == dtype
    assert table.weight.grad.float().tolist() == [[0, 0], [2, 2], [1, 1], [0, 0]]


UNREADABLE = {
    "avg_pool2d", "conv2d", "gelu", "linear", "max_pool2d", "scaled_dot_product_attention"
}  # fmt: skip
"""Functions of torch's that have no signature to compare with."""
CALLS = [
    *(f"functional.{name}" for name in F.__all__ if name not in UNREADABLE),
    "Linear", "Conv2d", "Embedding", "LayerNorm", "RMSNorm", "Dropout", "MaxPool2d", "AvgPool2d",
    "MultiheadAttention", "GELU", "Softmax", "Flatten", "MSELoss", "CrossEntropyLoss",
]  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("name", CALLS)
def test_arguments_are_torchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    theirs, ours = operator.attrgetter(name)(torch.nn), operator.attrgetter(name)(nn)
    them = [*inspect.signature(theirs).parameters]
    for place, (argument, how) in enumerate(inspect.signature(ours).parameters.items()):
        assert argument in them
        assert how.kind is how.KEYWORD_ONLY or argument == them[place]


def test_copies_and_pickles_have_no_hooks_of_parameters() -> None:
    model, called = nn.Linear(2, 1), []
    model.weight.register_hook(lambda _: called.append("arrived"))
    model.weight.register_post_accumulate_grad_hook(lambda _: called.append("accumulated"))
    inputs = nn.Tensor(np.ones((1, 2), np.float32))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
        assert other.weight.data.tolist() == model.weight.data.tolist()
        assert other.weight.data is not model.weight.data
        other(inputs).sum().backward()
        assert other.weight.grad.tolist() == [[1.0, 1.0]]
    assert not called
    model(inputs).sum().backward()
    assert called == ["arrived", "accumulated"]
