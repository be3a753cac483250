"""Meshes over two nodes of two ranks each."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from support.hosts import needs_hosts, plugged, run_on_hosts

import torsh_runtime as tr
from torsh_runtime.comm.choosing import backend_type
from torsh_runtime.comm.default import default_group

pytestmark = [needs_hosts, pytest.mark.netns]


class Said(logging.Handler):
    """What was logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def work(rank: int) -> Any:
    logging.getLogger("torsh_runtime").addHandler(said := Said())
    good = tr.init_device_mesh({"dp": 2, "tp": 2}, comm_strategy={"dp": "ring"})
    assert good.is_in_node("tp")
    assert not good.is_in_node("dp")
    tr.all_reduce(value := np.ones(1), group=good.get_group("dp"))
    assert value == 2
    assert said.messages == []
    bad = tr.DeviceMesh((2, 2), ("dp", "tp"), tr.new_group([0, 2, 1, 3], sort_ranks=False))
    for _ in range(2):
        assert bad.is_in_node("dp")
        bad.get_group("tp")
    (message,) = said.messages
    assert "'tp', goes over several nodes" in message
    session, kind = default_group().session, backend_type("native")
    with pytest.raises(tr.ConfigError, match="TORSH_ALGORITHM"):  # a group knows its strategy
        session.group("own", range(4), kind, 20.0, "ring" if rank < 2 else "tree")
    tr.barrier()


def test_axes_in_nodes_and_between_them() -> None:
    with plugged(2) as hosts:
        results = run_on_hosts([hosts[0], hosts[0], hosts[1], hosts[1]], work, 60.0)
    assert [each if each is None else each.error.trace for each in results] == [None] * 4
