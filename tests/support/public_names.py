"""The public names of the library and of its public packages."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import torsh_runtime as tr

PACKAGES = ("checkpoint", "compression", "elastic", "monitoring", "nn", "optim", "rpc")


def names_of(package: str) -> list[str]:
    """The names that the package takes from its modules, maybe only when they are used."""
    file = Path(tr.__file__).with_name(package) / "__init__.py"
    names = [
        each.asname or each.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torsh_runtime.")
        for each in node.names
    ]
    return sorted({name for name in names if not name.startswith("_")})


def public_objects() -> dict[str, Any]:
    """What programs use, by names like "all_reduce" and "rpc.rpc_sync"; modules are left out."""
    found = {name: getattr(tr, name) for name in tr.__all__}
    for package in PACKAGES:
        found |= {f"{package}.{name}": getattr(found[package], name) for name in names_of(package)}
    return {name: each for name, each in found.items() if not inspect.ismodule(each)}
