"""Answers that no etcd gives."""

from __future__ import annotations

from typing import Any

import pytest

from torsh_runtime.store.etcd.messages import sound

KV = {"key": "YQ==", "value": "YQ==", "mod_revision": "3"}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"header": {"revision": "7", "cluster_id": "1"}, "kvs": [KV], "TTL": "5"},
        {"responses": [{"response_range": {"kvs": [KV]}}, {"response_put": {}}]},
        {"events": [{"kv": KV}, {"type": "DELETE", "kv": KV}]},
    ],
)
def test_an_answer_of_etcds_is_taken_as_it_is(answer: dict[str, Any]) -> None:
    assert sound(answer) is answer


@pytest.mark.parametrize(
    "answer",
    [
        "ok",
        {"header": None},
        {"header": {"revision": "x"}},
        {"kvs": None},
        {"kvs": [{}]},
        {"responses": [3]},
        {"events": [{}]},
        {"TTL": "long"},
        {"header": {"revision": float("inf")}},  # JSON's 1e400
        {"TTL": float("nan")},
    ],
)
def test_an_answer_of_somebody_elses_is_none(answer: object) -> None:
    with pytest.raises(ConnectionError, match="does not speak as etcd"):
        sound(answer)
