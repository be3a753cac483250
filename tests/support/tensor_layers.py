"""Single layers of which ranks have parts beside whole ones; each function one rank's part."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from support.tensor_parallel import Kit, kit, part_of, plain

import torsh_runtime as tr
from torsh_runtime.parallel.layouts import layouts_of

WIDTH, HEADS, LENGTH, ROWS = 12, 6, 4, 2
Results = Any
Call = Callable[[Any, Sequence[Any]], Results]


def alone() -> Any:
    """A mesh whose axis "tp" has this rank only."""
    return tr.DeviceMesh((tr.get_world_size(), 1), ("dp", "tp"))["tp"]


def compared(
    tools: Kit,
    whole: Any,
    cut: Any,
    arrays: Sequence[Any],
    call: Call,
    cut_call: Call | None = None,
) -> dict[str, float]:
    """How far results, the inputs' gradients and the parameters' are from those of the whole."""
    expected = _run(tools, whole, arrays, call)
    found = _run(tools, cut, arrays, cut_call or call)
    lie, rank = layouts_of(cut), tr.get_rank()
    assert len(found) == len(expected)
    apart = {}
    for name, wanted in expected.items():
        part = part_of(wanted, lie.get(name), rank)
        assert found[name].shape == part.shape, name
        apart[name] = float(np.abs(found[name] - part).max(initial=0))
    return apart


def _run(tools: Kit, model: Any, arrays: Sequence[Any], call: Call) -> dict[str, Any]:
    inputs = [tools.tensor(each) for each in arrays]
    floating = [each for each in inputs if plain(each).dtype.kind == "f"]
    for each in floating:
        each.requires_grad = True
    tools.seed(7)
    results = call(model, inputs)
    listed = [
        each for each in (results if isinstance(results, tuple) else (results,)) if each is not None
    ]
    sum(((each * each).sum() for each in listed), start=tools.tensor(0.0)).backward()
    found = {f"result {n}": plain(each) for n, each in enumerate(listed)}
    found |= {f"input {n}": plain(each.grad) for n, each in enumerate(floating)}
    return found | {name: plain(each.grad) for name, each in model.named_parameters()}


def made(tools: Kit, make: Callable[[], Any]) -> Any:
    tools.seed(3)
    return tools.double(make())


def random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def self_attention(framework: str, kv_heads: int, dropout: float, rank: int) -> dict[str, float]:
    tools = kit(framework)
    whole, cut = (
        made(
            tools,
            lambda mesh=mesh: tr.ParallelAttention(
                WIDTH, HEADS, dropout, num_kv_heads=kv_heads, mesh=mesh, framework=framework
            ),
        )
        for mesh in (alone(), None)
    )
    mask = tools.tensor(random(HEADS, LENGTH, LENGTH) > -0.5)
    return compared(
        tools, whole, cut, [random(ROWS, LENGTH, WIDTH)], lambda layer, x: layer(x[0], mask)
    )


def by_hand(framework: str, rank: int) -> dict[str, float]:
    """The layers one makes oneself."""
    tools = kit(framework)

    class Net(tools.nn.Module):  # type: ignore[misc]
        def __init__(self, mesh: Any) -> None:
            super().__init__()
            named = {"mesh": mesh, "framework": framework}
            self.table = tr.VocabParallelEmbedding(11, 7, 8, **named)
            self.gathers = tr.ColumnParallelLinear(7, 13, **named)
            self.cuts = tr.RowParallelLinear(13, 9, input_is_parallel=False, **named)
            self.up = tr.ColumnParallelLinear(9, 10, False, False, unit=2, **named)
            self.down = tr.RowParallelLinear(10, 3, unit=2, **named)

        def forward(self, indices: Any) -> Any:
            x = self.cuts(self.gathers(self.table(indices)))
            return self.down(self.up(x).tanh())

    whole, cut = (made(tools, lambda mesh=mesh: Net(mesh)) for mesh in (alone(), None))
    indices = np.array([[0, 10, 8], [3, 8, 5]])
    return compared(tools, whole, cut, [indices], lambda net, x: net(x[0]))


def fused(framework: str, rank: int) -> dict[str, float]:
    """One layer for queries, keys and values, of which there are fewer heads, all of width 4."""
    tools = kit(framework)

    class Net(tools.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.qkv = tools.nn.Linear(WIDTH, 16 + 8 + 8)
            self.out = tools.nn.Linear(16, WIDTH)

        def forward(self, x: Any) -> Any:
            packed = self.qkv(x)
            *lead, width = packed.shape
            queries, keys = packed[..., : width // 2], packed[..., width // 2 : width * 3 // 4]
            values = packed[..., width * 3 // 4 :]
            scale = (keys * values).reshape(*lead, -1, 1, 4)
            scaled = queries.reshape(*lead, -1, 2, 4) * scale
            return self.out(scaled.reshape(*lead, width // 2))

    whole, cut = made(tools, Net), made(tools, Net)
    plan = {"qkv": tr.Column(sections=(16, 8, 8), unit=4), "out": tr.Row(unit=8)}
    tr.parallelize(cut, None, plan)
    return compared(tools, whole, cut, [random(ROWS, LENGTH, WIDTH)], lambda net, x: net(x[0]))


def block_of_nn(dropout: float, in_sequence: bool, rank: int) -> dict[str, float]:
    """nn's own block, also where there is dropout, of which each rank draws its part."""
    tools = kit("nn")
    whole, cut = (
        made(tools, lambda: tools.nn.TransformerBlock(WIDTH, HEADS, 17, dropout, causal=True))
        for _ in range(2)
    )
    dim = 1 if in_sequence else None
    tr.parallelize(cut, None, {"": tr.Block(sequence_dim=dim)})

    def in_parts(model: Any, inputs: Sequence[Any]) -> Any:
        from torsh_runtime.parallel import regions

        group = tr.group.WORLD
        assert group is not None
        sizes = [LENGTH * 3 // group.world_size] * group.world_size
        part = regions.scatter(inputs[0], group, 1, sizes)
        return regions.gather(model(part), group, 1, sizes)

    return compared(
        tools,
        whole,
        cut,
        [random(ROWS, LENGTH * 3, WIDTH)],
        lambda model, x: model(x[0]),
        in_parts if in_sequence else None,
    )


def attention_of_nn(rank: int) -> dict[str, float]:
    """nn's layer on different inputs, in the order that it has by default, with a mask."""
    tools = kit("nn")
    whole, cut = (
        made(tools, lambda: tools.nn.MultiheadAttention(WIDTH, HEADS, 0.2)) for _ in range(2)
    )
    tr.parallelize(cut, None, {"": tr.Attention()})
    mask = tools.tensor(random(ROWS, HEADS, LENGTH, 5) > 0.5)
    arrays = [random(LENGTH, ROWS, WIDTH), random(5, ROWS, WIDTH), random(5, ROWS, WIDTH) + 1]
    return compared(tools, whole, cut, arrays, lambda layer, x: layer(*x, attn_mask=mask)[0])


ATTENTIONS: Mapping[str, dict[str, Any]] = {
    "plain": {"need_weights": False},
    "weights": {},
    "each head's weights": {"average_attn_weights": False},
    "causal": {"is_causal": True, "attn_mask": "causal", "need_weights": False},
    "causal and padded": {
        "is_causal": True,
        "attn_mask": "causal",
        "key_padding_mask": "padding",
        "need_weights": False,
    },
    "heads' masks": {"attn_mask": "heads"},
    "padded": {"key_padding_mask": "padding"},
}


def attention_of_torch(name: str, rank: int) -> dict[str, float]:
    """torch's layer, in each of its ways."""
    tools = kit("torch")
    torch, named = tools.torch, dict(ATTENTIONS[name])
    masks = {
        "causal": torch.full((LENGTH, LENGTH), -torch.inf, dtype=torch.float64).triu(1),
        "padding": torch.arange(LENGTH)[None] >= torch.tensor([[3], [2]]),
        "heads": torch.from_numpy(random(ROWS * HEADS, LENGTH, LENGTH)),
    }
    for key in ("attn_mask", "key_padding_mask"):
        if key in named:
            named[key] = masks[named[key]]
    apart: dict[str, float] = {}
    for batch_first in (True, False):
        for inputs in ((0, 0, 0), (0, 1, 1), (0, 1, 2)):
            found = _attention_on(tools, batch_first, inputs, named)
            apart |= {f"{batch_first} {inputs} {key}": value for key, value in found.items()}
    return apart


def _attention_on(
    tools: Kit, batch_first: bool, inputs: tuple[int, ...], named: dict[str, Any]
) -> dict[str, float]:
    """inputs: which of some arrays are query, key and value."""

    def make() -> Any:
        return tools.nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first)

    whole, cut = made(tools, make), made(tools, make)
    tr.parallelize(cut, None, {"": tr.Attention()})
    shape = (ROWS, LENGTH, WIDTH) if batch_first else (LENGTH, ROWS, WIDTH)
    arrays = [random(*shape) + number for number in range(max(inputs) + 1)]
    return compared(
        tools, whole, cut, arrays, lambda layer, x: layer(*(x[n] for n in inputs), **named)
    )


