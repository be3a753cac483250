"""A script to name, and the two steps from texts to a job in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from torshrun.config.request import Request, gather
from torshrun.config.resolve import Resolution, resolve

Asked = Callable[..., Request]
Made = Callable[..., Resolution]


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


@pytest.fixture
def asked(script: str) -> Asked:
    """asked(environ, option=text, …) with a script named on the command line."""

    def ask(environ: Mapping[str, str] | None = None, **options: str | None) -> Request:
        return gather(options, script, (), environ or {})

    return ask


@pytest.fixture
def made(asked: Asked) -> Made:
    """made(environ, option=text, …): what such a command line resolves to."""

    def make(environ: Mapping[str, str] | None = None, **options: str | None) -> Resolution:
        return resolve(asked(environ, **options), environ or {}, new_id=lambda: "a new name")

    return make
