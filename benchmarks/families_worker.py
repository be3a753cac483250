"""One rank of benchmarks/families.py: trains models cut and whole, and says how far they part."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.family_models import FAMILIES, Family, hf  # noqa: E402

import torsh_runtime as tr  # noqa: E402
from torsh_runtime.parallel.layouts import cut  # noqa: E402

STEPS, RATE, NORM, TOLERANCE = 10, 3e-3, 0.5, 1e-9
RIGHT, REFUSED, WRONG = "right", "refused", "WRONG"
TOKENS = 8


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training left."""

    losses: list[float]
    norms: list[float]
    parameters: dict[str, Tensor]


@cache
def whole(name: str) -> Trained:
    """That of one process."""
    family = FAMILIES[name]
    model = family.built().train()
    clip = partial(torch.nn.utils.clip_grad_norm_, [*model.parameters()], NORM)
    return _trained(model, family, clip)


def _trained(model: Any, family: Family, clip: Callable[[], Any]) -> Trained:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = family.loss_of(model, step)
        loss.backward()
        norms.append(float(clip()))
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, norms, {name: each.detach() for name, each in model.named_parameters()})


def tensor_parallel(name: str, mesh: Any) -> str:
    """Of parallelize(model, mesh, "auto")."""
    family = FAMILIES[name]
    model = tr.parallelize(family.built().train(), mesh, "auto")
    found = _trained(model, family, lambda: tr.clip_grad_norm_(model, NORM, mesh))
    return compared(found, whole(name), tr.layouts_of(model), mesh)


def compared(own: Trained, reference: Trained, layouts: Mapping[str, Any], mesh: Any) -> str:
    """What of them is not the same on any rank; "" if all is."""
    told: dict[str, float] = {
        "losses": _furthest(zip(own.losses, reference.losses, strict=True)),
        "norms": _furthest(zip(own.norms, reference.norms, strict=True)),
    }
    for name, parameter in own.parameters.items():
        expected = reference.parameters[name]
        if name in layouts:
            piece = layouts[name].piece(mesh.coordinate)
            expected = torch.from_numpy(cut(expected.numpy(), piece).copy())
        told[name] = float((expected.reshape(parameter.shape) - parameter).abs().max())
    return _judged(told)


def _furthest(pairs: Iterable[tuple[float, float]]) -> float:
    return max(abs(one - other) for one, other in pairs)


def _judged(told: Mapping[str, float]) -> str:
    worst = max(told, key=lambda each: np.nan_to_num(told[each], nan=np.inf))
    return f"{worst} {told[worst]:.0e}" if not told[worst] <= TOLERANCE else ""


def generating(name: str, mesh: Any) -> str:
    """Tokens out of a cut model with a cache: greedy, drawn and by beams."""
    family = FAMILIES[name]
    if not family.generates:
        return "-"
    plain, model = family.built().eval(), family.built().eval()
    tr.parallelize(model, mesh, "auto")
    batch = {key: each[:2] for key, each in family.batch(0).items() if key != "labels"}
    ways: dict[str, dict[str, Any]] = {
        "greedy": {},
        "drawn": {"do_sample": True, "top_k": 20},
        "beams": {"num_beams": 3},
    }
    for way, options in ways.items():
        found = []
        for each in (plain, model):
            torch.manual_seed(7)
            found.append(each.generate(**batch, **options, max_new_tokens=TOKENS, min_new_tokens=6))
        if not torch.equal(*found):
            return f"other tokens ({way})"
    return ""


COLUMNS: dict[str, tuple[int, Callable[[str, Any], str] | None]] = {
    "TP 2": (2, tensor_parallel),
    "TP 4": (4, tensor_parallel),
    "TP + SP 2": (2, None),
    "generate": (2, generating),
    "PP 1f1b": (2, None),
    "PP zbv": (2, None),
    "CP": (2, None),
    "TP × PP × DP": (8, None),
}
"""By title: on how many ranks, and what says what is wrong with a family there: "" for nothing, "-"
where it makes no sense. None: not tried."""


def cell(name: str, column: str) -> str:
    """The verdict of one family."""
    ranks, run = COLUMNS[column]
    if run is None:
        return "not tried"
    try:
        said = run(name, tr.init_device_mesh({"tp": ranks}))
    except tr.ConfigError as error:
        return f"{REFUSED}: {error}"
    except Exception as error:  # which is a verdict, too
        said = f"{type(error).__name__}: {error}"
    return said if said == "-" else f"{WRONG}: {said}" if said else RIGHT


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", type=lambda text: text.split(","), required=True)
    parser.add_argument("--columns", type=lambda text: text.split(","), required=True)
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    hf.logging.set_verbosity_error()
    torch.set_num_threads(1)
    tr.init_process_group()
    for name in options.only:
        for column in options.columns:
            every: list[Any] = [None] * tr.get_world_size()
            tr.all_gather_object(every, cell(name, column))
            said = next((each for each in every if each.startswith(WRONG)), every[0])
            if tr.get_rank() == 0:
                with options.to.open("a") as file:
                    print(json.dumps([name, column, said]), file=file)
    tr.destroy_process_group()


if __name__ == "__main__":
    main()
