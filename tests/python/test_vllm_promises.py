# SPDX-License-Identifier: Apache-2.0
"""Leases of the spec's manager (promises.py): each answer that a daemon can give, whichever shard, pool or request it is for. The client is a
substitute; the scenarios of vllm_spec_host.py and vllm_ranks_host.py play the same with a daemon."""

import errno
import gc
import types

import pytest
from kvcache import BUSY, EXISTS, LOST, MISS, OK, PENDING, QUOTA, TIER_DISK, TIER_MEMORY, ArgumentError, ClosedError, MismatchError
from kvcache._gpu import SLICE_BYTES
from kvcache.vllm import promises
from kvcache.vllm.arrays import Blocks, Region
from kvcache.vllm.loads import LoadPart, Loads
from kvcache.vllm.mover import Mover, Part
from kvcache.vllm.promises import Held, LoadsUnderWay, Promises
from kvcache.vllm.shards import Shard

ns = types.SimpleNamespace
NBYTES = 4096


class Leased:
    """Leases in the pool with the id `pool`, whose first byte is at the address 1 << 30."""

    def __init__(self, pool, count):
        self.pool, self._addresses = pool, [(1 << 30) + NBYTES * i for i in range(count)]


class Client:
    """A connection whose requests are answered by answer()."""

    def __init__(self):
        self.connected, self.owes, self.fails, self.sent, self.answers = True, False, set(), [], []
        self.refuses = {}  # by name of a namespace, the exception that its opening raises

    def namespace(self, name, fields, nbytes):
        if name in self.refuses:
            raise self.refuses[name]
        return Namespace(self, name)

    @property
    def inflight(self):
        return len(self.sent) + len(self.answers)

    def reap(self, timeout=0.0):
        answers, self.answers = self.answers, []
        return answers

    def pool_of(self, leased):
        return leased.pool, 1 << 30

    def flush(self):
        pass

    def answer(self, status=OK, pool=1, length=NBYTES, tiers=TIER_MEMORY, shard=None):
        """Answers the oldest request for leases, or the one of a shard. `status`: one for all keys, or a list."""
        at = next(i for i, (name, *_) in enumerate(self.sent) if shard is None or name.endswith(f"s{shard}"))
        _, count, tag = self.sent.pop(at)
        statuses = [status] * count if isinstance(status, int) else status
        self.answers.append(ns(tag=tag, status=bytes(statuses), tiers=bytes([tiers] * count), lengths=[length] * count,
                               leased=Leased(pool, count) if OK in statuses else None))


class Namespace:
    def __init__(self, client, name):
        self.client, self.name = client, name

    def submit_get_map(self, names, tag, timeout):
        if self.name in self.client.fails:
            raise ClosedError("closed")
        self.client.sent.append((self.name, names.count, tag))

    def submit_touch(self, names, tag, timeout):
        self.client.sent.append((self.name, len(names), tag))

    def tiers(self, names, timeout):
        return bytes([TIER_MEMORY] * names.count)


@pytest.fixture
def make(monkeypatch):
    monkeypatch.setattr(promises, "GRACE_S", 0.0)

    def make(shards=1, groups=1, serves=lambda pool: True, **refuses):
        client = Client()
        client.refuses = refuses
        monkeypatch.setattr(promises, "Client", lambda *a, **o: client)
        named = {g: [Shard(f"g{g}/s{i}", {}, NBYTES) for i in range(shards)] for g in range(groups)}
        return Promises(named, socket=None, timeout_s=60.0, serves=serves), client

    return make


def keys_of(count, group=0):
    return [bytes([i]) * 32 + group.to_bytes(4, "big") for i in range(count)]


def ask(one, name, keys, on_disk=False):
    one.want(name, keys, [on_disk] * len(keys))
    one.flush()


def states(one, name, keys):
    one.flush()
    return [one.state(name, k) for k in keys]


def rests(one):
    """Checks that no request is under way, and no byte of one is counted any longer."""
    return not one.pending and one.asked_bytes == one.asked_disk_bytes == 0


def test_leases_of_all_shards_are_held_at_their_offsets(make):
    one, client = make(shards=2)
    keys = keys_of(3)
    ask(one, "a", keys, on_disk=True)
    assert one.asked_bytes == one.asked_disk_bytes == 6 * NBYTES and states(one, "a", keys) == [None] * 3
    client.answer(shard=1, tiers=TIER_DISK)
    assert states(one, "a", keys) == [None] * 3
    client.answer(shard=0)
    assert states(one, "a", keys) == [True] * 3 and rests(one)
    held = one.held("a", keys[2])
    assert held.offsets == (2 * NBYTES,) * 2 and held.pool == 1 and held.tiers == TIER_DISK and one.pools() == {1}
    one.release("a")
    del held
    gc.collect()
    assert one.pools() == set()


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("bad", [{"length": NBYTES - 1}, {"length": NBYTES + 1}, {"length": 0}, {"status": MISS}, {"status": LOST}, {"status": PENDING},
                                 {"pool": 2}, {"pool": 0}], ids=str)
