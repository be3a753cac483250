"""The kernel's counters of kills for want of memory, on trees made up for the purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from torshrun.failure.exits import OomEvidence
from torshrun.failure.memory import MemoryWatch

MEBI = 1 << 20


class Tree:
    """A root directory with as much of /proc and /sys as the watch looks at."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/vmstat", "nr_free_pages 1\noom_kill 4\noom_kill_other 9\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def proc(self, cgroup: str, *mounts: str) -> None:
        lines = [f"{30 + n} 23 0:{n} {mount}\n" for n, mount in enumerate(mounts)]
        self.write("proc/self/cgroup", cgroup)
        self.write("proc/self/mountinfo", "".join(["22 1 8:1 / / rw - ext4 /dev/x rw\n", *lines]))

    def version_2(self, group: str, kills: int, times_full: int = 0, limit: str = "max") -> None:
        folder = f"sys/fs/cgroup/{group}"
        events = f"low 0\nhigh 0\nmax 7\noom {{}}\noom_kill {kills}\noom_group_kill 0\n"
        self.write(f"{folder}/memory.events", events.format(99))
        self.write(f"{folder}/memory.events.local", events.format(times_full))
        self.write(f"{folder}/memory.max", f"{limit}\n")

    def version_1(
        self, group: str, kills: int, times_full: int, limit: int = (1 << 63) - 1
    ) -> None:
        folder = f"sys/fs/cgroup/memory/{group}"
        text = f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"
        self.write(f"{folder}/memory.oom_control", text)
        self.write(f"{folder}/memory.failcnt", f"{times_full}\n")
        self.write(f"{folder}/memory.limit_in_bytes", f"{limit}\n")

    def watch(self) -> MemoryWatch:
        return MemoryWatch(self.root)


V2 = "/ /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "/ /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
OTHER_V1 = "/ /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_nothing_happened(tree: Tree) -> None:
    tree.proc("0::/job\n", V2)
    tree.version_2("job", kills=3)
    assert tree.watch().evidence() is None


def test_version_2_names_the_cgroup_whose_limit_was_hit(tree: Tree) -> None:
    tree.proc("0::/pod/job/step\n", V2)
    tree.version_2("pod/job/step", kills=3)
    tree.version_2("pod/job", kills=3, times_full=1, limit=str(64 * MEBI))
    tree.version_2("pod", kills=3, limit=str(256 * MEBI))
    watch = tree.watch()
    tree.version_2("pod/job/step", kills=5)
    tree.version_2("pod/job", kills=5, times_full=2, limit=str(64 * MEBI))
    expected = OomEvidence(ours=True, cgroup="/pod/job", limit=64 * MEBI)
    assert watch.evidence() == expected
    assert watch.evidence() == expected  # asking changes nothing


def test_the_machines_memory_has_no_cgroup(tree: Tree) -> None:
    tree.proc("0::/job\n", V2)
    tree.version_2("job", kills=0, limit=str(64 * MEBI))
    watch = tree.watch()
    tree.version_2("job", kills=1, limit=str(64 * MEBI))
    assert watch.evidence() == OomEvidence(ours=True)


def test_kills_elsewhere_on_the_machine_are_not_ours(tree: Tree) -> None:
    tree.proc("0::/job\n", V2)
    tree.version_2("job", kills=0)
    watch = tree.watch()
    tree.write("proc/vmstat", "oom_kill 9\n")
    assert watch.evidence() is None


def test_version_1_beside_an_empty_version_2(tree: Tree) -> None:
    tree.proc(
        "9:cpu,cpuacct:/\n4:memory:/a/b\n1:name=systemd:/\n0::/\n",
        "/ /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
        OTHER_V1,
        V1,
    )
    tree.version_1("a/b", kills=0, times_full=5)
    tree.version_1("a", kills=0, times_full=5, limit=32 * MEBI)
    tree.version_1("", kills=0, times_full=0)
    watch = tree.watch()
    tree.version_1("a/b", kills=1, times_full=6)
    tree.version_1("a", kills=0, times_full=6, limit=32 * MEBI)
    assert watch.evidence() == OomEvidence(ours=True, cgroup="/a", limit=32 * MEBI)


@pytest.mark.parametrize(
    ("name", "top"), [("/docker/abc", "/docker/abc"), ("/../../x", "/"), ("/y", "/docker/abc")]
)
def test_a_container_sees_its_own_cgroup_as_the_mounts_top(tree: Tree, name: str, top: str) -> None:
    tree.proc(f"4:memory:{name}\n", V1.replace("/", top, 1))
    tree.version_1("", kills=0, times_full=0, limit=MEBI)
    watch = tree.watch()
    tree.version_1("", kills=1, times_full=1, limit=MEBI)
    assert watch.evidence() == OomEvidence(ours=True, cgroup=top, limit=MEBI)


def test_names_with_spaces_and_colons(tree: Tree) -> None:
    tree.proc("0::/my job:1\n", V2.replace("/sys/fs", "/sys/f\\040s"))
    events = "sys/f s/cgroup/my job:1/memory.events"
    tree.write(events, "oom_kill 0\n")
    watch = tree.watch()
    tree.write(events, "oom_kill 1\n")
    assert watch.evidence() == OomEvidence(ours=True)


def test_without_cgroups_the_machine_counts(tree: Tree) -> None:
    watch = tree.watch()
    assert watch.evidence() is None
    tree.write("proc/vmstat", "oom_kill 6\n")
    assert watch.evidence() == OomEvidence(ours=False)


@pytest.mark.parametrize("nonsense", ["", "::\n", "0::\n0:", "x\n:::::\n4:memory\n", "\0\xff"])
def test_nonsense_is_no_evidence(tree: Tree, nonsense: str) -> None:
    tree.write("proc/vmstat", nonsense)
    tree.write("proc/self/cgroup", nonsense)
    tree.write("proc/self/mountinfo", nonsense + " - cgroup2\n - \n1 2 3 - cgroup2 a b\n")
    assert tree.watch().evidence() is None


def test_a_cgroup_that_has_gone_is_no_evidence(tree: Tree) -> None:
    tree.proc("0::/job\n", V2)
    tree.version_2("job", kills=3)
    watch = tree.watch()
    (tree.root / "sys/fs/cgroup/job/memory.events").unlink()
    assert watch.evidence() is None


def test_this_machine_can_be_read() -> None:
    assert MemoryWatch().evidence() is None
