# SPDX-License-Identifier: Apache-2.0
"""Scenarios that test the SGLang backend as SGLang calls it. Shared by sglang_check.py, which runs them with the real SGLang, and
tests/python/test_sglang_contract.py, which runs them with a substitute.

Each scenario is a function. Its parameters are `make`, which makes a Host from options of the backend and of the host pool, and a running
daemon of tests/daemon/harness.py. A Host has the backend, a host pool and its pages. It overwrites pages as soon as SGLang could."""

import ctypes
import hashlib
import os
import threading

import kvcache
from kvcache.sglang import identity, link
from scenarios import threads_beside_a_daemon_that_dies, wait_for

link.LOOKUP_S = 2.0  # on a busy machine
BATCH = 128          # pages of a call


def keys_of(name, count):
    return [hashlib.sha256(f"{name} {i}".encode()).hexdigest() for i in range(count)]


def value_of(key, length):
    return hashlib.shake_128(key.encode()).digest(length)


def is_busy(client):
    """Returns whether another thread is in a call."""
    if not client._lock.acquire(blocking=False):
        return True
    client._lock.release()
    return False


class Host:
    """The backend `storage` with the host pool `pool`, of which this host uses `count` pages, beginning with page `first`."""

    def __init__(self, storage, pool, indices, first=0, count=32):
        self.storage, self.pool, self._indices = storage, pool, indices
        self.pages = range(first, first + count)

    @property
    def link(self):
        return self.storage._link

    def _pieces(self, pages):
        addresses, lengths = self.pool.get_page_buffer_meta(self._indices(pages))
        n = len(addresses) // len(pages)
        return [list(zip(addresses[i * n:(i + 1) * n], lengths[i * n:(i + 1) * n])) for i in range(len(pages))]

    @property
    def page_bytes(self):
        return sum(n for _, n in self._pieces([self.pages[0]])[0])

    def write(self, page, data):
        at = 0
        for address, length in self._pieces([page])[0]:
            ctypes.memmove(address, data[at:at + length], length)
            at += length

    def read(self, page):
        return b"".join(ctypes.string_at(a, n) for a, n in self._pieces([page])[0])

    def store(self, keys):
        """Stores pages and then reuses them. Returns which were stored."""
        good = []
        for first in range(0, len(keys), len(self.pages)):
            some = keys[first:first + len(self.pages)]
            pages = self.pages[:len(some)]
            for page, key in zip(pages, some):
                self.write(page, value_of(key, self.page_bytes))
            said = self.storage.batch_set_v1(some, self._indices(pages))
            assert isinstance(said, list) and len(said) == len(some) and set(said) <= {True, False}
            for page in pages:
                self.write(page, os.urandom(64).ljust(self.page_bytes, b"\xee"))
            good += said
        return good

    def load(self, keys):
        """Returns how many pages were found, and which of them were loaded correctly. The others must be reported as not loaded."""
        found = self.storage.batch_exists(keys)
        assert isinstance(found, int) and 0 <= found <= len(keys)
        good = []
        for first in range(0, found, len(self.pages)):
            some = keys[first:min(first + len(self.pages), found)]
            pages = self.pages[:len(some)]
            said = self.storage.batch_get_v1(some, self._indices(pages))
            assert isinstance(said, list) and len(said) == len(some) and set(said) <= {True, False}
            for page, key, ok in zip(pages, some, said):
                if ok:
                    assert self.read(page) == value_of(key, self.page_bytes), f"wrong bytes under {key}"
                self.write(page, b"\xcc" * self.page_bytes)
            good += said
        return found, good

    def wait_well(self):
        wait_for("the backend connects", lambda: self.link.well)

    @property
    def counters(self):
        return self.storage.counters

    def close(self):
        self.storage.close()


def check_load(host, keys, found=None):
    found = len(keys) if found is None else found
    assert host.load(keys) == (found, [True] * found), host.counters


def what_is_stored_is_loaded(make, daemon):
    host = make()
    assert host.link.well and all(r.registered for _, _, r in host.link._regions) and host.link._regions
    keys = keys_of("stored", 40)
    assert all(host.store(keys))
    check_load(host, keys + keys_of("never", 2), found=40)
    check_load(host, keys_of("never", 3) + keys, found=0)
    assert host.storage.exists(keys[7]) and not host.storage.exists(keys_of("never", 1)[0])
    counts = host.counters
    assert counts["stored_pages"] == counts["loaded_pages"] == counts["hits"] - 1 == 40
    assert counts["loaded_bytes"] == 40 * host.page_bytes and not counts["errors"]