def test_a_chunk_is_refused_if_the_answer_for_a_shard_is_not_good(make, shard, bad):
    """The pools differ if the daemon was restarted between the requests for two shards. No chunk has another length than its shard."""
    one, client = make(shards=2)
    keys = keys_of(2)
    ask(one, "a", keys, on_disk=True)
    client.answer(shard=1 - shard)
    client.answer(shard=shard, **bad)
    assert states(one, "a", keys) == [False] * 2 and rests(one)
    gc.collect()
    assert one.pools() == set(), "leases of a refused chunk stay"


def test_only_the_chunks_that_lack_a_shard_are_refused(make):
    one, client = make(shards=2)
    keys = keys_of(4)
    ask(one, "a", keys)
    client.answer([OK, MISS, OK, OK])
    client.answer([OK, OK, OK, MISS])
    assert states(one, "a", keys) == [True, False, True, False] and rests(one)


def test_all_chunks_of_a_request_lie_in_one_pool(make):
    """A load names one pool. If the daemon is restarted between the lookups of two groups, the chunks found later are computed."""
    one, client = make(groups=2)
    keys, others = keys_of(2), keys_of(2, group=1)
    ask(one, "a", keys)
    client.answer(pool=1)
    ask(one, "a", others)
    client.answer(pool=2)
    assert states(one, "a", keys + others) == [True, True, False, False]
    ask(one, "b", others)
    client.answer(pool=2)
    assert states(one, "b", others) == [True, True] and one.pools() == {1, 2}
    one.release("a")
    gc.collect()
    assert one.pools() == {2}


def test_a_pool_that_a_rank_cannot_read_is_refused(make):
    one, client = make(serves=lambda pool: pool == 7)
    keys = keys_of(2)
    ask(one, "a", keys)
    client.answer(pool=6)
    assert states(one, "a", keys) == [False] * 2
    ask(one, "b", keys)
    client.answer(pool=7)
    assert states(one, "b", keys) == [True] * 2


def test_a_request_that_could_not_be_sent_for_each_shard_is_refused(make):
    one, client = make(shards=2)
    client.fails = {"g0/s1"}
    keys = keys_of(2)
    ask(one, "a", keys, on_disk=True)
    assert states(one, "a", keys) == [False] * 2
    client.answer()
    one.flush()
    assert states(one, "a", keys) == [False] * 2 and rests(one)
    gc.collect()
    assert one.pools() == set(), "a lease of the shard that was sent stays"


def test_nothing_is_awaited_from_a_daemon_that_is_gone(make):
    one, client = make()
    keys = keys_of(2)
    one.want("a", keys, [False] * 2)
    assert one.state("a", keys[0]) is None
    client.connected = False
    assert one.state("a", keys[0]) is False


def test_a_daemon_that_does_not_answer_is_left_alone_for_a_while(make):
    one, client = make()
    keys = keys_of(2)
    assert one.where(keys) == bytes([TIER_MEMORY] * 2)
    ask(one, "a", keys)
    client.answer(PENDING)
    assert states(one, "a", keys) == [False] * 2 and one.where(keys) is None, "the next request waits for the daemon, too"


def test_a_probe_that_was_answered_counts_no_longer(make, monkeypatch):
    """The engine steps as long as leases may arrive. A request in flight that is taken for the probe would let it rest."""
    monkeypatch.setattr(promises, "PROBE_S", 0.0)
    one, client = make()
    keys = keys_of(1)
    ask(one, "a", keys)
    for _ in range(2):
        assert states(one, "a", keys) == [None] and len(client.sent) == 2 and one.pending
        client.sent.reverse()
        client.answer()
        monkeypatch.setattr(promises, "PROBE_S", 60.0)
        assert states(one, "a", keys) == [None] and len(client.sent) == 1 and one.pending, "the engine rests, and leases will arrive"
        monkeypatch.setattr(promises, "PROBE_S", 0.0)
    client.answer()
    assert states(one, "a", keys) == [True] and rests(one)


@pytest.mark.parametrize("found, said", [((b"\1\3\2",), [1, 3, 2]), ((b"\1\3\2\0", b"\3\2\1\1"), [3, 2, 2, 0]), ((b"\1\0", b"\0\0"), [0, 0])])
def test_a_chunk_is_in_memory_if_all_its_shards_are(found, said):
    assert list(promises._combined(found)) == said and (TIER_MEMORY, TIER_DISK) == (1, 2)


