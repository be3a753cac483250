"""Draws how a job is made up: a node, a round, a mesh, a failure, and what ranks hold."""

from __future__ import annotations

from drawing import Picture, Talk


def node() -> Picture:
    """Draw the processes of one node."""
    picture = Picture(
        "node",
        "The processes of one node",
        "The agent starts the keeper and serves the round's store. The keeper forks the workers, "
        "reports how they end, and kills them if the agent ends. The workers share memory.",
    )
    picture.box((12, 12, 576, 424), style="empty")
    picture.label(28, 36, "one node", "small muted", "start")
    picture.box((36, 50, 528, 58), ("agent", "torshrun: forms rounds, restarts, reports"), "blue")
    picture.arrow([(141, 108), (141, 176)])
    picture.label(130, 146, "serves", "small", "end")
    picture.arrow([(370, 108), (370, 176)])
    picture.label(359, 146, "asks for workers", "small", "end")
    picture.arrow([(464, 176), (464, 108)])
    picture.label(475, 146, "exit codes", "small", "start")
    picture.box((36, 176, 210, 62), ("store of the round", "where workers meet"), "plain")
    picture.box((270, 176, 294, 62), ("keeper", "torsh-keeper, compiled, about 1 MB"), "orange")
    centres = [94 + 137.3 * number for number in range(4)]
    picture.line([(417, 238), (417, 284)], "orange-line")
    picture.label(428, 266, "forks, watches, kills", "small", "start")
    picture.line([(centres[0], 284), (centres[-1], 284)], "orange-line")
    for number, x in enumerate(centres):
        picture.arrow([(x, 284), (x, 312)], "orange")
        picture.box((x - 58, 312, 116, 52), ("worker", f"rank {number}"))
        picture.line([(x, 364), (x, 384)])
    picture.box((36, 384, 528, 36), ("shared memory: the workers' collectives",), "plain", "small")
    return picture


def round_() -> Picture:
    """Draw how three nodes form a round."""
    picture = Picture(
        "round",
        "A round of three nodes",
        "Each node writes its row into the store. One node is elected leader, writes the round "
        "and gives each node its ranks. All nodes start their workers, and send the leader "
        "heartbeats while the round runs.",
    )
    nodes = ("node 0", "node 1", "node 2")
    talk = Talk(
        picture,
        (
            ("node 0", 82, "blue"),
            ("node 1", 222, "plain"),
            ("node 2", 362, "plain"),
            ("store", 518, "orange"),
        ),
    )
    talk.tell(nodes, ["store"], "each node writes its row: its host, its state")
    talk.tell(["node 0"], ["store"], "node 0 wins the election: it is the leader", "blue")
    talk.tell(["store"], ["node 0"], "the rows of all nodes")
    talk.tell(["node 0"], ["store"], "round 1, and which node has which ranks", "blue")
    talk.tell(["store"], nodes, "the round has been formed")
    for number, name in enumerate(nodes):
        ranks = f"{4 * number}–{4 * number + 3}"
        talk.note([name], ["workers start", f"ranks {ranks}"], "plain", same=number > 0)
    talk.tell(nodes[1:], ["node 0"], "heartbeats, agent to agent")
    talk.end()
    return picture


def mesh() -> Picture:
    """Draw a mesh of 2 × 2 × 2 ranks and its groups."""
    picture = Picture(
        "mesh",
        "A mesh of eight ranks",
        "Ranks 0 to 3 have the first stage of the pipeline, ranks 4 to 7 the second. Within a "
        "stage, ranks in a row form a group along tp, and ranks in a column one along dp.",
    )
    for stage, name in enumerate(("first stage", "second stage")):
        top = 16 + 250 * stage
        picture.box((16, top, 568, 186), style="empty")
        picture.label(32, top + 24, f"pp {stage}", "bold", "start")
        picture.label(76, top + 24, name, "small muted", "start")
        for part in range(2):
            picture.label(262 + 210 * part, top + 24, f"tp {part}", "small blue-text")
        for replica in range(2):
            y = top + 40 + 88 * replica
            picture.label(104, y + 26, f"dp {replica}", "small orange-text")
            picture.line([(327, y + 21), (407, y + 21)], "blue-line")
            picture.label(367, y + 16, "tp", "small blue-text")
            for part in range(2):
                x = 262 + 210 * part
                rank = 4 * stage + 2 * replica + part
                picture.box((x - 65, y, 130, 42), (f"rank {rank}",), "plain")
                if replica == 0:
                    picture.line([(x, y + 42), (x, y + 88)], "orange-line")
                    picture.label(x + 8, y + 70, "dp", "small orange-text", "start")
    picture.arrow([(290, 202), (290, 266)])
    picture.arrow([(310, 266), (310, 202)])
    picture.label(279, 239, "pp: activations", "small", "end")
    picture.label(321, 239, "gradients", "small", "start")
    texts = (
        ("tp: each rank has a part of every layer, and the same batches", "blue-text"),
        ("dp: ranks have different batches, and average gradients", "orange-text"),
        ("pp: rank r and rank r + 4 have different layers", ""),
    )
    for number, (text, style) in enumerate(texts):
        picture.label(300, 478 + 22 * number, text, f"small {style}")
    return picture


