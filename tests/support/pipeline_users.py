"""What users do with pipelines of their own models and of others'; each function is one rank's
part, and returns pairs of what came out and what one process finds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from support.whole_pipelines import FAMILIES, MICROBATCHES, alone, batch_of, counted, model_of
from torch import nn
from torch.nn import functional

import torsh_runtime as tr
from torsh_runtime.checkpoint import Checkpointer

sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]  # nothing here needs it

VOCABULARY, WIDTH, ROWS = 50, 16, 8
Pairs = dict[str, tuple[Any, Any]]
_TEXT = {"vocab_size": 103, "num_hidden_layers": 2, "eos_token_id": 2, "bos_token_id": 1}
_CLIP = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}


def tokens(seed: int) -> Any:
    return torch.randint(0, VOCABULARY, (ROWS, 5), generator=torch.Generator().manual_seed(seed))


def entropy(output: Any, target: Any) -> Any:
    """Of tokens."""
    return functional.cross_entropy(output.flatten(0, -2), target.flatten())


class Named(nn.Module):
    """Its layers have names, and get two arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layers = {str(n): nn.TransformerDecoderLayer(WIDTH, 2, 32, 0.0) for n in range(4)}
        self.layers = nn.ModuleDict(layers)
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Any) -> Any:
        hidden = self.embed(ids).transpose(0, 1)
        for layer in self.layers.values():
            hidden = layer(hidden, hidden)
        return self.output(hidden.transpose(0, 1))


class InPlace(nn.Module):
    """It works in place, and flattens between its layers."""

    def __init__(self) -> None:
        super().__init__()
        first = [nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3)]
        self.features = nn.Sequential(*first, nn.ReLU(inplace=True))
        self.head = nn.Sequential(nn.Linear(64, 8), nn.ReLU(inplace=True), nn.Linear(8, VOCABULARY))

    def forward(self, x: Any) -> Any:
        return self.head(self.features(x).flatten(1))


