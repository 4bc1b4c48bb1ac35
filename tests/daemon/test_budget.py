# SPDX-License-Identifier: Apache-2.0
"""store.write_budget: written and refused chunks, the fate of the latter, and the criterion on the real trace."""

import json
import os
import signal

import pytest

from buffers import region_of
from harness import KIB, MIB, ctl, get_all, items, put_all, wait_until
from kvwire import Ack, Status, Tier
from test_replay import LONG, replay, trace_path
from test_simulate import DAY_MS, trace_ms

SMALL = 1 << 20  # a day: a megabyte, 12 bytes a second


def written(daemon):
    return sum(daemon.metric(f'kvcache_store_written_bytes_total{{kind="{what}"}}') for what in ("payload", "table", "prewrite"))


@pytest.mark.nightly
@pytest.mark.figures
@pytest.mark.parametrize("policy", ["cq"] + ["lru"] * LONG)
def test_a_quarter_of_the_writes_keeps_most_of_the_hits(make_daemon, policy):
    """The daemon meets the criterion of test_simulate.py: an hour of the trace in half a minute, with a budget scaled accordingly."""
    speed = 120

    def play(*arguments, **settings):
        daemon = make_daemon(settings={"store.limit": 16 * KIB * int(182790 * 0.05), "memory.pool": "28MiB", "store.prewrite": "off",
                                       "eviction.policy": policy, **settings}).start()
        said = replay(daemon, trace_path(), "--block-bytes", "16KiB", *arguments)
        bytes_written = written(daemon)
        daemon.stop()
        assert said["wrong_bytes"] == 0 and said["errors"] == 0
        return said, bytes_written

    unbounded, all_of_it = play()
    may = all_of_it / 4
    trace_s = trace_ms(trace_path()) / 1000 / speed
    some, part = play("--speed", str(speed), **{"store.write_budget": int(may / trace_s * DAY_MS / 1000)})
    may *= max(1, some["seconds"] / trace_s)  # a slow machine may write for longer
    assert 0.95 * min(may, all_of_it) <= part <= 1.05 * may
    assert unbounded["hit_ratio"] - some["hit_ratio"] <= 0.03


def answers(daemon):
    return {of: int(daemon.metric(f'kvcache_admission_writes_total{{answer="{of}"}}'))
            for of in ("first", "again", "refused_first", "refused_dry")}


@pytest.fixture
def make(make_daemon):
    def make(**store):
        daemon = make_daemon(settings={"store.prewrite": "off"})
        daemon.config = daemon.directory / "kvcache.yaml"
        daemon.set = lambda **store: daemon.config.write_text(
            "store:\n" + "".join(f"  {key}: {value}\n" for key, value in {"write_budget": 0, **store}.items()))
        daemon.set(**store)
        return daemon
    return make


def reload(daemon, **store):
    reloads = daemon.metric("kvcache_config_reloads_total")
    daemon.set(**store)
    os.kill(daemon.pid, signal.SIGHUP)
    wait_until(lambda: daemon.metric("kvcache_config_reloads_total") == reloads + 1, "the reload")


def use_up(c, ns):
    """Uses up the budget that has accrued, and that of the following years."""
    put_all(c, ns, items("much", 4, MIB))


def tiers_of(c, ns, pairs):
    return c.exists(ns, [k for k, _ in pairs])


def statuses(results):
    return {r.status for r in results.values()}


