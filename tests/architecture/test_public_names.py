"""The public names: a change of torsh_runtime/__init__.pyi is one for users."""

from __future__ import annotations

import ast
import inspect
import textwrap
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from support.public_names import PACKAGES, public_objects

import torsh_runtime as tr

STUB = Path(tr.__file__).with_name("__init__.pyi")


def test_type_checkers_and_programs_see_the_same_names() -> None:
    seen = {
        each.asname: each.name
        for statement in ast.parse(STUB.read_text()).body
        if isinstance(statement, ast.ImportFrom)
        for each in statement.names
    }
    assert all(public == name for public, name in seen.items()), "only NAME as NAME is public"
    assert set(tr.__all__) == set(seen)
    assert set(seen) <= set(dir(tr))
    with pytest.raises(AttributeError, match="no attribute 'get_rankk'"):
        getattr(tr, "get_rankk")  # noqa: B009


def test_every_name_is_there_and_documented() -> None:
    for name in tr.__all__:
        assert getattr(tr, name).__doc__, f"{name} has no docstring"


@pytest.mark.parametrize("name", ["", *PACKAGES], ids=lambda name: name or "torsh_runtime")
def test_each_has_an_example_and_tells_what_it_raises(name: str) -> None:
    """What a function itself raises: errors of what it calls are in the text where they matter."""
    chosen = {
        full: each
        for full, each in public_objects().items()
        if full.rpartition(".")[0] == name and (inspect.isroutine(each) or inspect.isclass(each))
    }
    assert chosen
    without = [
        full for full, each in chosen.items() if "Example:" not in (inspect.getdoc(each) or "")
    ]
    assert not without
    silent = [full for full, each in chosen.items() if raises(each) and not tells(each)]
    assert not silent


def raises(function: Any) -> bool:
    """Whether a `raise` of an error stands in the function's own text."""
    if not inspect.isfunction(function):
        return False
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return any(isinstance(node, ast.Raise) and node.exc for node in ast.walk(tree))


def tells(function: Any) -> bool:
    """Whether its docstring has errors."""
    text = inspect.getdoc(function) or ""
    return "Raises:" in text or "Error" in text


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
        "all_gather_object": "object_list obj group async_op",
        "gather_object": "obj object_gather_list dst group group_dst async_op",
        "broadcast_object_list": "object_list src group device group_src async_op",
        "scatter_object_list": "scatter_object_output_list scatter_object_input_list src group "
        "group_src async_op",
        "send_object_list": "object_list dst group device group_dst use_batch",
        "recv_object_list": "object_list src group device group_src use_batch",
        "new_group": "ranks timeout backend pg_options use_local_synchronization group_desc "
        "device_id sort_ranks",
        "new_subgroups": "group_size group timeout backend pg_options group_desc",
        "new_subgroups_by_enumeration": "ranks_per_subgroup_list timeout backend pg_options "
        "group_desc",
        "split_group": "parent_pg split_ranks timeout pg_options group_desc backend",
        "shrink_group": "ranks_to_exclude group shrink_flags pg_options",
        "all_gather_single": "output_tensor input_tensor group async_op",
        "reduce_scatter_single": "output input op group async_op",
        "all_reduce_coalesced": "tensors op group async_op",
        "all_gather_coalesced": "output_tensor_lists input_tensor_list group async_op",
        "init_device_mesh": "device_type mesh_shape mesh_dim_names backend_override comm_strategy",
        "get_backend_config": "group",
        "get_default_backend_for_device": "device",
        "get_node_local_rank": "fallback_rank",
        "is_backend_available": "backend",
        "supports_complex": "reduceOp",
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


def test_the_version_is_the_distributions() -> None:
    assert tr.__version__ == version("torshrun")


def test_every_optional_argument_defaults_to_the_default_group_and_a_blocking_call() -> None:
    for name in tr.__all__:
        if not inspect.isfunction(function := getattr(tr, name)):
            continue
        parameters = inspect.signature(function).parameters
        if name not in ("get_group_rank", "get_global_rank") and "group" in parameters:
            assert parameters["group"].default is None, name
        if "async_op" in parameters:
            assert parameters["async_op"].default is False, name
