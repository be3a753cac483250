"""Reads GPUs from NVIDIA's management library (NVML), for the process that runs this file.

It imports nothing of this package: an agent runs it by its path, in a Python without site-packages,
with its own pid as argument, and asks by a line on stdin. Each answer is a line of JSON. A driver
that hangs or crashes harms only that process.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
MOST_XIDS = 64
"""Xids that are kept of each GPU."""
_UNCORRECTED, _VOLATILE = 1, 0
_XID = 0x8
"""The type of event for nvmlDeviceRegisterEvents()."""
_END_WITH_PARENT = 1
"""PR_SET_PDEATHSIG."""
_MOST_GPUS = 256
_MOST_EVENTS = 4096
_GONE = (15, 16)
"""Codes of a lost GPU, and of one that needs a reset."""
_UNREACHABLE = (*_GONE, 8, 11, 999)
"""Codes of a handle that show a broken GPU: its power, its interrupts, or an unknown error.

Others do not: a container or a scheduler may have denied the GPU to this process (4, 17).
"""
_U32, _U64, _TEXT = ctypes.c_uint, ctypes.c_ulonglong, ctypes.c_char
_Given = tuple[Any, ...]
_NUMBERS: tuple[tuple[str, str, _Given, type[Any]], ...] = (
    ("power", "nvmlDeviceGetPowerUsage", (), _U32),
    ("temperature", "nvmlDeviceGetTemperature", (_U32(0),), _U32),
    ("ecc", "nvmlDeviceGetTotalEccErrors", (_U32(_UNCORRECTED), _U32(_VOLATILE)), _U64),
    ("width", "nvmlDeviceGetCurrPcieLinkWidth", (), _U32),
    ("width_max", "nvmlDeviceGetMaxPcieLinkWidth", (), _U32),
    ("reasons", "nvmlDeviceGetCurrentClocksThrottleReasons", (), _U64),
    ("reasons", "nvmlDeviceGetCurrentClocksEventReasons", (), _U64),  # its name since driver 535
)
"""Facts of each GPU: the name here, the function, its arguments, and the type that it fills in."""


class NvmlError(Exception):
    """Holds what a call of the library returned."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Pci(ctypes.Structure):
    """Describes nvmlPciInfo_t, of nvmlDeviceGetPciInfo_v3()."""

    _fields_ = (
        ("legacy", _TEXT * 16),
        ("domain", _U32),
        ("bus", _U32),
        ("device", _U32),
        ("id", _U32),
        ("subsystem", _U32),
        ("address", _TEXT * 32),
    )


class _Memory(ctypes.Structure):
    _fields_ = (("total", _U64), ("free", _U64), ("used", _U64))


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", _U32), ("memory", _U32))


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("type", _U64),
        ("data", _U64),
        ("gpu_instance", _U32),
        ("compute_instance", _U32),
    )


