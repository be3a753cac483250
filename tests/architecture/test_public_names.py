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
    "P2POp",
    "PeerLost",
    "PremulSum",
    "ProcessGroup",
    "ReduceOp",
    "StoreError",
    "StoreTimeout",
    "TorshError",
    "Work",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "coalesce",
    "destroy_process_group",
    "empty_shared",
    "gather",
    "gather_object",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "irecv",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "isend",
    "monitored_barrier",
    "new_group",
    "premul_sum",
    "record",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "report_step",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "split",
}


def test_exported_names() -> None:
    assert set(tr.__all__) == NAMES
    for name in NAMES:
        assert getattr(tr, name).__doc__, f"{name} has no docstring"


def test_signatures_are_those_of_torch_distributed() -> None:
    expected = {
        "all_reduce": "tensor op group async_op",
        "reduce": "tensor dst op group async_op group_dst",
        "broadcast": "tensor src group async_op group_src",
        "all_gather": "tensor_list tensor group async_op",
        "all_gather_into_tensor": "output_tensor input_tensor group async_op",
        "gather": "tensor gather_list dst group async_op group_dst",
        "scatter": "tensor scatter_list src group async_op group_src",
        "reduce_scatter": "output input_list op group async_op",
        "reduce_scatter_tensor": "output input op group async_op",
        "all_to_all": "output_tensor_list input_tensor_list group async_op",
        "all_to_all_single": "output input output_split_sizes input_split_sizes group async_op",
        "send": "tensor dst group tag group_dst",
        "recv": "tensor src group tag group_src",
        "isend": "tensor dst group tag group_dst",
        "irecv": "tensor src group tag group_src",
        "P2POp": "op tensor peer group tag group_peer",
        "batch_isend_irecv": "p2p_op_list",
        "barrier": "group async_op device_ids timeout",
        "monitored_barrier": "group timeout wait_all_ranks",
        "all_gather_object": "object_list obj group",
        "gather_object": "obj object_gather_list dst group group_dst",
        "broadcast_object_list": "object_list src group device group_src",
        "scatter_object_list": "scatter_object_output_list scatter_object_input_list src group "
        "group_src",
        "send_object_list": "object_list dst group device group_dst use_batch",
        "recv_object_list": "object_list src group device group_src use_batch",
        "new_group": "ranks timeout backend pg_options use_local_synchronization group_desc",
        "get_rank": "group",
        "get_world_size": "group",
        "get_backend": "group",
        "get_process_group_ranks": "group",
        "get_group_rank": "group global_rank",
        "get_global_rank": "group group_rank",
        "destroy_process_group": "group",
    }
    for name, parameters in expected.items():
        found = inspect.signature(getattr(tr, name)).parameters
        assert list(found) == parameters.split(), name


def test_every_optional_argument_defaults_to_the_default_group_and_a_blocking_call() -> None:
    for name in NAMES:
        if not inspect.isfunction(function := getattr(tr, name)):
            continue
        parameters = inspect.signature(function).parameters
        if name not in ("get_group_rank", "get_global_rank") and "group" in parameters:
            assert parameters["group"].default is None, name
        if "async_op" in parameters:
            assert parameters["async_op"].default is False, name
