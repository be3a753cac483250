"""--otlp: where metrics and events are sent, and what OpenTelemetry's variables say of it."""

from __future__ import annotations

import pytest

from torsh_runtime.errors import ConfigError
from torshrun.config.collector import collector
from torshrun.config.job import Collector
from torshrun.config.request import gather

ENDPOINT, HEADERS = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS"


def made(otlp: str | None, **environ: str) -> Collector | None:
    given = {} if otlp is None else {"otlp": otlp}
    return collector(gather(given, "train.py", (), environ), environ)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:4318",
        "https://collector",
        "http://10.0.0.1:4318",
        "http://[::1]:4318",
        "http://[fe80::1]",
        "https://prometheus.example.org/api/v1/otlp",
    ],
)
def test_urls(url: str) -> None:
    assert made(url) == made(f"{url}/") == Collector(url=url)


@pytest.mark.parametrize(
    "text",
    [
        *("", "collector:4318", "ftp://collector", "http://", "http://a b", "http://a:b"),
        *("http://a:0", "http://a:70000", "http://name:word@a:1", "http://a?x=1", "http://a/#x"),
        *("http://a\r\nx: y", "http://a/\x1b[2J"),
    ],
)
def test_what_is_no_url(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--otlp: "):
        made(text)


def test_variables_alone_switch_nothing_on() -> None:
    assert made(None, **{ENDPOINT: "http://a:1", HEADERS: "x=y"}) is None
    assert made("env", **{ENDPOINT: "http://a:1/"}) == Collector(url="http://a:1")
    assert made("http://b:2", **{ENDPOINT: "http://a:1"}) == Collector(url="http://b:2")
    assert made(None, TORSH_OTLP="http://a:1") == Collector(url="http://a:1")


def test_headers_are_quoted_and_not_shown() -> None:
    found = made("http://a", **{HEADERS: " authorization=Bearer%20abc , x=y=z ,"})
    assert found is not None
    assert found.headers == (("authorization", "Bearer abc"), ("x", "y=z"))
    assert "abc" not in repr(found)


@pytest.mark.parametrize("text", ["secret", "=secret", "a=b%0d%0asecret", "a b=secret", "a=ü"])
def test_headers_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match=HEADERS) as caught:
        made("http://a", **{HEADERS: text})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("environ", [{}, {ENDPOINT: ""}, {ENDPOINT: "collector"}])
def test_an_endpoint_that_is_none(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=ENDPOINT):
        made("env", **environ)
