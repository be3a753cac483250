"""The public names: a change here is a change for users, and stands in the changelog."""

from __future__ import annotations

import inspect

import torsh_runtime as tr

NAMES = {
    "BackendType",
    "BackendUnavailable",
    "CheckpointError",
    "CommAborted",
    "CommError",
    "CommMismatch",
    "CommTimeout",
    "ConfigError",
    "PeerLost",
    "ProcessGroup",
    "ReduceOp",
    "StoreError",
    "StoreTimeout",
    "TorshError",
    "Work",
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "barrier",
    "broadcast",
    "destroy_process_group",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_initialized",
    "record",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "report_step",
}


def test_exported_names() -> None:
    assert set(tr.__all__) == NAMES
    for name in NAMES:
        assert getattr(tr, name).__doc__, f"{name} has no docstring"


def test_signatures_are_those_of_torch_distributed() -> None:
    expected = {
        "all_reduce": ["tensor", "op", "group", "async_op"],
        "broadcast": ["tensor", "src", "group", "async_op"],
        "all_gather": ["tensor_list", "tensor", "group", "async_op"],
        "all_gather_into_tensor": ["output_tensor", "input_tensor", "group", "async_op"],
        "reduce_scatter": ["output", "input_list", "op", "group", "async_op"],
        "reduce_scatter_tensor": ["output", "input", "op", "group", "async_op"],
        "barrier": ["group", "async_op"],
        "get_rank": ["group"],
        "get_world_size": ["group"],
        "destroy_process_group": ["group"],
    }
    for name, parameters in expected.items():
        assert list(inspect.signature(getattr(tr, name)).parameters) == parameters


def test_every_optional_argument_defaults_to_the_default_group_and_a_blocking_call() -> None:
    for name in ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier"):
        parameters = inspect.signature(getattr(tr, name)).parameters
        assert parameters["group"].default is None
        assert parameters["async_op"].default is False