class Pair(nn.Module):
    """It returns its loss beside what it is of."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Any, targets: Any = None) -> Any:
        hidden = self.embed(ids)
        for block in self.blocks:
            hidden = torch.tanh(block(hidden))
        output = self.head(hidden)
        return output, None if targets is None else entropy(output, targets)


def clip() -> nn.Module:
    """A model of texts and pictures."""
    import transformers

    images = {"num_hidden_layers": 2, "image_size": 16, "patch_size": 4}
    config = transformers.CLIPConfig(
        text_config={**_CLIP, **_TEXT, "pad_token_id": 0},
        vision_config={**_CLIP, **images},
        projection_dim=16,
    )
    made: nn.Module = transformers.CLIPModel(config)
    return made


def same(
    make: Callable[[], nn.Module],
    batch: dict[str, Any],
    target: Any,
    loss_fn: Callable[[Any, Any], Any] | None,
    loss_of: Callable[[nn.Module], Any],
    **how: Any,
) -> tuple[float, float]:
    """How far a loss and gradients are off."""
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(make().double())
    pipeline = tr.PipelineParallel(models[0], MICROBATCHES, loss_fn=loss_fn, **how)
    apart = abs(pipeline.step(batch, target) - float((loss := loss_of(models[1])).detach()))
    loss.backward()
    wanted = dict(models[1].named_parameters(remove_duplicate=False))
    named = pipeline.module.named_parameters(remove_duplicate=False)
    pairs = [(each.grad, wanted[name].grad) for name, each in named]
    found = [0.0 if a is b is None else float((a - b).abs().max()) for a, b in pairs]
    return max(apart, *found), 0.0


def strangers(rank: int) -> Pairs:
    """Models as their authors write them."""
    del rank
    mesh = tr.init_device_mesh({"pp": 2})
    ids, target = tokens(1), tokens(2)
    pixels = torch.randn(ROWS, 3, 8, 8, dtype=torch.float64)
    tr.broadcast(pixels, 0)
    labels = target[:, 0]
    pairs: Pairs = {}
    both = {"ids": ids, "targets": target}

    def parts(model: nn.Module) -> Any:
        given = zip(ids.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True)
        return sum(entropy(model(x), y) for x, y in given) / MICROBATCHES

    for schedule, cuts in (("1f1b", 2), ("zbv", 4)):
        how = {"mesh": mesh, "schedule": schedule, "cuts": cuts}
        pairs[f"named, {schedule}"] = same(
            Named, {"ids": ids}, target, entropy, parts, example={"ids": ids[:2]}, **how
        )
        pairs[f"pair, {schedule}"] = same(
            Pair,
            both,
            None,
            None,
            lambda model: model(ids, target)[1],
            example={"ids": ids[:2], "targets": target[:2]},
            tokens=lambda named: named["targets"].numel(),
            **how,
        )
    for names in (["features.1"], ["head.1"]):
        pairs[f"in place, {names}"] = same(
            InPlace,
            {"x": pixels},
            labels,
            functional.cross_entropy,
            lambda model: functional.cross_entropy(model(pixels), labels),
            example={"x": pixels[:2]},
            mesh=mesh,
            cuts=names,
        )
    batch = {"input_ids": ids + 3, "pixel_values": pixels.repeat(1, 1, 2, 2)}
    batch["input_ids"][:, -1] = 2

    def squares(output: Any, _: Any = None) -> Any:
        return output.image_embeds.square().mean() + (output.text_embeds[:, 0] ** 3).mean()

    pairs["clip"] = same(
        clip, batch, labels, squares, lambda m: squares(m(**batch)), mesh=mesh, cuts=2
    )
    return pairs


def mixed(rank: int) -> Pairs:
    """Modes, divisors, precisions and what is computed again."""
    del rank
    mesh = tr.init_device_mesh({"pp": 2})
    dropping = {"embd_pdrop": 0.5, "resid_pdrop": 0.5, "attn_pdrop": 0.5}
    batch, pairs = batch_of("gpt2", 0), {}

    def make(model: Any, schedule: str = "1f1b", **how: Any) -> Any:
        cuts = 4 if schedule in ("zbv", "interleaved") else 2
        return tr.PipelineParallel(
            model, MICROBATCHES, mesh=mesh, cuts=cuts, schedule=schedule, **how
        )

    for schedule in ("zbv", "interleaved"):
        losses = []
        for checkpoint in (False, True):
            model = model_of("gpt2", **dropping)
            pipeline = make(model, schedule, checkpoint=checkpoint)
            pipeline.module.train()
            torch.manual_seed(5)
            losses.append(pipeline.step(batch))
            losses.append(float(tr.clip_grad_norm_(pipeline.module, 1e9, mesh)))
        pairs[f"again, {schedule}"] = losses[:2], losses[2:]
        pipeline.module.eval()
        wanted = float(model_of("gpt2").eval()(**batch).loss.detach())
        pairs[f"eval, {schedule}"] = pipeline.evaluate(batch), wanted
        pipeline.module.train()
        model.eval()
        pairs[f"eval of the model, {schedule}"] = pipeline.evaluate(batch), wanted
    for schedule in ("1f1b", "zb-h1"):
        whole, pipeline = model_of("llama").float(), make(model_of("llama").float(), schedule)
        with torch.autocast("cpu", torch.bfloat16):
            pipeline.step(batch)
            for part in ({n: x[i : i + 2] for n, x in batch.items()} for i in range(0, 8, 2)):
                share = counted(whole, part["labels"]) / counted(whole, batch["labels"])
                (whole(**part).loss * share).backward() if share else None
        pairs[f"autocast, {schedule}"] = off(pipeline, whole), 0.0
    whole, pipeline = model_of("llama"), make(model_of("llama"))
    divided = {**batch, "num_items_in_batch": torch.tensor(100)}
    loss = whole(**divided).loss
    loss.backward()
    pairs["divided"] = pipeline.step(divided), float(loss.detach())
    pairs["divided gradients"] = off(pipeline, whole), 0.0
    return pairs


def off(pipeline: Any, whole: Any) -> float:
    """How far gradients are off."""
    wanted = dict(whole.named_parameters())
    named = pipeline.module.named_parameters()
    return max(float((p.grad - wanted[name].grad).abs().max()) for name, p in named)


def saved(rank: int, folder: Path) -> Pairs:
    """A training that goes on with other stages, and in one process."""
    mesh = tr.init_device_mesh({"pp": 2})
    batches = [batch_of("qwen2", number) for number in range(4)]
    whole = model_of("qwen2")
    alone(whole, batches[:2])
    pairs: Pairs = {}
    for number, (schedule, cuts) in enumerate((("1f1b", 2), ("zbv", 4))):
        model = model_of("qwen2")
        pipeline = tr.PipelineParallel(model, MICROBATCHES, mesh=mesh, cuts=cuts, schedule=schedule)
        optimizer = torch.optim.AdamW(pipeline.module.parameters(), lr=1e-2)
        state = {"model": pipeline.module, "optimizer": optimizer}
        if number:
            assert Checkpointer(folder).load(state) is not None
        for batch in batches[number : number + 1]:
            optimizer.zero_grad()
            pipeline.step(batch)
            tr.clip_grad_norm_(pipeline.module, 0.5, mesh)
            optimizer.step()
        with Checkpointer(folder) as checkpointer:
            checkpointer.save(number + 1, state)
    one = model_of("qwen2", initializer_range=0.5)
    Checkpointer(folder).load({"model": one})
    pairs["rank"] = rank, rank
    for (name, each), other in zip(one.named_parameters(), whole.parameters(), strict=True):
        pairs[name] = float((each - other).abs().max().detach()), 0.0
    return pairs


def refused(rank: int) -> list[str]:
    """What is said of what one process would compute otherwise."""
    mesh = tr.init_device_mesh({"pp": 2})
    replicas = tr.init_device_mesh({"pp": 1, "dp": 2})
    group, batch = replicas.get_group("dp"), batch_of("llama", 0)
    model = model_of("llama")
    pipeline = tr.PipelineParallel(model, MICROBATCHES, mesh=mesh, cuts=2)
    pipeline.step(batch)
    torch.optim.SGD(pipeline.module.parameters(), lr=0.1).step()

    def logits(output: Any, target: Any) -> Any:
        return entropy(output.logits, target)

    def replicated(family: str, wrapper: Any) -> Any:
        return tr.PipelineParallel(
            model_of(family),
            MICROBATCHES,
            mesh=replicas,
            cuts=2,
            schedule="zbv",
            wrap=lambda stage: wrapper(stage, process_group=group),
        )

    def summed(output: Any, target: Any) -> Any:
        return logits(output, target) + output.logits.square().sum()

    def with_loss(loss_fn: Any) -> Any:
        whole = model_of("llama")
        return tr.PipelineParallel(whole, MICROBATCHES, mesh=mesh, cuts=2, loss_fn=loss_fn)

    def compared(output: Any, target: Any) -> Any:
        rows = output.logits.flatten(1)
        return torch.nn.functional.cross_entropy(rows @ rows.T, torch.arange(len(rows)))

    masked = with_loss(logits)
    divided = {**batch, "num_items_in_batch": torch.tensor(100)}
    calls: list[Callable[[], object]] = [
        lambda: model(**batch),
        lambda: model.generate(batch["input_ids"]),
        lambda: model.state_dict(),
        lambda: pipeline.generate(batch["input_ids"]),
        lambda: pipeline.save_pretrained("model"),
        lambda: pipeline.parameters(),
        lambda: masked.step(batch, batch["labels"]),
        lambda: replicated("llama", tr.DistributedDataParallel).step(divided),
        lambda: replicated("qwen2", tr.FullyShardedDataParallel),
        lambda: with_loss(summed).step(batch, batch["input_ids"]),
        lambda: with_loss(summed).evaluate(batch, batch["input_ids"]),
        lambda: with_loss(compared).step(batch, batch["input_ids"]),
    ]
    said = []
    for call in calls:
        try:
            call()
            said.append("")
        except (tr.ConfigError, AttributeError) as error:
            said.append(str(error))
    model.load_state_dict({name: each * 1 for name, each in model_of("llama").state_dict().items()})
    model(**batch)  # all of it has been given other values
    del rank
    return said


assert {"llama", "qwen2", "gpt2"} <= {*FAMILIES}
