"""A machine with nothing but Python: a minimal Debian 12 as the root of commands, with a copy of
this checkout in it.

Everything is mounted in a mount namespace that ends with the command that runs there, which ends
when the test does, so nothing is left mounted however that ends. Where packages come from is taken
from this machine's settings. Needs root, Debian 12 and debootstrap.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SUITE = "bookworm"
HOURS = 3600.0
_CACHE = CHECKOUT / "build" / "bare"
_PLACE = "/src"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FILES = {"cert": "/host/certificates", "constraint": "/host/constraints"}
"""Where the tree has those that pip's settings name."""
_MOUNTS = """
set -e
tree=$1 caches=$2 user=$3; shift 3
mount --bind "$tree" "$tree"
mount -t proc proc "$tree/proc"
mount --rbind /sys "$tree/sys"
mount --rbind /dev "$tree/dev"
mount -t tmpfs -o mode=1777 tmpfs "$tree/dev/shm"
mount --bind "$caches/packages" "$tree/var/cache/apt/archives"
mount --bind "$caches/pip-$user" "$tree/host/pip"
while [ "$1" != -- ]; do mkdir -p "$tree$1"; mount --bind -o ro "$1" "$tree$1"; shift; done
shift
mkdir -p "$tree/host/outside"
cd "$tree"
pivot_root . host/outside
umount --lazy /host/outside
exec setpriv --reuid "$user" --regid "$user" --clear-groups "$@"
"""


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    output: str


class BareTree:
    """Made by `bare_tree`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def bytes(self) -> int:
        listed = subprocess.run(["du", "-sb", self._root], capture_output=True, text=True)
        return int(listed.stdout.split()[0])

    def type(self, line: str, *variables: str, user: int = 0) -> Done:
        """What this line does in the checkout, typed into sh. A user other than root has no name
        there, and nobody has a home; `variables` are like "A=1".
        """
        settings, folders = _pip_settings()
        environ = [f"PATH={_PATH}", *settings, *variables]
        inside = ["/usr/bin/env", "-i", *environ, "sh", "-c", f"cd {_PLACE} && {line}"]
        mounting = ["sh", "-c", _MOUNTS, "mounts", str(self._root), str(_CACHE), str(user)]
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *mounting]
        command = ["setpriv", "--pdeathsig", "KILL", *apart]
        done = subprocess.run(
            [*command, *folders, "--", *inside],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=HOURS,
        )
        return Done(done.returncode, done.stdout)

    def copy_to(self, other: BareTree, path: str) -> None:
        """The directory, with owners and modes, to the same place there."""
        place = path.strip("/")
        target = other._root / place
        target.parent.mkdir(parents=True, exist_ok=True)
        _run("cp", "-a", str(self._root / place), str(target))

    def bring(self, path: Path) -> None:
        """Copy a file of this checkout that git ignores to the same place there."""
        copy = self._root / _PLACE[1:] / path.relative_to(CHECKOUT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)

    def write(self, path: str, text: str) -> None:
        """Of a file in the checkout."""
        (self._root / _PLACE[1:] / path).write_text(text)


@contextmanager
def bare_tree(owner: int = 0, name: str = "") -> Iterator[BareTree]:
    """A fresh one, whose checkout belongs to this user; of several at once each has a `name`. Skips
    the test if there can be none.
    """
    packed = _packed_or_skip()
    _remove_trees_of_the_dead()
    root = _CACHE / f"tree-{os.getpid()}{name and f'-{name}'}"
    try:
        root.mkdir()
        _run("tar", "-xpf", str(packed), "-C", str(root))
        _copy_checkout(root / _PLACE[1:], owner)
        _settle_in(root, owner)
        yield BareTree(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _remove_trees_of_the_dead() -> None:
    for tree in _CACHE.glob("tree-*"):
        if not Path("/proc", tree.name.split("-")[1]).exists():
            shutil.rmtree(tree, ignore_errors=True)


def _packed_or_skip() -> Path:
    packed = _CACHE / f"{SUITE}.tar"
    if not packed.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        part = _CACHE / f"part-{os.getpid()}"
        try:
            include = ["--variant=minbase", "--include=python3"]
            _run("debootstrap", *include, SUITE, str(part), _mirror_or_skip())
            _run("tar", "-cpf", f"{part}.tar", "-C", str(part), ".")
            Path(f"{part}.tar").rename(packed)
        finally:
            shutil.rmtree(part, ignore_errors=True)
            Path(f"{part}.tar").unlink(missing_ok=True)
    return packed


def _mirror_or_skip() -> str:
    """Where this machine has the suite from."""
    if not shutil.which("debootstrap"):
        pytest.skip("debootstrap is not installed (apt-get install debootstrap)")
    listed = _run("apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)")
    for line in listed.splitlines():
        release, uri = line.split()
        if release == SUITE:
            return uri
    pytest.skip(f"this machine's apt sources have no {SUITE}: Debian 12 is needed")


def _copy_checkout(place: Path, owner: int) -> None:
    """What git tracks, or would."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(command, cwd=CHECKOUT, capture_output=True)
    if found.returncode != 0:
        pytest.skip(f"this is no git checkout: {found.stderr.decode()}")
    place.mkdir()
    os.chown(place, owner, owner)
    for name in filter(None, found.stdout.decode().split("\0")):
        if (CHECKOUT / name).exists():
            copy = place / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, copy)
    _run("chown", "-R", f"{owner}:{owner}", str(place))


def _settle_in(root: Path, user: int) -> None:
    """Package clients work there as they do here."""
    for name in ("packages/partial", "pip-0", f"pip-{user}"):  # root may type there as well
        (_CACHE / name).mkdir(parents=True, exist_ok=True)
    os.chown(_CACHE / f"pip-{user}", user, user)
    (root / "host" / "pip").mkdir(parents=True)
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    (root / "etc" / "hosts").unlink(missing_ok=True)
    for setting in Path("/etc/apt/apt.conf.d").iterdir():
        if "Acquire::" in setting.read_text() and "docker" not in setting.name:
            shutil.copy(setting, root / "etc" / "apt" / "apt.conf.d")
    for setting, path in _pip_config():
        if setting in _FILES:
            shutil.copy(path, root / _FILES[setting][1:])


def _pip_settings() -> tuple[list[str], list[str]]:
    """Variables that make pip look where it looks here, and the folders it finds things in."""
    variables, folders = ["PIP_CACHE_DIR=/host/pip"], []
    for name, value in _pip_config():
        value = _FILES.get(name, value)
        variables.append(f"PIP_{name.upper().replace('-', '_')}={value}")
        places = (
            urlsplit(each).path
            for each in value.split()
            if "://" not in each[:8] or each.startswith("file:")
        )
        folders += [_folder(each) for each in places if Path(each).is_dir()]
    return variables, folders


def _folder(path: str) -> str:
    """An index's files may lie beside it."""
    return str(Path(path).parent) if Path(path).name == "simple" else path


def _pip_config() -> list[tuple[str, str]]:
    found = {}
    for line in _run(sys.executable, "-m", "pip", "config", "list").splitlines():
        key, _, value = line.partition("=")
        (text,) = shlex.split(value)
        found[key.rpartition(".")[2]] = text.replace("\\n", " ")
    return list(found.items())


def _run(*command: str) -> str:
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=HOURS
    ).stdout