def failure() -> Picture:
    """Draw how the cause of a failure is found."""
    picture = Picture(
        "failure",
        "How a failure is found",
        "Rank 1 is killed. The keeper notices and tells the agent. The other ranks' collectives "
        "raise PeerLost. The agent stops them, collects the evidence, and reports which rank "
        "failed first.",
    )
    talk = Talk(
        picture,
        (
            ("rank 1", 82, "orange"),
            ("other ranks", 222, "plain"),
            ("keeper", 372, "plain"),
            ("agent", 518, "blue"),
        ),
    )
    talk.note(["rank 1"], ["killed", "SIGKILL"], "orange")
    talk.note(["other ranks"], ["all_reduce fails", "PeerLost: rank 1"], "plain", same=True)
    talk.tell(["rank 1"], ["keeper"], "its end and its exit status", "orange")
    talk.tell(["keeper"], ["agent"], "exit of rank 1", "orange")
    talk.tell(["other ranks"], ["agent"], "errors, and which rank they blame")
    talk.tell(["agent"], ["other ranks"], "stop: each writes its stacks, then ends", "blue")
    talk.note(
        ["rank 1", "agent"],
        ["evidence of all ranks", "exit codes · errors · stacks · collectives · memory counters"],
        "plain",
    )
    talk.y += 26
    picture.arrow([(300, talk.y - 26), (300, talk.y)], "blue")
    talk.y -= 18
    talk.note(
        ["rank 1", "agent"],
        ["report", "rank 1 failed first: killed by SIGKILL, exit code 137, …"],
        "blue",
    )
    talk.y -= 14
    talk.end()
    return picture


KEEPS = (
    ("DDP", "DistributedDataParallel", "aaa"),
    ("ZeRO 1", "DistributedOptimizer", "aas"),
    ("FSDP", '"grad-and-optimizer"', "pss"),
    ("FSDP", '"full"', "sss"),
    ("FSDP", '"hybrid", two nodes', "hhh"),
)
"""Kinds of data parallelism: what ranks keep of parameters, gradients and the optimizer's state.

a: all; s: a shard; p: a shard, and all during passes; h: a shard of two, on each of two nodes.
"""


def sharding() -> Picture:
    """Draw what each of four ranks holds."""
    picture = Picture(
        "sharding",
        "What each of four ranks holds",
        "DDP keeps all on each rank. DistributedOptimizer shards the optimizer's state, "
        "grad-and-optimizer also the gradients, and full also the parameters. Hybrid shards "
        "within each node.",
    )
    left, cell, high = 178, 28, 11
    starts = [left + 136 * number for number in range(3)]
    picture.label(20, 32, "rows: ranks 0–3", "small muted", "start")
    for x, name in zip(starts, ("parameters", "gradients", "optimizer state"), strict=True):
        picture.label(x + 2 * cell, 32, name, "small")
    for number, (title, name, kept) in enumerate(KEEPS):
        y = 48 + 70 * number
        picture.label(20, y + 21, title, "bold", "start")
        picture.label(20, y + 40, name, "tiny muted", "start")
        for x, kind in zip(starts, kept, strict=True):
            for rank in range(4):
                for shard in range(4):
                    style = _shade(kind, rank, shard)
                    place = (x + cell * shard + 1, y + (high + 2) * rank, cell - 2, high)
                    picture.box(place, style=style)
    y = 48 + 70 * len(KEEPS) + 8
    for x, style, text in (
        (20, "blue", "held"),
        (106, "orange", "held during forward and backward passes"),
        (428, "empty", "held by others"),
    ):
        picture.box((x, y, 26, high), style=style)
        picture.label(x + 34, y + 10, text, "small", "start")
    return picture


def _shade(kind: str, rank: int, shard: int) -> str:
    """Return the style of a cell: whether the rank holds this shard."""
    own = shard // 2 == rank % 2 if kind == "h" else shard == rank
    if own or kind == "a":
        return "blue"
    return "orange" if kind == "p" else "empty"
