"""Python and the core have the same numbers for the same names."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from torsh_runtime import enumerations, status
from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.monitoring import layout

SCRIPT = Path(__file__).parents[2] / "cmake" / "enumerations.py"


@pytest.fixture(scope="module")
def script() -> Any:
    """What writes the core's headers."""
    spec = importlib.util.spec_from_file_location("write_enumerations", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def changed(source: ModuleType, **names: object) -> Any:
    """A copy of the module that differs in these names."""
    copy = ModuleType(source.__name__)
    copy.__dict__.update(vars(source), **names)
    return copy


def swapped(names: tuple[str, ...], one: str, other: str) -> tuple[str, ...]:
    return tuple({one: other, other: one}.get(name, name) for name in names)


def test_the_core_is_built_of_the_enumerations_that_python_has(script: Any) -> None:
    told = script.digest(script.header(enumerations))
    assert told == _native.NUMBERING, "the core is older than torsh_runtime/enumerations.py: build"


def test_the_core_has_the_numbers_of_the_order_in_python(script: Any) -> None:
    assert "gather = 4,\n  scatter = 5," in script.header(enumerations)
    order = swapped(enumerations.OPERATIONS, "gather", "scatter")
    text = script.header(changed(enumerations, OPERATIONS=order))
    assert "scatter = 4,\n  gather = 5," in text
    assert script.digest(text) != _native.NUMBERING


@pytest.mark.parametrize(
    "change",
    [
        lambda old: {"NOTED": old.NOTED[::-1]},
        lambda old: {"ITEM_BYTES": {**old.ITEM_BYTES, "int8": 2}},
        lambda old: {"DTYPES": swapped(old.DTYPES, "float16", "bfloat16")},
        lambda old: {"PATHS": swapped(old.PATHS, "mpi", "gloo")},
        lambda old: {"CommunicationStrategy": [*old.CommunicationStrategy][::-1]},
        lambda old: {"OF_LIST": -3},
    ],
    ids=["noted", "bytes", "dtypes", "paths", "strategies", "list"],
)
def test_each_change_is_one_of_the_core(script: Any, change: Callable[[Any], Any]) -> None:
    text = script.header(changed(enumerations, **change(enumerations)))
    assert script.digest(text) != _native.NUMBERING


def test_members_out_of_order_cannot_be_built(script: Any) -> None:
    with pytest.raises(ValueError, match="must count its members from 0"):
        script.members(enumerations.IntEnum("Odd", {"ONE": 1, "ZERO": 0}))


def test_the_layouts_in_shared_memory_are_compared_word_by_word(script: Any) -> None:
    found = dict(script.of_progress(status))
    assert [found[f"offsetof(Progress, {name}_)"] for name in ("turn", "group")] == [0, 24]
    found = dict(script.of_recording(layout))
    assert found["offsetof(Entry, came)"] == 48
    assert found["sizeof(Recording)"] == _native.RECORDING_BYTES
    assert script.checks([("sizeof(Entry)", 64)]) == "static_assert(sizeof(Entry) == 64);\n"


def test_the_build_needs_the_standard_library_alone(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-I", "-S", SCRIPT, tmp_path], check=True, timeout=60)
    assert {file.name for file in tmp_path.rglob("*.*")} == {
        "enumerations.hpp",
        "numbering.inc",
        "progress_layout.inc",
        "recorder_layout.inc",
    }
