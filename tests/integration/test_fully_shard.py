"""fully_shard(): models that are sharded in place train as one process does, or are refused."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from support.forked import Raised
from support.worlds import run_in_one_world

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
NEAR = 1e-12
NAMES = ("tutorial", "pretraining", "llama", "small", "blocks_only", "kept_whole", "parametrized")
OTHERS = (
    *("refusals", "refused_by_others", "same_object", "precise", "ignored", "by_method"),
    "of_nn",
)


def whole(results: list[Any]) -> list[Any]:
    for result in results:
        assert not isinstance(result, Raised), result.error.args[0]
    return results


@cache
def trained(ranks: int) -> dict[Any, list[Any]]:
    from support import fully_sharding

    if importlib.util.find_spec("transformers"):
        fully_sharding.llama(None)  # it is loaded here, once, and not on each rank
    bodies: dict[Any, Any] = {
        (name, gathers): partial(fully_sharding.trained, name=name, ranks=ranks, gathers=gathers)
        for name in NAMES
        for gathers in (False, True)
    }
    return run_in_one_world(ranks, bodies, 90.0)


@cache
def found() -> dict[Any, list[Any]]:
    from support import fully_sharding

    bodies: dict[Any, Any] = {name: getattr(fully_sharding, name) for name in OTHERS}
    for gathers in (False, True):
        bodies["hidden", gathers] = partial(fully_sharding.hidden, gathers=gathers)
        bodies["shown", gathers] = partial(fully_sharding.shown, gathers=gathers)
        for spelling in ("function", "wrapper"):
            bodies["unused", gathers, spelling] = partial(
                fully_sharding.unused, gathers=gathers, spelling=spelling
            )
    return run_in_one_world(2, bodies, 90.0)


def results(key: Any) -> list[Any]:
    return whole(found()[key])


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_programs_train_as_one_process_does(name: str, gathers: bool, ranks: int) -> None:
    if name == "llama" and not importlib.util.find_spec("transformers"):
        pytest.skip("needs transformers")
    from support import fully_sharding

    states = whole(trained(ranks)[name, gathers])
    expected = fully_sharding.alone(name, ranks)
    near = 1e-6 if name == "llama" else NEAR  # whose norms compute in float32
    for state in states:
        assert max(fully_sharding.differences(state, expected)) < near


def test_meshes_of_two_dimensions_shard_and_replicate() -> None:
    from support import fully_sharding

    bodies: dict[Any, Any] = {
        "states": fully_sharding.hybrid,
        "turns": fully_sharding.hybrid_by_turns,
    }
    done = run_in_one_world(4, bodies, 60.0)
    expected = fully_sharding.alone("kept_whole", 4)
    for state in whole(done["states"]):
        assert max(fully_sharding.differences(state, expected)) < NEAR
    assert all(map(all, whole(done["turns"])))


def test_unshard_hides_no_gradients_from_an_optimizer() -> None:
    for *texts, once, again in [*results(("hidden", False)), *results(("hidden", True))]:
        assert len({*texts}) == 1
        assert texts[0].startswith("ConfigError: unshard() would hide gradients")
        assert once == again == 2


@cache
def of_four(is_on_gpu: bool) -> dict[str, list[Any]]:
    from support import fully_sharding

    train = partial(fully_sharding.trained, name="kept_by_two", ranks=4, gathers=True)
    bodies: dict[str, Any] = {
        "seen": partial(fully_sharding.resharded, is_on_gpu=is_on_gpu),
        "unfinished": fully_sharding.unfinished,
        "states": partial(fully_sharding.as_if_on_gpus, train) if is_on_gpu else train,
    }
    return run_in_one_world(4, bodies, 60.0)


@pytest.mark.parametrize("is_on_gpu", [False, True])
def test_some_ranks_keep_parameters_between_passes(is_on_gpu: bool) -> None:
    from support import fully_sharding

    expected = fully_sharding.alone("kept_by_two", 4)
    for state in whole(of_four(is_on_gpu)["states"]):
        assert max(fully_sharding.differences(state, expected)) < NEAR
    assert whole(of_four(is_on_gpu)["unfinished"]) == [0] * 4
    for seen in whole(of_four(is_on_gpu)["seen"]):
        kept = {frees: share for frees, (share, _) in seen.items()}
        ranks = {frees: {*sizes} for frees, (_, sizes) in seen.items()}
        assert kept == pytest.approx(
            {"True": 0, "2": 0.5, "False": 1, "4": 0, "1": 1, "None": 1}, abs=0.05
        )
        none: set[int] = set()
        assert ranks == {"True": {4}, "2": {2}, "False": none, "4": {4}, "1": none, "None": none}


def test_what_would_go_wrong_is_refused_by_name() -> None:
    first, other = results("refusals")
    assert first == other
    assert [text for text in first.values() if not text.startswith("ConfigError: ")] == []
    assert "already: call it once for each module" in first["twice"]
    assert "shard inner modules first" in first["within"]
    assert "reshard_after_forward=3 must be" in first["number"]
    assert "reshard_after_forward" in first["numbers"]
    assert "import it from torsh_runtime" in first["policy"]
    copies = {first[n] for n in ("deepcopy", "deepcopy of a layer", "pickle", "AveragedModel")}
    assert len(copies) == 1
    assert "tr.checkpoint.Checkpointer" in first["deepcopy"]
    assert "are float32 on cpu, and would become bfloat16 on cpu" in first["dtype"]
    assert "to_empty(device='cpu')" in first["no values"]
    assert "call fully_shard() on it as well" in first["state around"]


def test_what_others_would_do_wrong_is_refused() -> None:
    first, other = results("refused_by_others")
    assert first == other
    assert "tr.checkpoint.Checkpointer" in first["optimizer's state"]
    assert "let wrap make a tr.FullyShardedDataParallel" in first["pipeline"]


def test_meshes_of_torch_are_taken(tmp_path: Path) -> None:
    from support import fully_sharding

    bodies: dict[Any, Any] = {"mesh": partial(fully_sharding.on_torchs_mesh, folder=tmp_path)}
    expected = fully_sharding.alone("kept_whole", 2)
    for state in whole(run_in_one_world(2, bodies, 60.0)["mesh"]):
        assert max(fully_sharding.differences(state, expected)) < NEAR


def test_a_model_stays_the_object_that_it_was() -> None:
    for told in results("same_object"):
        assert all(told.values()), told


def test_states_go_to_files_and_back(tmp_path: Path) -> None:
    from support import fully_sharding

    bodies: dict[Any, Any] = {"saved": partial(fully_sharding.saved, directory=tmp_path)}
    for differences in whole(run_in_one_world(2, bodies, 60.0)["saved"]):
        assert max(differences) == 0.0


@pytest.mark.parametrize("gathers", [False, True])
def test_parameters_are_whole_while_they_are_asked_to_be(gathers: bool) -> None:
    assert all(map(all, results(("shown", gathers))))


def test_policies_select_dtypes() -> None:
    import torch

    for seen in results("precise"):
        assert seen.pop("uncast") != "nothing"
        assert seen == {
            "weight": torch.bfloat16,
            "inner": torch.bfloat16,
            "second": torch.float32,
            "output": torch.float32,
            "gradient": torch.float32,
        }


def test_ignored_parameters_stay_each_ranks_own() -> None:
    (first, low, _), (second, high, _) = results("ignored")
    assert first
    assert second
    assert low != high


@pytest.mark.parametrize("spelling", ["function", "wrapper"])
@pytest.mark.parametrize("gathers", [False, True])
def test_experts_that_a_rank_has_not_used_count_as_zeros(gathers: bool, spelling: str) -> None:
    for gradients, wanted, is_none in results(("unused", gathers, spelling)):
        assert is_none
        for name, each in wanted.items():
            assert (gradients[name] - each).abs().max() < 1e-5, name


def test_methods_compute_with_whole_parameters() -> None:
    for differences in results("by_method"):
        assert max(map(abs, differences)) < 1e-10


def test_models_of_nn_train_as_one_process_does() -> None:
    for differences in results("of_nn"):
        assert max(differences) < 1e-6


@cache
def settings() -> dict[Any, list[Any]]:
    from support import fsdp_settings

    bodies: dict[Any, Any] = {
        name: getattr(fsdp_settings, name) for name in ("reset", "told", "hinted")
    }
    for gathers in (False, True):
        bodies["divided", gathers] = partial(fsdp_settings.divided, gathers=gathers)
    return run_in_one_world(2, bodies, 60.0)


@pytest.mark.parametrize("gathers", [False, True])
def test_a_factor_divides_the_sums_of_gradients(gathers: bool) -> None:
    for differences in whole(settings()["divided", gathers]):
        assert differences
        assert max(differences) < 1e-5


def test_a_factor_divides_the_sums_over_replicas_too() -> None:
    from support import fsdp_settings

    bodies = {"all": fsdp_settings.divided_over_replicas}
    for differences in whole(run_in_one_world(4, bodies, 60.0)["all"]):
        assert max(differences, default=0) < 1e-5


def test_a_reset_drops_what_a_broken_pass_has_left() -> None:
    assert all(map(all, whole(settings()["reset"])))


def test_hints_of_torchs_make_no_difference() -> None:
    assert all(map(all, whole(settings()["hinted"])))


def test_settings_that_are_not_supported_are_refused_by_name() -> None:
    first, other = whole(settings()["told"])
    assert first == other
    for name, text in first.items():
        assert text.startswith("ConfigError: "), (name, text)
    for name in ("set_custom_all_gather", "set_all_reduce_hook", "set_symm_mem_for_comm"):
        assert f"{name}() is torch's, and not supported by tr.fully_shard" in first[name]
    assert "a Linear is not sharded" in first["share_comm_ctx"]


def test_modules_have_all_methods_of_torchs_class() -> None:
    from support import fsdp_settings

    import torsh_runtime as tr

    asked = fsdp_settings.of_torch()
    assert len(asked) > 10
    for name, parameters in asked.items():
        assert hasattr(tr.FSDPModule, name), f"torch's {name}() is missing"
        assert fsdp_settings.parameters_of(tr.FSDPModule, name) == parameters, name
    text = Path("docs/sharded-data-parallel.md").read_text()
    assert [each for each in asked if f"`{each}()`" not in text] == []
