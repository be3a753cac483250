"""A Debian with python3 and its pip alone, of any release and processor, as root of commands.

Its packages are opened and not installed, so that it takes seconds and no root: nothing of them
runs before the command does. That has a user namespace in which it is root, and another processor's
programs run there by qemu, of which nobody outside knows.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.release import CHECKOUT

_CACHE = CHECKOUT / "build" / "opened"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_PACKAGES = "base-files coreutils dash grep sed libstdc++6 python3 python3-venv"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_QEMU = ":qemu:M::{}:{}:{}:F"
_AARCH64 = (
    r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00",
    r"\xff\xff\xff\xff\xff\xff\xff\x00" + r"\xff" * 8 + r"\xfe\xff\xff\xff",
)
"""How its programs begin, and which bits of that count."""
_APART = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--net", "--fork")
_ENTER = """
set -e
tree=$1 qemu=$2; shift 2
mount --bind "$tree" "$tree"
mount -t proc proc "$tree/proc"
mount --rbind /dev "$tree/dev"
mount -t tmpfs -o mode=1777 tmpfs "$tree/dev/shm"
if [ -n "$qemu" ]; then
  mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
  printf %s "$qemu" >/proc/sys/fs/binfmt_misc/register
fi
exec chroot "$tree" "$@"
"""


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    output: str
    seconds: float


class OpenedTree:
    """Made by `opened_tree`."""

    def __init__(self, root: Path, processor: str) -> None:
        self.root = root
        self._qemu = _register(processor)

    def type(self, line: str, timeout: float = 1800.0) -> Done:
        """What this line does there, typed into sh, without a network."""
        command = [*_APART, "--kill-child", "sh", "-c", _ENTER, "enter", str(self.root), self._qemu]
        environ = ["/usr/bin/env", "-i", "PATH=/usr/bin:/bin", "HOME=/root", "LC_ALL=C.UTF-8"]
        start = time.monotonic()
        done = subprocess.run(
            [*command, *environ, "sh", "-c", f"cd /root && {line}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
        )
        return Done(done.returncode, done.stdout, time.monotonic() - start)


def opened_tree(place: Path, suite: str, processor: str) -> OpenedTree:
    """A fresh one at `place`. Skips the test if there can be none."""
    archives = _packages(suite, _ARCHITECTURES[processor], _PACKAGES)
    place.mkdir()
    for archive in archives:
        _run("dpkg-deb", "-x", str(archive), str(place))
    _install_certificates(place)
    return OpenedTree(place, processor)


def _install_certificates(root: Path) -> None:
    """As the package would, were it installed: pip does not start without the file."""
    found = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    (root / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
    text = "".join(each.read_text() for each in found)
    (root / "etc/ssl/certs/ca-certificates.crt").write_text(text)


def _packages(suite: str, architecture: str, names: str) -> list[Path]:
    folder = _CACHE / f"{suite}-{architecture}-{names.split()[0]}"
    archives = folder / "cache" / "archives"
    if not (folder / "complete").exists():
        for each in ("lists/partial", "cache/archives/partial"):
            (folder / each).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        source = f"deb [arch={architecture} signed-by={_KEYRING}] {_mirror()} {suite} main\n"
        (folder / "sources.list").write_text(source)
        apt = _apt(folder, architecture)
        _run(*apt, "update")
        how = ["--yes", "--download-only", "--no-install-recommends"]
        _run(*apt, "install", *how, *names.split())
        (folder / "complete").touch()
    return sorted(archives.glob("*.deb"))


def _apt(folder: Path, architecture: str) -> list[str]:
    settings = {
        "Dir::State": folder,
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "APT::Architecture": architecture,
        "APT::Architectures::": architecture,
        "APT::Sandbox::User": "root",
    }
    return ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]


def _mirror() -> str:
    if not shutil.which("apt-get") or not Path(_KEYRING).exists():
        pytest.skip("this is no Debian, from whose packages the tree is made")
    listed = _run("apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)")
    for line in listed.splitlines():
        origin, _, uri = line.partition(" ")
        if origin == "Debian" and "security" not in uri:
            return uri
    pytest.skip("apt's settings have no mirror of Debian (apt-get update)")


def _register(processor: str) -> str:
    """What tells the kernel how that processor's programs are run here; "" if it runs them."""
    if processor == "x86_64":
        return ""
    return _QEMU.format(*_AARCH64, _qemu())


def _qemu() -> Path:
    """A new one: those before 10 know no reapers of orphans, without which the keeper does not
    start.
    """
    folder = _CACHE / "qemu"
    if not folder.exists():
        (package,) = _packages("forky", "amd64", "qemu-user")
        _run("dpkg-deb", "-x", str(package), f"{folder}.part")
        Path(f"{folder}.part").rename(folder)
    return folder / "usr/bin/qemu-aarch64"


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
