"""A Slurm cluster of two nodes on this machine, with daemons, ports and directories of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.ports import free_ports
from support.processes import marked, soon

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
PATIENCE = 60.0
KILL_WAIT = 9
CREDENTIAL_LIFETIME = 10
"""Seconds; at least 5, or Slurm takes its default, 120. A job that is requeued waits for one more,
so that no node refuses it by a credential of the second in which it revoked the job's earlier ones.
"""
NODES = ("n1", "n2")
"""Names that nothing but Slurm knows."""

_CONFIGURATION = """
ClusterName=torsh
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire={lifetime}
CredType=cred/munge
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait={kill_wait}
SchedulerParameters=sched_interval=1,sched_min_interval=10000,batch_sched_delay=0
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmdParameters=config_overrides
LaunchParameters=use_interactive_step
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{nodes}] CPUs=8
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """Runs from the beginning of a with statement to its end, when nothing is left of it."""

    def __init__(self) -> None:
        missing = [name for name in PROGRAMS if not shutil.which(name, path=_path())]
        if os.geteuid() != 0 or missing:
            pytest.skip("needs root and Debian's slurm-wlm and munge (scripts/setup test)")
        self.folder = Path(tempfile.mkdtemp(prefix="torsh-slurm-", dir="/tmp"))
        self.folder.chmod(0o755)  # munged insists that everybody can reach its socket
        self.work = self.folder / "work"
        """Where jobs run, and what is shared by all nodes."""
        self._daemons: list[subprocess.Popen[bytes]] = []
        for name in ("work", "home", "state", "munge", "tmp", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        self.environ = {
            "PATH": f"{Path(sys.executable).parent}:{_path()}",
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "SLURM_CONF": str(self.folder / "slurm.conf"),
        }

    def __enter__(self) -> SlurmCluster:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        self._make_munge_key()
        control, *nodes = _consecutive()
        text = _CONFIGURATION.format(
            host=os.uname().nodename.partition(".")[0],
            folder=self.folder,
            control=control,
            nodes=f"{nodes[0]}-{nodes[1]}",
            kill_wait=KILL_WAIT,
            lifetime=CREDENTIAL_LIFETIME,
        )
        (self.folder / "slurm.conf").write_text(text)
        place = self.folder / "munge"
        files = [
            f"--{name}={place / name.split('-')[0]}"
            for name in ("socket", "key-file", "pid-file", "seed-file", "log-file")
        ]
        self._exec("munged", "--foreground", *files)
        assert soon((place / "socket").exists, PATIENCE)
        self._exec("slurmctld", "-D")
        for node in NODES:
            self._exec("slurmd", "-D", "-N", node)
        assert soon(self.is_idle, PATIENCE), self.logs()

    def _make_munge_key(self) -> None:
        key = self.folder / "munge" / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))

    def _exec(self, *command: str) -> None:
        name = self.folder / f"{'-'.join(command).replace('/', '_')[:40]}.log"
        with name.open("wb") as log:
            started = subprocess.Popen(
                command, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._daemons.append(started)

    def __exit__(self, *_: object) -> None:
        if len(self._daemons) > 1:
            self.call("scancel", "--user=root", "--signal=KILL", "--full", check=False)
            self.call("scancel", "--user=root", check=False)
            soon(lambda: not self.call("squeue", "--noheader", check=False).strip(), 20)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        mark = str(self.folder)
        gone = soon(lambda: not marked(mark))
        left = marked(mark)
        shutil.rmtree(self.folder, ignore_errors=True)
        assert gone, f"left behind: {left}"

    # ---- use

    def call(self, *command: str, check: bool = True) -> str:
        """Run a command of Slurm's; its stdout."""
        done = subprocess.run(
            command,
            cwd=self.work,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert not check or done.returncode == 0, (command, done.stdout, done.stderr, self.logs())
        return done.stdout

    def is_idle(self) -> bool:
        """Whether both nodes are there and have nothing to do."""
        return self.call("sinfo", "-h", "-t", "idle", "-o", "%D", check=False).strip() == "2"

    def script(self, text: str, name: str = "train.py") -> Path:
        """Write a file for jobs; its path."""
        path = self.work / name
        path.write_text(text)
        return path

    def submit(self, script: str, *options: str, environ: Mapping[str, str] | None = None) -> Job:
        """Put a batch script into the queue."""
        path = self.script(script, "job.sh")
        exported = (
            [f"--export=ALL,{','.join(f'{k}={v}' for k, v in environ.items())}"] if environ else []
        )
        number = self.call(
            "sbatch", "--parsable", "--output=%j.out", *options, *exported, str(path)
        )
        return Job(self, number.strip())

    def logs(self) -> str:
        return "\n".join(
            f"{path}:\n{path.read_text()[-2000:]}" for path in self.folder.glob("*.log")
        )


class Job:
    """A batch job."""

    def __init__(self, cluster: SlurmCluster, number: str) -> None:
        self._cluster = cluster
        self.number = number

    @property
    def output(self) -> str:
        path = self._cluster.work / f"{self.number}.out"
        return path.read_text() if path.exists() else ""

    @property
    def facts(self) -> dict[str, str]:
        """What scontrol tells, by name."""
        told = self._cluster.call("scontrol", "--oneliner", "show", "job", self.number)
        return dict(word.split("=", 1) for word in told.split() if "=" in word)

    @property
    def written(self) -> str:
        """The same of a job that chose the files' names itself."""
        facts = self.facts
        paths = (Path(facts.get(name, "")) for name in ("StdOut", "StdErr"))
        return "".join(path.read_text() for path in dict.fromkeys(paths) if path.is_file())

    def wait_for(self, text: str, times: int = 1) -> None:
        """Until it has written this so often."""
        assert soon(lambda: self.output.count(text) >= times, PATIENCE), self.told()

    def wait_until(self, fact: str, value: str) -> None:
        """Until scontrol tells this of it."""
        assert soon(lambda: self.facts[fact] == value, PATIENCE), self.told()

    def end(self) -> str:
        """Its state, once it has ended."""
        running = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
        assert soon(lambda: self.facts["JobState"] not in running, PATIENCE), self.told()
        return self.facts["JobState"]

    def told(self) -> str:
        """All that is known of it, for a test that fails."""
        shown = [("job", self.number), ("nodes",)]
        facts = [self._cluster.call("scontrol", "show", *what, check=False) for what in shown]
        return "\n".join([self.output, *facts, self._cluster.logs()])


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"


def _consecutive() -> list[int]:
    """Free ports, of which all but the first follow each other, as slurm.conf wants them."""
    control, *others = free_ports(20)
    for first in others:
        if first + 1 != control and _is_free(first + 1):
            return [control, first, first + 1]
    raise OSError("no two free ports follow each other")


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True