def every_layout_is_itself(make, daemon):
    keys = keys_of("layouts", 6)
    for kind in ("mha", "mla"):
        for layout in ("layer_first", "page_first", "page_first_direct"):
            host = make(pool={"kind": kind, "layout": layout})
            check_load(host, keys, found=0)
            assert all(host.store(keys))
            check_load(host, keys)
            host.close()


def acknowledged_written_and_durable(make, daemon):
    for ack in ("written", "durable"):
        host = make(ack=ack)
        keys = keys_of(ack, 12)
        assert all(host.store(keys))
        daemon.kill()
        daemon.start()
        host.wait_well()
        check_load(host, keys)
        host.close()


def ranks_share_what_is_the_same(make, daemon):
    keys = keys_of("ranks", 5)
    first = make(config={"tp_size": 2, "tp_rank": 0})
    assert all(first.store(keys))
    for other in ({"tp_rank": 1, "tp_size": 2}, {"tp_rank": 0, "tp_size": 4}, {"pp_rank": 1, "pp_size": 2, "tp_size": 2},
                  {"attn_cp_rank": 1, "attn_cp_size": 2, "tp_size": 2}, {"model_name": "tests/other", "tp_size": 2}):
        host = make(config=other)
        check_load(host, keys, found=0)
        host.close()
    latent = {"kind": "mla", "layout": "page_first"}
    writer = make(pool=latent, config={"is_mla_model": True, "tp_size": 4, "tp_rank": 0})
    assert all(writer.store(keys))
    for tp in ({"tp_size": 4, "tp_rank": 3}, {"tp_size": 8, "tp_rank": 5}):
        check_load(make(pool=latent, config={"is_mla_model": True, **tp}), keys)
    check_load(make(config={"tp_size": 2}, weights="others"), keys, found=0)
    check_load(make(config={"tp_size": 2}), keys)


def pages_in_parts(make, daemon):
    for layout in ("page_first", "layer_first"):
        host = make(part_bytes=4096, pool={"layout": layout})
        assert host.page_bytes > 2 * 4096
        keys = keys_of("parts", 20)
        assert all(host.store(keys))
        check_load(host, keys)
        part = identity.parts_of(identity.key_of(keys[9]), 3)[2]
        evict(host, daemon, [part])
        assert host.load(keys)[0] == 9
        host.close()


def evict(host, daemon, keys):
    space = host.link._probed.loads
    fields = dict(line.split("=", 1) for line in space._fingerprint.rstrip(b"\0").decode().splitlines())
    with kvcache.Client(daemon.socket, required=True) as client:
        client.namespace(space.name, fields).evict(keys)


def evicted_in_between(make, daemon):
    host = make()
    keys = keys_of("evicted", 6)
    assert all(host.store(keys))
    exists, host.storage.batch_exists = host.storage.batch_exists, lambda k: len(k)
    evict(host, daemon, [identity.key_of(keys[3])])
    found, good = host.load(keys)
    assert found == 6 and good[:3] == [True] * 3 and not good[3]
    host.storage.batch_exists = exists
    check_load(host, keys, found=3)
    assert host.counters["failed_loads"] >= 1


def chunks_of_another_length(make, daemon):
    """Stores other chunks under the keys, shorter, longer, or with an empty piece, which are then no hits."""
    host = make()
    keys = keys_of("lengths", 4)
    assert all(host.store(keys))
    space = host.link._probed.stores
    for key, length in zip(keys[1:], (host.page_bytes - 1, host.page_bytes + 4096, 1)):
        own = identity.key_of(key)
        space.evict([own])
        assert space.put([own], [b"\xaa" * length], "written").ok
    for i, key in enumerate(keys):
        assert host.load([key]) == (1, [i == 0]), (i, host.counters)
    assert host.counters["wrong_lengths"] >= 2 and host.link.well
    assert all(host.store(keys_of("lengths", 8)[4:]))


def a_daemon_that_comes_later(make, daemon):
    daemon.kill()
    host = make()
    keys = keys_of("later", 4)
    assert not any(host.store(keys))
    check_load(host, keys, found=0)
    daemon.start()
    host.wait_well()
    assert all(r.registered for _, _, r in host.link._regions)
    assert all(host.store(keys))
    check_load(host, keys)
    assert host.counters["unavailable"] >= 8


def a_daemon_that_hangs_from_the_first(make, daemon):
    daemon.pause()
    try:
        host = make(timeout_s=1.0)
        keys = keys_of("first", 4)
        assert not any(host.store(keys))
        check_load(host, keys, found=0)
        assert not host.link.well
        other = make(timeout_s=1.0, pages=(32, 4))
        other.close()
    finally:
        daemon.resume()
    host.wait_well()
    assert all(host.store(keys))
    check_load(host, keys)


