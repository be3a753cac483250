"""A made-up libnvidia-ml.so.1, compiled from fake_nvml.c, and a machine on which agents load it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from support import machines

PLACES = ("0000:1b:00.0", "0000:2b:00.0", "0000:3b:00.0", "0000:4b:00.0")
"""PCI addresses of the GPUs of machines.four_gpus."""
_SOURCE = Path(__file__).with_name("fake_nvml.c")
_WELL = {
    "error": 0,
    "used": 1 << 30,
    "utilization": 87,
    "power": 412_500,
    "temperature": 61,
    "ecc": 0,
    "pending": 0,
    "failed": 0,
    "width": 16,
    "max": 16,
    "reasons": 4,
    "handle": 0,
    "memory": 0,
}


class FakeNvml:
    """The library and its state."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._state = folder / "state"
        library = folder / "libnvidia-ml.so.1"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, _SOURCE], check=True)
        self.environ = {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML": str(self._state)}

    def tell(
        self, gpus: dict[int, dict[str, int]], lines: Sequence[str] = (), count: int = 4
    ) -> None:
        """Have it tell of so many GPUs, which are well but for the facts of these."""
        cards = [_WELL | gpus.get(index, {}) for index in range(count)]
        told = [
            f"gpu 0000{place.upper()} {' '.join(map(str, card.values()))}"
            for place, card in zip(PLACES, cards, strict=False)
        ]
        fresh = self._state.with_suffix(".new")
        fresh.write_text("\n".join([*told, *lines]) + "\n")
        fresh.replace(self._state)


_MOUNTS = """
set -e
tree=$1
shift
mount --make-rprivate /
for each in null zero random urandom full tty ptmx; do
  touch "$tree/dev/$each"
  mount --bind "/dev/$each" "$tree/dev/$each"
done
for each in pts shm; do
  mkdir "$tree/dev/$each"
  mount --rbind "/dev/$each" "$tree/dev/$each"
done
for each in fd stdin stdout stderr; do
  ln -s "$(readlink "/dev/$each")" "$tree/dev/$each"
done
mount --rbind "$tree/dev" /dev
mount --bind "$tree/proc/driver" /proc/driver
exec "$@"
"""
MISSING = "mounts for one process are not permitted here"


def may_mount() -> bool:
    """Whether processes may have mounts of their own."""
    program = shutil.which("unshare")
    tried = [program, "--mount", "true"] if program else ["false"]
    return subprocess.run(tried, capture_output=True).returncode == 0


def on_gpu_machine(folder: Path) -> list[str]:
    """What goes before a command that is to see machines.four_gpus at /dev and /proc/driver."""
    tree = machines.four_gpus(folder)
    return ["unshare", "--mount", "sh", "-c", _MOUNTS, "mounts", str(tree)]
