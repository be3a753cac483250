"""Runs callbacks of operations so that what they raise harms no other operation."""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger("torsh_runtime")


def run_callback(callback: Callable[[], object]) -> None:
    """Run a callback, and log what it raises, also SystemExit: the caller serves others, too."""
    try:
        callback()
    except BaseException:
        _log.exception("a callback of an asynchronous operation has failed")
