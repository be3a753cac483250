"""The one table of torshrun's options. The command line, --help, the variables, the file's keys,
--print-config and docs/configuration.md all come from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from torshrun.config import values
from torshrun.config.option import Option, flag, inert

_SIZE = (
    Option(
        "nproc_per_node",
        "N",
        "Workers on this node: a number, cpu (one per usable processor), gpu (one per GPU) or "
        "auto (gpu if there are any, else cpu).",
        values.workers,
        default="1",
    ),
    Option(
        "nnodes",
        "N|MIN:MAX",
        "Nodes of the job: a number, or at least MIN and at most MAX. Run torshrun once on each.",
        values.nodes,
        default="1:1",
    ),
    flag(
        "standalone", "One node, whatever the options under Rendezvous and --nnodes say about it."
    ),
)

_RUN = (
    flag("module", "SCRIPT is a module's name, as with python -m.", short="-m"),
    flag("no_python", "SCRIPT is a program: run it without Python."),
    flag("run_path", "Run SCRIPT by runpy.run_path; wins over --module and --no-python."),
    Option(
        "run_id",
        "NAME",
        "Name of the job, the workers' TORCHELASTIC_RUN_ID.",
        unset="none; with --standalone a new one",
        aliases=("rdzv_id",),
    ),
    Option("role", "NAME", "Role of the workers, their ROLE_NAME.", default="default"),
    flag(
        "virtual_local_rank",
        "Every worker sees LOCAL_RANK 0 and only its own GPU, in CUDA_VISIBLE_DEVICES.",
    ),
    Option(
        "numa_binding",
        "MODE",
        "Bind workers to processors, near their GPUs: node, socket, exclusive or core-complex.",
        values.one_of("node", "socket", "exclusive", "core-complex"),
        unset="not bound",
    ),
    flag("pid_namespace", "Workers live in a PID namespace of their own, and end with it."),
)

_FAILURE = (
    Option(
        "max_restarts",
        "N",
        "How often all workers are started again after one failed.",
        values.restarts,
        default="0",
    ),
    Option(
        "restart_backoff",
        "SECONDS",
        "Wait before the second restart in a row, doubled for each further one up to a minute. "
        "The first comes at once; 0: all do.",
        values.seconds,
        default="1",
    ),
    Option(
        "shutdown_timeout",
        "SECONDS",
        "Between asking workers to stop (SIGTERM) and killing them (SIGKILL); 0 kills at once.",
        values.seconds,
        default="30",
        variables=("TORCH_ELASTIC_SHUTDOWN_TIMEOUT",),
    ),
    Option(
        "signals_to_handle",
        "NAMES",
        "Signals that stop the job in an orderly way.",
        values.signals,
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        is_list=True,
    ),
    Option(
        "hang_timeout",
        "SECONDS",
        "Time without progress after which workers count as hung; 0: never.",
        values.seconds,
        default="0",
    ),
    Option(
        "agent_timeout",
        "SECONDS",
        "Workers are killed when torshrun itself has not moved for so long; 0: never.",
        values.seconds,
        default="60",
    ),
)

_OUTPUT = (
    Option(
        "log_dir",
        "DIRECTORY",
        "Keep each worker's output in DIRECTORY/<job>_*/attempt_<n>/<local rank>/.",
        values.directory,
        unset="a temporary one, if any is needed",
    ),
    Option(
        "redirects",
        "STREAMS",
        "Streams that go to files only: 0 none, 1 stdout, 2 stderr, 3 both; by local rank 0:1,1:2; "
        "by rank r8:3.",
        values.stream_rule,
        default="0",
        short="-r",
        pairs=":",
    ),
    Option(
        "tee",
        "STREAMS",
        "Streams that go to files and to the console; given as with --redirects.",
        values.stream_rule,
        default="0",
        short="-t",
        pairs=":",
    ),
    Option(
        "local_ranks_filter",
        "RANKS",
        "Local ranks whose output the console shows, like 0,2,4-7.",
        values.ranks,
        unset="all",
        field="local_ranks",
        is_list=True,
    ),
    Option(
        "ranks_filter",
        "RANKS",
        "The same by rank in the whole job.",
        values.ranks,
        unset="all",
        field="ranks",
        is_list=True,
    ),
    Option(
        "log_line_prefix_template",
        "TEXT",
        "What lines on the console begin with, with ${role_name}, ${rank}, ${local_rank} and "
        '${hostname}; "" is nothing.',
        values.line,
        unset="[${rank}] and a space",
        field="prefix_template",
        variables=("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",),
    ),
    flag("log_timestamps", "Each line begins with its time, in UTC.", field="timestamps"),
    Option(
        "log_rotate",
        "SIZE",
        "Rename a log file when it is that big, like 100M or 1GiB; five old ones are kept. 0: "
        "never.",
        values.size,
        default="0",
        field="rotate_bytes",
    ),
    Option(
        "duplicate_stdout_filters",
        "TEXTS",
        "Lines of stdout that contain one of these (a,b; a double comma is a comma) also go to "
        "filtered_stdout.log.",
        values.phrases,
        field="stdout_filters",
        is_list=True,
    ),
    Option(
        "duplicate_stderr_filters",
        "TEXTS",
        "The same for stderr and filtered_stderr.log.",
        values.phrases,
        field="stderr_filters",
        is_list=True,
    ),
    Option(
        "color",
        "WHEN",
        "Colours per rank: auto (on a terminal), always or never.",
        values.one_of("auto", "always", "never"),
        default="auto",
    ),
    Option(
        "status_line",
        "WHEN",
        "A last line on the console with the job's state: auto (on a terminal) or never.",
        values.one_of("auto", "never"),
        default="auto",
    ),
)

_WATCHING = (
    Option(
        "metrics_port",
        "[HOST:]PORT",
        "Serve Prometheus metrics: PORT to this host only, :PORT on every address.",
        values.listening,
        unset="not served",
        field="metrics",
        variables=("TORCHELASTIC_HEALTH_CHECK_PORT",),
    ),
    Option(
        "events",
        "FILE|-",
        "Add the job's events to FILE as lines of JSON; - is stdout.",
        values.file_or_dash,
        unset="not written",
    ),
)

_RENDEZVOUS = (
    Option(
        "rdzv_backend",
        "NAME",
        "How nodes find each other: static (each has its --node-rank), tcp (also called c10d; the "
        "endpoint's host serves the store) or etcd.",
        values.one_of(
            "static",
            "c10d",
            "tcp",
            "etcd",
            refused=MappingProxyType({"etcd-v2": "torshrun speaks etcd's version 3, give etcd"}),
        ),
        default="static",
    ),
    Option(
        "rdzv_endpoint",
        "HOST:PORT,...",
        "Where nodes meet, several with etcd; with static and one node the workers' MASTER_ADDR "
        "and MASTER_PORT.",
        values.endpoints,
        is_list=True,
    ),
    Option(
        "rdzv_conf",
        "KEY=VALUE,...",
        "join_timeout, last_call_timeout, close_timeout, ttl, keep_alive_interval (seconds), "
        "keep_alive_max_attempt; for etcd protocol, cacert, cert, key.",
        values.rdzv_conf,
        pairs="=",
    ),
    Option(
        "node_rank",
        "N",
        "This node's rank among the nodes (static).",
        values.count,
        default="0",
    ),
    Option(
        "master_addr",
        "HOST",
        "The workers' MASTER_ADDR with one node, and with several where they meet (static).",
        values.host,
        default="127.0.0.1",
    ),
    Option(
        "master_port",
        "PORT",
        "The workers' MASTER_PORT with one node, and with several where they meet (static).",
        values.port,
        unset="a free one for each start; to meet 29500",
    ),
    Option(
        "local_addr",
        "HOST",
        "Where other nodes reach this one.",
        values.host,
        unset="the address on the way to where they meet",
    ),
    Option(
        "secret_file",
        "FILE",
        "Agents prove to each other that they know what stands in FILE, or in TORSH_SECRET.",
        values.readable,
        unset="made up by the first agent and handed on by the store",
    ),
)

_TORCHRUN = (
    inert(
        "monitor_interval",
        "SECONDS",
        "the end of a worker is reported at once, nothing is polled",
        values.seconds,
    ),
    inert(
        "start_method",
        "NAME",
        "workers are programs, not functions",
        values.one_of("spawn", "fork", "forkserver"),
    ),
    inert("event_log_handler", "NAME", "--events writes the job's events"),
    inert("logs_specs", "NAME", "the options under Output do this"),
)

_COMMAND = (
    Option(
        "config",
        "FILE",
        "Read options from a YAML file; see docs/configuration.md.",
        in_file=False,
    ),
    flag(
        "print_config",
        "Print every value and where it comes from, and start nothing.",
        in_file=False,
    ),
    flag(
        "dry_run", "Print each worker's command and environment, and start nothing.", in_file=False
    ),
)

HEADINGS: Mapping[str, tuple[Option, ...]] = MappingProxyType(
    {
        "Size": _SIZE,
        "Run": _RUN,
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
BY_KEY: Mapping[str, Option] = MappingProxyType({option.key: option for option in OPTIONS})
BY_NAME: Mapping[str, Option] = MappingProxyType(
    {name: option for option in OPTIONS for name in option.names}
)
