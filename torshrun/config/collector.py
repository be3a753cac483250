"""--otlp: where metrics and events are sent, as OpenTelemetry's variables name it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

from torsh_runtime.errors import ConfigError
from torshrun.config.job import Collector
from torshrun.config.request import Request
from torshrun.config.values import url

OTLP_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS")
_ENDPOINT, _HEADERS = OTLP_VARIABLES


def collector(request: Request, environ: Mapping[str, str]) -> Collector | None:
    """Return the collector of --otlp.

    Return None without the option: variables alone may be meant for the workers.
    """
    place = request["otlp"]
    if place is None:
        return None
    if place == "env":
        text = environ.get(_ENDPOINT, "")
        if not text:
            raise request.refused("otlp", f"{_ENDPOINT} is not set: set it, or give a URL")
        try:
            place = url(text)
        except ConfigError as error:
            raise ConfigError(f"{_ENDPOINT}: {error}") from None
    return Collector(url=place, headers=_headers(environ.get(_HEADERS, "")))


def _headers(text: str) -> tuple[tuple[str, str], ...]:
    """Return the headers in "name=value,name=value", each quoted as in a URL.

    Raise ConfigError without showing what is wrong: it may be a credential.
    """
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = (unquote(piece.strip()) for piece in part.partition("="))
        is_name = re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name)
        if not (equals and is_name and re.fullmatch(r"[ -~]*", value)):
            raise ConfigError(f"{_HEADERS} is not like name=value,name=value, quoted as in a URL")
        found.append((name, value))
    return tuple(found)