def unbatched(rank: int) -> dict[str, float]:
    tools = kit("torch")
    whole, cut = (made(tools, lambda: tools.nn.MultiheadAttention(WIDTH, HEADS)) for _ in range(2))
    tr.parallelize(cut, None, {"": tr.Attention()})
    arrays = [random(LENGTH, WIDTH)]
    return compared(tools, whole, cut, arrays, lambda layer, x: layer(x[0], x[0], x[0]))


def encoder_of_torch(norm_first: bool, rank: int) -> dict[str, float]:
    """torch's encoder, in training, and where it would call a kernel that knows of no parts."""
    tools = kit("torch")
    nn, torch = tools.nn, tools.torch

    def make() -> Any:
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 17, 0.0, batch_first=True, norm_first=norm_first
        )
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)

    whole, cut = made(tools, make), made(tools, make)
    tr.parallelize(cut, None, {"layers.*": tr.Block()})
    padding = torch.arange(LENGTH)[None] >= torch.tensor([[4], [2]])
    array = random(ROWS, LENGTH, WIDTH)
    apart = compared(tools, whole, cut, [array], lambda model, x: model(x[0]))
    with torch.no_grad():
        x, kept = torch.from_numpy(array), ~padding[..., None]
        ways = {"evaluated": {}, "padded": {"src_key_padding_mask": padding}}
        for way, named in ways.items():
            results = [model.eval()(x, **named) * kept for model in (whole, cut)]
            apart[way] = float((results[0] - results[1]).abs().max())
    return apart


