"""Another client of etcd, over gRPC: carries out one command. Runs in an environment of its own.

etcd3_main.py PORT put KEY VALUE | get KEY | watch KEY | lease KEY VALUE TTL
"""

from __future__ import annotations

import sys

import etcd3


def main(port: str, command: str, *arguments: str) -> None:
    client = etcd3.client(host="127.0.0.1", port=int(port), timeout=30)
    if command == "put":
        client.put(*arguments)
    elif command == "get":
        value, facts = client.get(arguments[0])
        print(value.decode(), facts.mod_revision, facts.lease_id)
    elif command == "lease":
        key, value, ttl = arguments
        lease = client.lease(int(ttl))
        client.put(key, value, lease)
        print(lease.id)
    else:
        events, cancel = client.watch(arguments[0])
        print("watching", flush=True)
        print(next(events).value.decode())
        cancel()


main(*sys.argv[1:])
