"""Imports what a worker's script imports first, before there is a worker.

Runs in the workers' Python, which need not have torshrun and may be any Python 3.
docs/standbys.md says what is imported, and why nothing else.
"""

# ruff: noqa: PTH109, PTH113, PTH118, PTH120, PTH206, PTH208
# pathlib would have to be imported.

import ast
import importlib
import importlib.machinery
import os
import site
import sys
import sysconfig
import tokenize

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType
    from typing import Any

    Statement = tuple[str, tuple[str, ...]]


PACKAGES = frozenset(("site-packages", "dist-packages"))
"""Directories of installed packages, also of other interpreters, as PYTHONPATH may name them."""
HARMLESS = frozenset(("", "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"))
"""Files that may be open in several processes at once."""
PASS_ON = frozenset(("ctypes.util", "subprocess", "tqdm.utils"))
"""Modules that read all variables only for a program that they start, or to find their own, as
tqdm, which torch loads, looks for names that begin with TQDM_.
"""

PR_GET_CHILD_SUBREAPER = 37


class Preload:
    """Imports modules ahead, and records the results."""

    def __init__(self, place_variables: "Sequence[str]") -> None:
        """Begin with nothing imported.

        A module that reads one of these variables belongs in a worker.
        """
        self.failed: dict[str, str] = {}
        """Why modules could not be imported, by name."""
        self.reads: dict[str, str] = {}
        """Which variable of a worker's place they read, by the module's name."""
        self.modules: list[str] = []
        """What was asked for and is there."""
        self._variables = frozenset(place_variables)
        self._before = dict(os.environ)
        self._shared = _shared()

    @property
    def changed(self) -> "dict[str, str]":
        """Return the variables that modules have set."""
        return {key: value for key, value in os.environ.items() if self._before.get(key) != value}

    def why_not_fork(self) -> str:
        """Return what keeps this process from being forked; "" if nothing does."""
        opened = sorted(_shared() - self._shared)
        if opened:
            return "a module has opened %s" % opened[0]  # noqa: UP031
        return _why_no_threads() or _why_no_children() or _why_no_orphans()

    def run(self, statements: "Sequence[Statement]") -> None:
        """Import all, in this order; those that fail are noted."""
        both = (os.environ, os.environb)
        plain, watched = os.environ.__class__, _watching(self._variables, self.reads)
        for each in both:
            each.__class__ = watched
        try:
            for name, members in statements:
                self._import(name, members)
        finally:
            for each in both:  # even if a module has put something else in its place
                each.__class__ = plain

    def run_hook(self, name: str) -> None:
        """Import what Python imports unasked if it exists; Python itself reports errors in it."""
        self.run([(name, ())])
        self.failed.pop(name, None)
        self.modules = []

    def run_recorded(self, path: str) -> None:
        """Import what a running worker has imported since, of packages that are present, in its
        order.

        Stop where the worker had changed its environment in a way that the imports here have not.
        """
        present = {name.partition(".")[0] for name in sys.modules}
        for name, changed in _recorded(path):
            if not changed <= set(self.changed):
                break  # by the script; what it imported then may depend on that
            if name.partition(".")[0] in present and name not in sys.modules:
                self.run([(name, ())])
                self.failed.pop(name, None)  # nobody has asked for it

    def _import(self, name: str, members: "tuple[str, ...]") -> None:
        try:
            __import__(name, fromlist=members)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a module may raise SystemExit
            self.failed[name] = "%s: %s" % (type(error).__name__, error)  # noqa: UP031
        else:
            self.modules.append(name)


def _watching(names: "frozenset[str]", reads: "dict[str, str]") -> type:
    plain: Any = os.environ.__class__

    class Watched(plain):  # type: ignore[misc]
        """Notes who asks for a variable of a worker's place, or for all that there are."""

        def __getitem__(self, key: "str | bytes") -> "str | bytes":
            name = os.fsdecode(key)
            if name in names:
                reads.setdefault(_reader(sys._getframe(1)), name)
            return plain.__getitem__(self, key)  # type: ignore[no-any-return]

        def __iter__(self) -> "Iterator[str | bytes]":
            reader = _reader(sys._getframe(1))
            if reader not in PASS_ON:
                reads.setdefault(reader, "all variables")
            return plain.__iter__(self)  # type: ignore[no-any-return]

    return Watched


def _reader(frame: "FrameType | None") -> str:
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name not in ("os", "collections.abc", __name__):
            return str(name)
        frame = frame.f_back
    return "?"


def _recorded(path: str) -> "Iterator[tuple[str, set[str]]]":
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            lines = file.read().split("\n")[:-1]
    except OSError:
        return
    for line in lines:
        name, _, changed = line.partition("\t")
        yield name, set(filter(None, changed.split(",")))


# ---- what to import