def decoder_of_torch(rank: int) -> dict[str, float]:
    tools = kit("torch")

    def make() -> Any:
        return tools.nn.TransformerDecoderLayer(WIDTH, HEADS, 17, 0.0, batch_first=True)

    whole, cut = made(tools, make), made(tools, make)
    tr.parallelize(cut, None, {"": tr.Block()})
    arrays = [random(ROWS, LENGTH, WIDTH), random(ROWS, 5, WIDTH)]
    return compared(tools, whole, cut, arrays, lambda model, x: model(*x))


def autocast_of_torch(rank: int) -> dict[str, float]:
    """How far results are from the whole layers' in mixed precision, whose dtype they have."""
    tools = kit("torch")
    torch, nn = tools.torch, tools.nn

    def make() -> Any:
        tools.seed(3)
        return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    whole, cut = make(), make()
    tr.parallelize(cut, None, {"0": tr.Column(), "2": tr.Row()})
    with torch.autocast("cpu", torch.bfloat16):
        results = [model(torch.ones(3, 8)) for model in (whole, cut)]
    assert results[1].dtype is results[0].dtype is torch.bfloat16
    apart = float((results[0] - results[1]).abs().max())
    return {"within a few roundings": max(0.0, apart - 2**-6)}


def dropout_of_torch(rank: int) -> dict[str, Any]:
    """What ranks drop of their own parts and of what they all have, also when computed anew."""
    tools = kit("torch")
    torch, nn = tools.torch, tools.nn
    layer = made(
        tools, lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, 6 * 64, 0.5, batch_first=True)
    )
    tr.parallelize(layer, None, {"": tr.Block()})
    masks: list[Any] = []
    layer.dropout.register_forward_hook(lambda _, given, out: masks.append((out == 0).detach()))
    gradients = []
    for checkpoints in (False, True):
        tools.seed(3)
        x = torch.from_numpy(random(ROWS, LENGTH, WIDTH)).requires_grad_()
        result = tools.checkpoint(layer, x) if checkpoints else layer(x)
        result.square().sum().backward()
        gradients.append(x.grad)
    return {
        "result": plain(result).tobytes(),
        "mask": masks[0].numpy().tobytes(),
        "again": bool(torch.equal(masks[1], masks[2]) and torch.equal(*gradients)),
        "state": torch.get_rng_state().numpy().tobytes(),
    }


