"""Jobs of several nodes from the command line, with real agents that meet over tcp."""

from __future__ import annotations

import os
import re
import signal
import socket
from contextlib import ExitStack

import pytest
from support.launcher import Launcher
from support.nodes import QUICK, Job, Node
from support.ports import free_port

from torshrun import exit_codes

PLACE = """
names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
print("place", *(os.environ[name] for name in names), flush=True)
"""
TOGETHER = """
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
open(f"up.{rank}.{attempt}", "w").close()
while not all(os.path.exists(f"up.{other}.{attempt}") for other in range(2)): time.sleep(0.01)
"""
ENDLESS = "time.sleep(600)\n"
UNTIL_GO = "while not os.path.exists('go'): time.sleep(0.01)\n"
SOFTLY = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"


def places(node: Node) -> list[tuple[int, ...]]:
    """What its workers have printed: rank, size, node rank, nodes and restarts."""
    found = re.findall(r"place (\d+) (\d+) (\d+) (\d+) (\d+)", node.output)
    return [tuple(map(int, place)) for place in found]


def all_ranks(nodes: list[Node], restarts: int = 0) -> list[int]:
    return sorted(p[0] for node in nodes for p in places(node) if p[4] == restarts)


def test_callers_who_prove_nothing_do_not_end_the_job(torshrun: Launcher) -> None:
    script = torshrun.script(UNTIL_GO)
    port = free_port()
    meet = ("--nnodes=1:2", "--rdzv-backend=tcp", f"--rdzv-endpoint=127.0.0.1:{port}")
    with Job(torshrun, *meet, f"--rdzv-conf={QUICK}") as job, ExitStack() as callers:
        node = job.start(script, within=("prlimit", "--nofile=100"))
        node.wait_for("this agent serves the job's store")
        for _ in range(300):
            callers.enter_context(socket.create_connection(("127.0.0.1", port), 20))
        node.wait_for("round 0: node 0 of 1")
        torshrun.make("go")
        code, output = node.end()
        assert code == 0
        assert "internal error" not in output
        assert output.count("connections cannot be taken") <= 1


def test_two_nodes_share_one_job(torshrun: Launcher) -> None:
    script = torshrun.script(
        PLACE
        + """
        from torsh_runtime.contract import WorkerEnv
        from torsh_runtime.store.client import StoreClient
        place = WorkerEnv.from_environ(os.environ)
        secret = bytes.fromhex(place.secret)
        with StoreClient.connect(place.store_endpoint, secret, 20) as store:
            store.put(f"from/{rank}", place.master_addr.encode())
            store.wait([f"from/{other}" for other in range(place.world_size)], 20)
            print("met", store.add("met", 1) <= 3, place.master_addr, place.master_port)
        """.replace("\n        ", "\n")
    )
    with Job.over_tcp(torshrun, "2") as job:
        nodes = [job.start("--nproc-per-node=2", script), job.start("--nproc-per-node=1", script)]
        ends = [node.end() for node in nodes]
    assert [code for code, _ in ends] == [0, 0]
    assert all_ranks(nodes) == [0, 1, 2]
    assert {place[1] for node in nodes for place in places(node)} == {3}
    assert {place[2:4] for node in nodes for place in places(node)} == {(0, 2), (1, 2)}
    met = {line for _, out in ends for line in re.findall(r"met True 127\.0\.0\.1 \d+", out)}
    assert len(met) == 1


