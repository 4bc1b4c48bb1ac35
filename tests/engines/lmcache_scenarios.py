# SPDX-License-Identifier: Apache-2.0
"""Scenarios that test the LMCache adapter as LMCache calls it. Shared by lmcache_check.py, which runs them with the real LMCache, and
tests/python/test_lmcache_contract.py, which runs them with a substitute.

Each scenario is a function. Its parameters are `make`, which makes a Host from the adapter's options, and a running daemon of
tests/daemon/harness.py. A Host has the adapter and an arena of objects, as LMCache's L1 has. It waits for events as LMCache's controllers do, and
overwrites objects as soon as they could."""

import ctypes
import hashlib
import os
import select
import threading
import time

import kvcache
from kvcache.lmcache import identity
from kvcache.sglang import link
from scenarios import threads_beside_a_daemon_that_dies, wait_for
from sglang_scenarios import value_of

link.LOOKUP_S = 2.0  # on a busy machine


class Host:
    """A host of the adapter. `new_key(hash, **fields)` makes keys, `new_object(number, layout)` makes an object at the arena's place of that
    number, and `layout_of(name)` makes layouts."""

    def __init__(self, adapter, new_key, new_object, layout_of, count=16, first=0):
        self.adapter, self.new_key, self.new_object, self.layout_of = adapter, new_key, new_object, layout_of
        self.count, self.first = count, first

    @property
    def link(self):
        return self.adapter._link

    @property
    def counters(self):
        return self.adapter.counters

    def keys(self, name, count, **fields):
        return [self.new_key(hashlib.sha256(f"{name} {i}".encode()).digest(), **fields) for i in range(count)]

    def _await(self, fd, take, seconds=30.0):
        """Returns the first result of take() that is not None; only the event wakes it."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + seconds
        while (result := take()) is None:
            assert time.monotonic() < deadline, "no event"
            if poll.poll(max(1, (deadline - time.monotonic()) * 1000)):
                os.eventfd_read(fd)
        return result

    def store(self, keys, layout="plain", first=None):
        """Stores the keys. Returns whether all were stored. The objects are reused by another request directly afterwards."""
        objects = self._objects(len(keys), layout, first)
        for key, thing in zip(keys, objects):
            fill(thing, value_of(name_of(key), len(thing.byte_array)))
        task, taken = self.adapter.submit_store_task(keys, objects), {}

        def take():
            taken.update(self.adapter.pop_completed_store_tasks())
            return taken.get(task)

        result = self._await(self.adapter.get_store_event_fd(), take)
        assert not any(r.is_successful() for t, r in taken.items() if t != task)
        for thing in objects:
            fill(thing, os.urandom(64).ljust(len(thing.byte_array), b"\xee"))
        if result.is_successful():
            assert result.bytes_transferred() == sum(len(o.byte_array) for o in objects)
        return result.is_successful()

    def find(self, keys, layouts="plain"):
        layouts = {g: self.layout_of(layouts) for g in range(4)} if isinstance(layouts, str) else layouts
        task = self.adapter.submit_lookup_and_lock_task(keys, layouts)
        bits = self._await(self.adapter.get_lookup_and_lock_event_fd(), lambda: self.adapter.query_lookup_and_lock_result(task))
        assert self.adapter.query_lookup_and_lock_result(task) is None
        self.adapter.submit_unlock(keys)
        return [bits.test(i) for i in range(len(keys))]

    def get(self, keys, layout="plain", first=None):
        """Loads the keys, and checks the bytes. Returns which were loaded."""
        objects = self._objects(len(keys), layout, first)
        for thing in objects:
            fill(thing, b"\xcc" * len(thing.byte_array))
        task = self.adapter.submit_load_task(keys, objects)
        bits = self._await(self.adapter.get_load_event_fd(), lambda: self.adapter.query_load_result(task))
        good = [bits.test(i) for i in range(len(keys))]
        for key, thing, ok in zip(keys, objects, good):
            if ok:
                assert bytes(thing.byte_array) == value_of(name_of(key), len(thing.byte_array)), f"wrong bytes under {key}"
        return good

    def _objects(self, count, layout, first):
        first = self.first if first is None else first
        assert count <= self.count
        return [self.new_object(first + i, layout) for i in range(count)]

    def wait_well(self):
        wait_for("the adapter connects", lambda: self.link.well)

    def close(self):
        self.adapter.close()


def name_of(key):
    return f"{key.chunk_hash.hex()} {key.model_name} {key.kv_rank} {key.object_group_id} {key.cache_salt}"


def fill(thing, data):
    view = memoryview(thing.byte_array)
    ctypes.memmove(ctypes.addressof(ctypes.c_char.from_buffer(view)), data, len(data))


def check(host, keys, layout="plain", found=True):
    assert host.find(keys, layout) == [found] * len(keys), host.counters
    assert host.get(keys, layout) == [found] * len(keys), host.counters


def what_is_stored_is_loaded(make, daemon):
    host = make()
    assert host.link.well and host.link._regions and all(r.registered for _, _, r in host.link._regions)
    fds = {host.adapter.get_store_event_fd(), host.adapter.get_lookup_and_lock_event_fd(), host.adapter.get_load_event_fd()}
    assert len(fds) == 3
    keys, never = host.keys("stored", 12), host.keys("never", 2)
    check(host, keys, found=False)
    assert host.store(keys)
    check(host, keys)
    mixed = [keys[0], never[0], keys[1], never[1]]
    assert host.find(mixed) == [True, False, True, False] and host.get(mixed[:1] + mixed[2:3]) == [True, True]
    assert host.get(mixed) == [True, False, True, False]
    counts = host.counters
    assert counts["stored_pages"] == 12 and counts["hits"] == 14 and not counts["errors"]
    assert host.adapter.report_status()["is_healthy"] is True


def every_field_of_the_key_counts(make, daemon):
    host = make()
    plain = host.keys("fields", 4)
    assert host.store(plain)
    for fields in ({"kv_rank": 0x02010201}, {"object_group_id": 1}, {"cache_salt": "u"}, {"model_name": "tests/other"}):
        other = host.keys("fields", 4, **fields)
        check(host, other, found=False)
        assert host.store(other)
        check(host, other)
    check(host, plain)


def another_layout_is_not_loaded(make, daemon):
    """Objects of equal size but another type or shape: a lookup with the wrong layout may find them, a load must not."""
    host = make()
    keys = host.keys("layout", 4)
    assert host.store(keys)
    assert host.find(keys, {}) == [True] * 4, "LMCache's own tools pass no layout"
    for layout in ("other type", "other shape", "longer"):
        assert host.get(keys, layout) == [False] * 4
    other = make()  # a host that has not stored any
    assert other.find(keys, {}) == [False] * 4 and other.find(keys, "other shape") == [False] * 4
    check(other, keys)
    assert host.store(keys, "longer")
    check(host, keys, "longer")
    check(host, keys)


def other_weights_are_not_loaded(make, daemon):
    host, other = make(weights="one"), make(weights="two")
    keys = host.keys("weights", 3)
    assert host.store(keys)
    check(other, keys, found=False)
    check(make(weights="one"), keys)


def objects_in_parts(make, daemon):
    host = make(part_bytes=4096)
    keys = host.keys("parts", 6)
    assert host.store(keys)
    check(host, keys)
    evict(host, daemon, [identity_parts(keys[2], 2)[1]])
    assert host.find(keys) == [True] * 2 + [False] + [True] * 3
    assert not host.get(keys)[2]


def identity_parts(key, count):
    from kvcache.sglang.identity import parts_of
    return parts_of(identity.key_of(key), count)


def space_of(host):
    return next(iter(host.adapter._spaces.values())).pages._spaces.loads


def evict(host, daemon, keys):
    space = space_of(host)
    fields = dict(line.split("=", 1) for line in space._fingerprint.rstrip(b"\0").decode().splitlines())
    with kvcache.Client(daemon.socket, required=True) as client:
        client.namespace(space.name, fields).evict(keys)


def evicted_in_between(make, daemon):
    host = make()
    keys = host.keys("evicted", 5)
    assert host.store(keys)
    assert host.find(keys) == [True] * 5
    evict(host, daemon, [identity.key_of(keys[3])])
    good = host.get(keys)
    assert good[:3] == [True] * 3 and not good[3]
    assert host.counters["failed_loads"] >= 1


def chunks_of_another_length(make, daemon):
    host = make()
    keys = host.keys("lengths", 4)
    assert host.store(keys)
    space, nbytes = next(iter(host.adapter._spaces.values())).pages._spaces.stores, host.layout_bytes
    for key, length in zip(keys[1:], (nbytes - 1, nbytes + 4096, 1)):
        own = identity.key_of(key)
        space.evict([own])
        assert space.put([own], [b"\xaa" * length], "written").ok
    for i, key in enumerate(keys):
        assert host.get([key]) == [i == 0], (i, host.counters)
    assert host.counters["wrong_lengths"] >= 2 and host.link.well


def acknowledged_written_survives(make, daemon):
    for ack in ("written", "durable"):
        host = make(ack=ack)
        keys = host.keys(ack, 6)
        assert host.store(keys)
        daemon.kill()
        assert not any(host.get(keys)) and not host.store(host.keys("lost", 2))
        check(host, keys, found=False)
        assert host.adapter.report_status()["is_healthy"] is False
        daemon.start()
        host.wait_well()
        check(host, keys)
        host.close()


def a_daemon_that_comes_later(make, daemon):
    daemon.kill()
    host = make()
    keys = host.keys("later", 4)
    assert not host.store(keys)
    check(host, keys, found=False)
    daemon.start()
    host.wait_well()
    assert all(r.registered for _, _, r in host.link._regions)
    assert host.store(keys)
    check(host, keys)


def a_daemon_that_hangs_from_the_first(make, daemon):
    daemon.pause()
    try:
        host = make(timeout_s=1.0)
        keys = host.keys("first", 4)
        assert not host.store(keys)
        check(host, keys, found=False)
        assert not host.link.well
    finally:
        daemon.resume()
    host.wait_well()
    assert host.store(keys)
    check(host, keys)


def hung_and_gone_on(make, daemon):
    """A load ends at its deadline, a lookup is answered, and LMCache's threads do not wait. A store ends when the daemon no longer reads its
    objects."""
    host = make(timeout_s=1.0)
    keys, late = host.keys("hung", 4), host.keys("late", 4)
    wait_for("it stores", lambda: host.store(keys))
    daemon.pause()
    try:
        stored = []
        storing = threading.Thread(target=lambda: stored.append(host.store(late, first=8)))
        storing.start()
        assert not any(host.get(keys))
        wait_for("it is seen to hang", lambda: not host.link.well)
        unavailable = host.counters["unavailable"]
        for _ in range(20):
            check(host, keys, found=False)
            task = host.adapter.submit_store_task(keys, host._objects(4, "plain", 0))
            assert task
        assert host.counters["unavailable"] == unavailable + 20 * (4 + 4 + 4), "a daemon that is known to hang is asked"
        assert not stored and storing.is_alive()
    finally:
        daemon.resume()
    storing.join(60)
    assert stored and not storing.is_alive()
    host.wait_well()
    wait_for("it loads", lambda: host.find(keys) == host.get(keys) == [True] * 4)
    host.get(late)  # right, or not there


def more_than_there_is_room_for(make, daemon):
    host = make(ack="written")
    for n in range(40):
        keys = host.keys(f"room {n}", 16)
        host.store(keys, "longer")
        host.get(keys, "longer")
    assert not host.counters["errors"]
    last = host.keys("last", 4)
    assert host.store(last)
    check(host, last)


def memory_that_is_not_shared(make, daemon):
    for options in ({"private": True}, {"share": False}):
        host = make(**options)
        assert host.link.well and not any(r.registered for _, _, r in host.link._regions)
        keys = host.keys("copied", 8)
        assert host.store(keys) and host.counters["copied_stores"] == 8
        check(host, keys)
        host.close()


def calls_of_nonsense(make, daemon):
    host = make()
    keys = host.keys("nonsense", 3)
    task = host.adapter.submit_store_task(keys, host._objects(2, "plain", 0))
    wait_for("it fails", lambda: int(host.adapter.pop_completed_store_tasks().get(task, 0)) < 0)
    task = host.adapter.submit_load_task(keys, [None] * 3)
    wait_for("it fails", lambda: host.adapter.query_load_result(task) is not None)
    assert host.find(keys, {0: "x"}) == [False] * 3 and host.find([], {}) == [] and host.get([]) == []
    assert host.find(keys, None) == [False] * 3
    assert host.counters["errors"] and host.link.well
    assert host.store(keys)
    check(host, keys)


def closed_it_answers(make, daemon):
    threads = threading.active_count()
    host = make()
    keys = host.keys("closed", 3)
    assert host.store(keys)
    host.close()
    wait_for("its threads end", lambda: threading.active_count() <= threads)
    host.close()
    task = host.adapter.submit_store_task(keys, host._objects(3, "plain", 0))
    assert not host.adapter.pop_completed_store_tasks()[task].is_successful()
    task = host.adapter.submit_load_task(keys, host._objects(3, "plain", 0))
    assert host.adapter.query_load_result(task).popcount() == 0


def three_threads_and_a_daemon_that_dies(make, daemon, rounds=6):
    """Lookups, loads and stores at once; the daemon is killed or stopped meanwhile. Never a wrong byte, no exception."""
    host = make(ack="written", timeout_s=1.0)
    loaded = [0]

    def names(n):
        return host.keys(f"mixed {n % 7}", 8)

    def load(n):
        loaded[0] += sum(host.get(names(n), first=8))

    acts = [lambda n: host.store(names(n)), load, lambda n: host.find(names(n))]
    threads_beside_a_daemon_that_dies(daemon, host, acts, lambda: loaded[0], rounds)
    wait_for("it stores", lambda: host.store(names(0)))
    wait_for("it loads", lambda: host.find(names(0)) == host.get(names(0)) == [True] * 8)


class Listener:
    """Records what LMCache's eviction policies are notified of."""

    def __init__(self):
        self.stored, self.accessed, self.deleted = [], [], []

    def on_l2_keys_stored(self, keys, sizes):
        assert len(keys) == len(sizes)
        self.stored += keys

    def on_l2_keys_accessed(self, keys):
        self.accessed += keys

    def on_l2_keys_deleted(self, keys):
        self.deleted += keys


