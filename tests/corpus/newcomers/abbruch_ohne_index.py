"""Rank 1 misses its index and says so in German, by sys.exit.

nproc: 2
culprit: 1
kind: exit_code | file | exception
hint: exit code 1|exited with 1|status 1
seconds: 30
"""

import os
import pathlib
import sys

import numpy as np

import torsh_runtime as tr

TEILE = {0: "teil-0.npy", 1: "teil-1.npy"}


def vorbereiten(ordner):
    ordner.mkdir(exist_ok=True)
    np.save(ordner / "teil-0.npy", np.arange(16.0))


def laden(ordner, rang):
    pfad = ordner / TEILE[rang]
    if not pfad.exists():
        print(f"Warnung: kein Eintrag für „{pfad.name}“ im Zwischenspeicher", file=sys.stderr)
        sys.exit(f"Abbruch: Index nicht gefunden ({pfad}). Bitte zuerst «vorbereiten» aufrufen!")
    return np.load(pfad)


rang = int(os.environ["RANK"])
tr.init_process_group()
ordner = pathlib.Path("daten")
if rang == 0:
    vorbereiten(ordner)
tr.barrier()
daten = laden(ordner, rang)
tr.all_reduce(daten)
tr.destroy_process_group()
