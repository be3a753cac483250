"""A worker's Python that waits, with imports done, until it is one: docs/standbys.md.

The agent starts a zygote with a worker's own command line. In here, before its script, it
imports and then forks standbys, children of the keeper, that wait likewise. One that is taken gets
its own variables and its standard streams, and goes on to the script as if it had just been
started.

Messages are frames, as torsh_runtime/framing.py has them, of JSON: a length of 4 bytes, big-endian,
and so much text. That module is not imported, for this is any user's Python. Descriptors come with
the first byte. Requests are {"do": "fork"} with the new standby's socket, {"do": "import",
"recorded": PATH} and {"do": "take", "environ": {..}} with the descriptors 0, 1, 2, ..
"""

# ruff: noqa: PTH109
# pathlib would have to be imported.

import array
import ctypes
import gc
import importlib
import importlib.machinery
import json
import os
import random
import signal
import socket
import struct
import sys
import threading
import time

import torsh_preload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

VARIABLE = "TORSH_PARK"
"""Variable that makes a process wait, as JSON: the descriptor of its socket, the keeper's pid,
what to import and for whom.
"""
LENGTH = struct.Struct(">I")
MOST_DESCRIPTORS = 8
ADOPTION = 10.0
"""Seconds in which the keeper must have become the parent."""
PR_SET_PDEATHSIG = 1
CAP_SYS_NICE = 23
ALL_USERS = ["0", "0", str(2**32 - 1)]
"""Content of uid_map outside of user namespaces."""


class Gone(Exception):
    """The agent hears and says nothing any more."""


def park(before: "frozenset[str]") -> None:
    """Import and wait. Returns in a process that has been taken; all others end in here. `before`
    are the modules that every Python has before its script.
    """
    told = json.loads(os.environ.pop(VARIABLE))
    agent = socket.socket(fileno=told["socket"])
    preload = torsh_preload.Preload(told["place_variables"])
    do_imports(preload, told, before)
    try:
        request, descriptors = serve(agent, preload, told["keeper"])
    except Gone:
        os._exit(0)
    become(request, descriptors, preload)


def do_imports(
    preload: "torsh_preload.Preload", told: "Mapping[str, Any]", before: "frozenset[str]"
) -> None:
    here = os.getcwd()
    preload.run_hook("sitecustomize")
    first = torsh_preload.search_path(told["kind"], told["target"])
    if first is not None:  # what lies beside the script comes first there, too
        refuse_hidden(first, set(sys.modules).difference(before))
        sys.path.insert(0, first)
    if told["modules"] == "auto":
        preload.run(torsh_preload.leading_imports(told["kind"], told["target"]))
    else:
        preload.run([(name, ()) for name in told["modules"]])
    if first in sys.path:
        sys.path.remove(first)
    if os.getcwd() != here:  # Python looks only now where the script is
        raise RuntimeError("a module has changed the working directory")


def refuse_hidden(folder: str, names: "set[str]") -> None:
    """Raise RuntimeError if `folder` has a module with one of these names.

    They are imported already.
    """
    for name in (each for each in names if "." not in each):
        spec = importlib.machinery.PathFinder.find_spec(name, [folder])
        if spec is not None and spec.origin is not None:
            raise RuntimeError("%s would be hidden by Python's own" % spec.origin)  # noqa: UP031


def serve(
    agent: socket.socket, preload: "torsh_preload.Preload", keeper: int
) -> "tuple[Mapping[str, Any], Sequence[int]]":
    """Serve as the zygote, until this is a process that has been taken.

    Return the request that took it, with its descriptors.
    """
    announce(agent, preload)
    while True:
        request, descriptors = receive(agent)
        if request["do"] == "fork":
            if fork_orphan():
                agent.close()
                agent = socket.socket(fileno=descriptors[0])
                wait_for_parent(keeper, request["shares_session"])
                send(agent, {"pid": os.getpid()})
            else:
                os.close(descriptors[0])
        elif request["do"] == "import":
            run_quietly(preload, request["recorded"])
            announce(agent, preload)
        else:
            agent.close()
            return request, descriptors