@pytest.mark.parametrize("statuses, reads", [([OK, OK], 2), ([OK, MISS], 0), ([MISS, MISS], 0)])
def test_a_read_teaches_the_rate_of_the_disk_if_all_of_it_was_read(make, statuses, reads):
    one, client = make()
    ask(one, "a", keys_of(2), on_disk=True)
    client.answer(statuses, tiers=TIER_DISK)
    one.flush()
    assert [r.nbytes for r in one.reads] == ([reads * NBYTES] if reads else [])


def test_leases_for_a_request_that_has_ended_are_released(make):
    one, client = make(shards=2)
    keys = keys_of(2)
    ask(one, "a", keys, on_disk=True)
    client.answer()
    one.flush()
    one.release("a")
    ask(one, "a", keys)  # another request of this name
    client.answer()
    assert states(one, "a", keys) == [None] * 2, "leases are held that another request has asked for"
    client.answer()
    client.answer()
    assert states(one, "a", keys) == [True] * 2 and rests(one)


@pytest.mark.parametrize("statuses, waits", [((BUSY, OK), True), ((OK, QUOTA), True), ((BUSY, QUOTA), True), ((BUSY, MISS), False), ((LOST, BUSY), False)])
def test_a_chunk_waits_for_room_only_if_all_its_shards_are_there(make, statuses, waits):
    one, client = make(shards=2)
    first, keys = keys_of(1), keys_of(3)[1:]
    ask(one, "holds", first)
    client.answer()
    client.answer()
    assert states(one, "holds", first) == [True]
    ask(one, "a", keys)
    for status in statuses:
        client.answer(status)
    assert states(one, "a", keys) == [None if waits else False] * 2 and one.lease_waits == 2 * waits
    one.release("holds")
    gc.collect()
    assert len(client.sent) == 0
    one.flush()
    assert len(client.sent) == 2 * waits, "the leases are not asked for again when there is room"


@pytest.mark.parametrize("statuses", [(BUSY, BUSY), (BUSY, OK), ([OK, BUSY], [OK, OK])], ids=str)
def test_a_request_that_is_alone_waits_for_no_room(make, statuses):
    """The leases on the other shards of the same chunks are no leases that will end."""
    one, client = make(shards=2)
    keys = keys_of(2)
    ask(one, "a", keys)
    for status in statuses:
        client.answer(status)
    assert states(one, "a", keys) == [isinstance(statuses[0], list), False] and rests(one) and not client.sent and not one.lease_waits


# --- loads under way ---


def held(name, log):
    leased = Leased(1, 1)
    leased.__class__ = type("Noted", (Leased,), {"__del__": lambda self: log.append(name)})
    return [Held(TIER_MEMORY, (leased,), 1, (0,))]


def test_a_load_of_before_a_reset_keeps_its_leases_when_a_later_one_of_the_request_ends():
    """vLLM reports the end of the later load only. The earlier one ends when all ranks say so."""
    loads, ended = LoadsUnderWay(), []
    assert loads.begin("a", held("before", ended), 5) == 0
    loads.reset()
    assert loads.begin("a", held("after", ended), 7) == 1 and loads.nbytes == 12
    loads.complete("a")
    assert ended == ["after"] and loads.nbytes == 5
    loads.complete("a")
    assert ended == ["after"], "the completion of no load ends another load's leases"
    for below, said in ((0, ["after"]), (1, ["after", "before"])):
        loads.sweep(lambda most, below=below: below)
        assert ended == said
    assert not loads and loads.nbytes == 0


def test_only_loads_whose_end_vllm_does_not_report_end_by_the_ranks_reports():
    loads, ended = LoadsUnderWay(), []
    loads.begin("a", held("a", ended), 1)
    loads.reset()
    loads.begin("b", held("b", ended), 1)
    loads.sweep(lambda most: most)
    assert ended == ["a"] and loads
    loads.complete("b")
    assert ended == ["a", "b"] and not loads


@pytest.mark.parametrize("under_way, below", [((), 6), ((3, 5), 3), ((5, 3), 3), ((5,), 5)])
def test_a_rank_says_which_loads_have_ended(under_way, below):
    """The scheduler's side ends the leases of all loads below the number, so no load under way may have a lower one."""
    one = object.__new__(Loads)
    one._jobs, one._latest = {100 - at: ns(load=number) for at, number in enumerate(under_way)}, 5
    assert one.ended_below == below


class Page:
    """The page of an engine as a rank sees it. `in_use`: the pools in use at each look."""

    def __init__(self, *in_use):
        self.looks, self.said = list(in_use), []

    def in_use(self):
        return self.looks.pop(0)

    def set_pools(self, pools):
        self.said.append(pools)


@pytest.mark.parametrize("busy, in_use, released", [(False, [set(), set()], [8, 7]), (False, [{8}, {8}], [7]), (False, [{7, 8}] * 2, []),
                                                    (True, [set(), set()], []), (False, [set(), {8}], [7])], ids=str)