def test_workers_are_counted_by_role(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
names = ("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "RANK", "WORLD_SIZE")
print("place", *(os.environ[name] for name in names), flush=True)
"""
    )
    with Job.over_tcp(torshrun, "3") as job:
        kinds = (("trainer", 2), ("reader", 1), ("trainer", 1))
        nodes = [job.start(f"--role={kind}", f"--nproc-per-node={n}", script) for kind, n in kinds]
        ends = [node.end() for node in nodes]
    assert [code for code, _ in ends] == [0, 0, 0]
    output = "".join(text for _, text in ends)
    found = sorted(re.findall(r"place (\w+) (\d) (\d) (\d) (\d)", output))
    counted = [place[:3] for place in found]
    trainers = [("trainer", str(rank), "3") for rank in range(3)]
    assert counted == [("reader", "0", "1"), *trainers]
    assert [place[3] for place in found[1:]] == sorted(place[3] for place in found[1:])
    assert {place[4] for place in found} == {"4"}


def test_a_failure_restarts_the_workers_of_all_nodes_within_one_budget(
    torshrun: Launcher,
) -> None:
    script = torshrun.script(PLACE + TOGETHER + "if rank == 1: sys.exit(7)\n" + ENDLESS)
    with Job.over_tcp(torshrun, "2", "--max-restarts=1", "--restart-backoff=0") as job:
        nodes = [job.start(script) for _ in range(2)]
        ends = [node.end() for node in nodes]
    assert [code for code, _ in ends] == [exit_codes.BUDGET_SPENT] * 2
    assert all_ranks(nodes, 0) == all_ranks(nodes, 1) == [0, 1]
    assert all_ranks(nodes, 2) == []
    for _, out in ends:
        assert "rank 1: exit code 7" in out


def test_the_root_causes_code_is_that_of_all_nodes(torshrun: Launcher) -> None:
    script = torshrun.script("if rank == 0: sys.exit(42)\n" + ENDLESS)
    with Job.over_tcp(torshrun, "2") as job:
        ends = [node.end() for node in [job.start(script) for _ in range(2)]]
    assert [code for code, _ in ends] == [42, 42]


def running(job: Job, script: str, number: int = 2) -> list[Node]:
    """Nodes with a worker each, all of which run. The first one serves the store."""
    nodes = [job.start(script)]
    nodes[0].wait_for("this agent serves the job's store")
    nodes += [job.start(script) for _ in range(number - 1)]
    for node in nodes:
        node.wait_for(f"place \\d+ {number} ")
    return nodes


def by_node_rank(nodes: list[Node]) -> list[Node]:
    return sorted(nodes, key=lambda node: places(node)[-1][2])


@pytest.mark.parametrize("victim", [1, 2])
def test_a_node_that_is_killed_is_gone_and_the_others_go_on(
    torshrun: Launcher, victim: int
) -> None:
    script = torshrun.script(SOFTLY + PLACE + UNTIL_GO)
    with Job.over_tcp(torshrun, "2:3") as job:
        nodes = running(job, script, 3)
        killed = nodes.pop(victim)
        killed.send(signal.SIGKILL)
        for node in nodes:
            node.wait_for(r"place \d+ 2 ")
        torshrun.make("go")
        assert [node.end()[0] for node in nodes] == [0, 0]
    last = [places(node)[-1] for node in nodes]
    assert sorted(place[0] for place in last) == [0, 1]
    assert {place[4] for place in last} == {0}  # no restart was spent


def test_a_node_that_is_asked_to_go_leaves_and_the_others_go_on(torshrun: Launcher) -> None:
    script = torshrun.script(SOFTLY + PLACE + UNTIL_GO)
    with Job.over_tcp(torshrun, "1:2") as job:
        stays, goes = running(job, script)
        goes.send(signal.SIGTERM)
        code, _ = goes.end()
        assert code == exit_codes.PREEMPTED
        stays.wait_for(r"place 0 1 0 1 0")
        torshrun.make("go")
        assert stays.end()[0] == 0


@pytest.mark.parametrize(
    ("signo", "code"), [(signal.SIGTERM, exit_codes.PREEMPTED), (signal.SIGINT, 130)]
)
def test_with_too_few_left_the_job_ends_as_it_does_on_the_node_that_goes(
    torshrun: Launcher, signo: signal.Signals, code: int
) -> None:
    script = torshrun.script(SOFTLY + PLACE + ENDLESS)
    with Job.over_tcp(torshrun, "2") as job:
        stays, goes = running(job, script)
        goes.send(signo)
        assert goes.end()[0] == code
        assert stays.end()[0] == code


def test_the_node_that_serves_the_store_cannot_go_alone(torshrun: Launcher) -> None:
    script = torshrun.script(SOFTLY + PLACE + ENDLESS)
    with Job.over_tcp(torshrun, "1:2") as job:
        host, other = running(job, script)
        host.send(signal.SIGTERM)
        assert host.end()[0] == exit_codes.PREEMPTED
        code, out = other.end()
        assert code == exit_codes.PREEMPTED
        assert "which serves the job's store" in out


def test_a_node_that_comes_later_is_let_in(torshrun: Launcher) -> None:
    script = torshrun.script(SOFTLY + PLACE + UNTIL_GO)
    with Job.over_tcp(torshrun, "2:3") as job:
        nodes = running(job, script)
        nodes.append(job.start(script))
        for node in nodes:
            node.wait_for(r"place \d+ 3 ")
        torshrun.make("go")
        assert [node.end()[0] for node in nodes] == [0, 0, 0]
    assert sorted(places(node)[-1][0] for node in nodes) == [0, 1, 2]


def test_a_spare_waits_and_takes_the_place_of_one_that_is_lost(torshrun: Launcher) -> None:
    script = torshrun.script(SOFTLY + PLACE + UNTIL_GO)
    with Job.over_tcp(torshrun, "2") as job:
        nodes = running(job, script)
        spare = job.start(script)
        spare.wait_for("waits in case one is lost")
        assert places(spare) == []
        nodes.pop().send(signal.SIGKILL)
        spare.wait_for(r"place \d+ 2 ")
        torshrun.make("go")
        assert [node.end()[0] for node in (*nodes, spare)] == [0, 0]


def test_a_spare_that_nobody_needed_says_so(torshrun: Launcher) -> None:
    """It may have been meant for a second job of the same name."""
    script = torshrun.script(PLACE + UNTIL_GO)
    with Job.over_tcp(torshrun, "2") as job:
        nodes = running(job, script)
        spare = job.start(script)
        spare.wait_for("If it is to run another job, that needs a --rdzv-id of its own")
        torshrun.make("go")
        assert [node.end()[0] for node in nodes] == [0, 0]
        code, out = spare.end()
    assert code == 0
    assert "no worker has run on this node: it was a spare until the end" in out


def test_a_spare_ends_with_the_others(torshrun: Launcher) -> None:
    script = torshrun.script(PLACE + UNTIL_GO)
    with Job.over_tcp(torshrun, "1:1") as job:
        assert job.start("--nnodes=2:2", script)  # waits in vain for a second node
        job.nodes[0].wait_for("waiting for the job's nodes")
        job.nodes[0].send(signal.SIGINT)
        assert job.nodes[0].end()[0] == 130


def test_too_few_nodes_are_told_in_the_end(torshrun: Launcher) -> None:
    conf = QUICK.replace("join_timeout=20", "join_timeout=1")
    with Job.over_tcp(torshrun, "3", conf=conf) as job:
        nodes = [job.start(torshrun.script(PLACE)) for _ in range(2)]
        for node in nodes:
            code, out = node.end()
            assert code == exit_codes.RENDEZVOUS
            assert "at least 3 nodes" in out
            assert "place" not in out


def test_static_ranks_are_as_given(torshrun: Launcher) -> None:
    script = torshrun.script(PLACE)
    meet = ("--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}")
    with Job(torshrun, *meet, f"--rdzv-conf={QUICK}") as job:
        second = job.start("--node-rank=1", script)
        second.wait_for("waiting for the store at 127.0.0.1")
        first = job.start("--node-rank=0", script)
        assert [node.end()[0] for node in (first, second)] == [0, 0]
    assert places(first) == [(0, 2, 0, 2, 0)]
    assert places(second) == [(1, 2, 1, 2, 0)]


def test_when_the_host_of_the_store_is_killed_the_others_end_in_bounded_time(
    torshrun: Launcher,
) -> None:
    script = torshrun.script(SOFTLY + PLACE + ENDLESS)
    with Job.over_tcp(torshrun, "1:2") as job:
        host, other = running(job, script)
        host.send(signal.SIGKILL)
        code, out = other.end(40)
        assert code in (exit_codes.LOST, exit_codes.RENDEZVOUS), out


def test_a_program_that_is_not_there_on_one_node(torshrun: Launcher) -> None:
    script = torshrun.script(PLACE + ENDLESS)
    with Job.over_tcp(torshrun, "2") as job:
        good = job.start(script)
        good.wait_for("waiting for the job's nodes")
        torshrun.environ["PYTHON_EXEC"] = "/bin/true-not"
        bad = job.start("--no-python", str(torshrun.folder / "tool"))
        assert bad.end()[0] == exit_codes.USAGE  # found before it joins anything
        good.send(signal.SIGTERM)
        assert good.end()[0] == exit_codes.PREEMPTED
    assert os.listdir(torshrun.folder)
