"""What ranks with a GPU do; each function takes the number of the rank's GPU first."""

from __future__ import annotations

import importlib
import os
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from support import model_parallel, pipeline_training
from support.forked import tried
from support.nccl_cases import reductions_of_nccl
from support.on_device import OnDevice
from support.suite import CASES, reducing
from support.tensor_parallel import kit

import torsh_runtime as tr
from torsh_runtime.parallel.dispatch import products

BOTH = "cpu:native,cuda:nccl"
PATIENCE = 120.0


def suite(gpu: int, names: Sequence[str]) -> dict[str, str]:
    """By case of the suite on NCCL what went wrong, "" for nothing."""
    cupy = importlib.import_module("cupy")
    cupy.cuda.Device(gpu).use()
    setattr(reducing, "reductions", reductions_of_nccl)  # noqa: B010
    tr.init_process_group("native", timeout=PATIENCE)
    found: dict[str, str] = {}
    group: Any = None
    for name in names:
        group = group or tr.new_group(backend="nccl", timeout=PATIENCE)
        try:
            CASES[name].body(OnDevice(group._backend))
            found[name] = ""
        except BaseException:
            found[name] = traceback.format_exc()
        said = [""] * tr.get_world_size()
        tr.all_gather_object(said, found[name] or ("over" if _is_over(group) else ""))
        if any(said):
            with suppress(tr.CommError):
                tr.destroy_process_group(group)
            group = None
    tr.destroy_process_group()
    return found


def _is_over(group: Any) -> bool:
    return bool(group._backend.failed or group._backend._closed)


def train(
    gpu: int, framework: str, cases: Sequence[tuple[str, str, Mapping[str, int], Any]], steps: int
) -> list[Any]:
    """Of a training on each mesh what model_parallel.on_mesh() finds, or Raised(error)."""
    _deterministic(framework)
    kit(framework).device = f"cuda:{gpu}"
    tr.init_process_group(BOTH, device_id=gpu, timeout=PATIENCE)
    shared = [tempfile.mkdtemp() if tr.get_rank() == 0 else ""]
    tr.broadcast_object_list(shared)
    results = []
    for number, (wrapper, schedule, sizes, kind) in enumerate(cases):
        place = Path(shared[0], str(number))
        what = framework, sizes, schedule, wrapper, steps, place, kind
        results.append(tried(lambda _, what=what: model_parallel.on_mesh(*what), 0))
    tr.destroy_process_group()
    return results


