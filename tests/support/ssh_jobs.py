"""A job that is started by ssh on the hosts of a site, and the fixtures for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.launcher import Launcher
from support.nodes import Node
from support.processes import marked, soon
from support.sshds import SshSite, ssh_site

CONF = "last_call_timeout=1,ttl=3,join_timeout=20,close_timeout=5"


class SshJob:
    """torshrun on the head of the site. Ends by with: then nobody may be connected any more."""

    def __init__(self, site: SshSite, launcher: Launcher) -> None:
        self.site, self.launcher = site, launcher
        launcher.mark = launcher.environ["MARK"] = site.mark
        self._nodes: list[Node] = []

    def __enter__(self) -> SshJob:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._nodes:
            node.close()
        assert soon(self.site.is_idle, 20), "somebody is still connected"

    def options(self, hostfile: str = "", ssh: str = "") -> tuple[str, ...]:
        return (
            f"--hostfile={hostfile or self.site.hostfile()}",
            f"--ssh-command={ssh or self.site.command}",
            f"--rdzv-conf={CONF}",
            f"--export=TMPDIR={self.launcher.temporary}",
        )

    def start(self, *argv: str, hostfile: str = "", ssh: str = "") -> Node:
        options, within = self.options(hostfile, ssh), self.site.head.command
        node = Node(self.launcher.start(*options, *argv, within=within))
        self._nodes.append(node)
        return node

    def run(self, *argv: str, hostfile: str = "", ssh: str = "") -> tuple[int, str]:
        """Exit code and all output."""
        return self.start(*argv, hostfile=hostfile, ssh=ssh).end(60)

    def processes(self, number: int) -> dict[int, int]:
        """What the job has started on that host, and their parents."""
        return marked(f"MARK={self.site.mark}-{number}")


@pytest.fixture(scope="module")
def two_sshds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshSite]:
    """Two hosts, for all tests of a module."""
    with ssh_site(tmp_path_factory.mktemp("ssh"), 2) as made:
        yield made


@pytest.fixture
def job(two_sshds: SshSite, torshrun: Launcher) -> Iterator[SshJob]:
    """A test's own on these two hosts."""
    with SshJob(two_sshds, torshrun) as started:
        yield started
