# SPDX-License-Identifier: Apache-2.0
"""The main operations with their statuses and limits, on every leg: a get returns what was put, byte for byte."""

import json
import os
import struct

import pytest

import harness
import kvwire
from harness import KIB, MIB, get_all, in_threads, items, key_of, put_all, value_of, wait_until
from kvwire import Ack, Flag, Op, Report, Status, Tier


def test_status_says_which_mode_and_why(leg_daemon):
    leg_daemon.leg.check(leg_daemon.populated_status()["io"])


def test_status_of_tmpfs_tells_about_o_direct(make_daemon):
    leg = next(leg for leg in harness.LEGS if leg.name == "tmpfs")
    if leg.why_not():
        pytest.skip(leg.why_not())
    io = make_daemon(leg, {"io.direct": "off"}).start().status()["io"]
    assert io["direct"] is False and io["direct_reason"] == "switched off"


@pytest.mark.parametrize("name", ["posix", "tmpfs"])
def test_a_store_on_a_file_system_that_loses_chunks_is_reported(make_daemon, name):
    leg = next(leg for leg in harness.LEGS if leg.name == name)
    if leg.why_not():
        pytest.skip(leg.why_not())
    daemon = make_daemon(leg).start()
    kind = harness.filesystem_of(daemon.store)
    said = f"{kind} is memory: chunks take memory and are lost at a reboot; put store.path on a disk" if kind == "tmpfs" else ""
    if kind == "overlay":
        said = "overlay is the layer of a container: chunks are lost with the container; mount a volume of the host at store.path"
    volume = daemon.status()["store"]["volumes"][0]
    assert volume["file_system_warning"] == said
    assert volume["file_system"] == kind or volume["file_system"] in ("", "ext4")
    found = next(c for c in json.loads(harness.ctl("--json", "doctor", daemon=daemon, check=None).stdout)["checks"]
                 if c["name"] == "file system")
    assert f"{daemon.store} is on {volume['file_system']}" in found["found"]
    said_all = said or volume["file_system_advice"]
    assert "; ".join(filter(None, (found["found"].partition(": ")[2], found["remedy"]))) == said_all
    warnings = [line for line in daemon.log().splitlines() if " warning: store.path: " in line]
    assert len(warnings) == (said != "") and all(line.endswith(f"{daemon.store}: {said}") for line in warnings)
    assert said in harness.ctl("status", daemon=daemon, check=0).stdout


@pytest.mark.parametrize("length", [1, 4095, 4096, 4097, 64 * KIB, MIB + 7])
def test_value_comes_back_from_memory_and_from_disk(leg_daemon, length):
    key = key_of(length)
    with leg_daemon.client() as c:
        ns = c.namespace("sizes")
        result, = c.put(ns, [(key, value_of(key, length))], ack=Ack.WRITTEN)
        assert result.status == Status.OK and result.length == length and not result.leased
        assert c.exists(ns, [key]) == [Tier.ALL]

        got, = c.get(ns, [key])
        assert (got.status, got.tier, got.length, got.chunk_length) == (Status.OK, Tier.MEMORY, length, length)
        assert got.data == value_of(key, length)
        assert c.release([got.lease]) == 0

        assert c.evict(ns, [key], Tier.MEMORY) == [Status.OK]
        assert c.exists(ns, [key]) == [Tier.DISK]
        got, = c.get(ns, [key])
        assert (got.status, got.tier, got.length) == (Status.OK, Tier.DISK, length)
        assert got.data == value_of(key, length)
        assert c.exists(ns, [key]) == [Tier.ALL]