def tie(gpu: int, kind: str, schedule: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A pipeline whose first and last stage have a weight in common, and one process."""
    make, loss, tensor = pipeline_training.of(kind)
    device = f"cuda:{gpu}"
    there = (
        lambda tied: make(tied).to(device),
        loss,
        lambda array: tensor(array).to(device),
    )
    setattr(pipeline_training, "of", lambda _: there)  # noqa: B010
    tr.init_process_group(BOTH, device_id=gpu, timeout=PATIENCE)
    found = pipeline_training.together(tr.get_rank(), kind, schedule, 2, tied=True)
    expected = pipeline_training.alone(kind, tied=True)
    tr.destroy_process_group()
    return found, expected


def fail_in_a_stage(gpu: int) -> str:
    """What a pipeline says whose last stage raises at its second microbatch."""
    torch = importlib.import_module("torch")

    class Failing(torch.nn.Linear):  # type: ignore[misc,name-defined]
        calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            if self.calls == 2:
                raise ArithmeticError("no more")
            return super().forward(x)

    tr.init_process_group(BOTH, device_id=gpu, timeout=PATIENCE)
    layers = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), Failing(8, 8)]
    stages = [layer.to(f"cuda:{gpu}") for layer in layers]
    pipeline = tr.PipelineParallel(stages, 4, loss_fn=torch.nn.functional.mse_loss)
    batch = torch.ones(8, 8, device=f"cuda:{gpu}")
    try:
        pipeline.step(batch, batch)
        torch.cuda.synchronize()
    except tr.PipelineError as error:
        torch.cuda.synchronize()  # nothing is left that waits there
        return str(error)
    return ""


def _deterministic(framework: str) -> None:
    if framework == "torch":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        importlib.import_module("torch").use_deterministic_algorithms(True)


def lose_a_rank(gpu: int) -> str:
    """What the others are told when rank 1 ends while they wait for it on the GPU."""
    torch = importlib.import_module("torch")
    tr.init_process_group(BOTH, device_id=gpu, timeout=PATIENCE)
    values = torch.ones(1000, device=f"cuda:{gpu}")
    tr.all_reduce(values)
    torch.cuda.synchronize()
    if tr.get_rank() == 1:
        os._exit(0)
    began = time.monotonic()
    try:
        while time.monotonic() < began + PATIENCE:
            tr.all_reduce(values)
            torch.cuda.synchronize()
    except tr.CommError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def go_on(gpu: int) -> float:
    """What an all_reduce of ones gives the survivors when rank 1 has ended; before that, messages
    of two of the three ranks have come before anything that takes all."""
    torch = importlib.import_module("torch")
    tr.init_process_group(device_id=gpu, timeout=PATIENCE)
    values = torch.ones(1000, device=f"cuda:{gpu}")
    if tr.get_rank() == 0:
        tr.send(values, 2)
    elif tr.get_rank() == 2:
        tr.recv(values, 0)
    tr.all_reduce(values)
    torch.cuda.synchronize()
    if tr.get_rank() == 1:
        os._exit(0)
    with suppress(tr.CommError):
        while True:
            tr.all_reduce(values)
            torch.cuda.synchronize()
    tr.shrink_group([1])
    values = torch.ones(1000, device=f"cuda:{gpu}")
    tr.all_reduce(values)
    found = float(values.max())
    tr.destroy_process_group()
    return found


def reduce_float8(gpu: int, dtype: str) -> list[list[float]]:
    """What an all_gather and an all_reduce of small numbers in a float of 8 bits give; the latter
    is [] where NCCL or the GPU has none."""
    torch = importlib.import_module("torch")
    tr.init_process_group(device_id=gpu, timeout=PATIENCE)
    own = torch.full((4,), 1.0 + tr.get_rank(), device=f"cuda:{gpu}").to(getattr(torch, dtype))
    everyone = torch.zeros(8, device=own.device).to(own.dtype)
    tr.all_gather_into_tensor(everyone, own)
    found = [everyone.float().tolist(), []]
    with suppress(TypeError):
        tr.all_reduce(own)
        found[1] = own.float().tolist()
    tr.destroy_process_group()
    return found


def launch_in_blocks(gpu: int) -> tuple[list[float], list[float]]:
    """What two groups sum up, of which one launches its operations within a block of the other."""
    torch = importlib.import_module("torch")
    torch.cuda.set_device(gpu)
    tr.init_process_group(BOTH, device_id=gpu, timeout=PATIENCE)
    outer, inner = tr.new_group(), tr.new_group()
    ours, others = (torch.ones(4, device=f"cuda:{gpu}") for _ in range(2))
    with outer.launching_together(2):
        works = [outer.all_reduce(ours, async_op=True) for _ in range(2)]
        with inner.launching_together(2):
            last = [inner.all_reduce(others, async_op=True) for _ in range(2)]
        for work in last:
            work.wait()
        seen = others.tolist()
    for work in works:
        work.wait()
    found = ours.tolist(), seen
    tr.destroy_process_group()
    return found


def average(gpu: int, stream: bool) -> tuple[float, float]:
    """How far gradients that DDP has averaged on GPUs are from their mean, and their norm from its;
    on a stream that is not the default one, if so asked, whose work takes long."""
    torch = importlib.import_module("torch")
    tr.init_process_group(BOTH, device_id=gpu, timeout=PATIENCE)
    device = f"cuda:{gpu}"
    torch.manual_seed(0)
    layers = [torch.nn.Linear(2048, 2048, bias=False) for _ in range(4)]
    model = torch.nn.Sequential(*layers).to(device)
    alone = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, bias=False) for _ in range(4)])
    alone.load_state_dict(model.state_dict())
    alone.to(device)
    parallel = tr.DistributedDataParallel(model)
    torch.manual_seed(1)
    batches = torch.randn(tr.get_world_size(), 256, 2048, device=device)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream() if stream else torch.cuda.current_stream()):
        for _ in range(3):
            model.zero_grad()
            parallel(batches[tr.get_rank()]).square().mean().backward()
        norm = tr.clip_grad_norm_(model, 1e9)
    torch.cuda.synchronize()
    sum(alone(batch).square().mean() for batch in batches).backward()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    wanted = [each.grad / tr.get_world_size() for each in alone.parameters()]
    ratios = [
        float((mine.grad - grad).abs().max() / grad.abs().max())
        for (mine, _), grad in zip(pairs, wanted, strict=True)
    ]
    apart = float(np.max(ratios))
    total = float(torch.sqrt(sum(grad.double().square().sum() for grad in wanted)))
    tr.destroy_process_group()
    return apart, abs(norm - total) / total


def train_text(gpu: int, steps: int) -> dict[str, Any]:
    """Losses of a small GPT of nn on the GPU and on the processor."""
    from torsh_runtime import nn, optim

    def losses(device: str) -> list[float]:
        nn.manual_seed(3)
        model = nn.Sequential(nn.Embedding(50, 64), nn.TransformerBlock(64, 4, causal=True))
        head = nn.Linear(64, 50)
        model.to(device), head.to(device)
        optimizer = optim.AdamW([*model.parameters(), *head.parameters()], lr=0.01)
        text = np.arange(256).reshape(4, 64) ** 2 % 50
        given = nn.from_numpy(text).to(device)
        found = []
        for _ in range(steps):
            loss = nn.functional.cross_entropy(head(model(given)).flatten(0, 1), given.flatten())
            optimizer.zero_grad()
            loss.backward()
            optim.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            found.append(loss.item())
        return found

    importlib.import_module("cupy").cuda.Device(gpu).use()
    return {"gpu": losses(f"cuda:{gpu}"), "host": losses("cpu")}


def torch_distributed(gpu: int) -> dict[str, Any]:
    """What torch.distributed does on both kinds of devices where torsh stands in for gloo."""
    torch = importlib.import_module("torch")
    dist = importlib.import_module("torch.distributed")
    parallel = importlib.import_module("torch.nn.parallel").DistributedDataParallel
    torch.cuda.set_device(gpu)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    host, there = torch.ones(3), torch.ones(3, device=f"cuda:{gpu}")
    dist.all_reduce(host)
    dist.all_reduce(there)
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 1).to(there.device)
    model = parallel(layer, device_ids=[gpu])
    model(there * (1 + dist.get_rank())).sum().backward()
    found = {
        "name": dist.group.WORLD.name(),
        "backend": dist.get_backend_config(),
        "host": host.tolist(),
        "gpu": there.tolist(),
        "gradient": layer.weight.grad.tolist(),
    }
    dist.destroy_process_group()
    return found


def shard(gpu: int, options: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Of a sharded model its losses, those of one process, where its parts are, and memory."""
    torch = importlib.import_module("torch")
    tr.init_process_group(BOTH, device_id=gpu, timeout=PATIENCE)
    device, width, ranks = f"cuda:{gpu}", 1024, tr.get_world_size()

    def made(where: str) -> Any:
        torch.manual_seed(0)
        with torch.device(where):
            return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(6)))

    def trained(model: Any, batches: Any) -> list[float]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        found = []
        for batch in batches:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        return [float(each) for each in found]

    wrapped = dict(options, auto_wrap_policy=tr.ModuleTypeBasedAutoWrap((torch.nn.Linear,)))
    is_meta = wrapped.pop("meta", False)
    model: Any = tr.FullyShardedDataParallel(made("meta" if is_meta else device), **wrapped)
    if is_meta:
        model.load_state_dict(made(device).state_dict())
    generator = torch.Generator(device).manual_seed(1)
    shape = steps, ranks, 64, width
    batches = torch.randn(*shape, device=device, generator=generator)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    own = trained(model, batches[:, tr.get_rank()])
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    losses = [torch.tensor(own) for _ in range(ranks)]
    tr.all_gather(losses, torch.tensor(own))
    found = {
        "losses": torch.stack(losses).mean(0).tolist(),
        "alone": trained(made(device), batches.flatten(1, 2)),
        "devices": sorted({each.device.type for each in model.parameters()}),
        "peak": peak,
        "unit": 4 * width * width,
    }
    tr.destroy_process_group()
    return found


