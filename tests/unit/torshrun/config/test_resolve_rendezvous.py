"""How the options of several nodes become one RendezvousConfig."""

from __future__ import annotations

from pathlib import Path

import pytest

from torsh_runtime.errors import ConfigError
from torshrun.config.job import Access, Address, RendezvousConfig

from .conftest import Made


def met(made: Made, environ: dict[str, str] | None = None, **options: str) -> RendezvousConfig:
    rendezvous = made(environ, **options).job.rendezvous
    assert rendezvous is not None
    return rendezvous


def test_one_node_meets_nobody(made: Made) -> None:
    assert made().job.rendezvous is None
    assert made(nnodes="1:1", rdzv_backend="c10d", rdzv_endpoint="n:1").job.rendezvous is None
    standalone = made(nnodes="1:4", standalone="true").job
    assert (standalone.rendezvous, standalone.max_nodes) == (None, 1)


def test_the_defaults_are_torchruns(made: Made) -> None:
    options = {"nnodes": "2:4", "rdzv_backend": "c10d", "rdzv_endpoint": "node0"}
    resolution = made(**options)
    assert resolution.job.rendezvous == RendezvousConfig(
        backend="tcp",
        endpoints=(Address("node0", 29400),),
        join_timeout=600.0,
        last_call_timeout=30.0,
        close_timeout=30.0,
        ttl=15.0,
    )
    assert (resolution.job.min_nodes, resolution.job.max_nodes) == (2, 4)
    assert resolution.notes == ()


def test_static(made: Made) -> None:
    options = {"nnodes": "2", "node_rank": "1", "master_addr": "n0"}
    expected = RendezvousConfig(
        backend="static", endpoints=(Address("n0", 29500),), node_rank=1, join_timeout=60.0
    )
    assert met(made, **options, rdzv_conf="timeout=60") == expected
    port = met(made, **options, master_port="1234").endpoints
    assert port == (Address("n0", 1234),)
    assert met(made, nnodes="2", rdzv_endpoint="n0:7").endpoints == (Address("n0", 7),)


def test_etcd_takes_a_list_certificates_and_a_user(made: Made, tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).touch()
    conf = ",".join(f"{'ca' if n == 'ca' else ''}{n}={tmp_path / n}" for n in ("cert", "key"))
    rendezvous = met(
        made,
        {"TORSH_ETCD_USER": "u", "TORSH_ETCD_PASSWORD": "p"},
        nnodes="2",
        rdzv_backend="etcd",
        rdzv_endpoint="https://a:1,[::1]:2,c",
        rdzv_conf=f"cacert={tmp_path / 'ca'},{conf}",
    )
    assert list(map(str, rendezvous.endpoints)) == ["a:1", "[::1]:2", "c:2379"]
    assert rendezvous.access == Access(
        tls=True,
        cacert=str(tmp_path / "ca"),
        cert=str(tmp_path / "cert"),
        key=str(tmp_path / "key"),
        user="u",
        password="p",
    )


GOOD = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
ETCD = {"nnodes": "2", "rdzv_backend": "etcd", "rdzv_endpoint": "e"}
TCP = {"nnodes": "1:4", "rdzv_backend": "tcp", "rdzv_endpoint": "n0"}
STATIC = {"nnodes": "2", "master_addr": "n0"}