def attached_and_detached(make, daemon):
    """Backends follow one another; a closed one still answers, and keeps nothing open."""
    keys = keys_of("attached", 6)
    for n in range(4):
        host = make()
        check_load(host, keys, found=6 if n else 0)
        assert all(host.store(keys))
        fds = len(os.listdir("/proc/self/fd"))
        host.close()
        closed = len(os.listdir("/proc/self/fd"))
        assert closed < fds and not any(t.name == "kvcache-mender" and t.is_alive() and t is host.link._mender
                                        for t in threading.enumerate())
        host.close()
        assert host.store(keys) == [False] * 6 and host.load(keys) == (0, [])


def killed_and_started_again(make, daemon):
    host = make(ack="written")
    keys = keys_of("kept", 12)
    assert all(host.store(keys))
    for n in range(3):
        daemon.kill()
        found, good = host.load(keys)
        assert not any(good)
        assert not any(host.store(keys_of("lost", 4)))
        check_load(host, keys, found=0)
        daemon.start()
        host.wait_well()
        check_load(host, keys)
        assert all(host.store(keys_of(f"again {n}", 4)))
        check_load(host, keys_of(f"again {n}", 4))


def killed_under_a_load_and_a_store(make, daemon):
    host, other = make(ack="written"), make(ack="written", pages=(32, 8))
    keys = keys_of("under", 8)
    assert all(host.store(keys))
    daemon.pause()
    said = []
    threads = [threading.Thread(target=lambda: said.append(host.load(keys)[1])),
               threading.Thread(target=lambda: said.append(other.store(keys_of("under too", 8))))]
    for thread in threads:
        thread.start()
    wait_for("both are under way", lambda: (is_busy(host.link.loads) or host.link.stores.inflight) and other.link.stores.inflight)
    daemon.kill()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert not any(ok for good in said for ok in good)
    daemon.start()
    host.wait_well()
    other.wait_well()
    check_load(host, keys)
    assert all(other.store(keys_of("under too", 8)))
    check_load(host, keys_of("under too", 8))


def hung_and_gone_on(make, daemon):
    """A load that is copied ends at its deadline. A store ends when the daemon no longer reads its pages, and the stored pages are right."""
    host, other = make(timeout_s=1.0, load_into=False), make(timeout_s=1.0, pages=(32, 8))
    keys, late = keys_of("hung", 8), keys_of("late", 8)
    wait_for("it stores", lambda: all(host.store(keys)))
    daemon.pause()
    try:
        stored = []
        storing = threading.Thread(target=lambda: stored.append(other.store(late)))
        storing.start()
        found, good = host.load(keys)
        assert not any(good)
        unavailable = host.counters["unavailable"]
        for _ in range(20):
            check_load(host, keys, found=0)
            assert not any(host.store(keys_of("new", 2)))
        assert host.counters["unavailable"] == unavailable + 20 * (8 + 2), "a daemon that is known to hang is asked"
        wait_for("the store has seen it", lambda: other.counters["timeouts"])
        assert not stored and storing.is_alive()
    finally:
        daemon.resume()
    storing.join(60)
    assert stored and not storing.is_alive()
    host.wait_well()
    other.wait_well()
    wait_for("it loads", lambda: host.load(keys) == (8, [True] * 8))
    host.load(late)  # right, or not there
    wait_for("it stores", lambda: all(other.store(late)))
    wait_for("it loads what was stored late", lambda: host.load(late) == (8, [True] * 8))


def a_load_that_was_given_up_keeps_its_pages(make, daemon):
    """The daemon may write to the pages of a load after its deadline: the load ends when it no longer can. Lookups and stores do not wait."""
    host = make(timeout_s=1.0)
    keys = keys_of("aside", 8)
    wait_for("it stores", lambda: all(host.store(keys)))
    check_load(host, keys)
    assert host.counters["copied_loads"] == 0 and host.counters["copied_stores"] == 0
    daemon.pause()
    try:
        said = []
        loading = threading.Thread(target=lambda: said.append(host.storage.batch_get_v1(keys, host._indices(host.pages[:8]))))
        loading.start()
        wait_for("the load has seen it", lambda: not host.link.well)
        unavailable = host.counters["unavailable"]
        for _ in range(20):
            check_load(host, keys, found=0)
            assert not any(host.store(keys_of("new", 2)))
        assert host.counters["unavailable"] == unavailable + 20 * (8 + 2), "a daemon that is known to hang is asked"
        assert loading.is_alive() and not said, "SGLang may use pages again that the daemon may write to"
    finally:
        daemon.resume()
    loading.join(60)
    assert not loading.is_alive() and said == [[False] * 8]
    for page in host.pages[:8]:
        host.write(page, b"\xdd" * host.page_bytes)
    host.wait_well()
    wait_for("it loads to other pages", lambda: Host(host.storage, host.pool, host._indices, 16, 8).load(keys) == (8, [True] * 8))
    assert all(host.read(page) == b"\xdd" * host.page_bytes for page in host.pages[:8])