def attend(gpu: int) -> dict[str, tuple[float, float]]:
    """How far attention over parts of sequences on a GPU is from what float64 gives of the same
    numbers on it, result and gradients on average, beside how far scaled_dot_product_attention is;
    by dtype, heads of keys, size of heads and window."""
    torch = importlib.import_module("torch")
    tr.init_process_group(BOTH, device_id=gpu, timeout=PATIENCE)
    attend, axis = torch.nn.functional.scaled_dot_product_attention, tr.group.WORLD

    def computed(attention: Any, tensors: Any) -> list[Any]:
        *operands, gradient = tensors
        leaves = [each.detach().requires_grad_() for each in operands]
        result = attention(*leaves)
        result.backward(gradient)
        return [result.detach(), *(each.grad for each in leaves)]

    def far(found: list[Any], exact: list[Any]) -> float:
        pairs = zip(found, exact, strict=True)
        return max(float((a.double() - b).abs().mean() / b.abs().mean()) for a, b in pairs)

    found, order = {}, torch.arange(1030, device=f"cuda:{gpu}")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for kv_heads, size, window in ((8, 64, None), (2, 128, None), (8, 20, None), (2, 64, 100)):
            torch.manual_seed(0)
            shapes = [(2, heads, 1030, size) for heads in (8, kv_heads, kv_heads, 8)]
            given = [torch.randn(each, device=order.device).to(dtype) for each in shapes]
            distance = order[:, None] - order
            mask = (distance >= 0) & (distance < (window or 1030))
            one = partial(attend, attn_mask=mask, enable_gqa=True)
            exact = computed(one, [each.double() for each in given])
            own = [tr.context_shard(each, axis, 2) for each in given]
            parts = computed(partial(tr.context_attention, axis=axis, window=window), own)
            wholes = [tr.context_gather(each, axis, dim=2) for each in parts]
            found[f"{dtype}, {kv_heads}, {size}, {window}"] = (
                far(wholes, exact),
                far(computed(one, given), exact),
            )
    tr.destroy_process_group()
    return found