def test_get_into_the_staging(leg_daemon):
    pairs = items("into", 5, 10000)
    keys = [k for k, _ in pairs]
    with leg_daemon.client() as c:
        ns = c.namespace("into")
        c.put(ns, pairs, ack=Ack.WRITTEN)
        c.evict(ns, keys[:2], Tier.MEMORY)
        at = MIB
        before = c.staging_read(at - 64, 64)
        results = c.get_into(ns, keys, 10000, at=at)
        assert [r.tier for r in results] == [Tier.DISK] * 2 + [Tier.MEMORY] * 3
        for (key, value), result in zip(pairs, results):
            assert result.status == Status.OK and result.lease is None and result.offset == 0
            assert result.data == value
        assert c.staging_read(at - 64, 64) == before

        too_small, = c.get_into(ns, keys[:1], 9999, at=2 * MIB)
        assert (too_small.status, too_small.length) == (Status.TOO_LARGE, 10000)
        assert c.staging_read(2 * MIB, 10000) == bytes(10000), "refused, and yet something was copied"
        part, = c.get_into(ns, keys[:1], 9999, at=2 * MIB, ranges=[(1, 9999)])
        assert part.data == pairs[0][1][1:]


def test_ranged_get(leg_daemon):
    key, length = key_of("ranged"), 3 * 4096 + 100
    value = value_of(key, length)
    ranges = [(0, 1), (0, 0), (4095, 2), (4096, 4096), (length - 1, 1), (length - 1, 0), (5000, 0), (0, length)]
    with leg_daemon.client() as c:
        ns = c.namespace("ranged")
        c.put(ns, [(key, value)], ack=Ack.WRITTEN)
        for tier in (Tier.MEMORY, Tier.DISK):
            if tier == Tier.DISK:
                c.evict(ns, [key], Tier.MEMORY)
            results = c.get(ns, [key] * len(ranges), ranges=ranges)
            for (offset, count), result in zip(ranges, results):
                wanted = value[offset:offset + count] if count else value[offset:]
                assert result.status == Status.OK and result.data == wanted and result.chunk_length == length
            assert results[0].tier == tier
            c.release([r.lease for r in results])
        for outside in [(length, 0), (length, 1), (0, length + 1), (length - 1, 2), (0xFFFFFFFF, 0xFFFFFFFF)]:
            result, = c.get(ns, [key], ranges=[outside])
            assert result.status == Status.INVALID and result.lease is None


def test_exists_match_and_touch(leg_daemon):
    pairs = items("match", 10, 500)
    keys = [k for k, _ in pairs]
    strangers = [key_of("stranger", i) for i in range(3)]
    with leg_daemon.client() as c:
        ns = c.namespace("match")
        assert c.match(ns, keys) == 0
        c.put(ns, pairs[:7] + pairs[8:], ack=Ack.WRITTEN)
        assert c.match(ns, keys) == 7
        assert c.match(ns, keys[8:]) == 2
        assert c.match(ns, strangers) == 0
        assert [bool(t) for t in c.exists(ns, keys + strangers)] == [True] * 7 + [False] + [True] * 2 + [False] * 3
        assert c.touch(ns, keys[6:9] + strangers[:1]) == [Status.OK, Status.MISS, Status.OK, Status.MISS]
        other = c.namespace("match-other")
        assert c.match(other, keys) == 0 and not any(c.exists(other, keys))
        assert [r.status for r in c.get(other, keys)] == [Status.MISS] * 10


def test_prefetch(leg_daemon):
    pairs = items("prefetch", 40, 20000)
    keys = [k for k, _ in pairs]
    stranger = key_of("stranger", 1)

    def prefetched():
        return leg_daemon.metric("kvcache_prefetched_chunks_total"), leg_daemon.metric("kvcache_prefetch_hits_total")

    with leg_daemon.client() as c:
        assert c.features & kvwire.FEATURE_PREFETCH
        ns = c.namespace("prefetch")
        chunks, hits = prefetched()
        c.put(ns, pairs, ack=Ack.WRITTEN)
        assert c.prefetch(ns, keys[:4]) == [Status.OK] * 4, "in memory already"
        assert prefetched() == (chunks, hits)
        c.evict(ns, keys, Tier.MEMORY)
        assert c.prefetch(ns, [*keys[:2], stranger, *keys[2:]], more=True) == \
            [Status.OK] * 2 + [Status.MISS] + [Status.OK] * 38
        joined = c.get(ns, keys)  # some of them before they are in memory
        assert [r.status for r in joined] == [Status.OK] * 40
        assert [bytes(r.data) for r in joined] == [v for _, v in pairs]
        c.release([r.lease for r in joined])
        assert prefetched() == (chunks + 40, hits + 40)
        c.evict(ns, keys, Tier.MEMORY)
        assert c.prefetch(ns, keys[:10]) == [Status.OK] * 10
        wait_until(lambda: all(t & Tier.MEMORY for t in c.exists(ns, keys[:10])), "what was prefetched is in memory")
        assert not any(t & Tier.MEMORY for t in c.exists(ns, keys[10:]))
        assert [r.tier for r in c.get(ns, keys[:10])] == [Tier.MEMORY] * 10
        assert leg_daemon.metric("kvcache_leases") == 10, "a prefetch keeps none"