def _classes(nn: Any) -> tuple[Any, Any]:
    """A model with a tied embedding, and a linear layer with a forward() of its own."""

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table, self.up = nn.Embedding(8, 6), nn.Linear(6, 8, bias=False)
            self.down, self.norm = nn.Linear(8, 6), nn.LayerNorm(6)
            self.up.weight = self.table.weight
            self.attention = nn.MultiheadAttention(6, 1)

    class Odd(nn.Linear):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x

    return Net, Odd


def refused(framework: str, rank: int, ranks: int) -> list[str]:
    """What each wrong use says, and that the model is as it was."""
    tools = kit(framework)
    nn = tools.nn
    tied, odd = _classes(nn)
    net, column, row = made(tools, tied), tr.Column(), tr.Row()
    before = [p.shape for p in net.parameters()]
    wrong: list[Callable[[], Any]] = [
        lambda: tr.parallelize(net, None, {"upp": column}),
        lambda: tr.parallelize(net, None, {"up": column, "u?": column}),
        lambda: tr.parallelize(net, None, {"norm": column}),
        lambda: tr.parallelize(net, None, {"up": column}),
        lambda: tr.parallelize(net, None, {"attention": tr.Attention()}),
        lambda: tr.parallelize(net, None, {"down": row if rank else column}),
        lambda: tr.parallelize(net, None, {"down" if rank else "none": row}),
        lambda: tr.parallelize(made(tools, lambda: odd(4, 4)), None, {"": column}),
        lambda: tr.parallelize(nn.Linear(3 + rank, 4), None, {"": column}),
        lambda: _seeded(tools, rank, lambda: tr.parallelize(nn.Linear(3, 4), None, {"": column})),
        lambda: tr.parallelize(nn.Linear(3, 4), None, {"": column.__class__}),
        lambda: tr.parallelize(nn.Linear(3, 1), None, {"": column}),
        lambda: tr.parallelize(nn.Linear(3, 9), None, {"": tr.Column(unit=2)}),
        lambda: tr.parallelize(nn.LayerNorm(4), None, {"": tr.Part(-1)}),
        lambda: tr.ParallelAttention(12, 1, framework=framework),
        lambda: tr.ParallelAttention(12, 5, framework=framework),
        lambda: tr.ParallelAttention(12, 6, num_kv_heads=4, framework=framework),
        lambda: _seeded(tools, 0, lambda: tr.ColumnParallelLinear(4, 4, framework=framework))(
            tools.tensor(np.zeros((2, 3)))
        ),
        lambda: tr.ColumnParallelLinear(4, 4, framework="jax"),
        lambda: tr.parallelize(nn.Linear(3, 4), alone_with_two_axes(), {"": column}),
        lambda: tr.parallelize(_changed(nn.Linear(4, 4)), None, {"": column}),
        lambda: _seeded(tools, 0, lambda: tr.ParallelAttention(12, 6, framework=framework))(
            tools.tensor(np.zeros((4, 5, 12), np.float32)), tools.tensor(np.ones((4, 5, 5), bool))
        ),
        lambda: tr.vocab_parallel_cross_entropy(
            tools.tensor(np.zeros(4)), tools.tensor(np.array(4 * ranks))
        ),
        lambda: tr.vocab_parallel_cross_entropy(
            tools.tensor(random(ROWS, 4)), tools.tensor(np.zeros(ROWS, int))
        ),
        lambda: _cut(tools)(tools.tensor(np.full((2, 4), float(rank)))),
        lambda: _train(tools, _cut(tools), [0, 0, rank, rank]),
        lambda: tr.DistributedDataParallel(_cut(tools)),
        lambda: tr.FullyShardedDataParallel(_cut(tools)),
    ]
    said = []
    for call in wrong:
        try:
            call()
        except (tr.ConfigError, ValueError) as error:
            said.append(str(error))
    assert [p.shape for p in net.parameters()] == before
    return said