def usage_of(host):
    usage = host.adapter.get_usage()
    assert usage.total_bytes_used == sum(usage.bytes_by_cache_salt.values())
    return dict(usage.bytes_by_cache_salt)


def usage_is_what_is_stored(make, daemon):
    host, listener = make(), Listener()
    host.adapter.register_listener(listener)
    one, two, nbytes = host.keys("usage", 6, cache_salt="one"), host.keys("usage", 3, cache_salt="two"), host.layout_bytes
    assert usage_of(host) == {} and host.adapter.get_usage().usage_fraction == -1.0
    assert host.store(one) and host.store(two) and host.store(one)
    assert usage_of(host) == {"one": 6 * nbytes, "two": 3 * nbytes} and sorted(map(name_of, listener.stored)) == sorted(map(name_of, one + two))
    assert host.find(one[:2] + host.keys("never", 1)) == [True, True, False] and listener.accessed == one[:2] and not listener.deleted
    other = make()
    assert usage_of(other) == {} and other.find(one[:4]) == [True] * 4
    assert usage_of(other) == {"one": 4 * nbytes} and other.counters["adopted_pages"] == 4
    assert other.get(two) == [True] * 3 and usage_of(other) == {"one": 4 * nbytes, "two": 3 * nbytes}
    host.adapter.delete(one[:2] + two + host.keys("never", 1) + two)
    assert usage_of(host) == {"one": 4 * nbytes} and set(listener.deleted) == {*one[:2], *two} and len(listener.deleted) == 5
    assert host.find(one) == [False] * 2 + [True] * 4 and host.get(two) == [False] * 3
    assert host.counters["deleted_pages"] == 5
    wait_for("the other server's audit", lambda: usage_of(other) == {"one": 2 * nbytes})
    assert other.counters["evicted_pages"] == 5
    assert host.store(two) and usage_of(host)["two"] == 3 * nbytes
    check(host, two)