def test_reads_of_a_prefetch_are_counted_while_they_last(daemon):
    pairs = items("counted", 12, MIB)
    keys = [k for k, _ in pairs]
    with daemon.client() as c:
        ns = c.namespace("counted")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)

        def seen():
            """Returns the value from a report that was requested together with the prefetch."""
            c.evict(ns, keys, Tier.MEMORY)
            prefetch = c.submit_batch(Op.PREFETCH, ns, keys)
            report = c.submit(Op.REPORT, struct.pack("<II", Report.METRICS, 0))
            c.wait(prefetch)
            reply = c.wait(report)
            text = os.pread(reply.fds[0], reply.value64, 0).decode()
            os.close(reply.fds[0])
            metrics = harness.parse_metrics(text)
            harness.remember_moved(metrics)
            return metrics["kvcache_prefetch_inflight_bytes"] > 0

        wait_until(seen, "reads under way are reported")
        wait_until(lambda: daemon.metric("kvcache_prefetch_inflight_bytes") == 0, "they are over")


def test_evict_from_memory_and_from_everywhere(leg_daemon):
    pairs = items("evict", 6, 5000)
    keys = [k for k, _ in pairs]
    with leg_daemon.client() as c:
        ns = c.namespace("evict")
        c.put(ns, pairs, ack=Ack.WRITTEN)
        assert c.evict(ns, keys[:3], Tier.MEMORY) == [Status.OK] * 3
        assert c.exists(ns, keys[:3]) == [Tier.DISK] * 3
        assert c.evict(ns, keys[2:5]) == [Status.OK] * 3
        assert c.evict(ns, keys[2:5]) == [Status.MISS] * 3
        assert c.exists(ns, keys) == [Tier.DISK] * 2 + [Tier(0)] * 3 + [Tier.ALL]
        assert [r.status for r in c.get(ns, keys[2:5])] == [Status.MISS] * 3
        again, = c.put(ns, [pairs[2]], ack=Ack.WRITTEN)
        assert again.status == Status.OK
        assert c.value(ns, keys[2]) == pairs[2][1]


def test_purge_of_a_namespace_leaves_the_others(leg_daemon):
    mine, yours = items("mine", 20, 3000), items("yours", 20, 3000)
    with leg_daemon.client() as c:
        a, b = c.namespace("a"), c.namespace("b")
        c.put(a, mine, ack=Ack.WRITTEN)
        c.put(b, yours, ack=Ack.WRITTEN)
        assert c.purge(a) == 20
        assert not any(c.exists(a, [k for k, _ in mine]))
        assert all(c.exists(b, [k for k, _ in yours]))
        assert [r.status for r in c.put(a, mine[:5], ack=Ack.WRITTEN)] == [Status.OK] * 5
        assert c.value(a, mine[0][0]) == mine[0][1]
        assert c.purge(everything=True) == 25
        assert not any(c.exists(a, [k for k, _ in mine])) and not any(c.exists(b, [k for k, _ in yours]))
        assert list(c.list(a)) == [] and list(c.list(b)) == []