def test_a_rank_keeps_the_pools_of_loads_and_leases(busy, in_use, released):
    """A pool that comes into use after the rank has looked is kept: the rank looks again once it no longer offers the pool."""
    one, pools, kept = object.__new__(Mover), [9, 8, 7], []
    one.loads, one._must_attach, page = ns(busy=busy), False, Page(*in_use)

    def release_pool(pool):
        assert page.said and pool not in page.said[-1], "a pool is released that the rank still offers"
        kept.append(pool)
        pools.remove(pool)

    one._gpu = ns(pools=lambda: list(pools), release_pool=release_pool)
    assert one._kept_pools(page) == [p for p in (9, 8, 7) if p not in released] and sorted(kept) == sorted(released)
    assert one._must_attach == bool(released) and (bool(page.said) or not released)
    assert not page.said or in_use[0] != {7, 8}, "a pool in use is not offered for a moment"


@pytest.mark.parametrize("salt, may_store, put, own", [(b"", True, 4, [0]), (b"", False, 0, []), (b"s", False, 4, [])], ids=str)
def test_the_canary_takes_for_this_engine_s_what_it_alone_has_stored(salt, may_store, put, own):
    """A chunk that existed may be another engine's. No other engine finds chunks with a salt, so the canary is not asked about them."""
    one, keys, calls, noted = object.__new__(Mover), keys_of(4), [], []
    one._ack, one._timeout_s, one.blocks, one.stored_bytes, one.failed_stores = "accepted", 1.0, [Blocks((Region(0, 8, 8),), 9)], 0, 0
    one._gpu, one._move = ns(put=None), lambda call, part, **o: calls.append(len(part.keys)) or bytes([OK, EXISTS, BUSY, LOST])
    one._canary = ns(may_store=lambda group, count: may_store, stored=noted.extend)
    assert one._put(Part(0, keys, [1, 2, 3, 4], salt=salt)) == [put > 0] * 2 + [False] * 2
    assert sum(calls) == put and noted == [keys[i] for i in own] and one.stored_bytes == (16 if put else 0)


@pytest.mark.parametrize("offset", [0, SLICE_BYTES - 1, SLICE_BYTES - 4096, 5 * SLICE_BYTES - 3000])
def test_no_copy_crosses_the_end_of_registered_memory(offset):
    """The daemon's memory is registered in slices, and the driver refuses a copy across two of them."""
    one, copies, address = object.__new__(Mover), [], 3 * SLICE_BYTES
    one.blocks = [Blocks((Region(1 << 40, 8192, 5000), Region(1 << 41, 8192, 2 * SLICE_BYTES)), 9)]
    one._cuda = ns(copy=lambda *of: copies.append(of))
    one._copy_leased(LoadPart(0, [4], [offset]), address, 77)
    assert all(source // SLICE_BYTES == (source + n - 1) // SLICE_BYTES and n and stream == 77 for _, source, n, stream in copies)
    at = address + offset
    for region in one.blocks[0].regions:
        to, left = region.base + 4 * 8192, region.nbytes
        while left:
            assert copies[0][:2] == (to, at)
            n = copies.pop(0)[2]
            to, at, left = to + n, at + n, left - n
    assert not copies


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("error", [MismatchError(errno.EEXIST, "another fingerprint"), ArgumentError("a wrong name")])
def test_namespaces_that_cannot_be_opened_are_named_and_opened_later(make, monkeypatch, caplog, is_first, error):
    """The daemon may refuse the namespaces at first, or those of the canary's next variant."""
    now = [1000.0]
    monkeypatch.setattr(promises, "time", ns(monotonic=lambda: now[0]))
    keys, name = keys_of(2, group=1), "g1/s0"
    if is_first:
        one, client = make(groups=2, **{name: error})
    else:
        one, client = make(groups=2)
        client.refuses, name = {"g1/s0/v2": error}, "g1/s0/v2"
        one.rename({g: [Shard(f"g{g}/s0/v2", {}, NBYTES)] for g in range(2)})
    opened = []
    monkeypatch.setattr(client, "namespace", lambda name, *a: (opened.append(now[0]), Client.namespace(client, name, *a))[1])
    for _ in range(50):
        assert one.where(keys) is None and not one.well and rests(one)
        one.flush()
        now[0] += 0.5
    assert 3 < len(opened) // 2 < 10, "the attempts follow without pauses, or there are none"
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1 and name in said[0] and error.strerror in said[0], said
    client.refuses = {}
    now[0] += promises.LONGEST_REST_S
    one.flush()
    assert one.well and one.where(keys) == bytes([TIER_MEMORY] * 2)
    ask(one, "r", keys)
    client.answer()
    assert states(one, "r", keys) == [True, True]
