"""context_attention as attention of transformers: one process's numbers, or refused by name."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from support.forked import Raised
from support.worlds import run_processes

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
    pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="needs transformers"),
]
REFUSALS = [
    "BloomForCausalLM has an attention of its own",
    "T5ForConditionalGeneration has attention between an encoder's sequence and a decoder's",
    "no attention that can be replaced",
    "Lfm2ForCausalLM has a convolution over tokens (Conv1d)",
    "the model computes with its attention_mask (__getitem__)",
    "dropout of weights (0.1",
    "MistralForCausalLM has no position_ids",
    "position_ids that go from 7 to 4",
    "16 keys for 8 queries",
    "a mask of its own (attention_mask of shape (2, 1, 8, 8))",
    "rotations (longrope) that depend on the longest position, [16, 12] on its ranks beside 14",
    "a mask by chunked_overlay",
    "a bias by position (position_bias)",
    "RobertaForMaskedLM has positions from 2 on, and was given 0",
    "CLIPModel has an input without a sequence (pixel_values)",
    "Linear has no set_attn_implementation()",
    "neither input_ids nor inputs_embeds",
    "attention_mask of shape (2, 1, 8, 8)",
    "cu_seq_lens_q [0, 3, 16] are not cumulative lengths",
    "no token of the batch has a label, on any of 2 ranks",
]


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    """Of each rank. They are forked: what is loaded here need not be loaded by each."""
    from support import lean_transformers, transformers_attention

    assert lean_transformers.hf
    found = run_processes(2, transformers_attention.all_of_it, 300.0)
    for result in found:
        assert not isinstance(result, Raised), repr(result.error)
    return found


def test_models_are_the_same_by_a_name_alone(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert all(each < 1e-6 for each in result["by name"])


def test_a_models_own_loss_is_of_all_tokens(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert all(each < 1e-6 for each in result["own loss"])


def test_others_are_refused_on_all_ranks(results: list[dict[str, Any]]) -> None:
    for result in results:
        for text, expected in zip(result["refused"], REFUSALS, strict=True):
            assert text.startswith("ConfigError"), text
            assert expected in text


def test_families_train_as_in_one_process(results: list[dict[str, Any]]) -> None:
    from support import context_families

    for result in results:
        assert list(result["families"]) == list(context_families.FAMILIES)
        for name, apart in result["families"].items():
            assert not isinstance(apart, str), f"{name}: {apart}"
            assert apart < 1e-9, name
