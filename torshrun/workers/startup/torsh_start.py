"""Run by each Python 3 of a worker before its script: lets JAX find its place in the job, has one
that ends, or is stopped, leave for its agent how, why and where, and lets Gloo's threads come to
rest before it ends. With --preload standbys wait in here, and workers note what they import.

Nothing that takes time is imported before it is needed, another sitecustomize has its turn as if
this one were not there, and whatever fails in here stays silent. It must parse in any Python 3 that
a worker may start. docs/decisions/0004-worker-start-hook.md says why there is such a file.
"""

# ruff: noqa: PTH118, PTH120, PTH208, SIM105
# pathlib and contextlib would have to be imported.

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import FrameType, ModuleType, TracebackType
    from typing import Any

HERE = os.path.dirname(__file__)
WATCHED = "jax._src.clusters"
SIGTERM = 15  # the module signal takes time to load
STACK_SIGNAL = 62  # torshrun/workers/group.py sends it; scripts that handle SIGTERM leave it alone
FAR = 500  # a descriptor's least number
GLOO_THREAD = "pt_gloo_runloop"
QUIET_TIMES, MOST_TIMES = 3, 300  # each after a millisecond
MOST_CHARS = 200_000  # of a traceback, whose ends are kept
MOST_PLACES = 16
ADDRESS_IN_USE = 98  # errno takes time to load


