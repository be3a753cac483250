"""Writes the C++ of what Python and the compiled core number alike: `enumerations.py FOLDER`.

FOLDER/common/enumerations.hpp has the enumerations of torsh_runtime/enumerations.py, and
FOLDER/bindings/numbering.inc a fingerprint of it. The core does
not compile where its structures in shared memory differ from what Python reads: in
FOLDER/common/progress_layout.inc that is torsh_runtime/status.py, and in recorder_layout.inc
torsh_runtime/monitoring/layout.py. This needs the standard library alone.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from types import ModuleType

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from torsh_runtime import enumerations, status  # noqa: E402  (by the path above)
from torsh_runtime.monitoring import layout  # noqa: E402

_NAMES = {"bool": "boolean"}
"""What cannot be a name in C++."""
_HEAD = """\
// Made of torsh_runtime/enumerations.py: change that.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
"""


def main(folder: Path) -> None:
    """Write the files into `folder`."""
    text = header(enumerations)
    write(folder / "common/enumerations.hpp", text)
    write(folder / "bindings/numbering.inc", f'"{digest(text)}"\n')
    write(folder / "common/progress_layout.inc", checks(of_progress(status)))
    write(folder / "common/recorder_layout.inc", checks(of_recording(layout)))


def digest(text: str) -> str:
    """Give a fingerprint of what the core is built with, by which a test knows an old one."""
    return hashlib.sha256(text.encode()).hexdigest()


def write(file: Path, text: str) -> None:
    """Write the file if that changes it, since what includes it is compiled again then."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


def header(source: ModuleType) -> str:
    """Give the enumerations of the module as C++."""
    noted = (*source.OPERATIONS, *source.NOTED)
    sizes = ", ".join(map(str, source.ITEM_BYTES.values()))
    parts = [
        enumeration("OpKind", 8, numbered(source.OPERATIONS)),
        *(constant("uint64_t", f"noted_{name}", noted.index(name)) for name in source.NOTED),
        constant("size_t", "num_noted", len(noted)),
        enumeration("DType", 8, numbered(source.DTYPES)),
        constant("size_t", "num_dtypes", len(source.DTYPES)),
        f"constexpr std::array<std::uint8_t, num_dtypes> item_bytes{{{sizes}}};",
        enumeration("ReduceOp", 8, members(source.ReduceOp)),
        constant("size_t", "num_reduce_ops", len(source.ReduceOp)),
        constant("int32_t", "of_list_root", source.OF_LIST),
        enumeration("FailureKind", 32, members(source.FailureKind)),
        enumeration("Path", 8, numbered(("unknown", *source.PATHS))),
    ]
    strategy = enumeration("Strategy", 8, numbered(source.CommunicationStrategy))
    spaces = "namespace torsh {\n\n{}\n\n}\n", "namespace torsh::across {\n\n{}\n\n}\n"
    texts = "\n".join(parts), strategy
    filled = (space.replace("{}", text) for space, text in zip(spaces, texts, strict=True))
    return "\n".join([_HEAD, *filled])


def enumeration(name: str, bits: int, values: Mapping[str, int]) -> str:
    """Give the enumeration in C++."""
    rows = [f"  {spelt(each)} = {number}," for each, number in values.items()]
    return "\n".join([f"enum class {name} : std::uint{bits}_t {{", *rows, "};"])


def constant(kind: str, name: str, value: int) -> str:
    return f"constexpr std::{kind} {name} = {value};"


def numbered(names: Iterable[str]) -> dict[str, int]:
    """Number the names in their order."""
    return {name: number for number, name in enumerate(names)}


def members(kind: type[IntEnum]) -> dict[str, int]:
    """Give the numbers of an enumeration's members by their names; ValueError unless they count
    from 0 in the order of the names, which readers rely on."""
    found = {each.name: each.value for each in kind}
    if found != numbered(found):
        raise ValueError(f"{kind.__name__} must count its members from 0, and does {found}")
    return found


def spelt(name: str) -> str:
    """Spell the name as C++ has it."""
    return _NAMES.get(name, name).lower().replace(" ", "_")


def of_progress(source: ModuleType) -> Iterator[tuple[str, int]]:
    """Say what is to be what in Progress."""
    for place, name in enumerate(source.Record._fields):
        yield f"offsetof(Progress, {name.rstrip('_')}_)", 8 * place
    yield "sizeof(Progress)", 8 * source.AXIS
    for name in ("WRITING", "INSIDE", "LEFT", "HAS_TAG", "HAS_INSTEAD"):
        yield name.lower(), getattr(source, name)


def of_recording(source: ModuleType) -> Iterator[tuple[str, int]]:
    """Say what is to be what in Recording and in what it is made of."""
    layouts = {"Recording": source.Head, "Entry": source.Entry, "Tally::Cell": source.Cell}
    for kind, words in layouts.items():
        for place, name in enumerate(words._fields):
            yield f"offsetof({kind}, {name.rstrip('_')})", 8 * place
    firsts = {"entries": "ENTRY", "notes": "NOTE", "names": "NAME", "members": "GROUP"}
    for name, one in {**firsts, "tallies": "TALLY"}.items():
        yield f"offsetof(Recording, {name})", 8 * getattr(source, f"FIRST_{one}")
    yield "Recording::entries_held", source.ENTRIES
    yield "Recording::notes_held", source.NOTES
    yield "Recording::groups", source.TALLIES
    yield "Tally::sizes", source.SIZES
    yield "Tally::durations", source.DURATIONS
    for name in ("FAILED", "WRITING", "INSIDE", "LEFT"):
        yield f"Recording::{name.lower()}", getattr(source, name)
    yield "sizeof(Entry)", 8 * source.ENTRY_WORDS
    yield "sizeof(Recording::notes[0])", 8 * source.NOTE_WORDS
    yield "sizeof(Recording)", source.RECORDING_BYTES


def checks(equal: Iterable[tuple[str, int]]) -> str:
    """Give C++ that compiles only if each expression has its value."""
    return "".join(f"static_assert({found} == {value});\n" for found, value in equal)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
