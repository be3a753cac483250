"""Memory that is left, by files as the kernel has them."""

from __future__ import annotations

from pathlib import Path

from torsh_runtime.elastic.room import available_memory


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_the_machines_and_each_groups_limit_count(tmp_path: Path) -> None:
    write(tmp_path, {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:     4096 kB\n"})
    assert available_memory(tmp_path) == 4 << 20
    write(
        tmp_path,
        {
            "proc/self/cgroup": "1:cpu:/x\n0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/b/memory.current": "5\n",
            "sys/fs/cgroup/a/memory.max": "1000\n",
            "sys/fs/cgroup/a/memory.current": "900\n",
            "sys/fs/cgroup/a/memory.stat": "anon 3\ninactive_file 50\n",
        },
    )
    assert available_memory(tmp_path) == 150
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory,hugetlb:/c\n",
            "sys/fs/cgroup/memory/c/memory.limit_in_bytes": "100\n",
            "sys/fs/cgroup/memory/c/memory.usage_in_bytes": "120\n",
        },
    )
    assert available_memory(tmp_path) == 0


def test_here_there_is_some() -> None:
    assert 0 < available_memory() < 1 << 50


def test_where_nothing_is_told_there_is_no_limit(tmp_path: Path) -> None:
    assert available_memory(tmp_path) == 1 << 62
