# SPDX-License-Identifier: Apache-2.0
"""kvcache_transfer_* counts the chunks that puts and gets moved, by path, and the operations."""

import re

from harness import KIB, items, put_all
from kvwire import Ack, Status

SIZE = 100 * KIB + 300  # not whole pages, so that device bytes are more


def transfers(daemon, path):
    """Returns {name without kvcache_transfer_: value}; for operations, the value is {result: value}."""
    ops, rest = {}, {}
    for name, value in daemon.metrics().items():
        found = re.fullmatch(r'kvcache_transfer_(\w+)\{path="(\w+)",layout="(\w+)",technology="(\w+)"(?:,result="(\w+)")?\}', name)
        if not found or found[2] != path:
            continue
        assert found[3] == "fully_contiguous"
        assert found[4] == ("memcpy" if path == "host_to_host" else daemon.status()["io"]["backend"])
        if found[1] == "ops_total":
            ops[found[5]] = value
        else:
            assert found[5] in (None, "ok")
            rest[found[1]] = value
    assert set(ops) == {"ok", "io", "short", "checksum", "cancelled", "timeout"}
    return ops, rest


def check(daemon, path, chunks):
    ops, moved = transfers(daemon, path)
    assert moved["blocks_total"] == len(chunks)
    assert moved["bytes_total"] == sum(len(value) for _, value in chunks)
    pad = 1 if path == "host_to_host" else 4096
    assert moved["device_bytes_total"] == sum(-(-len(value) // pad) * pad for _, value in chunks)
    assert 0 < ops["ok"] <= len(chunks)  # adjacent ones may be one operation
    assert sum(ops.values()) == ops["ok"]
    assert moved["seconds_count"] == moved["size_bytes_count"] == ops["ok"]
    assert moved["size_bytes_sum"] == moved["bytes_total"]
    assert moved["busy_seconds_total"] > 0
    return ops["ok"]


def test_chunks_that_moved_are_counted_once_on_their_path(leg_daemon):
    with leg_daemon.client() as c:
        ns = c.namespace("transfers")
        for path in ("host_to_disk", "disk_to_host", "host_to_host"):
            ops, moved = transfers(leg_daemon, path)
            assert not any(ops.values()) and not any(moved.values()), path
        pairs = items("transfers", 2 * c.pool_bytes // SIZE, SIZE)
        assert {r.status for r in put_all(c, ns, pairs, ack=Ack.WRITTEN).values()} == {Status.OK}
        check(leg_daemon, "host_to_disk", pairs)
        check(leg_daemon, "host_to_host", pairs)  # from the staging area to the pool

        cold = [pair for pair in pairs[:32] if not c.exists(ns, [pair[0]])[0] & 1][:8]
        assert cold
        for key, value in cold:
            got, = c.get(ns, [key])
            assert got.data == value
            c.release([got.lease])
        assert check(leg_daemon, "disk_to_host", cold) == len(cold)  # read one by one, so that transfers = blocks
        check(leg_daemon, "host_to_disk", pairs)
        check(leg_daemon, "host_to_host", pairs)  # mapped, not copied


def test_the_counts_of_two_clients_add_up_and_stay(leg_daemon):
    one, two = items("one", 5, 64 * KIB), items("two", 7, 64 * KIB)
    first, second = leg_daemon.client(), leg_daemon.client()
    with second:
        with first:
            for c, pairs in ((first, one), (second, two)):
                results = put_all(c, c.namespace("both"), pairs, ack=Ack.WRITTEN)
                assert {r.status for r in results.values()} == {Status.OK}
        check(leg_daemon, "host_to_disk", one + two)
    check(leg_daemon, "host_to_disk", one + two)
