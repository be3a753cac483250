"""The one table of torshrun's options. The command line, --help, the variables, the file's keys,
--print-config and docs/configuration.md all come from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torshrun.config import values


@dataclass(frozen=True, slots=True)
class Option:
    """One option: how it is called, what it takes and what it says about itself."""

    synopsis: str
    """ "-r --redirects STREAMS = 0": its spellings, what stands for its value in --help (nothing
    for a flag), and the default as it would be given, or (in words) where no text says it."""
    help: str
    """What it does, in one or two lines, with the unit."""
    parse: Callable[[str], Any] = values.words
    """Text to value; raises ConfigError."""
    field: str = ""
    """Its field in LaunchConfig or OutputConfig, where that has another name than key."""
    variables: tuple[str, ...] = ()
    """Variables that count besides TORSH_<NAME> and PET_<NAME>, after them."""
    is_list: bool = False
    """Whether a file may give a list; on the command line its items stand between commas."""
    pairs: str = ""
    """What is between key and value where a file may give a mapping ("=" or ":"); "" is nowhere."""
    without_effect: str = ""
    """Why it is accepted and nothing comes of it; "" if something does."""
    in_file: bool = True
    """Whether a file may give it: it is about the job, and not about this one command."""

    @property
    def spellings(self) -> tuple[str, ...]:
        """As it is called on the command line, the short form first."""
        return tuple(word for word in self._call.split() if word.startswith("-"))

    @property
    def names(self) -> tuple[str, ...]:
        """All its names, as a file has them."""
        long = (word for word in self.spellings if word.startswith("--"))
        return tuple(word[2:].replace("-", "_") for word in long)

    @property
    def key(self) -> str:
        """The name that it goes by here."""
        return self.names[0]

    @property
    def metavar(self) -> str:
        """What stands for its value in --help; "" if it is a flag."""
        last = self._call.split()[-1]
        return "" if last.startswith("-") else last

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value on the command line."""
        return not self.metavar

    @property
    def default(self) -> str | None:
        """What holds without it, as it would be given; None: see unset."""
        if self.is_flag:
            return "false"
        _, given, text = self.synopsis.partition(" =")
        return text.strip() if given and not self.unset else None

    @property
    def unset(self) -> str:
        """What holds without it, in words, where no text says so."""
        words = self.synopsis.partition(" = (")[2]
        return words.removesuffix(")")

    @property
    def environment(self) -> tuple[str, ...]:
        """The variables that it is read from; the first one that is set counts."""
        names = [name.upper() for name in self.names]
        own = [f"{start}_{name}" for start in ("TORSH", "PET") for name in names]
        return (*own, *self.variables)

    @property
    def _call(self) -> str:
        return self.synopsis.partition(" =")[0]


def _flag(synopsis: str, text: str, **more: Any) -> Option:
    return Option(synopsis, text, values.flag, **more)


def _inert(synopsis: str, why: str, parse: Callable[[str], Any] = values.words) -> Option:
    """Accepted for torchrun's sake; `why` says why nothing comes of it."""
    return Option(synopsis, f"No effect: {why}.", parse, without_effect=why)


_SIZE = (
    Option(
        "--nproc-per-node N = 1",
        "Workers on this node: a number, cpu (one per usable processor), gpu (one per GPU) or "
        "auto (gpu if there are any, else cpu).",
        values.workers,
    ),
    Option(
        "--nnodes N|MIN:MAX = 1:1",
        "Nodes of the job: a number, or at least MIN and at most MAX. Run torshrun once on each.",
        values.nodes,
    ),
    _flag(
        "--standalone", "One node, whatever the options under Rendezvous and --nnodes say about it."
    ),
)

_RUN = (
    _flag("-m --module", "SCRIPT is a module's name, as with python -m."),
    _flag("--no-python", "SCRIPT is a program: run it without Python."),
    _flag("--run-path", "Run SCRIPT by runpy.run_path; wins over --module and --no-python."),
    Option(
        "--run-id --rdzv-id NAME = (a new one with one node, else none)",
        "Name of the job, the workers' TORCHELASTIC_RUN_ID.",
    ),
)