def test_stat(leg_daemon):
    key, value = key_of("stat"), value_of(key_of("stat"), 5001)
    with leg_daemon.client() as c:
        ns = c.namespace("stat")
        c.put(ns, [(key, value)], ack=Ack.WRITTEN)
        miss, stat = c.stat(ns, [key_of("no such"), key])
        assert miss == (Status.MISS, Tier(0), 0, 0, 0, 0)
        assert (stat.status, stat.tiers, stat.length, stat.leases) == (Status.OK, Tier.ALL, 5001, 0)
        assert stat.crc32c == kvwire.crc32c(value)
        assert stat.created_ms > 1.6e12
        first, second = c.get(ns, [key, key])
        assert c.stat(ns, [key])[0].leases == 2
        c.release([first.lease, second.lease])
        c.evict(ns, [key], Tier.MEMORY)
        stat, = c.stat(ns, [key])
        assert (stat.tiers, stat.leases, stat.length, stat.crc32c) == (Tier.DISK, 0, 5001, kvwire.crc32c(value))


def test_list_walks_a_namespace_with_a_cursor(leg_daemon):
    pairs = items("list", 500, 100)
    with leg_daemon.client() as c:
        ns, other = c.namespace("list"), c.namespace("list-other")
        put_all(c, ns, pairs, batch=250, ack=Ack.WRITTEN)
        put_all(c, other, items("foreign", 50, 100), ack=Ack.WRITTEN)
        for count in (7, 64, 1024):
            listed = list(c.list(ns, count))
            assert len(listed) == 500, "met twice, or left out"
            assert {e.key for e in listed} == {k for k, _ in pairs}
            assert all(e.length == 100 and e.tiers & Tier.DISK and e.created_ms for e in listed)


def test_ping_echoes_any_payload(daemon, client):
    for payload in (b"", b"x", bytes(range(256)), b"\0" * 1024):
        client.ping(payload)


@pytest.mark.parametrize("ack", list(Ack), ids=lambda a: a.name.lower())
def test_each_ack_class_is_answered_and_counted(leg_daemon, ack):
    pairs = items(ack, 8, 20000)
    with leg_daemon.client() as c:
        ns = c.namespace("acks")
        results = c.put(ns, pairs, ack=ack)
        allowed = {Status.OK, Status.NOT_DURABLE} if ack == Ack.DURABLE and leg_daemon.leg.base else {Status.OK}
        assert {r.status for r in results} <= allowed
        assert all(c.exists(ns, [k for k, _ in pairs]))
        if ack != Ack.ACCEPTED:
            assert all(t & Tier.DISK for t in c.exists(ns, [k for k, _ in pairs]))
        for key, value in pairs:
            assert c.value(ns, key) == value
    assert leg_daemon.metric(f'kvcache_put_acks_total{{class="{ack.name.lower()}"}}') == 8


def test_first_put_wins(leg_daemon):
    key = key_of("first")
    first, second = value_of(key, 30000), value_of(key_of("second"), 20000)
    with leg_daemon.client() as a, leg_daemon.client() as b:
        ns_a, ns_b = a.namespace("first"), b.namespace("first")
        assert a.put(ns_a, [(key, first)])[0].status == Status.OK
        late, = b.put(ns_b, [(key, second)], ack=Ack.WRITTEN)
        assert (late.status, late.length) == (Status.EXISTS, 30000)
        assert b.exists(ns_b, [key])[0] & Tier.DISK, "EXISTS of the class written, but it is not on disk"
        b.evict(ns_b, [key], Tier.MEMORY)
        assert b.put(ns_b, [(key, second)], ack=Ack.DURABLE)[0].status in (Status.EXISTS, Status.NOT_DURABLE)
        assert a.value(ns_a, key) == first


def test_the_same_key_twice_in_one_message(leg_daemon):
    key = key_of("twice")
    with leg_daemon.client() as c:
        ns = c.namespace("twice")
        results = c.put(ns, [(key, b"first"), (key, b"second!")], ack=Ack.WRITTEN)
        assert [r.status for r in results] == [Status.OK, Status.EXISTS]
        assert c.value(ns, key) == b"first"


def test_racing_puts_of_the_same_keys_leave_one_value_each(leg_daemon):
    keys = [key_of("race", i) for i in range(64)]
    won = [{} for _ in range(4)]

    def put(number):
        with leg_daemon.client() as c:
            ns = c.namespace("race")
            mine = [(k, value_of(key_of(k, number), 8000 + number)) for k in keys]
            for (key, value), result in zip(mine, c.put(ns, mine, ack=Ack.WRITTEN)):
                assert result.status in (Status.OK, Status.EXISTS)
                if result.status == Status.OK:
                    won[number][key] = value

    in_threads(4, put)
    assert sum(len(w) for w in won) == len(keys), "a key was won twice, or never"
    with leg_daemon.client() as c:
        ns = c.namespace("race")
        for values in won:
            for key, value in values.items():
                assert c.value(ns, key) == value


