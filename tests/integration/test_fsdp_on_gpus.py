"""FullyShardedDataParallel as it stores models on GPUs: operations, bits and memory."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from support import fake_gpus, fake_nccl
from support.forked import Raised
from support.on_device import OnDevice
from support.worlds import run_in_one_world

import torsh_runtime as tr
from torsh_runtime import nn, optim
from torsh_runtime.parallel.fsdp import fsdp_init

needs_torch = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
UNITS, STEPS = 6, 3


class Staging(OnDevice):
    """Takes arrays to a fake GPU, and numbers by the CPU."""

    def all_gather_numbers(self, own: Any, timeout: float) -> Any:
        return self._inner.all_gather_numbers(own, timeout)


@contextmanager
def without_torchs_groups() -> Iterator[None]:
    """Hide what an earlier test may have loaded, for fake GPUs hide only torch itself."""
    hidden = sys.modules.pop("torch.distributed", None)
    try:
        yield
    finally:
        if hidden is not None:
            sys.modules["torch.distributed"] = hidden


def train_on_fakes(calls: Counter[str], group: Any) -> tuple[list[dict[str, int]], list[float]]:
    """What NCCL is asked for in each step of a model of nn, and the losses."""
    group._backend = Staging(group._backend)
    nn.manual_seed(0)
    sizes = [30, *(40, 50) * (UNITS // 2)]
    model: Any = tr.FullyShardedDataParallel(
        nn.Sequential(*map(nn.Linear, sizes, sizes[1:])),
        process_group=group,
        auto_wrap_policy=tr.ModuleTypeBasedAutoWrap((nn.Linear,)),
    )
    optimizer = optim.SGD(model.parameters(), 0.1)
    found, losses = [], []
    for _ in range(STEPS):
        group.barrier()
        calls.clear()
        group.barrier()
        outputs = model(nn.Tensor(np.full((4, 30), 1.0 + group.rank, np.float32)))
        loss = (outputs * outputs).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.item()))
        group.barrier()
        found.append(dict(calls))
    return found, losses


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_step_asks_nccl_for_one_operation_per_unit_and_pass(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORSH_SHARE_ARRAYS", "0")  # ranks that are threads have one allocator
    calls: Counter[str] = Counter()
    add = fake_nccl.Communicator._add

    def counted(self: Any, kind: str, *given: Any, **named: Any) -> Any:
        if self._rank == 0:
            calls[kind] += 1
        return add(self, kind, *given, **named)

    jobs = fake_gpus.Jobs()
    with (
        without_torchs_groups(),
        patch.object(fake_nccl.Communicator, "_add", counted),
        patch.object(fsdp_init, "has_host_memory", lambda _: False),
    ):
        results = jobs.run(
            ["cpu:native,cuda:nccl"] * ranks, partial(train_on_fakes, calls), timeout=30
        )
    jobs.close()
    gc.collect()  # models of the ranks, which hold on to groups
    for result in results:
        if isinstance(result, Raised):
            raise result.error
    steps, losses = results[0]
    assert steps == [{"allgather": 2 * UNITS, "reduce_scatter": UNITS}] * STEPS
    assert losses == sorted(losses, reverse=True)


@cache
def found(ranks: int) -> dict[Any, list[Any]]:
    from support import fsdp_on_gpus as bodies

    named: dict[Any, Any] = {
        ("losses", way): partial(bodies.losses, way) for way in ("gathered", "device")
    }
    if ranks == 2:
        named |= {("held", steps): partial(bodies.held, steps) for steps in (1, 10, 40)}
        named |= {("unstaged", width): partial(bodies.unstaged, width) for width in (64, 512)}
        for way in ("device", "offloaded"):
            named["fused", way] = partial(bodies.stepped_fused, way)
        for way in ("gathered", "device"):
            named["detached", way] = partial(bodies.detached, way)
            named["retained", way] = partial(bodies.retained, way)
        named |= {"order": bodies.offloaded_order, "activations": bodies.activations}
        named["slots"] = bodies.in_slots
    if ranks == 4:
        named["hybrid"] = bodies.hybrid_calls
        named |= {
            ("differ", way): partial(bodies.replicas_differ, way) for way in ("common", "device")
        }
    results = run_in_one_world(ranks, named, 60.0)
    for each in results.values():
        assert not any(isinstance(result, Raised) for result in each), each
    return results


class TestTorch:
    pytestmark = needs_torch

    @pytest.mark.parametrize("ranks", [2, 3, 4])
    def test_equal_parts_give_the_same_bits_by_either_operation(self, ranks: int) -> None:
        assert found(ranks)["losses", "device"] == found(ranks)["losses", "gathered"]

    @pytest.mark.parametrize("steps", [10, 40])
    def test_after_any_number_of_steps_there_are_parts_only(self, steps: int) -> None:
        for one, many in zip(found(2)["held", 1], found(2)["held", steps], strict=True):
            assert many == one
            assert one["after"] == one["before"] == one["counted"] == one["parameters"]
            assert one["with gradients"] == 2 * one["parameters"]

    def test_at_the_peak_there_are_four_units_beside_parts_and_gradients(self) -> None:
        """Two whole ones, a gradient, and gradients that are being reduced."""
        for each in found(2)["held", 10]:
            unit = 2 * each["parameters"] // 4
            assert each["peak"] <= 2 * each["parameters"] + 4 * unit

    def test_fused_adamw_gives_offloaded_shards_the_same_bits(self) -> None:
        first, other = found(2)["fused", "offloaded"]
        assert first[0] == other[0] == found(2)["fused", "device"][0][0]
        assert first[1] == {("cpu", "torch.float32")}

    def test_large_gradients_are_reduced_from_where_they_are(self) -> None:
        assert found(2)["unstaged", 512] == [[True, True]] * 2
        assert found(2)["unstaged", 64] == [[False, False]] * 2

    @pytest.mark.parametrize("way", ["gathered", "device"])
    def test_values_that_a_graph_still_needs_are_never_gradients(self, way: str) -> None:
        assert found(2)["detached", way] == [[True, True]] * 2

    def test_a_retained_graph_gives_the_same_gradients_again(self) -> None:
        assert found(2)["retained", "device"] == found(2)["retained", "gathered"]

    def test_replicas_are_averaged_over_behind_each_unit(self) -> None:
        one, other = ("reduce_scatter_tensor", True), ("all_reduce", True)
        for calls in found(4)["hybrid"]:
            assert calls == [one, one, other, one, other, other]

    @pytest.mark.parametrize("way", ["common", "device"])
    def test_replicas_that_use_less_of_a_unit_are_told(self, way: str) -> None:
        for text in found(4)["differ", way]:
            assert "gradients came of all but 'second" in text

    def test_parts_go_out_and_gradients_come_back_in_order(self) -> None:
        there = ["part in", "gather"]
        back = [*there, "reduce"]
        for events in found(2)["order"]:
            assert events[:4] == there * 2
            assert events[-3:] == ["waited", "waited", "over"]
            assert [each for each in events[4:-3] if each != "gradient out"] == back * 2
            assert events.count("gradient out") == 2

    def test_registered_memory_serves_units_in_turns(self) -> None:
        for each in found(2)["slots"]:
            plain, registered = each["losses"]
            assert registered == plain
            assert sorted(each["registered"]) == [0, 4096], "each once"
            assert not each["kept"]
            assert sorted(each["closed"]) == [0, 4096]

    def test_activations_are_taken_to_the_cpu_and_weights_stay(self) -> None:
        for taken, are_equal in found(2)["activations"]:
            assert taken == [(5, 48)] * 3
            assert are_equal