def leading_imports(kind: str, target: str) -> "list[Statement]":
    """Return the imports at the head of the script or module.

    They end at the first statement that may do something else, or that imports what is not
    installed: the user's own code may change.
    """
    path = _file(kind, target)
    if path is None:
        return []
    try:
        with tokenize.open(path) as file:
            tree = ast.parse(file.read(), path)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # the worker will tell
    found = []
    homes = _homes()
    for name, members in _statements(tree.body):
        if not _is_installed(name.partition(".")[0], homes):
            break
        found.append((name, members))
    return found


def search_path(kind: str, target: str) -> "str | None":
    """Return what Python will put in front of sys.path for it; None is nothing."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return None
    return os.getcwd() if kind == "module" else os.path.dirname(os.path.realpath(target))


def _file(kind: str, target: str) -> "str | None":
    if kind != "module":
        return target if os.path.isfile(target) else None
    places = None
    for part in target.split("."):
        spec = importlib.machinery.PathFinder.find_spec(part, places)
        if spec is None:
            return None
        places = spec.submodule_search_locations
        origin = spec.origin
    if places:
        return os.path.join(next(iter(places)), "__main__.py")
    return origin


def _statements(body: "Sequence[ast.stmt]") -> "Iterator[Statement]":
    for statement in body:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield alias.name, ()
        elif isinstance(statement, ast.ImportFrom):
            if statement.level or statement.module is None:
                return
            yield statement.module, tuple(alias.name for alias in statement.names)
        elif not _does_nothing(statement):
            return


def _does_nothing(statement: ast.stmt) -> bool:
    """Return whether it is a docstring, or a constant that gets a name."""
    value: Any = getattr(statement, "value", None)
    if not isinstance(value, ast.Constant):
        return False
    targets = getattr(statement, "targets", ())
    return isinstance(statement, (ast.Expr, ast.Assign)) and all(
        isinstance(each, ast.Name) for each in targets
    )


def _homes() -> "tuple[str, ...]":
    """Return the directories of the standard library and of installed packages."""
    paths = sysconfig.get_paths()
    found = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += getattr(site, "getsitepackages", list)()
    found.append(getattr(site, "USER_SITE", None) or "")
    return tuple(os.path.join(os.path.realpath(each), "") for each in found if each)


def _is_installed(name: str, homes: "tuple[str, ...]") -> bool:
    if name in sys.builtin_module_names:
        return True
    try:
        spec = importlib.machinery.PathFinder.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return False
    if spec is None or spec.origin is None:  # not there, or in several places
        return name == "__future__"
    path = os.path.realpath(spec.origin)
    return path.startswith(homes) or not PACKAGES.isdisjoint(path.split(os.sep))


# ---- whether a process that has imported it may fork


def _shared() -> "set[str]":
    """Return what workers would share although each must have its own.

    That is open files, pipes, sockets and devices, and memory behind locks and queues.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        maps = [line.split(None, 5) for line in file]
    found = {each[-1].strip() for each in maps if each[1].startswith("rw") and each[1][3] == "s"}
    return found.union(map(_link, os.listdir("/proc/self/fd"))).difference(HARMLESS)


def _why_no_threads() -> str:
    import threading

    python = threading.active_count() - 1
    if python:
        others = [
            each.name for each in threading.enumerate() if each is not threading.main_thread()
        ]
        return "a module has started the thread %s" % ", ".join(others)  # noqa: UP031
    native = len(os.listdir("/proc/self/task")) - 1
    if native > _blas_threads():
        return "a module has started %d native threads" % native  # noqa: UP031
    return ""


def _why_no_children() -> str:
    try:
        with open("/proc/thread-self/children", encoding="ascii") as file:  # noqa: PTH123
            pids = file.read().split()
    except OSError:  # a kernel that does not tell
        return ""
    return "a module has started the process %s" % pids[0] if pids else ""  # noqa: UP031


def _why_no_orphans() -> str:
    import ctypes

    adopts = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
    return "a module has made its process adopt orphans" if adopts.value else ""


def _link(fd: str) -> str:
    try:
        return os.readlink("/proc/self/fd/" + fd)  # noqa: PTH115
    except OSError:
        return ""


def _blas_threads() -> int:
    """Count the threads of OpenBLAS, which ends them before a fork and restarts them after it."""
    import ctypes

    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        paths = {line.split(None, 5)[-1].strip() for line in file if "openblas" in line}
    count = 0
    for path in paths:
        if not path.startswith("/"):
            continue
        library = ctypes.CDLL(path)
        for start in ("scipy_", ""):
            for end in ("64_", ""):
                name = "%sopenblas_get_num_threads%s" % (start, end)  # noqa: UP031
                if hasattr(library, name):
                    count += max(getattr(library, name)() - 1, 0)
                    break
    return count