def what_the_daemon_evicts_leaves_the_usage(make, daemon):
    host, listener = make(part_bytes=4096), Listener()
    host.adapter.register_listener(listener)
    keys, nbytes = host.keys("evicted", 5), host.layout_bytes
    assert host.store(keys)
    evict(host, daemon, [identity_parts(keys[2], 2)[1]])  # a part makes the object useless
    wait_for("the audit", lambda: usage_of(host) == {"": 4 * nbytes})
    assert listener.deleted == [keys[2]] and host.counters["evicted_pages"] == 1
    daemon.kill()
    held = usage_of(host)
    host.adapter.delete(keys)
    assert usage_of(host) == held and host.find(keys) == [False] * 5, "a daemon that is not there has deleted"
    daemon.start()
    host.wait_well()
    assert host.find(keys) == host.get(keys)
    wait_for("the audit", lambda: usage_of(host) == ({"": sum(host.find(keys)) * nbytes} if any(host.find(keys)) else {}))
    assert not host.counters["errors"]


def keys_are_listed(make, daemon):
    host = make()
    keys = host.keys("listed", 12) + host.keys("listed", 4, model_name="tests/other", cache_salt="s", kv_rank=0x02010201)
    assert host.store(keys[:12]) and host.store(keys[12:])

    def listed(page_size=500, **how):
        names, cursor, pages = [], None, 0
        while True:
            page = host.adapter.list_l2_keys(page_size=page_size, cursor=cursor, **how)
            names += [(e.key.chunk_hash_hex, e.key.model_name, e.key.kv_rank, e.key.cache_salt, e.size_bytes) for e in page.entries]
            cursor, pages = page.next_page_token, pages + 1
            if cursor is None:
                return names, pages

    expected = [(k.chunk_hash.hex(), k.model_name, k.kv_rank, k.cache_salt, host.layout_bytes) for k in keys]
    assert listed() == (expected, 1) and listed(5) == (expected, 4) and listed(16) == (expected, 1)
    assert listed(3, model_name="tests/other") == (expected[12:], 2) and listed(model_name="never") == ([], 1)
    first = host.adapter.list_l2_keys(page_size=4)
    host.adapter.delete(keys[:6])
    rest = host.adapter.list_l2_keys(page_size=500, cursor=first.next_page_token)
    assert len(rest.entries) == 10 and listed(3)[0] == expected[6:]
    evict(host, daemon, [identity.key_of(keys[7])])
    assert listed()[0] == expected[6:7] + expected[8:], "a key that the daemon has evicted is listed"
    for wrong in ({"page_size": 0}, {"page_size": -1}, {"page_size": True}, {"page_size": 1 << 40}, {"cursor": "x"}, {"cursor": "-1"},
                  {"cursor": "9" * 5000}, {"cursor": "\u0663"}, {"cursor": 7}, {"cursor": ""}):
        try:
            host.adapter.list_l2_keys(**wrong)
        except ValueError as e:
            assert next(iter(wrong)) in str(e)
        else:
            raise AssertionError(f"{wrong} is taken")
    assert host.adapter.list_l2_keys(cursor="9" * 18).entries == ()