def _train(tools: Kit, model: Any, batches: list[int]) -> None:
    """Call the model with one batch after the other."""
    for batch in batches:
        model(tools.tensor(np.full((2, 4), float(batch))))


def losses(framework: str, rank: int) -> dict[str, float]:
    """Of scores that ranks have as they will, when nobody says of how many."""
    tools, rows = kit(framework), random(ROWS, 7)
    ends = [0, *range(3, tr.get_world_size() + 2), 7]
    targets = np.array([6, 2])
    apart = {}
    for reduction in ("mean", "none"):
        named = {"reduction": reduction}
        whole, part = (tools.tensor(each) for each in (rows, rows[:, ends[rank] : ends[rank + 1]]))
        wanted = tools.F.cross_entropy(whole, tools.tensor(targets), **named)
        got = tr.vocab_parallel_cross_entropy(part, tools.tensor(targets), **named)
        apart[reduction] = float(np.abs(plain(got) - plain(wanted)).max())
    return apart


def changed_leaf(framework: str, rank: int) -> dict[str, float]:
    """What is given in parts, and whose memory changes between two passes."""
    tools = kit(framework)
    whole, cut = (made(tools, lambda: tools.nn.Linear(4, 6)) for _ in range(2))
    tr.parallelize(cut, None, {"": tr.Column(gather_output=True, sequence_dim=0)})
    rows = np.zeros((1, 4))
    leaf = tools.torch.from_numpy(rows) if framework == "torch" else tools.nn.Tensor(rows)
    apart = {}
    for number, given in enumerate((tools.nn.Parameter(leaf), leaf)):
        for value in (1.0, 2.0):
            rows[...] = value  # nothing but the memory knows
            given.data[...] = value
            wanted = whole(tools.tensor(np.full((1, 4), value)))
            found = np.abs(plain(cut(given)) - plain(wanted)).max()
            apart[f"{number} {value}"] = float(found)
    return apart


def without_memory(rank: int) -> dict[str, float]:
    """A model that no rank has as a whole, whose parts are those of the one that has memory."""
    tools, mesh = kit("torch"), tr.init_device_mesh({"tp": tr.get_world_size()})
    nn, torch = tools.nn, tools.torch

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(8, 6), nn.Linear(6, 8, bias=False)
            self.norm = nn.BatchNorm1d(6, affine=False)
            self.head.weight = self.table.weight

        def forward(self, indices: Any) -> Any:
            return self.head(self.norm(self.table(indices)))

    with torch.device("meta"):
        cut = made(tools, Net)
    plan = {"table": tr.Vocabulary(), "head": tr.Column(gather_output=True)}
    tr.parallelize(cut, mesh, plan)
    whole = made(tools, Net)
    for model in (whole, cut):
        tr.init_parameters(
            model, lambda name, tensor: nn.init.normal_(tensor), 1, mesh if model is cut else None
        )
    assert cut.head.weight is cut.table.weight
    return compared(tools, whole, cut, [np.array([5, 0, 7])], lambda net, x: net(x[0]))