def test_a_staging_that_changes_after_the_answer_changes_nothing(leg_daemon):
    key = key_of("torn")
    value = value_of(key, 100000)
    with leg_daemon.client() as c:
        ns = c.namespace("torn")
        c.put(ns, [(key, value)])
        c.staging_write(0, b"\xff" * 100000)
        assert c.value(ns, key) == value
        c.put(ns, [(key, b"x")], ack=Ack.WRITTEN)
        c.evict(ns, [key], Tier.MEMORY)
        assert c.value(ns, key) == value


def test_values_of_several_mib_up_to_the_largest(each_leg, make_daemon):
    daemon = make_daemon(each_leg, {"memory.pool": "64MiB", "store.limit": "512MiB"}).start()
    with daemon.client() as c:
        ns = c.namespace("large")
        assert c.max_chunk >= 4 * MIB
        for length in (3 * MIB + 1, c.max_chunk - 1, c.max_chunk):
            key = key_of("large", length)
            value = value_of(key, length)
            assert c.put(ns, [(key, value)], ack=Ack.WRITTEN)[0].status == Status.OK
            for tier in (Tier.MEMORY, Tier.DISK):
                got, = c.get(ns, [key])
                assert got.status == Status.OK and got.tier == tier and got.data == value
                c.release([got.lease])
                c.evict(ns, [key], Tier.MEMORY)
        key = key_of("too large")
        assert c.put(ns, [(key, bytes(c.max_chunk + 1))])[0].status == Status.TOO_LARGE
        assert c.exists(ns, [key]) == [Tier(0)]


def test_max_chunk_of_a_small_daemon_is_honest(daemon, client):
    ns = client.namespace("honest")
    key = key_of("honest")
    value = value_of(key, client.max_chunk)
    assert client.put(ns, [(key, value)], ack=Ack.WRITTEN)[0].status == Status.OK
    client.evict(ns, [key], Tier.MEMORY)
    assert client.value(ns, key) == value
    assert client.put(ns, [(key_of("over"), bytes(client.max_chunk + 1))])[0].status == Status.TOO_LARGE


def test_1024_keys_in_one_message(leg_daemon):
    pairs = items("many", 1024, 300)
    keys = [k for k, _ in pairs]
    with leg_daemon.client() as c:
        assert c.max_keys == 1024
        ns = c.namespace("many")
        assert {r.status for r in c.put(ns, pairs, ack=Ack.WRITTEN)} == {Status.OK}
        assert c.match(ns, keys) == 1024
        assert all(c.exists(ns, keys))
        results = c.get(ns, keys)
        assert all(r.status == Status.OK and r.data == v for r, (_, v) in zip(results, pairs))
        assert c.release([r.lease for r in results]) == 0
        assert c.evict(ns, keys, Tier.MEMORY) == [Status.OK] * 1024
        results = c.get(ns, keys)
        assert all(r.status == Status.OK and r.tier == Tier.DISK and r.data == v for r, (_, v) in zip(results, pairs))
        assert len(c.stat(ns, keys)) == 1024


