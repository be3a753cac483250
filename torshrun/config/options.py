"""The one table of torshrun's options. The command line, --help, the variables, the file's keys,
--print-config and docs/configuration.md all come from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from torshrun.config import values

_TABLE = """
Size:
--nproc-per-node WORKERS = 1
    Workers on this node: a number, cpu (one per usable processor), gpu (one per GPU) or auto (gpu
    if there are any, else cpu).
--nnodes N|MIN:MAX = 1:1
    Nodes of the job: a number, or at least MIN and at most MAX. Run torshrun once on each.
--standalone
    One node, whatever the options under Rendezvous and --nnodes say about it.

Hosts:
--hostfile FILE
    Run torshrun on each host that FILE lists, by ssh: one a line, like node1 slots=4; - is stdin.
    See docs/ssh.md.
--include HOSTS = (all that FILE lists)
    Of these hosts only some, like node1@node2:0,2: all of node1, slots 0 and 2 of node2.
--exclude HOSTS = (none)
    Of these hosts all but some; given as with --include.
--ssh-command COMMAND = ssh
    How to call ssh, with options of your own, like "ssh -F config -i key".
--remote-python FILE = (the path of the one here)
    The Python on those hosts that has torshrun.
--export VARIABLES =
    Variables that workers there get: NAME as it is here, NAME=VALUE, or NCCL_* for all that begin
    so (a,b; a double comma is a comma).

Run:
-m --module
    SCRIPT is a module's name, as with python -m.
--no-python
    SCRIPT is a program: run it without Python.
--run-path
    Run SCRIPT by runpy.run_path; wins over --module and --no-python.
--run-id --rdzv-id NAME = (a new one with one node, else none)
    Name of the job, the workers' TORCHELASTIC_RUN_ID.
--role ROLE = default
    Role of the workers, their ROLE_NAME.
--virtual-local-rank
    Every worker sees LOCAL_RANK 0 and only its own GPU, in CUDA_VISIBLE_DEVICES.
--torch-backend torsh = (as the script says)
    torch.distributed's groups that ask for gloo are torsh's on CPUs; see docs/torch.md.
--numa-binding MODE = (not bound)
    Bind workers to processors, near their GPUs: node, socket, exclusive or core-complex.
--pid-namespace
    Workers live in a PID namespace of their own, and end with it.

Standbys:
--preload MODULES = none
    Imported once, before there are workers, which are forks of the process that did: auto (what the
    script imports at its head), none, or names like torch,numpy. See docs/standbys.md.
--standbys N|auto = auto
    Workers kept ready for a restart, with --preload; auto: as many as workers.

Failure and end:
--max-restarts N = 0
    How often all workers are started again after one failed.
--recover
    A copy of each worker takes its place when it is killed, while the others wait: for scripts of
    torch.distributed on CPUs, with --max-restarts. See docs/recovery.md.
--restart-backoff SECONDS = 1
    Wait before the second restart in a row, doubled for each further one up to a minute. The first
    comes at once; 0: all do.
--retry-same-start
    Restart also when workers failed at their start in the same way as the time before.
--shutdown-timeout SECONDS = 30
    Between asking workers to stop (SIGTERM) and killing them (SIGKILL); 0 kills at once. After
    success, time for what they have left running to end by itself.
--signals-to-handle NAMES = SIGTERM,SIGINT,SIGHUP,SIGQUIT
    Signals that stop the job in an orderly way.
--hang-timeout SECONDS = 0
    Time without progress after which workers count as hung; 0: never.
--agent-timeout SECONDS = 60
    Workers are killed when torshrun itself has not moved for so long; 0: never.

Cluster:
--scheduler KIND = auto
    Whose environment says what the job is: auto (the scheduler's or mpiexec's that is there), none,
    skypilot, dstack, slurm, pbs, lsf, mpi or kubernetes.