def autocast_loss(rank: int) -> dict[str, float]:
    """Losses of scores of 16 bits, which autocast computes in 32."""
    tools = kit("torch")
    torch, ranks = tools.torch, tr.get_world_size()
    scores = torch.from_numpy(random(ROWS, 4 * ranks)).bfloat16()
    own = scores[:, 4 * rank : 4 * rank + 4].clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        wanted = tools.F.cross_entropy(scores, torch.tensor([3, 0]))
        got = tr.vocab_parallel_cross_entropy(own, torch.tensor([3, 0]))
    got.backward()
    assert got.dtype is wanted.dtype
    assert own.grad.dtype is own.dtype
    return {"float32": max(0.0, float((got - wanted).abs()) - 1e-6)}


def _cut(tools: Kit) -> Any:
    return tr.parallelize(made(tools, lambda: tools.nn.Linear(4, 4)), None, {"": tr.Column()})


def differentiated_twice(rank: int) -> dict[str, float]:
    """Gradients of what gradients come to, as penalties are made of."""
    tools = kit("torch")
    nn = tools.nn

    def make() -> Any:
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))

    whole, cut = made(tools, make), made(tools, make)
    tr.parallelize(cut, None, {"0": tr.Column(), "2": tr.Row()})

    def penalty(net: Any, inputs: Sequence[Any]) -> Any:
        result = net(inputs[0]).pow(3).sum()
        return tools.torch.autograd.grad(result, inputs[0], create_graph=True)[0]

    return compared(tools, whole, cut, [random(ROWS, 4)], penalty)


def forgotten(rank: int) -> dict[str, float]:
    """A layer that computes on a part, of which no plan knows: norms tell."""
    tools, mesh = kit("torch"), tr.init_device_mesh({"tp": tr.get_world_size()})
    nn, said = tools.nn, []
    log, handler = logging.getLogger("torsh_runtime"), logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    net = made(tools, lambda: nn.Sequential(nn.Linear(4, 6), nn.PReLU(), nn.Linear(6, 4)))
    tr.parallelize(net, mesh, {"0": tr.Column(), "2": tr.Row()})
    net(tools.tensor(random(ROWS, 4))).square().sum().backward()
    log.addHandler(handler)
    tr.clip_grad_norm_(net, 1.0, mesh)
    log.removeHandler(handler)
    assert ["gradients of parameters that all of them have" in each for each in said] == [
        True for _ in range(rank == 0)
    ]
    return {"said": 0.0}


def _changed(layer: Any) -> Any:
    """With a forward() of its own, as wrappers put on modules."""
    forward = layer.forward
    layer.forward = lambda x: forward(x)
    return layer


def alone_with_two_axes() -> Any:
    return tr.DeviceMesh((tr.get_world_size(), 1), ("dp", "pp"))


def _seeded(tools: Kit, seed: int, call: Callable[[], Any]) -> Any:
    tools.seed(seed)
    return call()


def subclassed(rank: int) -> dict[str, float]:
    """How far gradients and outputs are apart where parameters are of a subclass of tensors."""
    import torch

    class Own(torch.Tensor):
        pass

    def made() -> Any:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)).double()
        for layer in model:
            for name, each in [*layer.named_parameters()]:
                setattr(layer, name, torch.nn.Parameter(each.detach().as_subclass(Own)))
        return model

    whole, spread = made(), tr.parallelize(made(), None, {"0": tr.Column(), "1": tr.Row()})
    inputs = [torch.ones(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    outputs = [model(each) for model, each in zip((whole, spread), inputs, strict=True)]
    for each in outputs:
        each.square().sum().backward()
    pairs = {"output": outputs, "input": [each.grad for each in inputs]}
    pairs["bias"] = [model[1].bias.grad for model in (whole, spread)]
    return {name: float((one - other).detach().abs().max()) for name, (one, other) in pairs.items()}