def test_invalid_arguments_cost_only_their_key(daemon, client):
    ns = client.namespace("invalid")
    good = key_of("good")
    client.staging(MIB)
    client.staging_write(0, b"value")
    entry = kvwire.PUT_ENTRY.pack
    entries = [
        entry(bytes(32), 0, 5, 0, 0),                          # the root
        entry(key_of(1), 0, 0, 0, 0),                          # length 0
        entry(key_of(2), MIB - 4, 5, 0, 0),                    # over the staging area's end
        entry(key_of(3), 2**64 - 1, 5, 0, 0),                  # offset + length wraps
        entry(key_of(4), 0, 5, 1, 0),                          # unknown region
        entry(good, 0, 5, 0, 0),
    ]
    results = client.put_results(client.wait(client.submit_batch(Op.PUT, ns, entries, ack=1)), len(entries))
    assert [r.status for r in results] == [Status.INVALID] * 5 + [Status.OK]
    assert client.value(ns, good) == b"value"

    entry = kvwire.GET_ENTRY.pack
    entries = [
        entry(bytes(32), 0, 0, 0, 5, 0),
        entry(good, 0, 0, MIB - 4, 5, 0),
        entry(good, 0, 0, 2**64 - 1, 5, 0),
        entry(good, 0, 0, 0, 5, 1),
        entry(good, 0, 0, 0, 0, 0),
        entry(good, 6, 0, 0, 5, 0),
        entry(good, 0, 0, 0, 5, 0),
    ]
    reply = client.wait(client.submit_batch(Op.GET, ns, entries, flags=Flag.INTO))
    results = client.get_results(reply, len(entries), [0] * len(entries))
    assert [r.status for r in results] == [Status.INVALID] * 6 + [Status.OK]


def test_put_without_a_staging_is_invalid(daemon, client):
    ns = client.namespace("unstaged")
    entry = kvwire.PUT_ENTRY.pack(key_of("unstaged"), 0, 5, 0, 0)
    result, = client.put_results(client.wait(client.submit_batch(Op.PUT, ns, [entry])), 1)
    assert result.status == Status.INVALID


def test_a_namespace_that_was_not_opened_is_refused(daemon, client):
    opened = client.namespace("opened")
    with daemon.client() as other:
        with pytest.raises(kvwire.Refused) as refused:
            other.exists(opened, [key_of("x")])
        assert refused.value.status == Status.NO_NAMESPACE and refused.value.text
        with pytest.raises(kvwire.Refused) as refused:
            other.namespace("not there", attach=True)
        assert refused.value.status == Status.NO_NAMESPACE
        assert other.namespace("opened", attach=True) == opened
        with pytest.raises(kvwire.Refused) as refused:
            other.purge(77)
        assert refused.value.status == Status.NO_NAMESPACE


def test_fingerprint_mismatch_names_the_field(leg_daemon):
    with leg_daemon.client() as c:
        c.namespace("model", kvwire.fingerprint(model="llama", dtype="fp8", tokens=16))
        with pytest.raises(kvwire.Refused) as refused:
            c.namespace("model", kvwire.fingerprint(model="llama", dtype="bf16", tokens=16))
        assert refused.value.status == Status.MISMATCH
        assert "dtype" in refused.value.text and "fp8" in refused.value.text and "bf16" in refused.value.text
        assert "tokens" not in refused.value.text
        with pytest.raises(kvwire.Refused) as refused:
            c.namespace("model")
        assert refused.value.status == Status.MISMATCH
        c.namespace("model", attach=True)
    leg_daemon.restart()
    with leg_daemon.client() as c:
        with pytest.raises(kvwire.Refused) as refused:
            c.namespace("model", kvwire.fingerprint(model="llama", dtype="bf16", tokens=16))
        assert refused.value.status == Status.MISMATCH and "dtype" in refused.value.text
        c.namespace("model", kvwire.fingerprint(model="llama", dtype="fp8", tokens=16))


def test_namespaces_of_a_session_are_limited(daemon, client):
    numbers = {client.namespace(f"n{i}") for i in range(256)}
    assert len(numbers) == 256
    with pytest.raises(kvwire.Refused) as refused:
        client.namespace("one too many")
    assert refused.value.status == Status.QUOTA
    assert client.namespace("n7") in numbers
    with daemon.client() as other:
        other.namespace("one more")


def test_gets_of_one_cold_key_share_a_read(leg_daemon):
    (key, value), = items("shared", 1, MIB)
    with leg_daemon.client() as c:
        ns = c.namespace("shared")
        c.put(ns, [(key, value)], ack=Ack.WRITTEN)
        reads = leg_daemon.metric("kvcache_store_reads_total")
        c.evict(ns, [key], Tier.MEMORY)
        results = c.get_into(ns, [key] * 20, MIB)
        assert all(r.status == Status.OK and r.data == value for r in results)
    assert leg_daemon.metric("kvcache_store_reads_total") == reads + 1