_WORKERS = (
    Option("--role NAME = default", "Role of the workers, their ROLE_NAME."),
    _flag(
        "--virtual-local-rank",
        "Every worker sees LOCAL_RANK 0 and only its own GPU, in CUDA_VISIBLE_DEVICES.",
    ),
    Option(
        "--numa-binding MODE = (not bound)",
        "Bind workers to processors, near their GPUs: node, socket, exclusive or core-complex.",
        values.one_of("node", "socket", "exclusive", "core-complex"),
    ),
    _flag("--pid-namespace", "Workers live in a PID namespace of their own, and end with it."),
)

_FAILURE = (
    Option(
        "--max-restarts N = 0",
        "How often all workers are started again after one failed.",
        values.count,
    ),
    Option(
        "--restart-backoff SECONDS = 1",
        "Wait before the second restart in a row, doubled for each further one up to a minute. "
        "The first comes at once; 0: all do.",
        values.seconds,
    ),
    _flag(
        "--retry-same-start",
        "Restart also when workers failed at their start in the same way as the time before.",
    ),
    Option(
        "--shutdown-timeout SECONDS = 30",
        "Between asking workers to stop (SIGTERM) and killing them (SIGKILL); 0 kills at once.",
        values.seconds,
        variables=("TORCH_ELASTIC_SHUTDOWN_TIMEOUT",),
    ),
    Option(
        "--signals-to-handle NAMES = SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "Signals that stop the job in an orderly way.",
        values.signals,
        is_list=True,
    ),
    Option(
        "--hang-timeout SECONDS = 0",
        "Time without progress after which workers count as hung; 0: never.",
        values.seconds,
    ),
    Option(
        "--agent-timeout SECONDS = 60",
        "Workers are killed when torshrun itself has not moved for so long; 0: never.",
        values.seconds,
    ),
)

_OUTPUT = (
    Option(
        "--log-dir DIRECTORY = (a temporary one, if any is needed)",
        "Keep each worker's output in DIRECTORY/<job>_*/attempt_<n>/<local rank>/.",
        values.directory,
    ),
    Option(
        "-r --redirects STREAMS = 0",
        "Streams that go to files only: 0 none, 1 stdout, 2 stderr, 3 both; by local rank 0:1,1:2; "
        "by rank r8:3.",
        values.stream_rule,
        pairs=":",
    ),
    Option(
        "-t --tee STREAMS = 0",
        "Streams that go to files and to the console; given as with --redirects.",
        values.stream_rule,
        pairs=":",
    ),
    Option(
        "--local-ranks-filter RANKS = (all)",
        "Local ranks whose output the console shows, like 0,2,4-7.",
        values.ranks,
        field="local_ranks",
        is_list=True,
    ),
    Option(
        "--ranks-filter RANKS = (all)",
        "The same by rank in the whole job.",
        values.ranks,
        field="ranks",
        is_list=True,
    ),
    Option(
        "--log-line-prefix-template TEXT = ([${rank}] and a space)",
        "What lines on the console begin with, with ${role_name}, ${rank}, ${local_rank} and "
        '${hostname}; "" is nothing.',
        values.line,
        field="prefix_template",
        variables=("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",),
    ),
    _flag("--log-timestamps", "Each line begins with its time, in UTC.", field="timestamps"),
    Option(
        "--log-rotate SIZE = 0",
        "Rename a log file when it is that big, like 100M or 1GiB; five old ones are kept. 0: "
        "never.",
        values.size,
        field="rotate_bytes",
    ),
    Option(
        "--duplicate-stdout-filters TEXTS =",
        "Lines of stdout that contain one of these (a,b; a double comma is a comma) also go to "
        "filtered_stdout.log.",
        values.phrases,
        field="stdout_filters",
        is_list=True,
    ),
    Option(
        "--duplicate-stderr-filters TEXTS =",
        "The same for stderr and filtered_stderr.log.",
        values.phrases,
        field="stderr_filters",
        is_list=True,
    ),
    Option(
        "--color WHEN = auto",
        "Colours per rank: auto (on a terminal), always or never.",
        values.one_of("auto", "always", "never"),
    ),
    Option(
        "--status-line WHEN = auto",
        "A last line on the console with the job's state: auto (on a terminal) or never.",
        values.one_of("auto", "never"),
    ),
)