--time-limit SECONDS = (the allocation's, if its end is known)
    This node leaves in time for its workers to stop before that; they see it in time_left().
--end-notice SECONDS = 120
    How long before the end workers that handle SIGUSR1 get it; 0: never.
--requeue-on-preempt
    When the job was preempted, or its time is over, Slurm is asked to run it again.

Output:
--log-dir DIRECTORY = (a temporary one, if any is needed)
    Keep each worker's output in DIRECTORY/<job>_*/attempt_<n>/<local rank>/.
-r --redirects STREAMS = 0
    Streams that go to files only: 0 none, 1 stdout, 2 stderr, 3 both; by local rank 0:1,1:2; by
    rank r8:3.
-t --tee STREAMS = 0
    Streams that go to files and to the console; given as with --redirects.
--local-ranks-filter RANKS = (all)
    Local ranks whose output the console shows, like 0,2,4-7.
--ranks-filter RANKS = (all)
    The same by rank in the whole job.
--log-line-prefix-template TEXT = ([${rank}] and a space)
    What lines on the console begin with, with ${role_name}, ${rank}, ${local_rank} and ${hostname};
    "" is nothing.
--log-timestamps
    Each line begins with its time, in UTC.
--log-rotate SIZE = 0
    Rename a log file when it is that big, like 100M or 1GiB; five old ones are kept. 0: never.
--duplicate-stdout-filters TEXTS =
    Lines of stdout that contain one of these (a,b; a double comma is a comma) also go to
    filtered_stdout.log.
--duplicate-stderr-filters TEXTS =
    The same for stderr and filtered_stderr.log.
--color auto|always|never = auto
    Colours per rank; auto: on a terminal.
--status-line auto|never = auto
    A last line on the console with the job's state; auto: on a terminal.

Watching:
--metrics-port [HOST:]PORT = (not served)
    Serve Prometheus metrics: PORT to this host only, :PORT on every address.
--debugpy [HOST:]PORT = (not served)
    Serve debugpy, VS Code's debugger, in each worker, at PORT plus its local rank, to the same. See
    docs/debugging.md.
--events FILE|- = (not written)
    Add the job's events to FILE as lines of JSON; - is stdout.
--otlp URL|env = (not sent)
    Send metrics and events to the OpenTelemetry collector at URL, like http://host:4318; env: where
    OTEL_EXPORTER_OTLP_ENDPOINT says. See docs/monitoring.md.
--straggler-threshold RATIO = 0
    Tell of a rank whose own work takes so many times as long as that of the others, such as 1.2,
    and why; 0: never. See docs/monitoring.md.
--replace-stragglers
    Drain the node of a rank that is slow for long, if another node waits for a place.
--notify COMMAND = (nothing is run)
    A shell's command that is run for each straggler, with its event as JSON at stdin.

Rendezvous:
--rdzv-backend BACKEND = static
    How nodes find each other: static (each has its --node-rank), tcp (also called c10d; the
    endpoint's host serves the store) or etcd.
--rdzv-endpoint HOST:PORT,... =
    Where nodes meet, several with etcd; with static and one node the workers' MASTER_ADDR and
    MASTER_PORT.
--rdzv-conf KEY=VALUE,... =
    join_timeout, last_call_timeout, close_timeout, ttl, keep_alive_interval (seconds),
    keep_alive_max_attempt; for etcd protocol, cacert, cert, key.
--node-rank N = 0
    This node's rank among the nodes (static).
--master-addr HOST = 127.0.0.1
    The workers' MASTER_ADDR with one node, and with several where they meet (static).
--master-port PORT = (a free one for each start; to meet 29500)
    The workers' MASTER_PORT with one node, and with several where they meet (static).
--local-addr HOST = (the address on the way to where they meet)
    Where other nodes reach this one.
--secret-file FILE = (made up by the first agent and handed on by the store)
    Agents prove to each other that they know what stands in FILE, or in TORSH_SECRET.
--require-secret
    With several nodes it is an error not to give a secret.

Accepted from torchrun:
--monitor-interval SECONDS
    No effect: the end of a worker is reported at once, nothing is polled.
--start-method spawn|fork|forkserver
    No effect: workers are programs, not functions.
--event-log-handler NAME
    No effect: --events writes the job's events.
--logs-specs NAME
    No effect: the options under Output do this.

Configuration:
--config FILE
    Read options from a YAML file; see docs/configuration.md.
--print-config
    Print every value and where it comes from, and start nothing.
--dry-run
    Print each worker's command and environment, and start nothing.
--print-completion bash|zsh|fish
    Print a script by which that shell completes torshrun's options; its head says how.
"""
"""Options under the headings of --help and in its order.

For each: its names, its placeholder (none for a flag), after = the default as it would be given, or
(in words) where no text says it, and below what it does, with the unit.
"""
_NO_EFFECT = "No effect: "


class Kind(NamedTuple):
    """Describes the values that an option can have."""

    parse: Callable[[str], Any]
    """Text to value; raises ConfigError."""
    is_list: bool = False
    """True if a file may give a list; on the command line its items are separated by commas."""
    pairs: str = ""
    """Separator of key and value where a file may give a mapping ("=" or ":"); "" where not."""


_KINDS: Mapping[str, Kind] = {
    "": Kind(values.flag),
    "BACKEND": Kind(values.rdzv_backend),
    "COMMAND": Kind(values.words),
    "DIRECTORY": Kind(values.directory),
    "FILE": Kind(values.words),
    "FILE|-": Kind(values.file_or_dash),
    "HOST": Kind(values.host),
    "HOST:PORT,...": Kind(values.endpoints, is_list=True),
    "HOSTS": Kind(values.words),
    "KIND": Kind(
        values.one_of(
            "auto", "none", "skypilot", "dstack", "slurm", "pbs", "lsf", "mpi", "kubernetes"
        )
    ),
    "KEY=VALUE,...": Kind(values.rdzv_conf, pairs="="),
    "MODE": Kind(values.one_of("node", "socket", "exclusive", "core-complex")),
    "N": Kind(values.count),
    "N|MIN:MAX": Kind(values.nodes),
    "N|auto": Kind(values.count_or_auto),
    "MODULES": Kind(values.modules, is_list=True),
    "NAME": Kind(values.words),
    "NAMES": Kind(values.signals, is_list=True),
    "PORT": Kind(values.port),
    "RANKS": Kind(values.ranks, is_list=True),
    "ROLE": Kind(values.role),
    "RATIO": Kind(values.ratio),
    "SECONDS": Kind(values.seconds),
    "SIZE": Kind(values.size),
    "STREAMS": Kind(values.stream_rule, pairs=":"),
    "TEXT": Kind(values.template),
    "TEXTS": Kind(values.phrases, is_list=True),
    "URL|env": Kind(values.url_or_env),
    "VARIABLES": Kind(values.phrases, is_list=True),
    "WORKERS": Kind(values.workers),
    "[HOST:]PORT": Kind(values.listening),
}
"""Kinds of values by placeholder; other placeholders are words to choose from: auto|never."""
_VARIABLES = {
    "shutdown_timeout": ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT",),
    "log_line_prefix_template": ("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",),
    "metrics_port": ("TORCHELASTIC_HEALTH_CHECK_PORT",),
}
"""Variables that count besides TORSH_<NAME> and PET_<NAME>, after them."""


class Option(NamedTuple):
    """Describes an option: its names, its value and its help."""

    spellings: tuple[str, ...]
    """Names on the command line, the short form first."""
    metavar: str
    """Placeholder of its value in --help; "" if it is a flag."""
    default: str | None
    """Default, in the form in which it would be given; None: see unset."""
    unset: str
    """Default in words, where no text says it."""
    help: str
    """Description of what it does, in one or two sentences, with the unit."""
    kind: Kind
    in_file: bool
    """True if a file may give it: it is about the job, and not about this one command."""

    @property
    def names(self) -> tuple[str, ...]:
        long = (word for word in self.spellings if word.startswith("--"))
        return tuple(word[2:].replace("-", "_") for word in long)

    @property
    def key(self) -> str:
        """Return the name that it has in requests."""
        return self.names[0]

    @property
    def is_flag(self) -> bool:
        return not self.metavar

    @property
    def environment(self) -> tuple[str, ...]:
        """Return the variables that it is read from; the first one that is set counts."""
        names = [name.upper() for name in self.names]
        own = [f"{start}_{name}" for start in ("TORSH", "PET") for name in names]
        return (*own, *_VARIABLES.get(self.key, ()))

    @property
    def without_effect(self) -> str:
        """Return why it is accepted without effect; "" if it has one."""
        inert = self.help.startswith(_NO_EFFECT)
        return self.help.removeprefix(_NO_EFFECT).rstrip(".") if inert else ""


def _section(text: str) -> tuple[str, tuple[Option, ...]]:
    heading, *options = text.strip().split("\n-")
    return heading[:-1], tuple(_option(f"-{text}", heading) for text in options)


def _option(text: str, heading: str) -> Option:
    synopsis, *sentences = text.split("\n    ")
    call, equals, default = synopsis.partition(" =")
    words = call.split()
    metavar = "" if words[-1].startswith("-") else words.pop()
    worded = default.startswith(" (")
    return Option(
        spellings=tuple(words),
        metavar=metavar,
        default=default.strip() if equals and not worded else None if metavar else "false",
        unset=default[2:-1] if worded else "",
        help=" ".join(sentences),
        kind=_KINDS.get(metavar) or Kind(values.one_of(*metavar.split("|"))),
        in_file=heading != "Configuration:",
    )


HEADINGS = MappingProxyType(dict(map(_section, _TABLE.split("\n\n"))))
"""Options by the headings of --help and in its order."""
OPTIONS = tuple(option for options in HEADINGS.values() for option in options)
BY_KEY = MappingProxyType({option.key: option for option in OPTIONS})
BY_NAME = MappingProxyType({name: option for option in OPTIONS for name in option.names})
BY_VARIABLE = MappingProxyType({name: option for option in OPTIONS for name in option.environment})
_CREDENTIAL = re.compile(r"(?:TORSH|PET)_(?:\w*(?:SECRET|PASSWORD)\w*|ETCD_USER)")


def is_for_torshrun(variable: str) -> bool:
    """Return whether the variable stands for an option or is a credential, and is not inherited.

    A torshrun that a worker starts has a job of its own, with neither its launcher's hosts nor its
    port.
    """
    return variable in BY_VARIABLE or bool(_CREDENTIAL.fullmatch(variable))