def salts_and_ranks_are_checked(make, daemon):
    """An invalid key is refused without its neighbours. Keys of LMCache's tools, which contain no number of ranks, are accepted."""
    host = make()
    good = host.keys("ranks", 2) + host.keys("ranks", 1, kv_rank=7) + host.keys("ranks", 1, cache_salt="s" * 128) + \
        host.keys("ranks", 1, kv_rank=0xFFFEFF07)
    hostile = [{"kv_rank": 1 << 32}, {"kv_rank": -1}, {"kv_rank": 0x02020000}, {"kv_rank": 300 << 24 | 256 << 16}, {"kv_rank": "1"},
               {"kv_rank": True}, {"object_group_id": 1 << 32}]
    bad = [key for fields in hostile for key in host.keys("ranks", 1, **fields)]
    bad += [forced(host.keys("ranks", 1)[0], **{name: value}) for name, value in
            (("cache_salt", "a/b"), ("cache_salt", "a@b"), ("cache_salt", "\0"), ("cache_salt", "s" * 129), ("cache_salt", b"s"),
             ("object_group_id", -1), ("model_name", "a@b"), ("model_name", ""), ("model_name", "m" * 5000), ("chunk_hash", "text"),
             ("chunk_hash", b""))]
    assert host.store(good)
    for some in (bad[:8], bad[8:16], bad[16:]):
        objects = host._objects(len(some), "plain", 5)
        task = host.adapter.submit_store_task(some, objects)
        taken = {}
        wait_for("it fails", lambda: taken.update(host.adapter.pop_completed_store_tasks()) or task in taken)
        assert not taken[task].is_successful()
    mixed = [bad[0], *good, bad[-1]]
    assert host.find(mixed) == [False, *[True] * 5, False] and host.find(bad) == [False] * len(bad)
    host.adapter.delete(bad)
    counts = host.counters
    assert counts["refused_keys"] == 3 * len(bad) + 2 and not counts["errors"]
    assert usage_of(host) == {"": 4 * host.layout_bytes, "s" * 128: host.layout_bytes}
    check(host, good)


