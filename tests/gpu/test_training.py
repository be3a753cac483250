"""Trainings on real GPUs are those of one process. One GPU is enough for all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.forked import Raised
from support.gpu_compression import CHANCES
from support.model_parallel import DENSE, Kind
from support.real_gpus import needs_gpu, passed, run_on_gpus

pytestmark = [pytest.mark.gpu, needs_gpu]
DDP, FSDP = "DistributedDataParallel", "FullyShardedDataParallel"
ANY = ("dp", "cp", "tp")
CASES: dict[int, list[tuple[str, str, dict[str, int], Kind]]] = {
    2: [
        (DDP, "1f1b", {"pp": 1, "dp": 2, "cp": 1, "tp": 1}, DENSE),
        (FSDP, "1f1b", {"pp": 1, "dp": 2, "cp": 1, "tp": 1}, DENSE),
        (DDP, "1f1b", {"pp": 1, "dp": 1, "cp": 1, "tp": 2}, DENSE),
        (DDP, "1f1b", {"pp": 2, "dp": 1, "cp": 1, "tp": 1}, DENSE),
        (DDP, "zb-h1", {"pp": 2, "dp": 1, "cp": 1, "tp": 1}, DENSE),
        (DDP, "1f1b", {"pp": 1, "dp": 1, "cp": 2, "tp": 1}, DENSE),
        (DDP, "1f1b", {"pp": 1, "dp": 1, "cp": 2, "tp": 1}, Kind(method="all_to_all")),
        (DDP, "1f1b", {"pp": 1, "dp": 2, "cp": 1, "tp": 1}, Kind(2, ANY)),
        (FSDP, "1f1b", {"pp": 1, "dp": 2, "cp": 1, "tp": 1}, Kind(strategy="grad-and-optimizer")),
        (DDP, "1f1b", {"pp": 1, "dp": 2, "cp": 1, "tp": 1}, Kind(spreads=True, checkpoints=True)),
    ],
    4: [
        (DDP, "1f1b", {"pp": 2, "dp": 1, "cp": 1, "tp": 2}, DENSE),
        (FSDP, "zbv", {"pp": 2, "dp": 2, "cp": 1, "tp": 1}, DENSE),
        (DDP, "interleaved", {"pp": 2, "dp": 1, "cp": 2, "tp": 1}, DENSE),
        (DDP, "1f1b", {"pp": 4, "dp": 1, "cp": 1, "tp": 1}, DENSE),
        (DDP, "1f1b", {"pp": 1, "dp": 1, "cp": 4, "tp": 1}, DENSE),
        (DDP, "1f1b", {"pp": 1, "dp": 2, "cp": 1, "tp": 2}, Kind(4, ANY, in_parts=True)),
        (FSDP, "gpipe", {"pp": 1, "dp": 2, "cp": 2, "tp": 1}, Kind(2, method="all_gather")),
    ],
}


@pytest.mark.parametrize("framework", ["torch", "nn"])
@pytest.mark.parametrize("ranks", CASES)
def test_on_meshes(ranks: int, framework: str) -> None:
    results = passed(run_on_gpus(ranks, "train", framework, CASES[ranks], 2))
    problems = []
    for case, found in zip(CASES[ranks], zip(*results, strict=True), strict=True):
        problems += [f"{case}: {text}" for text in wrong(found)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("kind", ["torch", "nn"])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_stages_with_a_weight_in_common(kind: str, schedule: str) -> None:
    results = passed(run_on_gpus(2, "tie", kind, schedule))
    got: dict[str, Any] = {}
    for found, _ in results:
        got |= found
    for name, value in results[0][1].items():
        np.testing.assert_allclose(got[name], value, rtol=1e-9, atol=1e-9, err_msg=name)


def test_a_stage_that_raises_ends_all_ranks() -> None:
    for said in passed(run_on_gpus(3, "fail_in_a_stage")):
        assert "rank 2" in said
        assert "F1: ArithmeticError: no more" in said


def wrong(found: tuple[Any, ...]) -> list[str]:
    """What a training's ranks say that one process would not."""
    raised = [each.error.trace for each in found if isinstance(each, Raised)]
    if raised:
        return raised
    far = {name: size for each in found for name, size in each["apart"].items() if not size < 1e-9}
    problems = [f"apart {far}"] if far else []
    problems += ["bits differ"] if any(each["bits"] != found[0]["bits"] for each in found) else []
    replicas = {name: bits for each in found for name, bits in each["replicas"].items()}
    if not all(each["replicas"].items() <= replicas.items() for each in found):
        problems.append("replicas differ")
    return problems + ([] if all(each["reloaded"] for each in found) else ["not reloaded"])


@pytest.mark.parametrize("on_a_stream", [False, True])
def test_gradients_and_norms_follow_the_current_stream(on_a_stream: bool) -> None:
    for gradients, norm in passed(run_on_gpus(2, "average", on_a_stream)):
        assert gradients < 1e-4
        assert norm < 1e-4


def test_a_model_of_nn_learns_on_the_gpu_as_on_the_processor() -> None:
    [losses] = passed(run_on_gpus(1, "train_text", 5))
    np.testing.assert_allclose(losses["gpu"], losses["host"], rtol=1e-3)
    assert losses["gpu"][-1] < losses["gpu"][0]


OFFLOADED = {"cpu_offload": True}


@pytest.mark.parametrize(
    "options",
    [{}, {"meta": True}, OFFLOADED, {**OFFLOADED, "meta": True}, {"activation_offload": True}],
    ids=str,
)
def test_sharded_models_train_as_one_process_does(options: dict[str, bool]) -> None:
    for found in passed(run_on_gpus(2, "shard", options, 8)):
        np.testing.assert_allclose(found["losses"], found["alone"], rtol=1e-3)
        assert found["devices"] == ["cpu" if options.get("cpu_offload") else "cuda"]


def test_memory_does_not_grow_with_the_steps_that_the_gpu_is_behind() -> None:
    few, many = (passed(run_on_gpus(2, "shard", {}, steps)) for steps in (10, 40))
    for one, other in zip(few, many, strict=True):
        assert other["peak"] < one["peak"] + one["unit"]


def test_attention_of_parts_is_as_near_as_torchs_own() -> None:
    for found in passed(run_on_gpus(2, "attend")):
        assert len(found) == 12
        for name, (far, alone) in found.items():
            assert far < 3 * alone, name


def test_attention_of_parts_makes_no_matrix_of_scores() -> None:
    for most, scores in passed(run_on_gpus(2, "attend_in_little_memory")):
        assert most < scores / 8


def test_experts_are_routed_on_the_gpu() -> None:
    for apart, rounded in passed(run_on_gpus(2, "route_without_waiting")):
        assert apart < 1e-9
        assert max(rounded) < 0.02


def test_waits_for_the_gpu_do_not_grow_with_the_number_of_tensors() -> None:
    for found in passed(run_on_gpus(2, "find_waits")):
        assert all(is_right for is_right, _ in found.values()), found
        assert all(waits <= 1 for _, waits in found.values()), found


def test_gradients_are_compressed_beside_the_current_stream() -> None:
    for found in passed(run_on_gpus(2, "compress", 4)):
        for name, (far, is_free, goes_without_waits) in found.items():
            assert far < (0.1 if name in CHANCES else 1e-2 if "16" in name else 1e-3), name
            assert is_free, name
            assert goes_without_waits == (name != "threshold"), name
