"""What the etcd store writes is what another client reads, and the other way round."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from support.etcd_scenes import opened, play
from support.etcd_servers import VERSIONS, EtcdCluster, another_client_or_skip, binary_or_skip

from torsh_runtime.store.base import Entry

pytestmark = pytest.mark.etcd

MAIN = Path(__file__).parents[1] / "support" / "etcd3_main.py"


@pytest.mark.parametrize("version", VERSIONS)
def test_both_clients_see_the_same(version: str, tmp_path: Path) -> None:
    python = another_client_or_skip()

    async def other(*arguments: str) -> list[str]:
        process = await _start(python, cluster, *arguments)
        said, _ = await process.communicate()
        assert process.returncode == 0
        return said.decode().split()

    async def scene() -> None:
        async with opened(*cluster.endpoints) as store:
            lease = await store.grant(30)
            revision = await store.put("ключ", b"one", lease)
            assert await other("get", "ключ") == ["one", str(revision), str(lease)]

            following = asyncio.ensure_future(anext(store.watch("w", revision)))
            await other("put", "w", "two")
            assert (await following).value == b"two"

            (granted,) = await other("lease", "leased", "three", "30")
            found = await store.get("leased")
            assert found == Entry("leased", b"three", revision + 2, int(granted))
            await store.keep_alive(int(granted))

            watching = await _start(python, cluster, "watch", "v")
            assert watching.stdout
            assert await watching.stdout.readline() == b"watching\n"
            await store.put("v", b"four")
            assert await watching.stdout.readline() == b"four\n"
            await watching.wait()

    with EtcdCluster(binary_or_skip(version), tmp_path) as cluster:
        play(scene())


async def _start(python: Path, cluster: EtcdCluster, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        str(python),
        "-P",
        str(MAIN),
        str(cluster.members[0].port),
        *arguments,
        stdout=subprocess.PIPE,
        # its generated code is older than protobuf 4's C implementation accepts
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
    )
