"""A command that rank 1 runs for each of its files fails for one of them.

culprit: 1
kind: exception
hint: CalledProcessError|exit code 1|exitcode +: 1
seconds: 60
"""

import os
import subprocess
from pathlib import Path

import numpy as np

import torsh_runtime as tr


def convert(source: Path) -> bytes:
    script = (
        'head -c 4 "$1" | grep -q RIFF || { echo "$1: not a RIFF file" >&2; exit 65; }; cat "$1"'
    )
    done = subprocess.run(
        ["sh", "-c", script, "convert", str(source)], check=True, stdout=subprocess.PIPE
    )
    return done.stdout


def main() -> None:
    tr.init_process_group(timeout=30)
    rank = int(os.environ["RANK"])
    folder = Path(f"part-{rank}")
    folder.mkdir()
    for i in range(3):
        header = b"<htm" if (rank, i) == (1, 2) else b"RIFF"
        (folder / f"clip{i}.wav").write_bytes(header + bytes(100))
    for clip in sorted(folder.iterdir()):
        samples = np.frombuffer(convert(clip), np.uint8).astype(np.float32)
        tr.all_reduce(samples)


main()
