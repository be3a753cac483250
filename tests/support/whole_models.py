"""Models that are cut, on their way out to files and in again; each function is one rank's part."""

from __future__ import annotations

import copy
import io
import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from support.ddp_faults import raised

import torsh_runtime as tr
from benchmarks.family_columns import saved
from benchmarks.family_models import FAMILIES, hf
from torsh_runtime.checkpoint.pretrained import loading, sources
from torsh_runtime.parallel.parts_of_state import parts_are_meant

warnings.filterwarnings("ignore")
hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

OUT_AND_IN = (
    "qwen3",
    "qwen-moe",
    "phi3",
    "gpt2",
    "falcon",
    "bloom",
    "deepseek-v3",
    "bert",
    "mamba",
)
"""With tied weights, experts that files have one by one, fused projections, weights that lie
otherwise, few heads of keys, latent attention and state spaces."""
KEPT = ("qwen-moe", "phi3", "deepseek-v3", "mamba", "bloom")
"""Whose plans have all entries there are for models of torch, together."""
for _name in {*OUT_AND_IN, *KEPT, "llama", "qwen2", "mixtral"}:
    getattr(hf, FAMILIES[_name].model)  # once, and not in each process


def cut(name: str, mesh: Any, **options: Any) -> Any:
    return tr.parallelize(FAMILIES[name].built(**options), mesh, "auto")


def out_and_in(rank: int) -> dict[str, str]:
    mesh = tr.init_device_mesh({"tp": 2})
    return {name: saved(name, mesh) for name in OUT_AND_IN}


def as_theirs(folder: Path, rank: int) -> Any:
    """Files beside those of transformers for the whole model: names of files, contents of JSON
    files, names and bits of tensors; over what an earlier save has left."""
    mesh = tr.init_device_mesh({"tp": 2})
    found = []
    for name, size in (("llama", "30KB"), ("qwen2", "1GB")):
        cut(name, mesh).save_pretrained(folder / "ours", max_shard_size=size)
        if rank == 0:
            shutil.rmtree(folder / "theirs", ignore_errors=True)
            FAMILIES[name].built().save_pretrained(folder / "theirs", max_shard_size=size)
            found.append(_difference(folder / "ours", folder / "theirs"))
        tr.barrier()
    return found


def _difference(ours: Path, theirs: Path) -> str:
    names = sorted(each.name for each in theirs.iterdir())
    if names != sorted(each.name for each in ours.iterdir()):
        return f"{names} and {sorted(ours.iterdir())}"
    for name in names:
        if name.endswith(".json"):
            same = json.loads((ours / name).read_text()) == json.loads((theirs / name).read_text())
        else:
            same = _same(load_file(ours / name), load_file(theirs / name))
        if not same:
            return name
    return ""


def _same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def states(rank: int) -> dict[str, Any]:
    """state_dict() and load_state_dict()."""
    mesh = tr.init_device_mesh({"tp": 2})
    plain, model = FAMILIES["qwen2"].built(), cut("qwen2", mesh)
    state, expected = model.state_dict(), plain.state_dict()
    tied = ("lm_head.weight", "model.embed_tokens.weight")
    found: dict[str, Any] = {
        "names": [*state] == [*expected],
        "tied": len({id(state[name]) for name in tied}) == 1,
        "kinds": all(
            (state[name].shape, state[name].dtype) == (each.shape, each.dtype)
            for name, each in expected.items()
        ),
        "whole": rank != 0 or _same(state, expected),
        "layer": [*model.lm_head.state_dict()],
        "of all": [*tr.whole_state_dict(model)] if rank == 0 else len(tr.whole_state_dict(model)),
    }
    if rank != 0:
        place = io.BytesIO()
        found["saved"] = raised(lambda: torch.save(state, place))
        found["computed"] = raised(lambda: state[tied[0]] + 1)
        found["loaded"] = raised(lambda: FAMILIES["qwen2"].built().load_state_dict(state))
    kept = {name: each.clone() for name, each in model.named_parameters()}
    with torch.no_grad():
        for each in model.parameters():
            each.zero_()
    model.load_state_dict(expected)
    found["back"] = _same(kept, dict(model.named_parameters()))
    with parts_are_meant():
        model.load_state_dict(model.state_dict())
    found["parts back"] = _same(kept, dict(model.named_parameters()))
    found["assigned"] = raised(lambda: model.load_state_dict(expected, assign=True))
    found["variables"] = raised(lambda: model.state_dict(keep_vars=True))
    return found


def copies(rank: int) -> dict[str, Any]:
    """deepcopy, averages of models, pickles."""
    mesh = tr.init_device_mesh({"tp": 2})
    model = cut("qwen3", mesh)
    FAMILIES["qwen3"].loss_of(model, 0).backward()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    before = tr.whole_state_dict(model)
    other = copy.deepcopy(model)
    optimizer.step()
    average.update_parameters(model)
    loss = FAMILIES["qwen3"].loss_of(other, 1)
    loss.backward()
    after, mean = tr.whole_state_dict(model), tr.whole_state_dict(average.module)
    return {
        "copy": _same(tr.whole_state_dict(other), before),
        "clipped": raised(lambda: torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)),
        "mean": all(torch.allclose(mean[n], (before[n] + after[n]) / 2) for n in before),
        "pickled": raised(lambda: torch.save(model, io.BytesIO())),
    }