@pytest.mark.parametrize("bad", ["no equals sign\n", "a=1", "b=1\na=1\n", "a=1\na=2\n", "A=1\n", "=1\n", "a=\x01\n", "\n"])
def test_a_fingerprint_that_is_not_canonical_is_invalid(daemon, client, bad):
    with pytest.raises(kvwire.Refused) as refused:
        client.namespace("canonical", bad)
    assert refused.value.status == Status.INVALID
    client.ping()


def test_declared_chunk_size_is_remembered(daemon, client):
    client.namespace("declared", chunk_bytes=576 * KIB)
    assert client.chunk_bytes == 576 * KIB
    with daemon.client() as other:
        other.namespace("declared", attach=True)
        assert other.chunk_bytes == 576 * KIB


def test_requests_are_pipelined_and_matched_by_tag(daemon, client):
    ns = client.namespace("pipeline")
    pairs = items("pipeline", 64, 2000)
    entries = client.staging() and client.put_entries(pairs)
    tags = [client.submit_batch(Op.PUT, ns, [e], ack=Ack.WRITTEN) for e in entries]
    for tag in reversed(tags):
        result, = client.put_results(client.wait(tag), 1)
        assert result.status == Status.OK
    tags = [client.submit_batch(Op.GET, ns, [kvwire.GET_ENTRY.pack(k, 0, 0, 0, 0, 0)]) for k, _ in pairs]
    for tag, (key, value) in reversed(list(zip(tags, pairs))):
        result, = client.get_results(client.wait(tag), 1)
        assert result.data == value


def test_reports_have_their_claimed_formats(daemon, client):
    ns = client.namespace("reports")
    client.put(ns, items("reports", 4, 1000), ack=Ack.WRITTEN)
    status = json.loads(client.report(kvwire.Report.STATUS))
    assert status["ready"] is True and status["pid"] == daemon.pid
    assert status["instance"] == client.instance.hex()
    assert status["socket"] == daemon.socket and [v["volume"] for v in status["store"]["volumes"]] == [str(daemon.store)]
    assert status["totals"]["puts"] == 4 and status["totals"]["bytes_put"] == 4000
    assert [n["name"] for n in status["namespaces"]] == ["reports"]
    assert status["namespaces"][0]["chunks"] == 4 and status["namespaces"][0]["bytes"] == 4000
    json.loads(client.report(kvwire.Report.STATS))
    assert harness.parse_metrics(client.report(kvwire.Report.METRICS))["kvcache_puts_total"] == 4
    assert "limit: 128MiB" in client.report(kvwire.Report.CONFIG)


def test_staging_limits(daemon, client):
    with pytest.raises(kvwire.Refused) as refused:
        client.staging(client.staging_max + 1)
    assert refused.value.status == Status.TOO_LARGE
    assert client.staging(5000) == 8192
    reply = client.call(Op.STAGING, struct.pack("<Q", 4096), check=False)
    assert reply.status == Status.INVALID and b"staging" in reply.body


def test_a_limit_below_the_size_of_a_data_file_leaves_a_store_that_works(make_daemon):
    """The only file was made for a limit of 8 GiB and takes all of this one. Chunks that are too small for its table's room get a smaller file,
    rather than none until the next restart."""
    daemon = make_daemon(settings={"store.limit": "8GiB", "memory.pool": "16MiB"}).start()
    with daemon.client() as c:
        put_all(c, c.namespace("n"), items("before", 1, 100 * KIB), ack=Ack.WRITTEN)
    daemon.settings["store.limit"] = "130MiB"
    daemon.restart()
    pairs = items("small", 2000, 4 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        for pair in items("again", 1, 100 * KIB) + pairs:
            wait_until(lambda: c.put(ns, [pair], ack=Ack.WRITTEN)[0].status in (Status.OK, Status.EXISTS), "room on the disk")
    daemon.restart()
    with daemon.client() as c:
        found = get_all(c, c.namespace("n"), [k for k, _ in pairs])
    assert all(found[key] in (None, value) for key, value in pairs)
    assert sum(found[key] is not None for key, _ in pairs) >= 1000
