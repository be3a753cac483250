"""Run by torsh_start.py, which says more: notes how a worker's Python ends.

It must parse in any Python 3 that a worker may start.
"""

# ruff: noqa: PTH100, PTH115, PTH116, PTH123, PTH208, SIM105
# pathlib and contextlib would have to be imported.

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType, TracebackType
    from typing import Any

MOST_CHARS = 200_000  # of a traceback, whose ends are kept
MOST_PLACES = 16
MOST_NAMES, MOST_FILES = 64, 4096
JUST_BEFORE = 1.0  # seconds
ADDRESS_IN_USE = 98  # errno takes time to load


class EndNotes:
    """Notes in a file how this process's Python ends, and what exception was on its way when it was
    asked to stop, as lines of JSON: torshrun/failure/ending.py reads them.
    """

    def __init__(self, path: str, before: "Any", load: "Callable[[str], ModuleType]") -> None:
        from _thread import get_ident
        from time import monotonic

        self._path, self._before, self._load = path, before, load
        self._own, self._get_ident, self._main = os.getpid(), get_ident, get_ident()
        self._has_raised = False
        self._leaving = ""
        self._now = monotonic
        self._shown = None  # type: tuple[Any, float] | None

    def watch_exits(self) -> None:
        """Have sys.exit() and os._exit() tell first which exception is being handled: it led to the
        exit code that the script has chosen, and Python forgets it.
        """
        leave, leave_at_once = sys.exit, os._exit

        def exit(*status: "Any") -> "Any":
            self._on_exit("exit", status)
            leave(*status)

        def _exit(*status: "Any", **named: "Any") -> "Any":
            self._on_exit("left", status or tuple(named.values()))
            leave_at_once(*status, **named)

        for ours, theirs in ((exit, leave), (_exit, leave_at_once)):
            for name in ("__module__", "__name__", "__qualname__", "__doc__"):
                setattr(ours, name, getattr(theirs, name))
        sys.exit, os._exit = exit, _exit

    def watch_traces(self, traceback: "ModuleType") -> None:
        """Keep which exception the program has shown last, or written to a log: it may be why it
        ends later with an exit code of its choice. What is kept holds no frames.
        """
        begin = traceback.TracebackException.__init__

        def note(shown: "Any", *values: "Any", **named: "Any") -> None:
            begin(shown, *values, **named)
            error = values[1] if len(values) > 1 else named.get("exc_value")
            is_whole = isinstance(error, BaseException) and named.get("_seen") is None
            if is_whole and self._get_ident() == self._main:
                self._shown = shown, self._now()

        traceback.TracebackException.__init__ = note

    def excepthook(
        self,
        kind: "type[BaseException]",
        error: BaseException,
        trace: "TracebackType | None",
    ) -> None:
        try:
            if os.getpid() == self._own:
                self._on_exception(error, trace)
        except Exception:
            pass
        self._before(kind, error, trace)

    def at_end(self) -> None:
        """Note that Python ends in its own way.

        That is at the script's end, by SystemExit or by an exception.
        """
        try:
            if os.getpid() != self._own or self._has_raised:
                return
            error = getattr(sys, "last_value", None)
            if error is not None:  # a hook of the script's own has shown it
                self._on_exception(error, error.__traceback__)
            else:
                own = "true" if self._is_own() else "false"
                told = self._leaving or self._told_of_shown()
                self._write(told or '{"how": "exit", "own": ' + own + "}")
        except Exception:
            return

    def on_request(self, _signo: int, frame: "FrameType | None") -> None:
        """Note, when asked to stop, which exception is still being handled."""
        try:
            if os.getpid() == self._own:
                error = sys.exc_info()[1]
                if error is None:
                    self._write('{"how": "asked"}')
                else:
                    self._note("asked", error, handled(error, frame))
        except Exception:
            return

    def _on_exit(self, how: str, status: "tuple[Any, ...]") -> None:
        """Note an exit that the program asks for.

        Only the main thread's sys.exit() ends Python, and what it raises may be caught.
        """
        try:
            if os.getpid() != self._own or (how == "exit" and self._get_ident() != self._main):
                return
            error = without_exits(sys.exc_info()[1])
            self._leaving = ""
            if error is not None:
                self._leaving = self._told(how, error, {"code": exit_code(SystemExit(*status))})
            if self._leaving and how == "left":
                self._write(self._leaving)
        except Exception:
            return

    def _on_exception(self, error: BaseException, trace: "TracebackType | None") -> None:
        if self._has_raised or self._get_ident() != self._main or is_called_by_script():
            return
        self._has_raised = True
        if isinstance(error, KeyboardInterrupt):
            return  # what is imported now would change what Python ends with
        self._note("exception", error.with_traceback(trace), {})
        if isinstance(error, Exception):
            self._load("torsh_runtime.error_file").leave_account(error)

    def _note(self, how: str, error: BaseException, facts: "dict[str, Any]") -> None:
        self._write(self._told(how, error, facts))

    def _told_of_shown(self) -> str:
        """Return a note of the exception that the program showed just before its end.

        Return "" if there is none.
        """
        if self._shown is None or self._now() - self._shown[1] > JUST_BEFORE:
            return ""
        import json

        shown, at = self._shown
        own, lines = self._is_own(), list(shown.format())
        errors = ["".join(shown.format_exception_only()).strip()]
        trace = "".join(lines)
        if len(trace) > MOST_CHARS:
            return ""
        while shown is not None and len(errors) < MOST_PLACES:
            shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)
            if shown is not None:
                errors.insert(0, "".join(shown.format_exception_only()).strip())
        facts = {"how": "shown", "own": own, "at": at, "trace": trace, "errors": errors}
        return json.dumps(facts)

    def _told(self, how: str, error: BaseException, facts: "dict[str, Any]") -> str:
        import json

        before = self._shown
        known = dict(shown(error), how=how, at=self._now(), own=self._is_own())
        self._shown = before
        return json.dumps(dict(known, **facts))

    def _is_own(self) -> bool:
        """Return whether this is the worker itself, and not a process that it has started.

        A worker leads a session, or a process group in the session of its parent, the keeper.
        """
        if os.getsid(0) == self._own or os.getpgrp() != self._own:
            return os.getsid(0) == self._own
        with open("/proc/%d/comm" % os.getppid()) as file:  # noqa: UP031
            return file.read().strip() == "torsh-keeper"

    def _write(self, line: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self._path, flags, 0o600)
        try:
            os.write(file, (line + "\n").encode("utf-8", "backslashreplace"))
        finally:
            os.close(file)


