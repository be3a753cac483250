"""The functions that stand for those of ray.util.collective."""

from __future__ import annotations

import pytest

pytest.importorskip("ray", reason="needs Ray (the extra ray)")
from ray.util import collective as given

from torsh_runtime.integrations.ray import collective


@pytest.mark.parametrize("name", collective.__all__)
def test_an_actor_that_is_sent_a_function_loads_our_module(name: str) -> None:
    assert getattr(collective, name).__module__ == collective.__name__


def test_what_is_not_here_is_of_ray_alone() -> None:
    missing = {name for name in given.__all__ if not hasattr(collective, name)}
    of_gpus = {name for name in given.__all__ if name.endswith("_multigpu")}
    assert missing == of_gpus | {"register_collective_backend"}
    with pytest.raises(
        AttributeError, match=r"import ray\.util\.collective for allreduce_multigpu"
    ):
        collective.allreduce_multigpu  # noqa: B018
