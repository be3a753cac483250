"""What each kind of value takes and refuses."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import ConfigError
from torshrun.config import values
from torshrun.config.job import StreamRule, Streams
from torshrun.config.options import OPTIONS

OUT, ERR, BOTH = Streams.STDOUT, Streams.STDERR, Streams.BOTH


def worker(rank: int, local_rank: int) -> WorkerEnv:
    return WorkerEnv(rank=rank, world_size=16, local_rank=local_rank, local_world_size=16)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (values.whole, "7\x1f", 7),
        (values.stream_rule, "3\x1f", StreamRule(everyone=BOTH)),
        (values.workers, "4", 4),
        (values.workers, "auto", "auto"),
        (values.nodes, "3", (3, 3)),
        (values.nodes, "1:4", (1, 4)),
        (values.port, "0", 0),
        (values.port, "65535", 65535),
        (values.seconds, "2.5", 2.5),
        (values.seconds, "0", 0.0),
        (values.seconds, "90s", 90.0),
        (values.seconds, "500ms", 0.5),
        (values.seconds, "5m", 300.0),
        (values.seconds, "1.5h", 5400.0),
        (values.seconds, "2d", 172800.0),
        (values.seconds, "1e2", 100.0),
        (values.size, "0", 0),
        (values.size, "1000", 1000),
        (values.size, "100M", 100 * 1024**2),
        (values.size, "1GiB", 1024**3),
        (values.size, "1.5k", 1536),
        (values.size, "1gb", 1000**3),
        (values.host, "[::1]", "::1"),
        (values.endpoints, "", ()),
        (values.endpoints, "node1:29400", (("node1", 29400, ""),)),
        (values.endpoints, "node1", (("node1", None, ""),)),
        (values.endpoints, "[::1]:0", (("::1", 0, ""),)),
        (values.endpoints, "http://a:1,https://b", (("a", 1, "http"), ("b", None, "https"))),
        (values.listening, "9400", ("127.0.0.1", 9400)),
        (values.listening, ":9400", ("", 9400)),
        (values.listening, "[::]:9400", ("::", 9400)),
        (values.flag, "1", True),
        (values.flag, "0", False),
        (values.flag, "On", True),
        (values.phrases, "", ()),
        (values.phrases, "apple,orange", ("apple", "orange")),
        (values.phrases, "a,,b,c", ("a,b", "c")),
        (values.ranks, "", None),
        (values.ranks, "0,2, 4-6", frozenset({0, 2, 4, 5, 6})),
        (values.signals, "SIGTERM,int", (signal.SIGTERM, signal.SIGINT)),
        (values.signals, "TERM,SIGTERM", (signal.SIGTERM,)),
        (values.rdzv_conf, "", {}),
        (
            values.rdzv_conf,
            "join_timeout=5m, is_host = true",
            {"join_timeout": 300.0, "is_host": True},
        ),
    ],
)
def test_values(parse: Callable[[str], Any], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (values.workers, "0", "1 to 65536 workers"),
        (values.workers, "99999999", "1 to 65536 workers"),
        (values.workers, "four", "auto, cpu and gpu"),
        (values.workers, "xpu", "cannot be counted"),
        (values.nodes, "1:2:3", "nor MIN:MAX"),
        (values.nodes, "4:2", "1 <= MIN <= MAX"),
        (values.nodes, "0", "1 <= MIN <= MAX"),
        (values.nodes, ":", "nor MIN:MAX"),
        (values.count, "-1", "-1 is negative"),
        (values.whole, "1_000", "not a whole number"),
        (values.whole, "٣", "not a whole number"),
        (values.whole, "9" * 5000, "not a whole number"),
        (values.seconds, "-1", "seconds >= 0"),
        (values.seconds, "inf", "seconds >= 0"),
        (values.seconds, "nan", "seconds >= 0"),
        (values.seconds, "1e300h", "seconds >= 0"),
        (values.seconds, "5 parsecs", "90s, 5m or 1h"),
        (values.size, "-1", "not a size"),
        (values.size, "100X", "100M, 1GiB or 1GB"),
        (values.host, "a b", "not a host's name"),
        (values.endpoints, "a:b", "not HOST:PORT"),
        (values.endpoints, "a:70000", "not a TCP port"),
        (values.listening, "host", "not a whole number"),
        (values.rdzv_backend, "etcd-v2", "etcd's version 3, give etcd"),
        (values.flag, "maybe", "neither true nor false"),
        (values.ranks, "3-1", "0,2,4-7"),
        (values.ranks, "1,", "0,2,4-7"),
        (values.ranks, "0-99999999999", "0,2,4-7"),
        (values.stream_rule, "4", "0 \\(nothing\\)"),
        (values.stream_rule, "0:1,3", "by rank \\(r8:3\\)"),
        (values.stream_rule, "0:1,0:2", "names 0 twice"),
        (values.signals, "", "not a signal's name"),
        (values.signals, "SIGTREM", "did you mean SIGTERM"),
        (values.signals, "SIGTERM,KILL", "SIGKILL is not possible"),
        (values.signals, "SIGSTOP", "SIGSTOP is not possible"),
        (values.rdzv_conf, "join_timout=3", "ssl_cert_key; did you mean join_timeout"),
        (values.rdzv_conf, "join_timeout", "not KEY=VALUE"),
        (values.rdzv_conf, "timeout=soon", "timeout: 'soon' is not"),
        (values.rdzv_conf, "keep_alive_max_attempt=-1", "is negative"),
        (values.template, "a\nb", "more than one line"),
        (
            values.template,
            "${node}",
            r"\$\{node\}: use \$\{role_name\}, \$\{rank\}, \$\{local_rank",
        ),
        (values.template, "$ ${rank}", r"write \$\$ for a dollar sign"),
        (values.template, "${rank", r"write \$\$ for a dollar sign"),
        (values.one_of("auto", "never"), "nevr", "one of auto, never; did you mean never"),
    ],
)
def test_refusals(parse: Callable[[str], Any], text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(text)


def test_a_handler_for_torchruns_agents_is_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "plugin-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: plugin\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[torchrun.handlers]\nzeus = plugin:handler\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"'zeus' is a rendezvous handler .* give c10d, etcd or"):
        values.rdzv_backend("zeus")
    with pytest.raises(ConfigError, match="'zeux' is not one of static, c10d, tcp, etcd"):
        values.rdzv_backend("zeux")


def test_streams_for_all_by_local_rank_and_by_rank() -> None:
    assert values.stream_rule("3").streams(worker(7, 1)) == BOTH
    rule = values.stream_rule("0:1,1:2,r8:3")
    assert [rule.streams(worker(rank, rank % 4)) for rank in (0, 1, 2, 8)] == [
        OUT,
        ERR,
        Streams.NONE,
        BOTH,
    ]
    assert values.stream_rule("0").streams(worker(0, 0)) == Streams.NONE


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
@given(text=st.text() | st.text("0123456789:-.,=r[]", max_size=12))
def test_any_text_is_a_value_or_a_configuration_error(option: Any, text: str) -> None:
    with contextlib.suppress(ConfigError):
        option.kind.parse(text)


@pytest.mark.parametrize("text", ["a..b", "a" * 64, "a" * 64 + ".org", "\u00e9" * 64, "a b"])
def test_what_no_resolver_takes_is_no_host(text: str) -> None:
    with pytest.raises(ConfigError, match="not a host's name or address"):
        values.host(text)
