"""Defines the keys of a job file's `cluster` section in one table.

The parser, its errors and docs/render.md are made from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from torsh_runtime.errors import ConfigError
from torshrun.config import values
from torshrun.config.request import Entry, Given, Section
from torshrun.ctl.render.kinds import KINDS, LISTS

_TABLE = """
cluster:
name LABEL = (the script's name)
    The name of the job and of everything that belongs to it.
nodes N|MIN:MAX = (nnodes, else 1)
    Nodes of the job; with MIN:MAX, MAX are requested, and the job continues while MIN are left.
cpus N = (as many as workers)
    Processors per node.
gpus N>=0 = 0
    GPUs per node; also the number of workers if nproc_per_node is not given.
memory SIZE = (what the scheduler gives)
    Memory per node.
time_limit SECONDS = (none)
    How long the job may run.
notice SECONDS = 120
    Time that workers need to save a checkpoint when the end is announced.
requeue FLAG = false
    Whether a preempted job is queued again, and a lost node is replaced.
modules WORDS =
    Environment modules to load (Slurm, PBS, LSF).
setup SHELL =
    Lines of bash to run before torshrun: on each node, but with Slurm and LSF in the job script.
image WORD =
    Container image that has the program torshrun (Kubernetes and what is built on it, compose).
port PORT = 29400
    Port of the first node for the rendezvous, if no etcd is named.

slurm:
setup SHELL = (cluster's)
    Replaces setup of cluster.
partition WORD =
    --partition
account WORD =
    --account
qos WORD =
    --qos
directives LINES =
    More options of sbatch, each as it follows #SBATCH.

pbs:
setup SHELL = (cluster's)
    Replaces setup of cluster.
queue WORD =
    -q
account WORD =
    -A
directives LINES =
    More options of qsub, each as it follows #PBS.

lsf:
setup SHELL = (cluster's)
    Replaces setup of cluster.
queue WORD =
    -q
project WORD =
    -P
directives LINES =
    More options of bsub, each as it follows #BSUB.

kubernetes:
setup SHELL = (cluster's)
    Replaces setup of cluster.
namespace LABEL = default
    Namespace of all objects.
etcd_members 0|1|3|5 = 0
    Members of the job's own etcd; with 0 the nodes rendezvous at the first pod, which must live.
etcd_image WORD = quay.io/coreos/etcd:v3.5.21
    Image of these members.
storage_class WORD = (the cluster's default)
    Storage class of the volumes of etcd's members.
claim LABEL =
    A PersistentVolumeClaim, mounted at /work, for data and checkpoints.
user N = 10001
    The user and group that the containers run as.
service_account LABEL =
    Service account of the pods; without one they get no token.
pull_secret LABEL =
    Secret for pulling images.
priority_class WORD =
    PriorityClass of the pods.
labels LABELS =
    Labels of the job and its pods, each as NAME=VALUE.
annotations ANNOTATIONS =
    Annotations of the job and its pods, each as NAME=VALUE.
node_selector LABELS =
    Labels of the machines that pods may run on, each as NAME=VALUE.
tolerations TAINTS =
    Taints that the pods tolerate, as for kubectl taint: NAME, NAME:EFFECT or NAME=VALUE:EFFECT.
gpu_resource WORD = nvidia.com/gpu
    Name of GPUs as a resource.
resources RESOURCES =
    Further resources of each pod, each as NAME=QUANTITY, like rdma/hca=1 or ephemeral-storage=10Gi.
health_port PORT =
    Port where each pod's torshrun serves /healthz, for probes, and /metrics.
restart_in_place FLAG = false
    Whether pods stay where they are when another one makes room (Kubernetes 1.35).
kueue_queue NAME =
    The LocalQueue of Kueue that the job waits in.
kueue_priority NAME =
    WorkloadPriorityClass of Kueue for the job.
volcano_queue NAME =
    The queue of Volcano whose scheduler starts all pods at once, or none.

trainjob:
runtime NAME = torch-distributed
    The ClusterTrainingRuntime of Kubeflow Trainer.

raycluster:
ray_version WORD =
    The image's version of Ray.
head_cpus N = 1
    Processors of the pod that coordinates the others.
head_memory SIZE = 4GiB
    Memory of that pod.

compose:
setup SHELL = (cluster's)
    Replaces setup of cluster.
etcd_image WORD = quay.io/coreos/etcd:v3.5.21
    Image of the etcd where the nodes rendezvous.
volumes LINES =
    Volumes to mount, like ./data:/work.

aws:
setup SHELL = (cluster's)
    Replaces setup of cluster.
region WORD
    Region of the machines.
instance_type WORD
    Type of the machine of each node.
image WORD
    AMI of the instances.
subnet WORD
    Subnet of the instances; a placement group is in one zone.
key_name WORD = (no login)
    Key pair for logging in.
profile WORD =
    Instance profile with the rights of the instances.
spot FLAG = false
    Spot instances: cheaper, and taken back with two minutes' notice.

gcp:
setup SHELL = (cluster's)
    Replaces setup of cluster.
project WORD
    The project's id.
zone WORD
    Zone of the machines.
machine_type WORD
    Type of the machine of each node.
image_family WORD = debian-12
    Image family of the instances.
image_project WORD = debian-cloud
    Project of that image family.
network WORD = default
    VPC network of the instances.
spot FLAG = false
    Spot instances: cheaper, and taken back with 30 seconds' notice.

azure:
setup SHELL = (cluster's)
    Replaces setup of cluster.
location WORD
    Location of the machines.
size WORD
    Type of the machine of each node.
image WORD = Debian:debian-12:12-gen2:latest
    Image of the machines.
admin WORD = torsh
    User for logging in.
ssh_key WORD = (created by az in ~/.ssh)
    File with the public key for logging in.
spot FLAG = false
    Spot machines: cheaper, and taken back with 30 seconds' notice.
"""
"""The keys by section.

For each key the table has what it takes, then its default after =, in parentheses if the default is
described in words, then its meaning. A key without = is required where its section is used.
"""


class Key(NamedTuple):
    """Describes one key of the section, or of a section below it."""

    name: str
    metavar: str
    """The kind of value that it takes."""
    default: str | None
    """The default value. With None see `unset`."""
    unset: str
    """The default in words, if no value expresses it."""
    is_needed: bool
    """True if the key is required where its section is used."""
    help: str

    def value(self, given: Given | None) -> Any:
        """Return the value of the text that was given.

        Without a text and a default that is None, or () for a list. Raises ConfigError for an
        invalid text.
        """
        if parse := LISTS.get(self.metavar):
            entries = given if isinstance(given, tuple) else (given,) if given else ()
            return tuple(_parsed(parse, entry) for entry in entries if entry.text is not None)
        if isinstance(given, tuple):
            raise ConfigError(f"{given[0].name if given else self.name}: {self.metavar}, no list")
        if given is None or given.text is None:
            return KINDS[self.metavar](self.default) if self.default else None
        return _parsed(KINDS[self.metavar], given)


def _parsed(parse: Callable[[str], Any], entry: Entry) -> Any:
    try:
        return parse(entry.text or "")
    except ConfigError as error:
        raise ConfigError(f"{entry.name}: {error}") from None


def _section(text: str) -> tuple[str, Mapping[str, Key]]:
    heading, *lines = text.strip().split("\n")
    keys = [_key(*lines[at : at + 2]) for at in range(0, len(lines), 2)]
    return heading[:-1], MappingProxyType({key.name: key for key in keys})


def _key(synopsis: str, sentence: str) -> Key:
    call, equals, default = synopsis.partition(" =")
    name, metavar = call.split()
    worded = default.startswith(" (")
    return Key(
        name=name,
        metavar=metavar,
        default=None if worded or not default.strip() else default.strip(),
        unset=default[2:-1] if worded else "",
        is_needed=not equals,
        help=sentence.strip(),
    )


SECTIONS = MappingProxyType(dict(map(_section, _TABLE.split("\n\n"))))
"""The keys of each section. Those of "cluster" are common to all targets."""


def read_section(given: Section, heading: str = "cluster") -> dict[str, Any]:
    """Return the values of all keys of a section, with the sections below it as mappings.

    Raises ConfigError for unknown keys and invalid values.
    """
    known = SECTIONS[heading]
    below = [name for name in SECTIONS if name != "cluster"] if heading == "cluster" else []
    for name, entry in given.items():
        if name not in known and name not in below:
            hint = values.nearest(name, [*known, *below])
            raise ConfigError(f"{_place(entry)}{heading} has no key {name}{hint}")
        if (name in below) != isinstance(entry, Mapping):
            wanted = "keys of its own" if name in below else known[name].metavar
            raise ConfigError(f"{_place(entry)}{name} takes {wanted}")
    found = {name: key.value(given.get(name)) for name, key in known.items()}  # type: ignore[arg-type]
    return found | {name: read_section(given.get(name, {}), name) for name in below}  # type: ignore[arg-type]


def _place(entry: Given | Mapping[str, Given]) -> str:
    """Return where the entry is in its file, such as "job.yaml:7: ". Empty if unknown."""
    while not isinstance(entry, Entry):
        inner = [*entry.values()] if isinstance(entry, Mapping) else [*entry]
        if not inner:
            return ""
        entry = inner[0]
    return f"{entry.origin}: "
