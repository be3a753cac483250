"""Abbreviations: what they stand for, where they end, and when they are ambiguous."""

from __future__ import annotations

import pytest

from torsh_runtime.errors import ConfigError
from torshrun.config.options import OPTIONS
from torshrun.config.spelling import complete


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--nnode 1 a.py", "--nnodes 1 a.py"),
        ("--nproc 2 a.py", "--nproc-per-node 2 a.py"),
        ("--nproc_per 2 a.py", "--nproc-per-node 2 a.py"),
        ("--max-rest=3 a.py", "--max-restarts=3 a.py"),
        ("--max_rest=a_b a.py", "--max-restarts=a_b a.py"),
        ("--stand a.py --nproc 3", "--standalone a.py --nproc 3"),
        ("--role --nproc a.py", "--role --nproc a.py"),
        ("-m --nproc 2 a", "-m --nproc-per-node 2 a"),
        ("-r 3 --nproc 2 a", "-r 3 --nproc-per-node 2 a"),
        ("-r3 --nproc 2 a", "-r3 --nproc-per-node 2 a"),
        ("-mt --nproc --nproc 2 a", "-mt --nproc --nproc-per-node 2 a"),
        ("-- --nproc 2", "-- --nproc 2"),
        ("- --nproc 2", "- --nproc 2"),
        ("--run-i x", "--run-id x"),
        ("--rdzv_i x", "--rdzv-id x"),
        ("--vers", "--version"),
        ("--hel", "--help"),
        ("--unheard-of a", "--unheard-of a"),
        ("--events x", "--events x"),
        ("--event x", "--event-log-handler x"),
        ("--run a.py", "--run-path a.py"),
        ("--re 3 a.py", "--redirects 3 a.py"),
        ("--metr 9090 a.py", "--metrics-port 9090 a.py"),
        ("", ""),
    ],
)
def test_completion(typed: str, meant: str) -> None:
    assert complete(typed.split()) == meant.split()


@pytest.mark.parametrize(
    ("typed", "candidates"),
    [
        ("--rdzv-e", []),
        ("--master", ["--master-addr", "--master-port"]),
        ("--log_", ["--log-dir", "--log-line-prefix-template"]),
        ("--log-t=a", []),
        ("--duplicate=a", ["--duplicate-stdout-filters", "--duplicate-stderr-filters"]),
    ],
)
def test_an_ambiguous_one_names_the_candidates(typed: str, candidates: list[str]) -> None:
    if not candidates:
        complete([typed, "x"])
        return
    with pytest.raises(ConfigError) as raised:
        complete([typed, "x"])
    for candidate in candidates:
        assert candidate in str(raised.value)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_an_exact_name_wins(option: object) -> None:
    for spelling in option.spellings:  # type: ignore[attr-defined]
        assert complete([spelling, "3"]) == [spelling, "3"]