def forced(key, **fields):
    """Returns the key with fields that its constructor would refuse."""
    for name, value in fields.items():
        object.__setattr__(key, name, value)
    return key


def a_listener_that_fails_costs_nothing(make, daemon):
    host = make()
    host.adapter.register_listener(object())
    keys = host.keys("listener", 4)
    assert host.store(keys) and host.counters["errors"]
    check(host, keys)
    host.adapter.delete(keys)
    check(host, keys, found=False)
    assert usage_of(host) == {}


def tasks_are_served_by_several_threads(make, daemon):
    """A slow store and a slow load delay no other task, and each task gets its own answer."""
    host = make(threads=3)
    keys = [host.keys(f"threads {n}", 2) for n in range(8)]
    assert host.store(keys[0])
    space, held, free = next(iter(host.adapter._spaces.values())).pages, [threading.Event(), threading.Event()], threading.Event()
    put, get, slow = space.put, space.get, {identity.key_of(keys[1][0]), identity.key_of(keys[0][0])}

    def hold(number, call):
        def held_up(names, *arguments, **how):
            if slow & set(names):
                held[number].set()
                assert free.wait(60)
            return call(names, *arguments, **how)
        return held_up

    space.put, space.get = hold(0, put), hold(1, get)
    said = []
    threads = [threading.Thread(target=lambda: said.append(host.adapter.submit_store_task(keys[1], host._objects(2, "plain", 12)))),
               threading.Thread(target=lambda: said.append(host.adapter.submit_load_task(keys[0], host._objects(2, "plain", 14))))]
    try:
        for thread in threads:
            thread.start()
        for event in held:
            assert event.wait(30)
        for n in range(2, 8):
            assert host.store(keys[n], first=2 * (n - 2)), "a store waits for another"
            assert host.get(keys[n], first=2 * (n - 2)) == [True] * 2, "a load waits for another"
    finally:
        free.set()
        for thread in threads:
            thread.join(60)