def attend_in_little_memory(gpu: int) -> tuple[int, int]:
    """The most bytes that attention to 8,192 tokens takes on a GPU, forward and backward, and how
    many all scores in float32 would take."""
    torch = importlib.import_module("torch")
    tr.init_process_group(BOTH, device_id=gpu, timeout=PATIENCE)
    shape = (1, 8, 8192, 64)
    leaves = [
        torch.randn(shape, device=f"cuda:{gpu}", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]
    torch.cuda.reset_peak_memory_stats(gpu)
    before = torch.cuda.memory_allocated(gpu)
    tr.context_attention(*leaves, tr.group.WORLD).sum().backward()
    most = torch.cuda.max_memory_allocated(gpu) - before
    tr.destroy_process_group()
    return most, 4 * 8 * 8192 * 8192


def route_without_waiting(gpu: int) -> tuple[float, list[float]]:
    """How far a layer of experts on GPUs is from the same on the processors, in float64; its first
    pass and then one in which torch raises an error where the processor waits for a stream. And
    how far grouped products in bfloat16 are from one expert after the other, by mean."""
    torch = importlib.import_module("torch")
    tr.init_process_group(BOTH, device_id=gpu, timeout=PATIENCE)

    def made(device: str, dtype: Any) -> Any:
        torch.manual_seed(3)
        layer = tr.MixtureOfExperts(64, 128, 8, framework="torch", dtype=dtype).to(device)
        return layer, torch.randn(50, 64, dtype=dtype).to(device).requires_grad_()

    def computed(layer: Any, tokens: Any) -> list[Any]:
        tokens.grad = layer.up.grad = None
        result, balance = layer(tokens)
        (result.sum() + balance).backward()
        return [result.detach(), tokens.grad, layer.up.grad]

    def far(found: list[Any], wanted: list[Any]) -> list[float]:
        pairs = zip(found, wanted, strict=True)
        return [float((a.cpu() - b.cpu()).abs().mean() / b.abs().mean()) for a, b in pairs]

    there, here = (made(device, torch.float64) for device in (f"cuda:{gpu}", "cpu"))
    apart = far(computed(*there), computed(*here))
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = computed(*there)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    apart += far(again, computed(*here))
    small = made(f"cuda:{gpu}", torch.bfloat16)
    grouped = computed(*small)
    with mock.patch.object(products, "has_grouped_product", return_value=False):
        rounded = far(grouped, computed(*small))
    tr.destroy_process_group()
    return max(apart), rounded
