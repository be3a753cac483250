"""Hosts with an sshd of their own each, and a host to call ssh from, with keys made for the test.

Nothing of the user's own ~/.ssh, and no sshd of this machine, is used or changed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.hosts import Host, plugged
from support.processes import soon

PORT = 2222
GREETING = "a shell may greet those who come"
_PACKAGES = {"ssh": "openssh-client", "ssh-keygen": "openssh-client", "sshd": "openssh-server"}
"""Debian's."""
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def _missing() -> str:
    for tool, package in _PACKAGES.items():
        if not shutil.which(tool, path=_PATH):
            return f"{tool} is not installed (apt-get install {package})"
    return ""


_WHY_NOT = _missing()
needs_sshd = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)


@dataclass(frozen=True, slots=True)
class Sshd:
    """One host's."""

    host: Host
    pid: int

    def connections(self) -> list[int]:
        """Its processes for those who are connected: for each one of root's, or two of a user's."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return list(map(int, children.read_text().split()))

    def send(self, signo: signal.Signals) -> None:
        """Send it to the processes of all connections, and to those that they have made."""
        for pid in self.connections():
            os.kill(pid, signo)


@dataclass(frozen=True, slots=True)
class SshSite:
    """Hosts n1, n2, … and one from which they are reached by `command`."""

    folder: Path
    head: Host
    sshds: tuple[Sshd, ...]
    mark: str
    """What processes that are started by ssh have in MARK in their environment, then the host."""

    @property
    def command(self) -> str:
        """For --ssh-command."""
        return f"ssh -F {self.folder}/config"

    def command_with(self, old: str, new: str) -> str:
        """Another, whose configuration has `new` in place of `old`."""
        text = (self.folder / "config").read_text()
        assert old in text
        (self.folder / "other_config").write_text(text.replace(old, new))
        return f"ssh -F {self.folder}/other_config"

    def hostfile(self, *lines: str) -> str:
        """The path of one with these lines, or with all hosts."""
        path = self.folder / "hosts"
        path.write_text("\n".join(lines or [f"n{s.host.number}" for s in self.sshds]) + "\n")
        return str(path)

    def is_idle(self) -> bool:
        """Whether nobody is connected."""
        return not any(sshd.connections() for sshd in self.sshds)


@contextmanager
def ssh_site(folder: Path, count: int) -> Iterator[SshSite]:
    """With so many hosts that have an sshd."""
    mark = secrets.token_hex(8)
    Path("/run/sshd").mkdir(exist_ok=True)  # it wants that, whatever it is told
    for name in ("key", "host_key", "stranger"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(words, check=True, timeout=30)
    shutil.copy(folder / "key.pub", folder / "authorized_keys")
    with ExitStack() as stack:
        *hosts, head = stack.enter_context(plugged(count + 1))
        _write_config(folder, hosts)
        sshds = tuple(Sshd(host, _serve(folder, host, mark, stack)) for host in hosts)
        yield SshSite(folder, head, sshds, mark)


def _write_config(folder: Path, hosts: Sequence[Host]) -> None:
    key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    names = [f"Host n{h.number} node{h.number}\n  HostName {h.ipv4}" for h in hosts]
    known = [f"[{place}]:{PORT} {key}" for host in hosts for place in (host.ipv4, host.ipv6)]
    (folder / "known_hosts").write_text("\n".join(known) + "\n")
    common = f"""
Host *
  Port {PORT}
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
"""
    (folder / "config").write_text("\n".join(names) + common)


def _serve(folder: Path, host: Host, mark: str, stack: ExitStack) -> int:
    config = folder / f"sshd_{host.number}"
    config.write_text(f"""
Port {PORT}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
PidFile none
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
SetEnv MARK={mark}-{host.number} NUMBER={host.number}
ForceCommand echo '{GREETING}'; eval "$SSH_ORIGINAL_COMMAND"
""")
    sshd = shutil.which("sshd", path=_PATH)
    assert sshd
    process = subprocess.Popen(
        [*host.command, sshd, "-D", "-e", "-f", str(config)],
        stdin=subprocess.DEVNULL,
        stderr=(folder / f"sshd_{host.number}.log").open("w"),
        env={"PATH": _PATH},
    )
    stack.callback(_end, process)
    log = folder / f"sshd_{host.number}.log"
    assert soon(lambda: "listening" in log.read_text(), 20), log.read_text()
    return process.pid


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(10)
