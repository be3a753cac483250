"""Node 1's image has no UTF-8 locale, so its Python reads the vocabulary as ASCII.

nproc: 1
nnodes: 2
culprit: 1
kind: encoding
hint: LC_ALL|LANG|locale|PYTHONUTF8|encoding|UTF-8
torchrun: no
seconds: 30
"""

import os
import sys
import tempfile
from pathlib import Path

import torsh_runtime as tr

LOCALE_OF_IMAGE = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def enter_image():
    """Start anew with the variables that node 1's image sets."""
    if os.environ["GROUP_RANK"] == "1" and os.environ.get("IMAGE") is None:
        environment = {**os.environ, **LOCALE_OF_IMAGE, "IMAGE": "debian-slim"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def vocabulary():
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "vocabulary.txt")
        path.write_bytes("naïve\nGröße\n数据\n".encode())
        with path.open() as file:
            return [line.strip() for line in file]


def main():
    enter_image()
    words = vocabulary()
    tr.init_process_group(timeout=20)
    tr.barrier()
    print(f"{len(words)} words", flush=True)
    tr.destroy_process_group()


main()