@pytest.mark.parametrize(
    ("conf", "ttl"),
    [("ttl=5", 5.0), ("keep_alive_interval=2", 6.0), ("keep_alive_max_attempt=1,ttl=1m", 60.0)],
)
def test_how_long_a_node_may_be_silent(made: Made, conf: str, ttl: float) -> None:
    assert met(made, **TCP, rdzv_conf=conf).ttl == ttl


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nnodes": "2", "rdzv_backend": "tcp"}, "where they meet, like node0:29400"),
        ({"nnodes": "2"}, r"--rdzv-endpoint \(or --master-addr\) has to say"),
        ({**TCP, "rdzv_endpoint": "a,b"}, "there is one place to meet"),
        ({**TCP, "rdzv_endpoint": "a:0"}, "cannot know what port 0 becomes"),
        ({**STATIC, "nnodes": "1:2"}, "their number is fixed"),
        ({**STATIC, "node_rank": "2"}, "ranks end at 1"),
        ({**TCP, "rdzv_conf": "ttl=0.5"}, "ttl .* is at least 1"),
        ({**TCP, "rdzv_conf": "keep_alive_max_attempt=0"}, "is at least 1"),
        ({**ETCD, "rdzv_conf": f"cert={__file__}"}, "cert and key go together"),
        ({**ETCD, "rdzv_conf": "cacert=/nowhere/ca"}, "there is no file /nowhere/ca"),
        ({**ETCD, "rdzv_endpoint": "http://a,https://b"}, "cannot be mixed"),
        ({**ETCD, "rdzv_endpoint": "http://a", "rdzv_conf": "protocol=https"}, "exclude each"),
        ({**ETCD, "rdzv_endpoint": "a,https://b", "rdzv_conf": "protocol=http"}, "exclude each"),
        ({**TCP, "rdzv_endpoint": "https://n0"}, "are for etcd; give HOST:PORT alone"),
        ({**STATIC, "rdzv_endpoint": "http://n0"}, "are for etcd; give HOST:PORT alone"),
        ({**ETCD, "rdzv_conf": "protocol=ftp"}, "protocol: 'ftp' is not one of http, https"),
        (
            {**TCP, "secret_file": "/nowhere/s"},
            "--secret-file: /nowhere/s cannot be read",
        ),
    ],
)
def test_refusals(made: Made, options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(**options)


def test_protocol_and_certificates_contradict(made: Made, tmp_path: Path) -> None:
    (tmp_path / "ca").touch()
    with pytest.raises(ConfigError, match="exclude each other"):
        made(**ETCD, rdzv_conf=f"protocol=http,cacert={tmp_path / 'ca'}")


@pytest.mark.parametrize(
    ("endpoints", "conf", "tls"),
    [
        ("a,https://b", "", True),  # never in clear to one that was not named with http://
        (" https://a , https://b", "", True),
        ("http://a,b", "", False),
        ("a,b", "protocol=https", True),
        ("a,b", "", False),
    ],
)
def test_one_protocol_is_for_all_endpoints(
    made: Made, endpoints: str, conf: str, tls: bool
) -> None:
    options = {"nnodes": "2", "rdzv_backend": "etcd", "rdzv_endpoint": endpoints}
    assert met(made, **options, rdzv_conf=conf).access.tls is tls


@pytest.mark.parametrize("name", ["USER", "PASSWORD"])
def test_a_user_has_a_password(made: Made, name: str) -> None:
    with pytest.raises(ConfigError, match="go together: set both or none"):
        made({f"TORSH_ETCD_{name}": "it"}, **ETCD)


def test_secrets_are_not_shown(made: Made) -> None:
    environ = {"TORSH_SECRET": GOOD, "TORSH_ETCD_USER": "u", "TORSH_ETCD_PASSWORD": "hush"}
    found = met(made, environ, **ETCD)
    assert (found.secret, found.access.password) == (GOOD, "hush")
    assert "hush" not in repr(found)
    assert GOOD not in repr(found)


def test_the_secret_comes_from_a_file_or_the_environment(made: Made, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{GOOD} in a file\n")
    file.chmod(0o600)
    environ = {"TORSH_SECRET": f" {GOOD}\n", "TORCHELASTIC_RUN_ID": "set for another reason"}
    assert met(made, environ, **TCP).secret == GOOD
    assert met(made, environ, **TCP, secret_file=str(file)).secret == f"{GOOD} in a file"
    assert met(made, {}, **TCP).secret == ""
    with pytest.raises(ConfigError, match="TORSH_SECRET is empty"):
        met(made, {"TORSH_SECRET": ""}, **TCP)


@pytest.mark.parametrize("asked_by", ["TORSH_REQUIRE_SECRET", "PET_REQUIRE_SECRET", ""])
def test_a_secret_can_be_required(made: Made, asked_by: str) -> None:
    environ = {asked_by: "1"} if asked_by else {}
    options = {**TCP} if asked_by else {**TCP, "require_secret": "true"}
    name = asked_by or "--require-secret"
    with pytest.raises(ConfigError, match=f"^{name}: this job has no secret: .*openssl rand"):
        made(environ, **options)
    assert met(made, {**environ, "TORSH_SECRET": GOOD}, **options).secret == GOOD
    assert made(environ, require_secret="true").job.rendezvous is None


def test_only_static_has_fixed_ranks(made: Made) -> None:
    (note,) = made(**TCP, node_rank="1").notes
    assert note == "--node-rank has no effect: only --rdzv-backend static has fixed ranks"
    assert met(made, **TCP, node_rank="1").node_rank is None


def test_jobs_without_a_name_share_an_etcd(made: Made) -> None:
    etcd = {"nnodes": "2", "rdzv_backend": "etcd", "rdzv_endpoint": "etcd0"}
    (note,) = made(**etcd).notes
    assert note.startswith("--rdzv-id is not given")
    assert made(**etcd, run_id="job17").notes == ()
    assert made(**TCP).notes == ()
