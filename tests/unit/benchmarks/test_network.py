import pytest

from benchmarks.machine import NEAR
from benchmarks.namespaces import INTERFACE, Cable
from benchmarks.network import checks, contenders, parse, start_on, work
from benchmarks.samples import Case, Cell, Row
from benchmarks.spawn import entering, environment
from benchmarks.spawn import parse as parse_spawn


def row(ranks: int, nbytes: int, gloo: float) -> Row:
    cells = {"ours": Cell(1.0, 1.0, 5), "gloo": Cell(gloo, gloo, 5)}
    return Row(Case("all_reduce", ranks=ranks, nodes=2), nbytes, NEAR, cells)


@pytest.mark.parametrize(
    ("ranks", "nbytes", "limit"), [(2, 2**20, 2.0), (2, 2**22, 1.0), (4, 2**26, 2.0)]
)
def test_gloo_must_take_twice_as_long_where_the_network_is_not_the_limit(
    ranks: int, nbytes: int, limit: float
) -> None:
    (good,), (bad,) = checks(row(ranks, nbytes, limit)), checks(row(ranks, nbytes, limit - 0.1))
    assert (good.passed, bad.passed) == (True, False)


def test_both_libraries_are_told_the_cable() -> None:
    for peer in contenders(("ours", "gloo")):
        assert peer.env["GLOO_SOCKET_IFNAME"] == peer.env["TORSH_SOCKET_IFNAME"] == INTERFACE


def test_ranks_are_dealt_to_the_nodes_in_blocks(tmp_path) -> None:
    (peer,) = contenders(("ours",))
    words = start_on(Cable((11, 22)))(peer, Case("all_reduce", ranks=4, nodes=2), tmp_path)
    options = parse_spawn(words[2:])
    assert (options.ranks, options.namespaces, options.address) == (4, (11, 22), "192.0.2.1")
    place = environment(2, 4, 2, "192.0.2.1", 29500)
    assert (place["LOCAL_RANK"], place["GROUP_RANK"], place["LOCAL_WORLD_SIZE"]) == ("0", "1", "2")
    assert entering(22)[1] == "--net=/proc/22/ns/net"


def test_ranks_that_cannot_be_dealt_evenly_are_refused() -> None:
    assert {case.place for case, _ in work(parse([]))} == {"2x1", "2x2"}
    with pytest.raises(SystemExit):
        parse(["--ranks", "3"])
