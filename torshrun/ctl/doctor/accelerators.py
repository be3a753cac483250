"""Examines the GPUs that a framework would see, and what their driver reports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torshrun.ctl.doctor import probes
from torshrun.ctl.doctor.finding import Finding, note, ok, problem, warning
from torshrun.ctl.doctor.probes import Probed
from torshrun.health import nvml
from torshrun.health.gpu_probe import command
from torshrun.procfs import ROOT
from torshrun.text import size
from torshrun.topology.gpus import Gpu, pci_numa_node, visible

_IN_USE = 1 << 30
"""Bytes of a GPU's memory from which on it counts as used by another process."""


@dataclass(frozen=True, slots=True)
class Card:
    """Describes one GPU as its driver reports it."""

    name: str
    memory: int
    """Bytes; 0 is unknown, as where it is the processor's own."""
    used: int
    errors: int = 0
    """Uncorrected memory errors since the machine was started."""


@dataclass(frozen=True, slots=True)
class Accelerators:
    usable: tuple[Gpu, ...]
    """GPUs that a framework started here would see."""
    nodes: tuple[int | None, ...]
    """The NUMA node of each."""
    listed: str | None
    """The value of CUDA_VISIBLE_DEVICES."""
    source: str
    """The library that described the cards. Empty if there is none."""
    cards: tuple[Card, ...]
    failure: str
    """The reason why it failed. Empty if it did not."""


def gather(environ: Mapping[str, str], seconds: float, root: Path = ROOT) -> Accelerators:
    usable = visible(environ, root)
    nodes = tuple(pci_numa_node(gpu, root) for gpu in usable)
    asked = probes.program(command(), seconds, every_line=True, given="\n")
    source, cards, failure = _answer(asked)
    return Accelerators(usable, nodes, environ.get("CUDA_VISIBLE_DEVICES"), source, cards, failure)


def _answer(probed: Probed) -> tuple[str, tuple[Card, ...], str]:
    """Return the name of NVML, the cards that it described, and the reason why it failed."""
    if probed.outcome != "ok":
        return "NVML", (), probed.said
    try:
        told = json.loads(probed.said)
        found, failure = told["gpus"], told.get("error", "")
    except (ValueError, TypeError, KeyError):
        return "NVML", (), f"what it said cannot be read: {probed.said}"
    if failure.startswith(nvml.LIBRARY):  # where no driver is installed
        return "", (), ""
    broken = [f"GPU {each['index']}: {each['error']}" for each in found if "error" in each]
    cards = tuple(_described(each) for each in found if "pci" in each and "error" not in each)
    return "NVML", cards, failure or "; ".join(broken)


def _described(told: Mapping[str, Any]) -> Card:
    numbers = (told.get(name) or 0 for name in ("memory_total", "memory_used", "ecc"))
    return Card(str(told.get("name") or "NVIDIA GPU"), *numbers)


def check(facts: Accelerators) -> Iterator[Finding]:
    if facts.listed is not None and not facts.usable and facts.listed.strip() not in ("", "-1"):
        yield warning(
            "CUDA_VISIBLE_DEVICES",
            f"{facts.listed}: no GPU of that name can be used here",
            "Unset it, or name existing GPUs (nvidia-smi -L); a list ends before its first invalid "
            "entry.",
        )
    if not (facts.usable or facts.cards):
        yield ok("GPUs", "none")
        return
    yield _usable(facts)
    yield from _cards(facts)


def _usable(facts: Accelerators) -> Finding:
    names = ", ".join(gpu.identifier for gpu in facts.usable)
    places = {node for node in facts.nodes if node is not None}
    where = f"; NUMA nodes {', '.join(map(str, sorted(places)))}" if places else ""
    if not facts.usable:
        return warning(
            "GPUs",
            f"{len(facts.cards)} present, none usable by this process",
            "See CUDA_VISIBLE_DEVICES and who may open /dev/nvidia*.",
        )
    return ok("GPUs", f"{len(facts.usable)} usable ({names}){where}")


def _cards(facts: Accelerators) -> Iterator[Finding]:
    if not facts.source:
        yield note(
            "GPU details",
            "not queried",
            f"Make the driver's {nvml.LIBRARY} loadable here, to see memory and errors.",
        )
    elif facts.failure:
        yield problem(
            "GPU driver",
            f"{facts.source}: {facts.failure}",
            "The driver does not work: dmesg | grep NVRM says more; restart the host, or have it "
            "repaired.",
        )
    for index, card in enumerate(facts.cards):
        yield _card(f"GPU {index}", card)


def _card(what: str, card: Card) -> Finding:
    memory = f"{size(card.memory)}, {size(card.used)} in use" if card.memory else "memory unknown"
    value = f"{card.name}, {memory}"
    if card.errors:
        errors = f"{value}, {card.errors} uncorrected memory errors"
        return problem(what, errors, "Leave it out (CUDA_VISIBLE_DEVICES) and have it replaced.")
    if card.used > _IN_USE:
        return note(what, value, "Another process uses it: nvidia-smi names it.")
    return ok(what, value)
