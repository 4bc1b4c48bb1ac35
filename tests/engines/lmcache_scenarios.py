# SPDX-License-Identifier: Apache-2.0
"""The contract of the adapter under LMCache's calls, whether they come from the real package (lmcache_check.py) or from its substitute
(tests/python/test_lmcache_contract.py).

Each function takes `make` (options of the adapter -> a host) and a running daemon of tests/daemon/harness.py. A host has the adapter
and an arena of objects, as LMCache's L1 has; it waits for events as LMCache's controllers do, and changes objects as soon as those
could."""

import ctypes
import hashlib
import os
import select
import threading
import time

import kvcache
from kvcache.lmcache import identity
from kvcache.sglang import link
from sglang_scenarios import value_of, wait_for

link.LOOKUP_S = 2.0  # on a busy machine


class Host:
    """`new_key(hash, **fields)`, `new_object(number, layout)` -> an object at the arena's place of that number; `layout_of(name)`."""

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
        """Whether all of them were stored. The objects are another request's right afterwards."""
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
    other = make()  # that has not stored any
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
    """A load ends at its deadline, a lookup is answered, LMCache's threads do not wait; a store ends when the daemon reads its objects no
    more."""
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
        assert host.store(keys)
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
    ended, failures, loaded = threading.Event(), [], [0]

    def names(n):
        return host.keys(f"mixed {n % 7}", 8)

    def run(what):
        n = 0
        try:
            while not ended.is_set():
                what(n)
                n += 1
        except BaseException as e:
            failures.append(e)

    def load(n):
        loaded[0] += sum(host.get(names(n), first=8))

    threads = [threading.Thread(target=run, args=(what,)) for what in
               (lambda n: host.store(names(n)), load, lambda n: host.find(names(n)))]
    for thread in threads:
        thread.start()
    try:
        for n in range(rounds):
            before = loaded[0]
            wait_for("something is loaded", lambda: loaded[0] > before or failures)
            if n % 2:
                daemon.pause()
                wait_for("it is seen to hang", lambda: not host.link.well or failures)
                daemon.resume()
            else:
                daemon.kill()
                daemon.start()
            host.wait_well()
    finally:
        ended.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures, failures
    host.wait_well()
    assert not host.counters["errors"], host.counters
    wait_for("it stores", lambda: host.store(names(0)))
    wait_for("it loads", lambda: host.find(names(0)) == host.get(names(0)) == [True] * 8)


SCENARIOS = [what_is_stored_is_loaded, every_field_of_the_key_counts, another_layout_is_not_loaded, other_weights_are_not_loaded,
             objects_in_parts, evicted_in_between, chunks_of_another_length, acknowledged_written_survives,
             a_daemon_that_comes_later, a_daemon_that_hangs_from_the_first, hung_and_gone_on, more_than_there_is_room_for,
             memory_that_is_not_shared, calls_of_nonsense, closed_it_answers, three_threads_and_a_daemon_that_dies]
OF_DEADLINES = [a_daemon_that_hangs_from_the_first, hung_and_gone_on, three_threads_and_a_daemon_that_dies]  # a call ends at the adapter's own
