"""The command line: what is an option's, what abbreviations stand for, and when they are none."""

from __future__ import annotations

import contextlib
import io
from itertools import product

import pytest

from torsh_runtime.errors import ConfigError
from torshrun.config.command_line import TORCHRUNS, parse
from torshrun.config.options import BY_NAME, OPTIONS, Option


@pytest.mark.parametrize(
    ("typed", "given", "rest"),
    [
        ("--nnode 1 a.py", {"nnodes": "1"}, "a.py"),
        ("--nproc 2 a.py", {"nproc_per_node": "2"}, "a.py"),
        ("--nproc_per 2 a.py", {"nproc_per_node": "2"}, "a.py"),
        ("--max-rest=3 a.py", {"max_restarts": "3"}, "a.py"),
        ("--run-id=a_b=c a.py", {"run_id": "a_b=c"}, "a.py"),
        ("--max_rest=3 --max-restarts 4 a.py", {"max_restarts": "4"}, "a.py"),
        ("--stand a.py --nproc 3", {"standalone": "true"}, "a.py --nproc 3"),
        ("--role --nproc a.py", {"role": "--nproc"}, "a.py"),
        ("--role= a.py", {"role": ""}, "a.py"),
        ("-m --nproc 2 a", {"module": "true", "nproc_per_node": "2"}, "a"),
        ("-r 3 --nproc 2 a", {"redirects": "3", "nproc_per_node": "2"}, "a"),
        ("-r3 -t=1 a", {"redirects": "3", "tee": "1"}, "a"),
        ("-mt --nproc a", {"module": "true", "tee": "--nproc"}, "a"),
        ("-- --nproc 2", {}, "--nproc 2"),
        ("-m -- a -- b", {"module": "true"}, "a -- b"),
        ("-m a -- --b", {"module": "true"}, "a --b"),
        ("a.py -- -- b", {}, "a.py -- b"),
        ("a.py b -- c", {}, "a.py b -- c"),
        ("- --nproc 2", {}, "- --nproc 2"),
        ("--run-i x", {"run_id": "x"}, ""),
        ("--rdzv_i x", {"run_id": "x"}, ""),
        ("--vers", {"version": "true"}, ""),
        ("--hel", {"help": "true"}, ""),
        ("-mh", {"module": "true", "help": "true"}, ""),
        ("--events x", {"events": "x"}, ""),
        ("--event x", {"event_log_handler": "x"}, ""),
        ("--run a.py", {"run_path": "true"}, "a.py"),
        ("--re 3 a.py", {"redirects": "3"}, "a.py"),
        ("--log- d a.py", {"log_dir": "d"}, "a.py"),
        ("--metr 9090 a.py", {"metrics_port": "9090"}, "a.py"),
        ("", {}, ""),
    ],
)
def test_what_is_given(typed: str, given: dict[str, str], rest: str) -> None:
    line = parse(typed.split())
    assert line.given == given
    assert [*filter(None, [line.script]), *line.arguments] == rest.split()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--unheard-of a", "there is no option --unheard-of"),
        ("--nproc-per-noode 2", "no option --nproc-per-noode; did you mean --nproc-per-node?"),
        ("--nproc-per-node-x 2", "no option --nproc-per-node-x; did you mean --nproc-per-node?"),
        ("--num_processes 2", "no option --num_processes; here it is --nproc-per-node N"),
        ("--num-gpus=2", "no option --num-gpus; here it is --nproc-per-node N"),
        ("-n 2", "no option -n; here it is --nproc-per-node N"),
        ("-np 2", "no option -np; here it is --nproc-per-node N"),
        ("--min-np 2", "no option --min-np; here it is --nnodes MIN:MAX, on each node"),
        ("-N2", "no option -N; here it is --nnodes N"),
        ("--use_env", "no option --use_env; leave it out"),
        ("--=3", "there is no option --"),
        ("-nnodes 2", "there is no option -nnodes; write --nnodes"),
        ("-nproc_per_node=2 a", "no option -nproc_per_node; write --nproc_per_node"),
        ("-x", "there is no option -x"),
        ("-mx", "there is no option -x"),
        ("--nproc-per-node", "--nproc-per-node needs a value: WORKERS"),
        ("-mr", "-r needs a value: STREAMS"),
        ("--standalone=1 a.py", "--standalone takes no value"),
        ("--help=1", "--help takes no value"),
        ("--master x", "--master could be --master-addr, --master-port: write more of it"),
        ("--log x", "--log could be --log-dir, --logs-specs: write more of it"),
        ("--duplicate=a", "--duplicate could be --duplicate-stdout-filters, --duplicate-stderr"),
        ("--log-r 1 --log-t=a", "--log-t takes no value"),
    ],
)
def test_mistakes(typed: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(typed.split())
    assert str(raised.value).startswith(said) or said in str(raised.value)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_an_exact_name_wins(option: Option) -> None:
    for spelling in option.spellings:
        given = parse([spelling] if option.is_flag else [spelling, "3"]).given
        assert given == {option.key: "true" if option.is_flag else "3"}


@pytest.mark.parametrize("name", TORCHRUNS.split())
def test_what_is_unambiguous_in_torchrun_is_so_here(name: str) -> None:
    key = BY_NAME[name].key if name in BY_NAME else name
    for length in range(1, len(name) + 1):
        start = name[:length]
        if sum(other.startswith(start) for other in TORCHRUNS.split()) == 1:
            assert [*parse([f"--{start}", "3"]).given] == [key], start


def test_words_are_the_scripts_where_they_are_in_torchrun() -> None:
    run = pytest.importorskip("torch.distributed.run")
    parser = run.get_args_parser()
    some = ("train.py", "--", "a", "-m", "--nnodes=1", "--lr")
    for argv in (argv for size in range(1, 5) for argv in product(some, repeat=size)):
        theirs = ours = None
        with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
            known = parser.parse_args(argv)
            theirs = (known.training_script, tuple(known.training_script_args), known.module)
        with contextlib.suppress(ConfigError):
            line = parse(argv)
            ours = line.script and (line.script, line.arguments, "module" in line.given)
        assert ours == theirs, argv
