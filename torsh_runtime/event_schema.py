"""Describes the events of a job: when each happens, and what it tells."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Fact(NamedTuple):
    """Describes a fact that events contain."""

    type: str
    """"integer", "number", "text", "boolean", or the lists "integers" and "texts"."""
    text: str
    """Meaning of the fact, with its unit and the meaning of 0 or ""."""
    choices: tuple[str, ...] = ()
    """The values that a text may have; () for any."""


class Kind(NamedTuple):
    """Describes the events of one name."""

    text: str
    """Description of when the event happens."""
    facts: Mapping[str, Fact]
    """The facts of the event, by name."""


_RANK = Fact("integer", "Rank among all workers.")


_RANKS = Fact("integers", "Ranks among all workers.")


_PID = Fact("integer", "Its process id on its node.")


_CODE = Fact("integer", "Its exit code as a shell gives it: 128 + n for signal n.")


_KILLED_BY = Fact("text", 'Name of the signal that killed it, as in "SIGKILL"; "" if none did.')


_SECONDS = Fact("number", "How long it ran, in seconds.")


_SIGNAL = Fact("text", 'Name of the signal, as in "SIGTERM".')


_SLOW: Mapping[str, Fact] = MappingProxyType(
    {
        "kind": Fact("text", "What is slow: a rank's own work, or a link.", ("straggler", "link")),
        "ranks": Fact("integers", "The slow rank, or those of the node of the link."),
        "node": Fact("integer", "Rank of the node; -1 is unknown."),
        "step": Fact("integer", "The last step that was looked at."),
        "ratio": Fact(
            "number",
            "How many times as long its own work takes as that of the others, or as before; of a "
            "link steps as before.",
        ),
        "text": Fact("text", "The line, as on stderr."),
    }
)


_RESOURCE: Mapping[str, Fact] = MappingProxyType(
    {
        "resource": Fact("text", "Which one.", ("cpu", "memory", "network", "gpu")),
        "node": Fact("integer", "Rank of the node."),
        "ranks": _RANKS,
        "used": Fact("number", "The part of it that is used, 0 to 1."),
        "text": Fact("text", "The line, as on stderr."),
    }
)


SCHEMA: Mapping[str, Kind] = {
    "job_started": Kind(
        "This node's agent is about to start the first workers. Always the first event.",
        {
            "version": Fact("text", "Version of torshrun."),
            "host": Fact("text", "Name of the node."),
            "agent_pid": Fact("integer", "Process id of the agent."),
            "target": Fact("text", "What the workers run: a script, a module or a program."),
            "role": Fact("text", "The workers' role."),
            "workers": Fact("integer", "Workers on this node."),
            "max_restarts": Fact("integer", "How often the workers may be started again."),
            "log_dir": Fact("text", 'Directory of the workers\' log files; "" if none are kept.'),
        },
    ),
    "round_started": Kind(
        "All workers are about to be started.",
        {
            "restarts": Fact("integer", "How often workers have been restarted so far."),
            "world_size": Fact("integer", "Workers of this round, on all nodes."),
            "master_addr": Fact("text", "The workers' MASTER_ADDR."),
            "master_port": Fact("integer", "The workers' MASTER_PORT, a TCP port."),
        },
    ),
    "workers_started": Kind(
        "All workers of this node run.",
        {
            "ranks": _RANKS,
            "pids": Fact("integers", "Their process ids, in the order of ranks."),
        },
    ),
    "start_failed": Kind(
        "The round's workers, or some of them, could not be started, or none can be again on a "
        "broken GPU.",
        {"reason": Fact("text", "Why, as on stderr.")},
    ),
    "worker_exited": Kind(
        "A worker's process has ended, well or badly.",
        {
            "rank": _RANK,
            "pid": _PID,
            "code": _CODE,
            "signal": _KILLED_BY,
            "seconds": _SECONDS,
            "peak_rss_bytes": Fact(
                "integer", "The most memory it had resident, in bytes; 0 is unknown."
            ),
            "stopped": Fact("boolean", "Whether it had been asked to stop before."),
        },
    ),
    "hang_detected": Kind(
        "The workers make no progress, and are about to be stopped: for that, with "
        "`--hang-timeout`, or because somebody asked for it by a signal.",
        {
            "ranks": Fact("integers", "Ranks that hang."),
            "suspect": Fact("integer", "The rank that the others wait for."),
            "seconds": Fact("number", "How long there was no progress, in seconds."),
            "text": Fact("text", "The report, with stacks, as on stderr."),
        },
    ),
    "straggler_found": Kind(
        "A rank, or a node's link, has become slow, as the leader's agent judges; or has been so "
        "for long. With --straggler-threshold, or when the script asks for it.",
        {
            **_SLOW,
            "speedup": Fact(
                "number", "How many times as fast steps would be without it; 1 is unknown."
            ),
            "cause": Fact(
                "text",
                'Why: quota, processor, disk, gpu, link or "section NAME"; "" is unknown.',
            ),
            "lasting": Fact("boolean", "Whether it has been told before, and is so for long."),
            "sequel": Fact("text", 'What is done about it, or proposed; "" is nothing.'),
        },
    ),
    "straggler_gone": Kind("A rank, or a node's link, is no longer slow.", _SLOW),
    "resource_exhausted": Kind(
        "A node uses more of a resource than the script's BottleneckThresholds say.", _RESOURCE
    ),
    "resource_available": Kind("It uses no more than that again.", _RESOURCE),
    "dead_man_fired": Kind(
        "The keeper killed all workers, since the agent gave no sign of life for so long.",
        {"timeout_seconds": Fact("number", "Seconds: --agent-timeout, or with several nodes ttl.")},
    ),
    "standing_by": Kind(
        "This node has no place in a round yet, or no longer.",
        {"reason": Fact("text", "Why, as on stderr.")},
    ),
    "round_closing": Kind(
        "The round is about to end on all nodes, and another one to follow.",
        {
            "reason": Fact("text", "Why, as on stderr."),
            "failed": Fact("boolean", "Whether workers failed; else nodes came or went."),
        },
    ),
    "keeper_lost": Kind(
        "The keeper has died, so all workers were killed.",
        {"pid": Fact("integer", "The process id that the keeper had.")},
    ),
    "standbys_ready": Kind(
        "As many processes as are wanted wait to be workers after a restart (--preload).",
        {
            "count": Fact("integer", "How many there are."),
            "modules": Fact("texts", "What they have imported, in that order."),
        },
    ),
    "standbys_missing": Kind(
        "Workers have to import for themselves, or a module could not be imported ahead.",
        {"reason": Fact("text", "Why.")},
    ),
    "stop_requested": Kind(
        "Somebody sent the agent a signal that ends the job; SIGINT after another kills.",
        {"signal": _SIGNAL},
    ),
    "notice": Kind(
        "Somebody sent the agent a signal that it passes on to the workers.",
        {"signal": _SIGNAL},
    ),
    "end_near": Kind(
        "The end of the job's time is near; workers that handle SIGUSR1 get it.",
        {"seconds_left": Fact("number", "Seconds until the end.")},
    ),
    "workers_stopping": Kind(
        "The workers that still run are asked to stop.",
        {
            "cause": Fact(
                "text",
                "Why.",
                ("failure", "hang", "no start", "signal", "dead man"),
            ),
            "signal": _SIGNAL,
            "grace_seconds": Fact("number", "Seconds until those that are left are killed."),
            "ranks": Fact("integers", "Ranks that still run."),
        },
    ),
    "workers_killed": Kind(
        "The grace is over: workers that still run are killed.",
        {"ranks": Fact("integers", "Ranks that still ran.")},
    ),
    "processes_left": Kind(
        "All workers of this node have ended with code 0, but not what they had started.",
        {
            "stage": Fact(
                "text",
                "What became of it: it may end by itself, it got SIGTERM, or SIGKILL follows.",
                ("left", "terminated", "killed"),
            ),
            "processes": Fact("texts", "The processes: pid, name and state."),
            "seconds": Fact("number", "Seconds until the next stage."),
        },
    ),
    "state_corrupted": Kind(
        "Workers that are to have the same state have different bits, as elastic.join() has found.",
        {
            "step": Fact("integer", "The step that begins with that state."),
            "ranks": Fact("integers", "Ranks whose bits differ from those of most ranks."),
            "hosts": Fact("texts", "Their hosts, in the order of ranks."),
            "part": Fact("text", "The first part of the state that differs."),
            "sequel": Fact(
                "text",
                "Whether they are healed from the others, or the training ends.",
                ("healed", "ended"),
            ),
            "certain": Fact("boolean", "Whether most ranks agree; else ranks has all ranks."),
            "suspects": Fact("texts", "Those of the hosts where it has happened before."),
        },
    ),
    "round_ended": Kind(
        "No process of the round is left on this node.",
        {
            "cause": Fact(
                "text",
                "What ended it; done if all workers succeeded.",
                ("done", "failure", "hang", "no start", "signal", "dead man"),
            ),
            "code": Fact("integer", "Exit code of the root cause; 0 if no worker failed."),
            "seconds": Fact("number", "How long the round lasted, in seconds."),
            "unkillable": Fact("texts", "Processes that outlived SIGKILL."),
        },
    ),
    "worker_failed": Kind(
        "The round has failed. Of this node's workers, the report names this one: the root cause "
        "of the failure, if that ran here.",
        {
            "rank": _RANK,
            "host": Fact("text", "Name of its node."),
            "pid": _PID,
            "code": _CODE,
            "signal": _KILLED_BY,
            "seconds": _SECONDS,
            "kind": Fact("text", "Which sort of failure it is, in a word or two."),
            "summary": Fact("text", "What happened, in one line."),
            "log": Fact("text", 'Where its output is kept; "" if it is not.'),
        },
    ),
    "root_cause": Kind(
        "The round that has ended failed, and all is known of it, on all nodes, that will be.",
        {
            "ranks": Fact(
                "integers",
                "Ranks to blame, or that may be if it is undecided. Empty if a node is, or nobody.",
            ),
            "nodes": Fact("integers", "Ranks of nodes that were lost, likewise."),
            "certainty": Fact(
                "text",
                "certain: the facts allow nothing else; likely: they allow it, but it is less "
                "likely; undecided: one of those named.",
                ("certain", "likely", "undecided"),
            ),
            "kind": Fact("text", "Which sort of failure it is, in a word or two."),
            "hint": Fact("text", 'Why it came and what to do, as on stderr; "" if that is open.'),
            "summary": Fact("text", "Who is to blame and how it ended, in one line."),
            "evidence": Fact("texts", "What it is concluded from."),
        },
    ),
    "restart_scheduled": Kind(
        "The workers will be started again, in the round after this one.",
        {
            "delay_seconds": Fact("number", "Seconds until then; 0 is at once."),
            "left": Fact("integer", "Restarts that are left after this one."),
            "reason": Fact("text", "What failed, in one line."),
        },
    ),
    "job_finished": Kind(
        "The job is over on this node. Always the last event.",
        {
            "code": Fact("integer", "Exit code of torshrun."),
            "outcome": Fact(
                "text",
                "How it ended: lost means that supervision failed, preempted that it was asked "
                "to make room.",
                ("succeeded", "failed", "hung", "stopped", "preempted", "lost"),
            ),
            "reason": Fact(
                "text",
                'Why it was not restarted; "" if nothing failed.',
                ("", "no budget", "budget spent", "same start", "stopped", "unkillable"),
            ),
            "seconds": Fact("number", "How long the job lasted, in seconds."),
            "restarts": Fact("integer", "How often workers were restarted."),
        },
    ),
    "output_lost": Kind(
        "torshrun's stdout or stderr cannot be written any more. What workers write there is lost; "
        "the job continues.",
        {
            "stream": Fact("text", "Which of them.", ("stdout", "stderr")),
            "reason": Fact("text", "Why, in the system's words."),
        },
    ),
    "events_dropped": Kind(
        "Events before this one are missing: a reader did not keep up, or a disk was full.",
        {"count": Fact("integer", "How many.")},
    ),
}
"""The events, by name, roughly in the order in which they happen."""