def is_called_by_script() -> bool:
    """Return whether an excepthook was called as a function, for an exception that ends nothing.

    Below a hook that Python itself calls there is no frame of the program.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name == "<module>" or frame.f_globals.get("__name__") == "runpy"


def shown(error: BaseException) -> "dict[str, Any]":
    """Return what to report of an exception that ends Python."""
    import traceback

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if len(text) > MOST_CHARS:
        half = MOST_CHARS // 2
        text = text[:half] + "\n" + text[-half:]
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    facts = {"trace": text, "errors": [said(each) for each in chain(error)]}  # type: dict[str, Any]
    port = next(filter(None, map(port_of, chain(error))), 0)
    if port:
        facts["port"] = port
    if any("lock" in each.lower() for each in facts["errors"]):
        try:
            facts["holder"], facts["held"] = holder_of(error)
        except Exception:  # who holds it is not told then
            pass
    if trace is not None:
        facts["frame"] = trace.tb_frame.f_code.co_filename + ":" + str(trace.tb_lineno)
    return dict(facts, code=exit_code(error))


def without_exits(error: "BaseException | None") -> "BaseException | None":
    """Return the exception that led to those that only end a program.

    These are SystemExit and the exceptions of libraries for the command line.
    """
    seen = set()  # type: set[int]
    while error is not None and id(error) not in seen:
        only_ends = isinstance(error, (SystemExit, KeyboardInterrupt))
        if not only_ends and type(error).__name__ != "Exit":
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def chain(error: "BaseException | None") -> "list[BaseException]":
    """Return the exceptions that Python shows of it, the first one in front."""
    found, seen = [], set()  # type: list[BaseException], set[int]
    while error is not None and id(error) not in seen and len(found) < MOST_PLACES:
        seen.add(id(error))
        found.insert(0, error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def port_of(error: BaseException) -> int:
    """Return the port that was in use, which Python's own error does not contain; 0 if unknown.

    It is taken from an address in the frames that the error passed through, or from what they call
    a port, the innermost first.
    """
    if not isinstance(error, OSError) or error.errno != ADDRESS_IN_USE:
        return 0
    trace, frames = error.__traceback__, []  # type: TracebackType | None, list[FrameType]
    while trace is not None:
        frames.insert(0, trace.tb_frame)
        trace = trace.tb_next
    for frame in frames[:MOST_PLACES]:
        names = [each for each in frame.f_code.co_names if each in frame.f_globals]
        known = [*frame.f_locals.items(), *((each, frame.f_globals[each]) for each in names)]
        for name, value in known:
            is_address = isinstance(value, tuple) and len(value) > 1 and isinstance(value[0], str)
            port = value[1] if is_address else value if "port" in name.lower().split("_") else 0
            if type(port) is int and 0 < port < 1 << 16:
                return port
    return 0


def holder_of(error: BaseException) -> "tuple[int, str]":
    """Return the process that holds a lock of a file, and that file; 0 and "" if none is known.

    The file is one that this process has open, or that the error or its frames name.
    """
    files = wanted_files(error)
    with open("/proc/locks", errors="replace") as lines:
        locks = [line.split() for line in lines]
    held = [each for each in locks if len(each) == 8 and each[4].isdigit()]  # of who waits: 9
    for each in sorted(held, key=lambda each: each[3] != "WRITE"):
        inode = int(each[5].rpartition(":")[2])
        if inode in files and int(each[4]) not in (0, os.getpid()):
            return int(each[4]), files[inode]
    return 0, ""


def wanted_files(error: BaseException) -> "dict[int, str]":
    """Return by inode the files that this process has open, or that the error names.

    Those that its frames have closed in the meantime are included.
    """
    links = ["/proc/self/fd/" + name for name in os.listdir("/proc/self/fd")[:MOST_FILES]]
    names = [name for each in chain(error) for name in said(each).split("'")[1::2]]
    trace = error.__traceback__
    while trace is not None and len(names) < MOST_NAMES:
        files = [it for it in trace.tb_frame.f_locals.values() if type(it).__module__ == "_io"]
        names += [it.name for it in files if isinstance(getattr(it, "name", 0), str)]
        trace = trace.tb_next
    found = {}
    for path in [*links, *names[:MOST_NAMES]]:
        try:
            known = os.stat(path)
            if known.st_mode & 0o170000 == 0o100000:  # a regular file
                found[known.st_ino] = os.readlink(path) if path in links else os.path.abspath(path)
        except (OSError, ValueError):
            continue
    return found


def said(error: BaseException) -> str:
    """Return an exception with its message and its notes, as Python shows it."""
    import traceback

    lines = traceback.format_exception_only(type(error), error)
    if isinstance(error, SyntaxError):  # its place stands before it
        lines = [each for each in lines if not each.startswith(" ")]
    return "".join(lines)[:MOST_CHARS].strip()


def exit_code(error: BaseException) -> int:
    """Return the exit code with which Python ends because of it."""
    if not isinstance(error, SystemExit):
        return 1
    value = error.code
    return 0 if value is None else value & 255 if isinstance(value, int) else 1


def handled(error: "BaseException | None", frame: "FrameType | None") -> "dict[str, Any]":
    """Return where the exceptions on their way are being handled, the first one in front."""
    lines = {}
    while frame is not None:
        lines[id(frame)] = frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    places = []  # type: list[tuple[str, int]]
    while error is not None and len(places) < MOST_PLACES:
        trace = error.__traceback__
        if trace is not None and id(trace.tb_frame) in lines:
            places.insert(0, lines[id(trace.tb_frame)])
        error = error.__context__
    return {"places": places}
