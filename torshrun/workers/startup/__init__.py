"""The directory whose sitecustomize.py the workers' Python runs before their script."""

from __future__ import annotations

import os
from collections.abc import Mapping


def python_path(environ: Mapping[str, str]) -> str:
    """PYTHONPATH for a worker that inherits `environ`: this directory first, and only once."""
    here = os.path.dirname(__file__)  # noqa: PTH120  (as sitecustomize.py compares it)
    inherited = environ.get("PYTHONPATH", "")
    entries = inherited.split(os.pathsep) if inherited else []
    return os.pathsep.join([here, *(entry for entry in entries if entry != here)])