def test_refused_chunks_stay_in_memory_and_are_never_acknowledged_as_written(make):
    daemon = make(write_budget=SMALL).start()
    accepted, written_pairs, durable = items("a", 16, 64 * KIB), items("w", 8, 64 * KIB), items("d", 8, 64 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        use_up(c, ns)
        before = answers(daemon)
        assert statuses(put_all(c, ns, accepted)) == {Status.OK}
        assert statuses(put_all(c, ns, written_pairs, ack=Ack.WRITTEN)) == {Status.NO_SPACE}
        assert statuses(put_all(c, ns, durable, ack=Ack.DURABLE)) == {Status.NO_SPACE}
        after = answers(daemon)
        assert after["refused_first"] + after["refused_dry"] - before["refused_first"] - before["refused_dry"] == 32
        assert tiers_of(c, ns, accepted) == [Tier.MEMORY] * 16
        assert tiers_of(c, ns, written_pairs + durable) == [0] * 16
        assert get_all(c, ns, [k for k, _ in accepted]) == dict(accepted)
        assert set(get_all(c, ns, [k for k, _ in written_pairs]).values()) == {None}
        assert daemon.metric('kvcache_misses_total{reason="refused"}') == 8
        # A put with ack written of a chunk that is only in memory is refused, and the chunk stays.
        assert statuses(put_all(c, ns, accepted, ack=Ack.WRITTEN)) == {Status.NO_SPACE}
        assert statuses(put_all(c, ns, accepted)) == {Status.EXISTS}
        assert tiers_of(c, ns, accepted) == [Tier.MEMORY] * 16
    assert daemon.metric("kvcache_admission_refused_bytes_total") >= 32 * 64 * KIB
    assert daemon.metric("kvcache_pool_unwritten_bytes") == 0
    daemon.restart(kill=True)
    with daemon.client() as c:
        assert tiers_of(c, c.namespace("n"), accepted + written_pairs + durable) == [0] * 32


def test_written_puts_survive_a_kill_under_a_write_budget(make):
    daemon = make(write_budget="40GB").start()  # half a megabyte a second
    pairs = items("k", 256, 64 * KIB)
    with daemon.client() as c:
        results = put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)
        assert statuses(results) == {Status.OK, Status.NO_SPACE}
    daemon.restart(kill=True)
    with daemon.client() as c:
        found = tiers_of(c, c.namespace("n"), pairs)
    assert [bool(t) for t in found] == [results[k].status == Status.OK for k, _ in pairs]


@pytest.mark.parametrize("how", ["get", "put"])
def test_a_second_use_writes_chunks_that_were_refused(make, how):
    daemon = make(write_budget="80GB").start()
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, items("much", 8, MIB))
        pairs = items("k", 4, 64 * KIB)
        put_all(c, ns, pairs)
        assert tiers_of(c, ns, pairs) == [Tier.MEMORY] * 4
        wait_until(lambda: daemon.metric("kvcache_write_budget_available_bytes") > 4 * 64 * KIB, "the budget to accrue", 30)
        again = answers(daemon)["again"]
        if how == "get":
            assert get_all(c, ns, [k for k, _ in pairs]) == dict(pairs)
        else:
            assert statuses(put_all(c, ns, pairs)) == {Status.EXISTS}
        wait_until(lambda: tiers_of(c, ns, pairs) == [Tier.MEMORY | Tier.DISK] * 4, "they are on disk")
        assert answers(daemon)["again"] == again + 4
        # From disk, too.
        c.evict(ns, [k for k, _ in pairs], Tier.MEMORY)
        assert get_all(c, ns, [k for k, _ in pairs]) == dict(pairs)
    daemon.restart(kill=True)
    with daemon.client() as c:
        assert get_all(c, c.namespace("n"), [k for k, _ in pairs]) == dict(pairs)


def test_the_budget_changes_with_a_reload(make):
    daemon = make().start()
    with daemon.client() as c:
        ns = c.namespace("n")
        before = items("before", 8, 64 * KIB)
        assert statuses(put_all(c, ns, before, ack=Ack.WRITTEN)) == {Status.OK}
        assert daemon.metric("kvcache_write_budget_bytes") == 0 and sum(answers(daemon).values()) == 0
        reload(daemon, write_budget=SMALL)
        assert daemon.metric("kvcache_write_budget_bytes") == SMALL
        use_up(c, ns)
        refused = items("refused", 8, 64 * KIB)
        assert statuses(put_all(c, ns, refused, ack=Ack.WRITTEN)) == {Status.NO_SPACE}
        kept = items("kept", 8, 64 * KIB)
        put_all(c, ns, kept)
        assert get_all(c, ns, [k for k, _ in before]) == dict(before)
        reload(daemon, write_budget=0)
        assert statuses(put_all(c, ns, refused, ack=Ack.WRITTEN)) == {Status.OK}
        # Chunks that are only in the pool are written at their next use.
        assert get_all(c, ns, [k for k, _ in kept]) == dict(kept)
        wait_until(lambda: tiers_of(c, ns, kept) == [Tier.MEMORY | Tier.DISK] * 8, "they are on disk")
    assert daemon.metric("kvcache_admission_remembered_keys") == 0


