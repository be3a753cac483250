"""Takes hints from the scheduler or launcher around torshrun where its user gave no options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torshrun.clusters.detection import detect, with_secret
from torshrun.clusters.hints import PLACE, Hint, Hints, Machine
from torshrun.clusters.unheeded import told_of_others
from torshrun.config.request import Entry, Request
from torshrun.config.values import LOCAL
from torshrun.topology.cpus import allowed_cpus, told_of_binding

_MEETING = ("master_addr", "master_port")


def look_around(request: Request, environ: Mapping[str, str], machine: Machine) -> Request:
    """Return the request with hints in place of defaults.

    Raise ConfigError if the hints cannot make a job, and the user has not said what the job is.
    """
    hints = detect(request["scheduler"], environ, machine)
    if hints is None:
        return request
    if _is_contradicted(request, hints):
        if hints.nnodes is None and hints.node_rank:
            hints = replace(hints, found=(*hints.found, "with a job of its own"))
        hints = _without(hints, *PLACE)
    elif hints.mistake:
        raise request.refused("scheduler", hints.mistake)
    if hints.nnodes is None and request["nnodes"].fewest > 1:
        hints = _without(hints, "run_id")  # the others have started in other steps or jobs
    if request.has("rdzv_endpoint") or request["rdzv_backend"] != "static":
        request = _seen_from_others(request, hints)
        hints = _without(hints, *_MEETING)
    elif request["nnodes"].fewest < request["nnodes"].most:
        hints = _elastic(hints)
    if not request.has("secret_file"):
        hints = with_secret(hints, environ)
    entries = {**request.entries, **_entries(request, hints)}
    return replace(request, entries=entries, hints=hints)


def look_around_for_hosts(
    request: Request, environ: Mapping[str, str], machine: Machine
) -> Request:
    """Return the request with hints of the scheduler for a job whose nodes are --hostfile's hosts.

    Raise ConfigError if this is not the only torshrun that the scheduler has started.
    """
    hints = detect(request["scheduler"], environ, machine)
    if hints is None:
        return request
    if hints.mistake or hints.nnodes:
        why = (
            f"{hints.cluster} has started several torshruns, and one alone starts the job on all "
            f"hosts: call it once (without srun, mpiexec, pbsdsh or blaunch), or leave --hostfile "
            f"out; --scheduler none makes each a job of its own"
        )
        raise request.refused("hostfile", why)
    hints = _without(hints, *PLACE, "nproc_per_node")
    # What follows the job's name says that this torshrun is on one of its nodes only.
    hints = replace(hints, found=hints.found[:1])
    return replace(request, entries={**request.entries, **_entries(request, hints)}, hints=hints)


def _entries(request: Request, hints: Hints) -> Mapping[str, Entry]:
    return {
        key: Entry(hint.text, f"{hints.cluster}: {hint.source}", hint.source, is_hint=True)
        for key, hint in hints.options.items()
        if not request.has(key)
    }


def _seen_from_others(request: Request, hints: Hints) -> Request:
    """Return the request with an endpoint that is not localhost if the nodes are on several hosts.

    SkyPilot's guide names it so on the node that serves the store.
    """
    given = request["rdzv_endpoint"]
    if not hints.nnodes or hints.master_addr is None or hints.master_addr.text in LOCAL:
        return request
    if len(given) != 1 or given[0].port is None or given[0].host not in LOCAL:
        return request
    entry = request.entries["rdzv_endpoint"]
    place = _address(hints.master_addr.text, str(given[0].port))
    entries = {**request.entries, "rdzv_endpoint": replace(entry, text=place)}
    return replace(request, entries=entries)


def _elastic(hints: Hints) -> Hints:
    """Return hints to meet in the same place, without fixed ranks, so that nodes may be lost."""
    host, port = hints.master_addr, hints.master_port
    if host is None or port is None:
        return hints
    return replace(
        _without(hints, "node_rank", *_MEETING),
        rdzv_backend=Hint("tcp", "--nnodes MIN:MAX"),
        rdzv_endpoint=Hint(_address(host.text, port.text), host.source),
    )


def _address(host: str, port: str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _without(hints: Hints, *keys: str) -> Hints:
    return replace(hints, **dict.fromkeys(keys))  # type: ignore[arg-type]


def _is_contradicted(request: Request, hints: Hints) -> bool:
    """Return whether the user contradicts the hints on the number of nodes, or this one's rank.

    Where the cluster cannot know these, return whether the user has given them.
    """
    if request["standalone"]:
        return True
    if hints.mistake:
        return request.has("nnodes")
    if hints.nnodes is None and request["nnodes"] == (1, 1):
        return True  # one node has no rank
    if hints.nnodes and request["nnodes"].most != int(hints.nnodes.text):
        return request.has("nnodes")
    rank = hints.node_rank
    return rank is not None and request.has("node_rank") and request["node_rank"] != int(rank.text)


def cluster_notes(request: Request, environ: Mapping[str, str], *, alone: bool) -> Iterator[str]:
    """Yield lines for people about what was found; `alone` says whether the job has one node."""
    hints = request.hints
    if hints:
        yield _account(request, hints)
        if hints.cluster == "slurm" and (binding := told_of_binding(environ, allowed_cpus())):
            yield binding
        if hints.no_secret and not alone:
            yield f"the job has no secret of its own ({hints.no_secret}): give --secret-file"
    if not _says_how_many(request) and (unheeded := told_of_others(environ)):
        yield unheeded


def _says_how_many(request: Request) -> bool:
    """Return whether the number of nodes comes from the user, or from a cluster that could know
    it.
    """
    if request["standalone"] or request["hostfile"] or request["scheduler"] == "none":
        return True
    could_say = request.hints is not None and request.hints.cluster != "kubernetes"
    return request.has("nnodes") or could_say


def _account(request: Request, hints: Hints) -> str:
    """Return what was found, in one line."""
    said = [*hints.found]
    if hints.rdzv_endpoint:
        said.append(f"meeting at {hints.rdzv_endpoint.text}")
    elif hints.nnodes and hints.master_addr:
        address = _address(request["master_addr"], str(request["master_port"] or ""))
        said.append(f"meeting at {address.rstrip(':')}")
    if hints.secret_file:
        said.append(f"with a secret made of {hints.secret_file.text}")
    if hints.time_limit:
        said.append(f"{request['time_limit'] / 60:.0f} min left")
    return f"{hints.cluster}: {', '.join(said)}"