class JaxWatch:
    """A meta path finder that finds nothing but WATCHED, and that by asking all the others."""

    def find_spec(
        self,
        name: str,
        path: "Sequence[str] | None" = None,
        target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        if name != WATCHED:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        try:
            specs = (finder.find_spec(name, path, target) for finder in others)
            spec = next(filter(None, specs), None)
            if spec is not None and spec.loader is not None:
                register_after(spec.loader)
            return spec
        except Exception:
            return None


def register_after(loader: "Loader") -> None:
    """Have the loader register with JAX once it has run the module, and be as it was."""
    run = loader.exec_module

    def exec_module(module: "ModuleType") -> None:
        run(module)
        if module.__name__ == WATCHED:
            del loader.exec_module
            register_now()

    loader.exec_module = exec_module  # type: ignore[method-assign]


def register_now() -> None:
    try:
        register()
    except Exception:
        return


def register() -> None:
    load("torsh_runtime.integrations.jax").register()


def load(name: str) -> "ModuleType":
    """A module of torsh_runtime, by its file: the worker's Python may be one without torshrun."""
    if name in sys.modules:
        return sys.modules[name]
    from importlib.util import module_from_spec, spec_from_file_location

    root = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
    path = os.path.join(root, *name.split(".")) + ".py"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def leave_traces(stack_file: str) -> None:
    """Have this process leave an account of an exception that ends it, how its Python ended, and
    where it stands when it is asked to stop. Only the first Python of a worker does: those that it
    starts find the file.
    """
    import atexit
    import faulthandler
    from _signal import (  # type: ignore[import-not-found]
        SIG_DFL,
        SIG_IGN,
        siginterrupt,
        signal,
    )
    from fcntl import F_DUPFD_CLOEXEC, fcntl

    opened = os.open(stack_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    try:
        # Far from where programs that close or count theirs look.
        descriptor = fcntl(opened, F_DUPFD_CLOEXEC, FAR)
    finally:
        os.close(opened)
    notes = EndNotes(stack_file + "_end", sys.excepthook)

    def forget() -> None:
        faulthandler.unregister(SIGTERM)
        faulthandler.unregister(STACK_SIGNAL)
        signal(STACK_SIGNAL, SIG_DFL)

    def at_end() -> None:
        # Python sets signals with handlers of its own to what ends the process when it ends.
        faulthandler.unregister(STACK_SIGNAL)
        signal(STACK_SIGNAL, SIG_IGN)
        faulthandler.register(STACK_SIGNAL, descriptor, True, False)
        notes.at_end()

    notes.watch_exits()
    signal(STACK_SIGNAL, notes.on_request)
    faulthandler.register(SIGTERM, descriptor, True, True)
    faulthandler.register(STACK_SIGNAL, descriptor, True, True)
    siginterrupt(STACK_SIGNAL, True)  # faulthandler has system calls go on
    if hasattr(os, "register_at_fork"):  # since Python 3.7
        os.register_at_fork(after_in_child=forget)
    atexit.register(at_end)
    sys.excepthook = notes.excepthook


class EndNotes:
    """Notes in a file how this process's Python ends, and what exception was on its way when it was
    asked to stop, as lines of JSON: torshrun/failure/ending.py reads them.
    """

    def __init__(self, path: str, before: "Any") -> None:
        from _thread import get_ident

        self._path, self._before = path, before
        self._own, self._get_ident, self._main = os.getpid(), get_ident, get_ident()
        self._has_raised = False
        self._leaving = ""

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
        """Python ends in its own way: at the script's end, by SystemExit or by an exception."""
        try:
            if os.getpid() != self._own or self._has_raised:
                return
            error = getattr(sys, "last_value", None)
            if error is not None:  # a hook of the script's own has shown it
                self._on_exception(error, error.__traceback__)
            else:
                own = "true" if self._is_own() else "false"
                self._write(self._leaving or '{"how": "exit", "own": ' + own + "}")
        except Exception:
            return

    def on_request(self, _signo: int, frame: "FrameType | None") -> None:
        """It is to stop: which exception has not got to its end yet?"""
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
        """Only the main thread's sys.exit() ends Python, and what it raises may be caught."""
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
            load("torsh_runtime.error_file").leave_account(error)

    def _note(self, how: str, error: BaseException, facts: "dict[str, Any]") -> None:
        self._write(self._told(how, error, facts))

    def _told(self, how: str, error: BaseException, facts: "dict[str, Any]") -> str:
        import json
        import time

        known = dict(shown(error), how=how, at=time.monotonic(), own=self._is_own())
        return json.dumps(dict(known, **facts))

    def _is_own(self) -> bool:
        """Whether this is the worker itself, and no process that it has started."""
        return os.getsid(0) == self._own

    def _write(self, line: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self._path, flags, 0o600)
        try:
            os.write(file, (line + "\n").encode("utf-8", "backslashreplace"))
        finally:
            os.close(file)


def is_called_by_script() -> bool:
    """Whether an excepthook was called as a function, of an exception that ends nothing: below one
    that Python calls there is no frame of the program.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name == "<module>" or frame.f_globals.get("__name__") == "runpy"


def shown(error: BaseException) -> "dict[str, Any]":
    """What is told of an exception that ends Python."""
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
    if trace is not None:
        facts["frame"] = trace.tb_frame.f_code.co_filename + ":" + str(trace.tb_lineno)
    return dict(facts, code=exit_code(error))


def without_exits(error: "BaseException | None") -> "BaseException | None":
    """The exception from which others came that only end a program, as SystemExit and those of
    libraries for the command line.
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
    """What Python shows of it, the first one in front."""
    found, seen = [], set()  # type: list[BaseException], set[int]
    while error is not None and id(error) not in seen and len(found) < MOST_PLACES:
        seen.add(id(error))
        found.insert(0, error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def port_of(error: BaseException) -> int:
    """The port that was in use, which Python's own error does not tell: of an address in the frames
    that it passed through, or of what they call a port, the innermost first; 0 is unknown.
    """
    if not isinstance(error, OSError) or error.errno != ADDRESS_IN_USE:
        return 0
    trace, frames = error.__traceback__, []  # type: TracebackType | None, list[FrameType]
    while trace is not None:
        frames.insert(0, trace.tb_frame)
        trace = trace.tb_next
    for frame in frames[:MOST_PLACES]:
        names = [each for each in frame.f_code.co_names if each in frame.f_globals]
        values = dict(((each, frame.f_globals[each]) for each in names), **frame.f_locals)
        for name, value in values.items():
            is_address = isinstance(value, tuple) and len(value) > 1 and isinstance(value[0], str)
            port = value[1] if is_address else value if "port" in name.lower() else 0
            if type(port) is int and 0 < port < 1 << 16:
                return port
    return 0


def said(error: BaseException) -> str:
    """An exception with its message and its notes, as Python shows it."""
    import traceback

    lines = traceback.format_exception_only(type(error), error)
    if isinstance(error, SyntaxError):  # its place stands before it
        lines = [each for each in lines if not each.startswith(" ")]
    return "".join(lines)[:MOST_CHARS].strip()


def exit_code(error: BaseException) -> int:
    """What Python ends with because of it."""
    if not isinstance(error, SystemExit):
        return 1
    value = error.code
    return 0 if value is None else value & 255 if isinstance(value, int) else 1


def handled(error: "BaseException | None", frame: "FrameType | None") -> "dict[str, Any]":
    """Where the exceptions on their way are being handled, the one that came first in front."""
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


def rest_at_end() -> None:
    """Have Python's end wait up to MOST_TIMES ms for threads of torch's Gloo groups that still let
    go of tensors: one that asks for Python's lock too late aborts the process, though the script is
    done (pytorch/pytorch#190489). They outlive destroy_process_group() where a
    DistributedDataParallel holds the group.
    """
    import atexit
    import time

    def rest() -> None:
        try:
            quiet = 0 if "torch.distributed" in sys.modules else QUIET_TIMES
            for _ in range(MOST_TIMES):
                if quiet == QUIET_TIMES:
                    return
                gloo = [state for name, state in own_threads() if name == GLOO_THREAD]
                if not gloo:
                    return
                time.sleep(0.001)  # whoever waits for Python's lock gets it
                quiet = quiet + 1 if all(state == "S" for state in gloo) else 0
        except Exception:
            return

    atexit.register(rest)  # the first one in has the last turn


def own_threads() -> "list[tuple[str, str]]":
    """(name, state) of each, as Linux has them."""
    found = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/" + thread + "/stat") as file:  # noqa: PTH123
                before, _, after = file.read().rpartition(")")
        except OSError:  # it ended
            continue
        found.append((before.partition("(")[2], after.split()[0]))
    return found


class ImportNotes:
    """A meta path finder that finds nothing, but notes in a file what is looked for, and which
    variables had changed by then: torsh_preload.py reads it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._before = self._seen = dict(os.environ)
        self._changed = ""

    def find_spec(
        self,
        name: str,
        path: "Sequence[str] | None" = None,
        target: "ModuleType | None" = None,
    ) -> None:
        try:
            if os.environ != self._seen:
                self._compare()
            with open(self._path, "a", encoding="utf-8") as file:  # noqa: PTH123
                file.write(name + "\t" + self._changed + "\n")
        except Exception:
            return

    def _compare(self) -> None:
        self._seen = dict(os.environ)
        names = set(self._seen).union(self._before)
        changed = [each for each in names if self._seen.get(each) != self._before.get(each)]
        self._changed = ",".join(changed)


def wait_as_standby() -> None:
    """Only a process that has become a worker returns from here."""
    try:
        before = frozenset(sys.modules)
        import torsh_standby

        make_way()  # for another sitecustomize, which has its turn before the imports
        torsh_standby.park(before)
        for name in ("torsh_standby", "torsh_preload"):
            sys.modules.pop(name, None)
    except BaseException:
        try:
            sys.excepthook(*sys.exc_info())
        finally:  # a module may have set a hook that fails; the script must not run for nobody
            os._exit(1)


def make_way() -> None:
    """Take this file off the module search, so that the next sitecustomize is found."""
    sys.path[:] = [entry for entry in sys.path if entry != HERE]
    sys.path_importer_cache.pop(HERE, None)
    for name in ("sitecustomize", "torsh_start"):
        sys.modules.pop(name, None)


def begin() -> None:
    """Do all that, as sitecustomize."""
    if "TORSH_PARK" in os.environ:
        wait_as_standby()
    else:
        make_way()
    if "TORSH_STACK_FILE" in os.environ:
        try:
            leave_traces(os.environ["TORSH_STACK_FILE"])
        except Exception:
            pass
        rest_at_end()
    if "TORSH_IMPORTS" in os.environ:
        sys.meta_path.insert(0, ImportNotes(os.environ.pop("TORSH_IMPORTS")))
    if "JAX_COORDINATOR_ADDRESS" in os.environ:
        if WATCHED in sys.modules:  # imported ahead
            register_now()
        else:
            sys.meta_path.insert(0, JaxWatch())
    # Where there is none this raises what Python's site module expects, and passes over.
    __import__("sitecustomize")
