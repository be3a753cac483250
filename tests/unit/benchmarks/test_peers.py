import sys

from benchmarks.peers import ALL, GLOO, MPICH, OPENMPI, OURS, with_bfloat16


def test_ours_runs_in_the_interpreter_that_runs_the_benchmark() -> None:
    assert OURS.command(4, 2, ["w.py", "plan"]) == [
        sys.executable, "-m", "torshrun", "--nproc-per-node", "4", "w.py", "plan"
    ]  # fmt: skip


def test_open_mpi_is_told_only_when_ranks_share_cpus() -> None:
    assert ":OVERSUBSCRIBE" not in OPENMPI.command(2, 2, [])
    assert ":OVERSUBSCRIBE" in OPENMPI.command(4, 2, [])


def test_every_peer_pins_every_requirement() -> None:
    requirements = [text for peer in ALL.values() for text in peer.requirements]
    assert requirements
    assert all("==" in text for text in requirements)


def test_each_peer_has_an_environment_of_its_own() -> None:
    homes = {peer.home for peer in (GLOO, MPICH, OPENMPI)}
    assert len(homes) == 3
    assert MPICH.command(2, 2, ["w.py"])[0] == str(MPICH.home / "bin" / "mpiexec")


def test_only_mpi_has_no_halves() -> None:
    able = {name for name, peer in ALL.items() if peer.can("bfloat16")}
    assert able == set(ALL) - {"mpich", "openmpi"}


def test_a_peer_in_an_environment_of_its_own_keeps_it_for_bfloat16() -> None:
    assert with_bfloat16(GLOO) is GLOO
