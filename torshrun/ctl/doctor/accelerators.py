"""Examines the GPUs that a framework would see, and what their driver reports."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torshrun.ctl.doctor import probes
from torshrun.ctl.doctor.finding import Finding, note, ok, problem, warning
from torshrun.ctl.doctor.probes import Probed
from torshrun.procfs import ROOT
from torshrun.text import size
from torshrun.topology.gpus import Gpu, pci_numa_node, visible

_IN_USE = 1 << 30
"""Bytes of a GPU's memory from which on it counts as used by another process."""
_NVML = """
import pynvml as nvml
nvml.nvmlInit()
def text(value): return value.decode() if isinstance(value, bytes) else str(value)
def card(index):
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        total, used = memory.total, memory.used
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission):
        total = used = 0
    try:
        errors = nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0)
    except nvml.NVMLError:
        errors = 0
    return {"name": text(nvml.nvmlDeviceGetName(handle)), "memory": total,
            "used": used, "errors": errors}
report(cards=[card(index) for index in range(nvml.nvmlDeviceGetCount())])
"""
_QUERY = "--query-gpu=name,memory.total,memory.used,ecc.errors.uncorrected.volatile.total"
_FORMAT = "--format=csv,noheader,nounits"


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
    """The library or program that described the cards. Empty if there is none."""
    cards: tuple[Card, ...]
    failure: str
    """The reason why it failed. Empty if it did not."""


def gather(environ: Mapping[str, str], seconds: float, root: Path = ROOT) -> Accelerators:
    usable = visible(environ, root)
    source, cards, failure = "", (), ""  # type: tuple[str, tuple[Card, ...], str]
    if find_spec("pynvml"):
        source = "nvidia-ml-py"
        cards, failure = _from_nvml(probes.python(_NVML, seconds))
    elif program := shutil.which("nvidia-smi"):
        source = "nvidia-smi"
        asked = probes.program([program, _QUERY, _FORMAT], seconds, every_line=True)
        cards, failure = _from_table(asked)
    nodes = tuple(pci_numa_node(gpu, root) for gpu in usable)
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    return Accelerators(usable, nodes, listed, source, cards, failure)


def _from_nvml(probed: Probed) -> tuple[tuple[Card, ...], str]:
    if probed.outcome != "ok":
        return (), probed.said
    cards: list[dict[str, Any]] = probed.facts.get("cards", [])
    return tuple(Card(**card) for card in cards), ""


def _from_table(probed: Probed) -> tuple[tuple[Card, ...], str]:
    """Parse lines such as "NVIDIA H100, 81559, 4, 0".

    Memory is in MiB, and unknown numbers are [N/A].
    """
    if probed.outcome != "ok":
        return (), probed.said.strip().rpartition("\n")[2]
    lines = [line.rsplit(",", 3) for line in probed.said.splitlines() if line.count(",") >= 3]

    def number(text: str) -> int:
        return int(text) if text.strip().isdecimal() else 0

    return tuple(
        Card(name.strip(), number(memory) << 20, number(used) << 20, number(errors))
        for name, memory, used, errors in lines
    ), ""


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
            "pip install nvidia-ml-py, or put nvidia-smi on the path, to see memory and errors.",
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
