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
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

HERE = os.path.dirname(__file__)
WATCHED = "jax._src.clusters"
SIGTERM = 15  # the module signal takes time to load
STACK_SIGNAL = 62  # torshrun/workers/group.py sends it; scripts that handle SIGTERM leave it alone
FAR = 500  # a descriptor's least number
GLOO_THREAD = "pt_gloo_runloop"
QUIET_TIMES, MOST_TIMES = 3, 300  # each after a millisecond


class ImportWatch:
    """A meta path finder that finds nothing but one module, and that by asking all the others; when
    that has been run, something is done with it.
    """

    def __init__(self, name: str, then: "Callable[[ModuleType], object]") -> None:
        self._name, self._then = name, then

    def find_spec(
        self,
        name: str,
        path: "Sequence[str] | None" = None,
        target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        if name != self._name:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        try:
            specs = (finder.find_spec(name, path, target) for finder in others)
            spec = next(filter(None, specs), None)
            if spec is not None and spec.loader is not None:
                run_after(spec.loader, name, self._then)
            return spec
        except Exception:
            return None


def run_after(loader: "Loader", name: str, then: "Callable[[ModuleType], object]") -> None:
    """Have the loader do that once it has run the module, and be as it was. One that is a class, as
    of modules that are compiled in, has others to load as well, and is left alone.
    """
    if isinstance(loader, type):
        return
    run = loader.exec_module

    def exec_module(module: "ModuleType") -> None:
        run(module)
        if module.__name__ == name:
            del loader.exec_module
            then(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]


def register_now(_clusters: "ModuleType | None" = None) -> None:
    try:
        register()
    except Exception:
        return


def register() -> None:
    load("torsh_runtime.integrations.jax").register()


def load(name: str) -> "ModuleType":
    """Load a module of torsh_runtime from its file: the worker's Python may lack torshrun."""
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


def leave_traces(stack_file: str, ends: "ModuleType") -> None:
    """Have this process leave an account of an exception that ends it, and of how its Python ended.

    When it is asked to stop, it also leaves its stack. Only the first Python of a worker does so:
    those that it starts find the file.
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
    notes = ends.EndNotes(stack_file + "_end", sys.excepthook, load)
    if "traceback" in sys.modules:  # loaded ahead
        notes.watch_traces(sys.modules["traceback"])
    else:
        sys.meta_path.insert(0, ImportWatch("traceback", notes.watch_traces))

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
    """Return the (name, state) of each thread, as Linux has them."""
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
    """Wait as a standby. Only a process that has become a worker returns."""
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
    for name in ("sitecustomize", "torsh_start", "torsh_end"):
        sys.modules.pop(name, None)


def begin() -> None:
    """Do all that, as sitecustomize."""
    import torsh_end

    if "TORSH_PARK" in os.environ:
        wait_as_standby()
    else:
        make_way()
    if "TORSH_STACK_FILE" in os.environ:
        try:
            leave_traces(os.environ["TORSH_STACK_FILE"], torsh_end)
        except Exception:
            pass
        rest_at_end()
    if "TORSH_IMPORTS" in os.environ:
        sys.meta_path.insert(0, ImportNotes(os.environ.pop("TORSH_IMPORTS")))
    if "JAX_COORDINATOR_ADDRESS" in os.environ:
        if WATCHED in sys.modules:  # imported ahead
            register_now()
        else:
            sys.meta_path.insert(0, ImportWatch(WATCHED, register_now))
    # Where there is none this raises what Python's site module expects, and passes over.
    __import__("sitecustomize")
