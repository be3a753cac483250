"""DeepSpeed configurations: every key is accounted for, and what contradicts itself is refused."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.deepspeed import DeepSpeedConfig, DeepSpeedIntegration
from torsh_runtime.integrations.deepspeed.keys import Fate, markdown
from torsh_runtime.integrations.deepspeed.reading import TABLE
from torsh_runtime.parallel.ddp import BucketConfig
from torsh_runtime.parallel.fsdp.config import BackwardPrefetch, ShardingStrategy

DOCS = Path(__file__).parents[4] / "docs" / "deepspeed.md"
BATCH = {"train_micro_batch_size_per_gpu": 4}
ADAM = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto"}}
SHAPES: dict[str, dict[str, Any]] = {
    "basic": {
        "train_batch_size": 8,
        "steps_per_print": 100,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.8, 0.999], "eps": 1e-8}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-3}},
        "gradient_clipping": 1.0,
        "prescale_gradients": False,
        "wall_clock_breakdown": False,
        "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2},
    },
    "stage 2 with offloading": {
        **BATCH,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "allgather_partitions": True,
            "allgather_bucket_size": 2e8,
            "reduce_scatter": True,
            "reduce_bucket_size": 2e8,
            "overlap_comm": True,
            "contiguous_gradients": True,
        },
    },
    "stage 3 of transformers": {
        "train_batch_size": "auto",
        **BATCH,
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16},
        "bf16": {"enabled": "auto"},
        "optimizer": {**ADAM, "params": {**ADAM["params"], "lr": 3e-5}},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": "cpu", "pin_memory": True},
            "offload_optimizer": {"device": "none"},
            "sub_group_size": 1e9,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_max_live_parameters": 1e9,
            "stage3_max_reuse_distance": 1e9,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
    },
    "switched off": {
        **BATCH,
        "amp": {"enabled": False},
        "tensorboard": {"enabled": False},
        "flops_profiler": {"enabled": True, "profile_step": 1, "output_file": None},
        "comms_logger": {"enabled": True, "prof_ops": ["all_reduce"]},
        "activation_checkpointing": {"partition_activations": False, "number_checkpoints": None},
        "sparse_gradients": False,
        "tensor_parallel": {"autotp_size": 1},
        "curriculum_learning": {"enabled": False, "schedule_config": {"difficulty_step": 8}},
        "compression_training": {
            "weight_quantization": {
                "shared_parameters": {"enabled": False, "quantize_groups": 1},
                "different_groups": {"any": {"params": {"start_bits": 8}, "modules": ["a"]}},
            }
        },
    },
}


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        DeepSpeedConfig(config)
    return str(caught.value)


@pytest.mark.parametrize("name", SHAPES)
def test_configurations_of_usual_shapes_are_carried_out(name: str, tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(SHAPES[name]))
    config = DeepSpeedConfig.from_file(path)
    fsdp = DeepSpeedIntegration(config).to_fsdp_config()
    kinds = [ShardingStrategy.NO_SHARD, *[ShardingStrategy.SHARD_GRAD_OP] * 2]
    assert fsdp.sharding_strategy is [*kinds, ShardingStrategy.FULL_SHARD][config.stage]


def test_the_documentation_has_the_table_of_keys() -> None:
    _, _, told = DOCS.read_text().partition("keys.py -->\n")
    assert told == markdown(TABLE)


def test_no_key_is_in_the_table_twice() -> None:
    titles = [title for entry in TABLE for title in entry.titles()]
    assert len(titles) == len({*titles})
    assert all(entry.why for entry in TABLE)


def test_values_that_ask_for_nothing_are_accepted_of_every_refused_key() -> None:
    for entry in TABLE:
        if entry.fate is Fate.REFUSED and "*" not in entry.section:
            for title, idle in itertools.product(entry.titles(), entry.idle):
                DeepSpeedConfig(nested(title, idle))


def test_every_refused_key_is_refused_by_its_path() -> None:
    for entry in TABLE:
        for title, kind in zip(entry.titles(), entry.kinds().values(), strict=False):
            if entry.fate is Fate.REFUSED and "*" not in title:
                asked = {"enabled": True} if kind.startswith("dict") else 7
                asked = True if kind.startswith("bool") and True not in entry.idle else asked
                asked = False if kind.startswith("bool") and True in entry.idle else asked
                asked = "sum" if kind.startswith("str") else asked
                first = title.split(".")[0]
                told = refusal(nested(title, asked))
                assert f"{first} is refused" in told or f"{title} is refused" in told, told


def nested(title: str, value: Any) -> dict[str, Any]:
    *sections, name = title.split(".")
    found = {name: value}
    for section in reversed(sections):
        found = {section: found}
    return found


@pytest.mark.skipif(not importlib.util.find_spec("deepspeed"), reason="needs deepspeed")
def test_the_table_has_all_keys_of_the_installed_deepspeed() -> None:
    root = Path(str(importlib.util.find_spec("deepspeed").origin)).parent  # type: ignore[union-attr]
    titles = {title for entry in TABLE for title in entry.titles()}
    for section, file, name in (
        ("zero_optimization", "zero/config.py", "DeepSpeedZeroConfig"),
        ("zero_optimization.offload_param", "zero/offload_config.py", "OffloadParamConfig"),
        ("zero_optimization.offload_optimizer", "zero/offload_config.py", "OptimizerConfig"),
        ("bf16", "precision_config.py", "DeepSpeedBF16Config"),
        ("fp16", "precision_config.py", "DeepSpeedFP16Config"),
    ):
        _, _, body = (root / "runtime" / file).read_text().partition(f"{name}(DeepSpeedConfigModel")
        names = re.findall(r"^    ([a-z]\w*): ", body.split("\nclass ")[0], re.MULTILINE)
        assert len(names) > 4
        assert [each for each in names if f"{section}.{each}" not in titles] == []


def test_unknown_keys_are_named_with_the_nearest_known_one() -> None:
    told = refusal({"train_bach_size": 8, "zero_optimization": {"stage3_max_live_parameter": 1}})
    assert "train_bach_size is no key of it (did you mean train_batch_size?)" in told
    assert "(did you mean stage3_max_live_parameters?)" in told
    told = refusal({"loss_scale": 0, "compression_training": {"weight_quantisation": {}}})
    assert "loss_scale is no key of it (there is fp16.loss_scale)" in told
    assert "compression_training.weight_quantisation is no key of it (did you mean" in told


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"train_batch_size": "8"}, 'train_batch_size must be a whole number, not "8"'),
        ({"train_batch_size": 8.5}, "train_batch_size must be a whole number, not 8.5"),
        ({"train_batch_size": True}, "train_batch_size must be a whole number, not true"),
        ({"fp16": True}, "fp16 must be an object {…}, not true"),
        ({"fp16": "auto"}, 'fp16 must be an object {…}, not "auto"'),
        ({"fp16": {"enabled": 1}}, "fp16.enabled must be true or false, not 1"),
        ({"fp16": {"enabled": "yes"}}, "fp16.enabled must be true or false"),
        ({"optimizer": {"type": "Adam", "params": [1]}}, "optimizer.params must be an object"),
        ({"optimizer": {"type": "Adam", "params": {"betas": 1}}}, "betas must be a list"),
        ({"train_batch_size": 0}, "train_batch_size is 0, and must be 1 or more"),
        (
            {"train_batch_size": 0, "gradient_clipping": -1.0},
            "must be 1 or more; gradient_clipping is -1.0",
        ),
        ({"zero_optimization": {"stage": 4}}, 'must be {"stage": 0}, 1, 2 or 3'),
        ({"zero_optimization": True}, 'must be {"stage": 0}, 1, 2 or 3'),
        (
            {"fp16": {"enabled": True}, "bf16": {"enabled": True}},
            "fp16 and bf16 are enabled together",
        ),
        (
            {"torch_autocast": {"enabled": True}, "bf16": {"enabled": True}},
            "bf16 and torch_autocast are enabled together",
        ),
        (
            {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
            "offload_param needs stage 3, and the stage is 2",
        ),
        ({"zero_optimization": {"cpu_offload": True}}, "offload_optimizer needs stage 1, 2 or 3"),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
            "device is 'nvme', and only cpu and none are possible",
        ),
        ({"communication_data_type": "int8"}, "communication_data_type is 'int8'"),
        ({"optimizer": {"type": "Lamb", "params": {"max_coeff": 1}}}, "optimizer.type 'Lamb' is"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}, "optimizer.params.lr are"),
        (
            {
                "train_batch_size": 10,
                "train_micro_batch_size_per_gpu": 4,
                "gradient_accumulation_steps": 1,
            },
            "train_batch_size 10 is no multiple of",
        ),
        ({"checkpoint": {"tag_validation": "Perhaps"}}, "checkpoint.tag_validation is 'perhaps'"),
        ({"fp16": {"enabled": float}}, "what JSON cannot say"),
    ],
)
def test_wrong_values_are_refused(config: dict[str, Any], told: str) -> None:
    assert told in refusal(config)


def test_buckets_of_nothing_are_of_the_usual_size() -> None:
    config = DeepSpeedConfig({**BATCH, "zero_optimization": {"reduce_bucket_size": 0}})
    assert config.to_ddp_config().bucket_size_mb == BucketConfig().bucket_size_mb


def test_comm_is_a_module_of_torch_distributeds_names() -> None:
    distributed = pytest.importorskip("torch").distributed
    from torsh_runtime.integrations import deepspeed
    from torsh_runtime.integrations.deepspeed import comm

    assert deepspeed.comm is comm
    assert comm.ReduceOp is distributed.ReduceOp


def test_files_that_are_no_configuration_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    for text, told in (
        ("{'a': 1}", "is no JSON: Expecting property name"),
        ('{"fp16": {}, "fp16": {}}', "the key 'fp16' is there twice"),
        ("[1, 2]", "must be an object {…}, and not [1, 2]"),
        ("[" * 100_000, "is no JSON"),
        ("", "is no JSON"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=re.escape(told)):
            DeepSpeedConfig.from_file(path)
    path.write_bytes(b"\xff\xfe{}")
    for missing in (path, tmp_path / "none.json", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            DeepSpeedConfig.from_file(missing)


def test_batch_sizes_follow_from_each_other() -> None:
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    sizes = (24, 4, 3)
    for present in itertools.product((True, False), repeat=3):
        given: dict[str, Any] = {
            name: size if is_there else "auto"
            for name, size, is_there in zip(names, sizes, present, strict=True)
        }
        config = DeepSpeedConfig(given)
        if present[:2] == (False, False):
            with pytest.raises(ConfigError, match="has neither train_batch_size nor train_micro"):
                config.batch_sizes(2)
        elif present == (True, False, False):
            assert config.batch_sizes(2) == (24, 12, 1)
        elif present == (False, True, False):
            assert config.batch_sizes(2) == (8, 4, 1)
        else:
            assert config.batch_sizes(2) == sizes
    with pytest.raises(ConfigError, match="do not multiply: train_batch_size 24, train_micro_b"):
        DeepSpeedConfig(dict(zip(names, sizes, strict=True))).batch_sizes(3)
    with pytest.raises(ConfigError, match="do not multiply: train_batch_size 9, on 2 ranks"):
        DeepSpeedConfig({"train_batch_size": 9}).batch_sizes(2)


def test_auto_takes_the_values_that_are_given() -> None:
    given = {**BATCH, "optimizer": ADAM, "bf16": {"enabled": "auto"}}
    config = DeepSpeedConfig(given, {"optimizer.params.lr": 1e-4, "bf16.enabled": True})
    assert config.get("optimizer.params") == {"lr": 1e-4}
    assert config.computed_dtype == "bfloat16"
    with pytest.raises(ConfigError, match=r"'fp16\.enabled', which is not \"auto\""):
        DeepSpeedConfig(BATCH, {"fp16.enabled": True})


def test_configurations_are_those_of_the_wrappers() -> None:
    zero = {"stage3_param_persistence_threshold": 1e4, "stage3_prefetch_bucket_size": 0}
    given = {
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, **zero},
        "activation_checkpointing": {"partition_activations": True},
        "communication_data_type": "fp32",
        "fp16": {"enabled": True, "loss_scale": 128},
    }
    config = DeepSpeedConfig(given)
    fsdp = config.to_fsdp_config()
    assert (fsdp.min_num_params, fsdp.backward_prefetch) == (10_000, BackwardPrefetch.NONE)
    assert fsdp.cpu_offload
    assert fsdp.activation_checkpointing
    assert fsdp.mixed_precision.dtypes() == ["float16", "float32", "float16"]
    assert config.loss_scale is not None
    assert config.loss_scale.static == 128
    with pytest.raises(ConfigError, match=r"neither ZeRO \(stage 3\) nor fp16"):
        config.to_ddp_config()
    zero = {"reduce_bucket_size": 2**20, "overlap_comm": True, "ignore_unused_parameters": False}
    ddp = DeepSpeedConfig({"zero_optimization": zero}).to_ddp_config()
    assert (ddp.bucket_size_mb, ddp.overlap_communication) == (4.0, True)
    assert not ddp.find_unused_parameters


def test_gradients_are_clipped_unless_the_configuration_says_0() -> None:
    assert DeepSpeedConfig({}).gradient_clipping == 1.0
    assert DeepSpeedConfig({"gradient_clipping": 0}).gradient_clipping == 0.0


def test_what_has_no_effect_can_be_asked_for() -> None:
    config = DeepSpeedConfig({"zero_optimization": {"stage": 1, "reduce_scatter": True}})
    assert config.without_effect == ["zero_optimization.reduce_scatter"]


def test_without_torch_configurations_are_read_and_engines_are_not_available() -> None:
    program = """
import sys
sys.modules["torch"] = None
import torsh_runtime.integrations.deepspeed as deepspeed
from torsh_runtime.errors import BackendUnavailable
assert deepspeed.DeepSpeedConfig({"train_batch_size": 2}).to_fsdp_config()
try:
    deepspeed.initialize(None, {})
except BackendUnavailable as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "DeepSpeed's engine is not available here. Install torch: `pip" in done.stdout