_WATCHING = (
    Option(
        "--metrics-port [HOST:]PORT = (not served)",
        "Serve Prometheus metrics: PORT to this host only, :PORT on every address.",
        values.listening,
        field="metrics",
        variables=("TORCHELASTIC_HEALTH_CHECK_PORT",),
    ),
    Option(
        "--events FILE|- = (not written)",
        "Add the job's events to FILE as lines of JSON; - is stdout.",
        values.file_or_dash,
    ),
)

_RENDEZVOUS = (
    Option(
        "--rdzv-backend NAME = static",
        "How nodes find each other: static (each has its --node-rank), tcp (also called c10d; the "
        "endpoint's host serves the store) or etcd.",
        values.rdzv_backend,
    ),
    Option(
        "--rdzv-endpoint HOST:PORT,... =",
        "Where nodes meet, several with etcd; with static and one node the workers' MASTER_ADDR "
        "and MASTER_PORT.",
        values.endpoints,
        is_list=True,
    ),
    Option(
        "--rdzv-conf KEY=VALUE,... =",
        "join_timeout, last_call_timeout, close_timeout, ttl, keep_alive_interval (seconds), "
        "keep_alive_max_attempt; for etcd protocol, cacert, cert, key.",
        values.rdzv_conf,
        pairs="=",
    ),
    Option("--node-rank N = 0", "This node's rank among the nodes (static).", values.count),
    Option(
        "--master-addr HOST = 127.0.0.1",
        "The workers' MASTER_ADDR with one node, and with several where they meet (static).",
        values.host,
    ),
    Option(
        "--master-port PORT = (a free one for each start; to meet 29500)",
        "The workers' MASTER_PORT with one node, and with several where they meet (static).",
        values.port,
    ),
    Option(
        "--local-addr HOST = (the address on the way to where they meet)",
        "Where other nodes reach this one.",
        values.host,
    ),
    Option(
        "--secret-file FILE = (made up by the first agent and handed on by the store)",
        "Agents prove to each other that they know what stands in FILE, or in TORSH_SECRET.",
    ),
    _flag("--require-secret", "With several nodes it is an error not to give a secret."),
)

_TORCHRUN = (
    _inert(
        "--monitor-interval SECONDS",
        "the end of a worker is reported at once, nothing is polled",
        values.seconds,
    ),
    _inert(
        "--start-method NAME",
        "workers are programs, not functions",
        values.one_of("spawn", "fork", "forkserver"),
    ),
    _inert("--event-log-handler NAME", "--events writes the job's events"),
    _inert("--logs-specs NAME", "the options under Output do this"),
)

_COMMAND = (
    Option(
        "--config FILE", "Read options from a YAML file; see docs/configuration.md.", in_file=False
    ),
    _flag(
        "--print-config",
        "Print every value and where it comes from, and start nothing.",
        in_file=False,
    ),
    _flag(
        "--dry-run",
        "Print each worker's command and environment, and start nothing.",
        in_file=False,
    ),
)

HEADINGS: Mapping[str, tuple[Option, ...]] = MappingProxyType(
    {
        "Size": _SIZE,
        "Run": (*_RUN, *_WORKERS),
        "Failure and end": _FAILURE,
        "Output": _OUTPUT,
        "Watching": _WATCHING,
        "Rendezvous": _RENDEZVOUS,
        "Accepted from torchrun": _TORCHRUN,
        "Configuration": _COMMAND,
    }
)
"""All options, by the headings of --help and in its order."""
OPTIONS = tuple(option for options in HEADINGS.values() for option in options)
JOB_FIELDS = (*_WORKERS, *_FAILURE, *_WATCHING)
"""Those whose values are fields of LaunchConfig as they are."""
OUTPUT_FIELDS = _OUTPUT
"""Those whose values are fields of OutputConfig as they are."""
BY_KEY: Mapping[str, Option] = MappingProxyType({option.key: option for option in OPTIONS})
BY_NAME: Mapping[str, Option] = MappingProxyType(
    {name: option for option in OPTIONS for name in option.names}
)