def refused(folder: Path, rank: int) -> dict[str, str]:
    mesh = tr.init_device_mesh({"tp": 2})
    model = cut("llama", mesh)
    (folder / "file").touch()
    plain = torch.nn.Linear(4, 4)
    own = tr.parallelize(torch.nn.Sequential(plain), mesh, {"0": tr.Column()})
    return {
        "pushed": raised(lambda: model.save_pretrained(folder / "a", push_to_hub=True)),
        "no folder": raised(lambda: model.save_pretrained(folder / "file" / "a")),
        "size": raised(lambda: model.save_pretrained(folder / "a", max_shard_size="much")),
        "stranger": raised(lambda: tr.save_pretrained(own, folder / "a")),
        "no files": raised(lambda: tr.from_pretrained(hf.LlamaForCausalLM, folder, mesh)),
        "map": raised(
            lambda: tr.from_pretrained(hf.LlamaForCausalLM, folder, mesh, device_map="auto")
        ),
        "no values": raised(lambda: tr.whole_state_dict(_without_values(mesh))),
        "no model": str([*folder.glob("a/*")]),
    }


def _without_values(mesh: Any) -> Any:
    with torch.device("meta"):
        made = tr.parallelize(torch.nn.Sequential(torch.nn.Linear(4, 6)), mesh, {"0": tr.Column()})
    assert made.state_dict()["0.weight"].shape == (6, 4)
    return made


def read(folder: Path, rank: int) -> dict[str, Any]:
    """Bytes that a rank reads of a model with experts, its classes, buffers and options."""
    mesh, found = tr.init_device_mesh({"tp": 2}), {}
    made = []

    class Noted(sources.WeightFiles):
        def __init__(self, files: Any) -> None:
            super().__init__(files)
            made.append(self)

    loading.WeightFiles = Noted  # type: ignore[misc]
    if rank == 0:
        FAMILIES["mixtral"].built().save_pretrained(folder)
    tr.barrier()
    model = tr.from_pretrained(hf.AutoModelForCausalLM, folder, mesh)
    found["bytes"] = made[0].num_bytes
    found["own"] = sum(each.nbytes for each in model.parameters())
    plain = hf.MixtralForCausalLM.from_pretrained(folder)
    buffers = dict(model.named_buffers())
    found["buffers"] = _same(buffers, dict(plain.named_buffers())) and len(buffers) > 0
    found["like"] = type(model).__name__ == "MixtralForCausalLM" and not model.training
    found["generates"] = str(model.generation_config) == str(plain.generation_config)
    lower = tr.from_pretrained(hf.MixtralForCausalLM, folder, mesh, dtype=torch.bfloat16)
    found["dtype"] = str(lower.dtype)
    found["clipped"] = raised(lambda: _clipped(lower))
    return found


def _clipped(model: Any) -> None:
    for each in model.parameters():
        each.grad = torch.zeros_like(each)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def wrapped(folder: Path, rank: int) -> dict[str, Any]:
    """Four ranks: parts of layers beside replicas, in FSDP, and in stages."""
    found: dict[str, Any] = {}
    expected = FAMILIES["qwen3"].built()
    mesh = tr.init_device_mesh({"dp": 2, "tp": 2})
    group = mesh.get_group("dp")
    replicas = tr.DistributedDataParallel(cut("qwen3", mesh), process_group=group)
    found["ddp"] = _written(replicas, folder / "ddp", expected)
    shards = tr.FullyShardedDataParallel(cut("qwen3", mesh), process_group=group, min_num_params=0)
    found["fsdp"] = _written(shards, folder / "fsdp", expected)
    found["inner"] = raised(lambda: tr.save_pretrained(shards.module, folder / "inner"))
    state = shards.state_dict()
    found["state"] = rank != 0 or _same(state, expected.state_dict())
    alone = tr.FullyShardedDataParallel(FAMILIES["qwen3"].built(), min_num_params=0)
    found["fsdp alone"] = _written(alone, folder / "alone", expected)
    mesh = tr.init_device_mesh({"pp": 2, "tp": 2})
    for schedule, stages in (("1f1b", 2), ("zbv", 4)):
        options = FAMILIES["qwen3"].deep
        model = cut("qwen3", mesh, **options)
        pipeline = tr.PipelineParallel(model, 2, mesh=mesh, cuts=stages, schedule=schedule)
        deep = FAMILIES["qwen3"].built(**options)
        found[schedule] = _written(pipeline, folder / schedule, deep)
    return found


def _written(model: Any, folder: Path, expected: Any) -> str:
    tr.save_pretrained(model, folder)
    if tr.get_rank() != 0:
        return ""
    expected.save_pretrained(folder.with_suffix(".theirs"))
    return _difference(folder, folder.with_suffix(".theirs"))


def alone(rank: int) -> str:
    """What a call on one rank says, and what comes to another in its next collective."""
    model = cut("llama", tr.init_device_mesh({"tp": 2}))
    if rank == 0:
        return raised(model.state_dict)
    return raised(lambda: FAMILIES["llama"].loss_of(model, 0))


def keep(folder: Path, rank: int) -> None:
    """A checkpoint of two ranks, without a mesh in the state."""
    for name in KEPT:
        state = {"model": cut(name, tr.init_device_mesh({"tp": -1}))}
        tr.checkpoint.Checkpointer(folder / name).save(1, state)


def take(folder: Path, rank: int) -> dict[str, Any]:
    """The same on more ranks, on which each has other parts."""
    found = {}
    for name in KEPT:
        model = cut(name, tr.init_device_mesh({"tp": -1}))
        kept = {key: each.clone() for key, each in model.named_parameters()}
        with torch.no_grad():
            for each in model.parameters():
                each.zero_()
        tr.checkpoint.Checkpointer(folder / name).load({"model": model})
        found[name] = _same(kept, dict(model.named_parameters()))
    return found