class Nvml:
    """Holds the library, and what it has told of Xids so far."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self._call("nvmlInit_v2")
        self._events = ctypes.c_void_p()
        self._watched: set[int] = set()
        self._xids: dict[int, list[int]] = {}
        with suppress(NvmlError, AttributeError):
            self._call("nvmlEventSetCreate", ctypes.byref(self._events))

    def read(self) -> dict[str, Any]:
        """Return what is known of all GPUs; those that cannot be reached have an "error"."""
        count = _U32()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = [self._gpu(index) for index in range(min(count.value, _MOST_GPUS))]
        self._take_events()
        for each in found:
            xids = self._xids.get(each.pop("handle", 0), [])
            each |= {"xids": xids[-MOST_XIDS:], "xid_count": len(xids)}
        return {"gpus": found}

    def _gpu(self, index: int) -> dict[str, Any]:
        handle = ctypes.c_void_p()
        facts: dict[str, Any] = {"index": index}
        try:
            self._call("nvmlDeviceGetHandleByIndex_v2", _U32(index), ctypes.byref(handle))
        except NvmlError as error:
            return facts | ({"error": str(error)} if error.code in _UNREACHABLE else {})
        facts["handle"] = handle.value
        try:
            facts |= self._names(handle)
            facts |= self._measured(handle)
        except NvmlError as error:
            facts["error"] = str(error)
        self._watch(handle)
        return facts

    def _names(self, handle: ctypes.c_void_p) -> dict[str, Any]:
        place = _Pci()
        known = self._knows("nvmlDeviceGetPciInfo_v3", handle, (), place)
        facts: dict[str, Any] = {"pci": _text(place.address)} if known else {}
        texts = {"uuid": self._uuid(handle), "name": self._text("nvmlDeviceGetName", handle)}
        return facts | texts | {"mig": self._mig(handle)}

    def _uuid(self, handle: ctypes.c_void_p) -> str:
        return self._text("nvmlDeviceGetUUID", handle)

    def _text(self, function: str, handle: ctypes.c_void_p) -> str:
        found = ctypes.create_string_buffer(96)
        known = self._knows(function, handle, (found, _U32(len(found))))
        return _text(found.value) if known else ""

    def _mig(self, handle: ctypes.c_void_p) -> list[str]:
        """Return the UUIDs of the instances that this GPU is divided into."""
        count, found = _U32(), []
        if not self._knows("nvmlDeviceGetMaxMigDeviceCount", handle, (), count):
            return []
        for index in range(min(count.value, _MOST_GPUS)):
            instance = ctypes.c_void_p()
            given = (_U32(index),)
            if self._knows("nvmlDeviceGetMigDeviceHandleByIndex", handle, given, instance):
                found.append(self._uuid(instance))
        return found

    def _measured(self, handle: ctypes.c_void_p) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        memory, use = _Memory(), _Utilization()
        if self._knows("nvmlDeviceGetMemoryInfo", handle, (), memory):
            facts |= {"memory_total": memory.total, "memory_used": memory.used}
        if self._knows("nvmlDeviceGetUtilizationRates", handle, (), use):
            facts["utilization"] = use.gpu
        for name, function, given, kind in _NUMBERS:
            value = kind()
            if self._knows(function, handle, given, value):
                facts[name] = value.value
        rows = [_U32() for _ in range(4)]
        if self._knows("nvmlDeviceGetRemappedRows", handle, (), *rows):
            facts["remap_pending"], facts["remap_failed"] = bool(rows[2].value), bool(rows[3].value)
        return facts

    def _knows(self, function: str, handle: ctypes.c_void_p, given: _Given, *found: Any) -> bool:
        """Have the function fill in `found`, and return whether this GPU and library know it.

        Raise NvmlError if the GPU is lost.
        """
        try:
            self._call(function, handle, *given, *map(ctypes.byref, found))
        except AttributeError:
            return False
        except NvmlError as error:
            if error.code in _GONE:
                raise
            return False
        return True

    def _watch(self, handle: ctypes.c_void_p) -> None:
        """Have the library keep this GPU's Xids from now on."""
        if not self._events.value or not handle.value or handle.value in self._watched:
            return
        self._watched.add(handle.value)
        with suppress(NvmlError, AttributeError):
            self._call("nvmlDeviceRegisterEvents", handle, _U64(_XID), self._events)

    def _take_events(self) -> None:
        event = _Event()
        with suppress(NvmlError, AttributeError):  # the first says that none is left
            for _ in range(_MOST_EVENTS if self._events.value else 0):
                self._call("nvmlEventSetWait_v2", self._events, ctypes.byref(event), _U32(0))
                if event.type & _XID:
                    self._xids.setdefault(event.device or 0, []).append(event.data)

    def _call(self, name: str, *given: Any) -> None:
        code = getattr(self._library, name)(*given)
        if code:
            text = self._library.nvmlErrorString
            text.restype = ctypes.c_char_p
            raise NvmlError(code, (text(code) or b"unknown error").decode("ascii", "replace"))


def _text(found: bytes) -> str:
    return found.decode("ascii", "replace")


def answer(read: Callable[[], dict[str, Any]]) -> str:
    """Return the answer to one question, in a line."""
    try:
        return json.dumps(read())
    except NvmlError as error:
        return json.dumps({"gpus": [], "error": str(error)})


def main() -> None:
    """Answer each line until there is none; a call that hangs ends with who asks, if it can."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
    if [str(os.getppid())] != sys.argv[1:]:  # who asks has ended before that
        return
    try:
        read = Nvml().read
    except (OSError, AttributeError, NvmlError) as error:
        failure = {"gpus": [], "error": str(error)}
        read = lambda: failure  # noqa: E731
    for _ in sys.stdin:
        sys.stdout.write(f"{answer(read)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