def run_quietly(preload: "torsh_preload.Preload", recorded: str) -> None:
    """Import what a worker has; it needs the processors more, if priority can be had back."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    lowered = may_raise_priority(nice)
    if lowered:
        os.setpriority(os.PRIO_PROCESS, 0, 19)
    preload.run_recorded(recorded)
    if lowered:
        os.setpriority(os.PRIO_PROCESS, 0, nice)


def may_raise_priority(nice: int) -> bool:
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NICE)[0]
    if limit == resource.RLIM_INFINITY or 20 - limit <= nice:
        return True
    with open("/proc/self/uid_map", encoding="ascii") as file:  # noqa: PTH123
        if file.read().split() != ALL_USERS:
            return False  # the privilege is one of a user namespace's, and does not count
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
        lines = dict(line.partition(":")[::2] for line in file)
    return bool(int(lines.get("CapEff", "0"), 16) >> CAP_SYS_NICE & 1)


def announce(agent: socket.socket, preload: "torsh_preload.Preload") -> None:
    """Tell how far it is."""
    gc.collect()
    if hasattr(gc, "freeze"):
        gc.freeze()  # what never moves stays shared with those that are forked
    facts = {
        "modules": preload.modules,
        "failed": preload.failed,
        "reads": preload.reads,
        "why_not_fork": preload.why_not_fork(),
    }
    send(agent, facts)


# ---- to be forked


def fork_orphan() -> bool:
    """Fork a process that soon is the keeper's child; whether this is it."""
    try:
        child = os.fork()
    except OSError as error:  # the agent sees that the socket is closed
        sys.stderr.write("no standby can be forked: %s\n" % error)  # noqa: UP031
        return False
    if child:
        reap(child)
        return False
    try:
        if os.fork() == 0:
            return True
    except OSError as error:
        sys.stderr.write("no standby can be forked: %s\n" % error)  # noqa: UP031
    os._exit(0)


def reap(child: int) -> None:
    try:
        os.waitpid(child, 0)
    except ChildProcessError:  # a module ignores SIGCHLD, or has waited for all
        return


def wait_for_parent(keeper: int, shares_session: bool) -> None:
    """Wait until the keeper is the parent, and arrange that this process ends with it.

    Lead a process group from now on, and a session unless this process shares the zygote's.

    End this process if another one is the parent after ADOPTION seconds.
    """
    deadline = time.monotonic() + ADOPTION
    while os.getppid() != keeper and time.monotonic() < deadline:
        time.sleep(0.0002)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != keeper:
        os._exit(0)
    if shares_session:
        os.setpgid(0, 0)
    else:
        os.setsid()


# ---- to be taken


def become(
    told: "Mapping[str, Any]",
    descriptors: "Sequence[int]",
    preload: "torsh_preload.Preload",
) -> None:
    """Make this process what it would be if it had been started with these."""
    place_descriptors(descriptors)
    if told["cpus"]:
        os.sched_setaffinity(0, told["cpus"])
    changed = preload.changed  # which modules would do in the worker, too
    os.environ.update(told["environ"])
    os.environ.update(changed)
    tell_native_id = getattr(threading.main_thread(), "_set_native_id", None)
    if tell_native_id:  # Python 3.8 and later; a fork's is that of its parent
        tell_native_id()
    reseed()
    importlib.invalidate_caches()


def place_descriptors(descriptors: "Sequence[int]") -> None:
    import fcntl

    count = len(descriptors)
    above = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, count) for each in descriptors]
    for each in descriptors:
        os.close(each)
    for number, each in enumerate(above):
        os.dup2(each, number)
        os.close(each)


def reseed() -> None:
    """Seed generators anew: what the system gave at import must differ between processes."""
    random.seed()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "default_generator"):
        torch.default_generator.seed()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)


# ---- messages


def send(peer: socket.socket, facts: "Mapping[str, Any]") -> None:
    data = json.dumps(facts).encode()
    try:
        peer.sendall(LENGTH.pack(len(data)) + data)
    except OSError:
        raise Gone from None


def receive(peer: socket.socket) -> "tuple[dict[str, Any], list[int]]":
    """Return a message and its descriptors. Raise Gone at the end."""
    descriptors = array.array("i")
    room = socket.CMSG_SPACE(MOST_DESCRIPTORS * descriptors.itemsize)
    try:
        data, ancillary, flags, _ = peer.recvmsg(LENGTH.size, room, socket.MSG_CMSG_CLOEXEC)
    except OSError:
        raise Gone from None
    if flags & socket.MSG_CTRUNC:
        raise RuntimeError("no room for the descriptors of a worker: raise ulimit -n")
    for level, kind, carried in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(carried[: len(carried) - len(carried) % descriptors.itemsize])
    head = data + read(peer, LENGTH.size - len(data))
    (size,) = LENGTH.unpack(head)
    return json.loads(read(peer, size).decode()), list(descriptors)


def read(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        try:
            piece = peer.recv(size - len(data))
        except OSError:
            raise Gone from None
        if not piece:
            raise Gone
        data += piece
    return data