def many_tasks_at_once(make, daemon):
    """Stores and loads are in flight together, and no task gets another's bytes or answer."""
    host = make(threads=4)
    names = [host.keys(f"many {n}", 2) for n in range(40)]
    for first in range(0, 40, 8):
        tasks = {}
        for n in range(8):
            objects = host._objects(2, "plain", 2 * n)
            for key, thing in zip(names[first + n], objects):
                fill(thing, value_of(name_of(key), host.layout_bytes))
            tasks[host.adapter.submit_store_task(names[first + n], objects)] = None
        taken = {}
        wait_for("all are stored", lambda: taken.update(host.adapter.pop_completed_store_tasks()) or tasks.keys() <= taken.keys())
        assert all(taken[t].is_successful() for t in tasks), host.counters
        loads = {}
        for n in range(8):
            objects = host._objects(2, "plain", 2 * n)
            for thing in objects:
                fill(thing, b"\xcc" * host.layout_bytes)
            loads[host.adapter.submit_load_task(names[first + n], objects)] = (names[first + n], objects)
        for task, (keys, objects) in loads.items():
            bits = []
            wait_for("it is loaded", lambda: bits.append(host.adapter.query_load_result(task)) or bits[-1] is not None)
            assert bits[-1].popcount() == 2
            for key, thing in zip(keys, objects):
                assert bytes(thing.byte_array) == value_of(name_of(key), host.layout_bytes)
    assert usage_of(host) == {"": 80 * host.layout_bytes} and not host.counters["errors"] and not host.counters["copied_stores"]


SCENARIOS = [what_is_stored_is_loaded, every_field_of_the_key_counts, another_layout_is_not_loaded, other_weights_are_not_loaded,
             objects_in_parts, evicted_in_between, chunks_of_another_length, acknowledged_written_survives,
             a_daemon_that_comes_later, a_daemon_that_hangs_from_the_first, hung_and_gone_on, more_than_there_is_room_for,
             memory_that_is_not_shared, usage_is_what_is_stored, what_the_daemon_evicts_leaves_the_usage, keys_are_listed,
             salts_and_ranks_are_checked, a_listener_that_fails_costs_nothing, tasks_are_served_by_several_threads, many_tasks_at_once,
             calls_of_nonsense, closed_it_answers, three_threads_and_a_daemon_that_dies]
OF_DEADLINES = [a_daemon_that_hangs_from_the_first, hung_and_gone_on, three_threads_and_a_daemon_that_dies]  # a call ends at the adapter's own