def closing_waits_for_a_load(make, daemon):
    host = make(timeout_s=0.5)
    keys = keys_of("closing", 4)
    wait_for("it stores", lambda: all(host.store(keys)))
    daemon.pause()
    try:
        said = []
        loading = threading.Thread(target=lambda: said.append(host.storage.batch_get_v1(keys, host._indices(host.pages[:4]))))
        loading.start()
        wait_for("the load has seen it", lambda: not host.link.well)
        closing = threading.Thread(target=host.close)
        closing.start()
        wait_for("it closes", host.link._closing.is_set)
        closing.join(6.0)  # close() waits for the mender at most 3 s
        assert closing.is_alive() and loading.is_alive()
    finally:
        daemon.resume()
    closing.join(60)
    loading.join(60)
    assert not closing.is_alive() and said == [[False] * 4]


def more_than_there_is_room_for(make, daemon):
    host = make(ack="written")
    for n in range(6):
        keys = keys_of(f"room {n}", 400)
        assert isinstance(host.store(keys), list)
        found, good = host.load(keys)
        assert all(good[:good.index(False)] if False in good else good)
    assert not host.counters["errors"]
    assert all(host.store(keys_of("last", 4)))
    check_load(host, keys_of("last", 4))


def memory_that_is_not_shared(make, daemon):
    for options in ({"pool": {"allocator": "default"}}, {"share": False}):
        host = make(**options)  # a superuser may open what SGLang maps by default
        assert host.link.well and (host.link._regions == []) == ("share" in options)
        keys = keys_of("copied", 40)
        assert all(host.store(keys))
        check_load(host, keys)
        copied = 0 if any(r.registered for _, _, r in host.link._regions) else 40
        assert host.counters["copied_stores"] == host.counters["copied_loads"] == copied
        host.close()


def calls_of_nonsense(make, daemon):
    host = make()
    keys = keys_of("nonsense", 3)
    assert host.storage.batch_set_v1(keys, host._indices([0, 1])) == [False] * 3
    assert host.storage.batch_get_v1(keys, host._indices([0])) == [False] * 3
    assert host.storage.batch_get_v1(keys, None) == [False] * 3
    assert host.storage.batch_get_v1([], host._indices([])) == []
    assert host.storage.batch_set_v1([7, None, keys[0]], host._indices([0, 1, 2])) == [False] * 3
    assert host.storage.batch_exists([]) == 0 and host.storage.batch_exists([None]) == 0
    assert host.storage.batch_get(keys) == [None] * 3 and host.storage.batch_set(keys) is False
    assert host.storage.get(keys[0]) is None and host.storage.set(keys[0]) is False
    assert host.storage.clear() is None
    odd = ["", "x", "g" * 64, "0" * 64, "é" * 32]
    assert all(host.store(odd))
    check_load(host, odd)
    assert host.counters["errors"] and host.link.well


def three_threads_and_a_daemon_that_dies(make, daemon, rounds=6):
    """Lookups, loads and stores of one backend run at the same time while the daemon is killed or stopped. No byte is wrong, and no exception
    occurs."""
    host = make(ack="written", timeout_s=1.0)
    loader = Host(host.storage, host.pool, host._indices, 32, 16)
    loaded = [0]

    def names(n):
        return keys_of(f"mixed {n % 7}", 12)

    def load(n):
        loaded[0] += sum(loader.load(names(n))[1])

    acts = [lambda n: host.store(names(n)), load, lambda n: host.storage.batch_exists(names(n))]
    threads_beside_a_daemon_that_dies(daemon, host, acts, lambda: loaded[0], rounds)
    wait_for("it stores", lambda: all(host.store(names(0))))
    wait_for("it loads", lambda: host.load(names(0)) == (12, [True] * 12))


SCENARIOS = [what_is_stored_is_loaded, every_layout_is_itself, acknowledged_written_and_durable, ranks_share_what_is_the_same,
             pages_in_parts, evicted_in_between, chunks_of_another_length, a_daemon_that_comes_later,
             a_daemon_that_hangs_from_the_first, attached_and_detached, killed_and_started_again,
             killed_under_a_load_and_a_store, hung_and_gone_on, a_load_that_was_given_up_keeps_its_pages, closing_waits_for_a_load, more_than_there_is_room_for, memory_that_is_not_shared,
             calls_of_nonsense, three_threads_and_a_daemon_that_dies]
OF_DEADLINES = [a_daemon_that_hangs_from_the_first, hung_and_gone_on, a_load_that_was_given_up_keeps_its_pages, closing_waits_for_a_load,
                three_threads_and_a_daemon_that_dies]  # a call ends at the adapter's own