def test_tables_are_paid_for_as_well(make):
    daemon = make(write_budget="80GB").start()
    with daemon.client() as c:
        put_all(c, c.namespace("n"), items("k", 2000, 4 * KIB))
    wait_until(lambda: daemon.metric("kvcache_pool_unwritten_bytes") == 0, "all is written")
    wait_until(lambda: daemon.metric("kvcache_written_day_bytes") == written(daemon) > 0, "the next count")
    assert daemon.metric("kvcache_write_budget_left_bytes") == 80 * 10**9 - daemon.metric("kvcache_written_day_bytes")


def test_status_shows_budget_use_refusals_and_life(make):
    daemon = make().start()
    out = ctl("status", "writes", daemon=daemon, check=0).stdout
    assert "Writes to disk" in out and "none (store.write_budget)" in out
    assert "drive life" not in out and "refused" not in out
    reload(daemon, write_budget="1GB", rated_endurance="7PB")
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, items("much", 8, MIB))
        put_all(c, ns, items("k", 8, 64 * KIB))
    refused = answers(daemon)["refused_first"] + answers(daemon)["refused_dry"]
    assert refused >= 8
    status = json.loads(ctl("status", "--json", daemon=daemon, check=0).stdout)["writes"]
    assert status["budget_bytes"] == 10**9 and status["rated_endurance_bytes"] == 7 * 10**15
    assert status["life_at_budget_days"] == 7 * 10**6
    assert status["refused_first"] + status["refused_dry"] == refused and status["refused_bytes"] >= 8 * 64 * KIB
    out = ctl("status", daemon=daemon, check=0).stdout
    for line in ("budget", "available", "admitted", "refused", "drive life"):
        assert f"\n  {line} " in out
    assert "overdrawn" in out and "at the whole budget" in out


def test_one_user_with_new_chunks_cannot_overdraw(make):
    """Chunks that are never used again take the share of new chunks, and no more than the budget."""
    daemon = make(write_budget="4GB").start()
    with daemon.client() as c:
        ns = c.namespace("n")
        for i in range(4):
            put_all(c, ns, items(f"garbage-{i}", 64, 64 * KIB))
            put_all(c, ns, items(f"garbage-{i}", 64, 64 * KIB))
    wait_until(lambda: daemon.metric("kvcache_pool_unwritten_bytes") == 0, "all is written")
    assert daemon.metric("kvcache_admission_charged_bytes_total") < 2 * MIB
    assert daemon.metric("kvcache_admission_refused_bytes_total") > 30 * MIB


@pytest.mark.parametrize("ack", [Ack.ACCEPTED, Ack.WRITTEN, Ack.DURABLE])
def test_puts_from_a_clients_memory_have_the_same_budget(make, ack):
    """The budget also applies if the device reads the bytes from registered memory, without a copy in the pool."""
    daemon = make(write_budget="80GB").start()
    pairs = items("k", 16, 64 * KIB)
    with daemon.client() as c, region_of(c, size=2 * MIB) as region:
        ns = c.namespace("n")
        put_all(c, ns, items("much", 8, MIB))
        sources = [(key, region.write(i * 64 * KIB, value)) for i, (key, value) in enumerate(pairs)]
        first = c.put_from(ns, sources[:8], ack=ack)
        assert {r.status for r in first} == {Status.OK if ack == Ack.ACCEPTED else Status.NO_SPACE}
        assert tiers_of(c, ns, pairs[:8]) == [Tier.MEMORY if ack == Ack.ACCEPTED else 0] * 8
        charged = daemon.metric("kvcache_admission_charged_bytes_total")
        wait_until(lambda: daemon.metric("kvcache_write_budget_available_bytes") > 8 * 64 * KIB, "the budget to accrue", 30)
        again = c.put_from(ns, sources[:8], ack=ack)
        assert {r.status for r in again} == {Status.EXISTS if ack == Ack.ACCEPTED else Status.OK}
        wait_until(lambda: all(t & Tier.DISK for t in tiers_of(c, ns, pairs[:8])), "they are on disk")
        assert daemon.metric("kvcache_admission_charged_bytes_total") == charged + 8 * 64 * KIB
        assert get_all(c, ns, [k for k, _ in pairs[:8]]) == dict(pairs[:8])
    if ack != Ack.ACCEPTED:
        assert daemon.metric("kvcache_put_direct_bytes_total") > 0
