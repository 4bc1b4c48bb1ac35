# SPDX-License-Identifier: Apache-2.0
"""Transfers that clients count in a page (proto/README.md 5.6): they appear in the metrics and in benchmark sessions, also those of a
killed client; and a client that writes anything else there has no effect."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import random
import signal
import threading

import pytest

import kvwire
from harness import items, key_of, put_all, wait_until
from kvwire import Ack, Op, Status
from test_bench_sessions import DISABLE, ENABLE, INIT, RESET, STATUS
from test_tally import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE

PATHS = ("other", "host_to_disk", "disk_to_host", "host_to_device", "device_to_host", "device_to_device", "host_to_host",
         "disk_to_device", "device_to_disk")
LAYOUTS = ("other", "fully_contiguous", "layer_separate_block_first", "layer_separate_outer_first", "regions")
TECHNOLOGIES = ("other", "io_uring", "posix", "gds", "cuda_batch", "cuda_kernel", "cuda_copy", "memcpy", "composed")
NONE = 2**64 - 1
SLOT, SLOTS = 896, 16
WORDS = ("busy", "transfers", "blocks", "regions", "bytes", "device_bytes", "min", "max", "latency")


class Page:
    """The page of a client's session, as proto/README.md has it."""

    def __init__(self, client):
        self.fd = client.transfers()
        self.page = mmap.mmap(self.fd, kvwire.TRANSFERS_BYTES, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self.words = memoryview(self.page).cast("Q")  # words are stored atomically, unlike with struct
        self.slots = []

    def close(self):
        self.words.release()
        self.page.close()
        os.close(self.fd)

    def word(self, offset, value=None):
        if value is not None:
            self.words[offset // 8] = value
        return self.words[offset // 8]

    @property
    def epoch(self):
        return self.word(0) & 0xffffffff

    def begin(self):
        self.word(8, self.word(8) + 1)

    end = begin

    def write(self, number, key, errors=(), sizes=(), latencies=(), epoch=None, **words):
        """Writes a whole slot."""
        at = 64 + number * SLOT
        self.word(at, key | (self.epoch if epoch is None else epoch) << 32)
        for i, name in enumerate(WORDS):
            self.word(at + 8 + 8 * i, words.get(name, 0))
        counts = [*errors, *[0] * (6 - len(errors))]
        for histogram in sizes, latencies:
            counts += [dict(histogram).get(i, 0) for i in range(48)]
        for i, count in enumerate(counts):
            self.word(at + 80 + 8 * i, count)

    def add(self, path, layout, technology, n, size, blocks=0, regions=0, latency=4000, errors=()):
        """Adds `n` operations of one size to the earlier ones."""
        key = 1 << 24 | PATHS.index(path) << 16 | LAYOUTS.index(layout) << 8 | TECHNOLOGIES.index(technology)
        if not any(s["key"] == key for s in self.slots):
            self.slots.append({"key": key, "sizes": {}, "latencies": {}, "errors": [0] * 6, "min": NONE, "max": 0,
                               "epoch": self.epoch, **dict.fromkeys(("busy", "transfers", "blocks", "regions", "bytes", "device_bytes",
                                                                     "latency"), 0)})
        number, = (i for i, s in enumerate(self.slots) if s["key"] == key)
        s = self.slots[number]
        if s["epoch"] != self.epoch:
            s.update(epoch=self.epoch, min=NONE, max=0)
        if n:
            s["transfers"] += n
            s["blocks"] += blocks or n
            s["regions"] += regions or n
            s["bytes"] += n * size
            s["device_bytes"] += n * size
            s["min"], s["max"] = min(s["min"], size), max(s["max"], size)
            s["latency"] += n * latency
            s["busy"] += 100
            for histogram, value in (("sizes", size), ("latencies", latency)):
                bucket = (value - 1).bit_length()
                s[histogram][bucket] = s[histogram].get(bucket, 0) + n
        s["errors"] = [a + b for a, b in zip(s["errors"], [*errors, *[0] * 6])]
        self.begin()
        self.write(number, **{**s, "sizes": s["sizes"].items(), "latencies": s["latencies"].items()})
        self.end()


@contextlib.contextmanager
def page_of(client):
    page = Page(client)
    try:
        yield page
    finally:
        page.close()


def row(session, path, layout, technology):
    found = [m for m in session["metrics"] if (m["path"], m["layout"], m["technology"]) == (path, layout, technology)]
    return found[0] if found else None


GPU = ("host_to_device", "layer_separate_block_first", "cuda_kernel")
HOST = ("host_to_host", "fully_contiguous", "memcpy")


def series(daemon, name, kind, result=None):
    labels = 'path="{}",layout="{}",technology="{}"'.format(*kind) + (f',result="{result}"' if result else "")
    return daemon.metrics().get(f"kvcache_transfer_{name}{{{labels}}}")


def test_counts_of_a_client_appear_in_session_and_metrics(daemon):
    with daemon.client() as admin, daemon.client() as c, page_of(c) as page:
        assert c.features & kvwire.FEATURE_TRANSFERS
        page.add(*GPU, n=5, size=1 << 20)
        admin.bench(INIT, "A")
        assert admin.bench(STATUS)["metrics"] == [], "what was before is not of the session"
        page.add(*GPU, n=2, size=3000, blocks=7, regions=448)
        page.add(*GPU, n=1, size=5000, blocks=1, regions=64)
        page.add("disk_to_device", "fully_contiguous", "gds", n=3, size=4096, errors=(0, 1, 2, 3, 4, 5))
        session = admin.bench(STATUS)
        m = row(session, *GPU)
        assert (m["transfer_count"], m["total_blocks"], m["region_count"], m["total_bytes"]) == (3, 8, 512, 11000)
        assert (m["min_transfer_size"], m["max_transfer_size"]) == (3000, 5000), "not the 1 MiB of before"
        assert m["size_histogram"] == [[12, 2], [13, 1]] and m["latency_histogram"] == [[12, 3]]
        assert m["latency_secs"] == pytest.approx(12e-6) and 0 < m["busy_secs"] <= session["enabled_secs"]
        assert row(session, "disk_to_device", "fully_contiguous", "gds")["errors"] == {
            "io": 1, "short": 2, "checksum": 3, "cancelled": 4, "timeout": 5}
        assert [(m["path"], m["layout"]) for m in session["metrics"]] == sorted((m["path"], m["layout"]) for m in session["metrics"])
        assert series(daemon, "ops_total", GPU, "ok") == 8 and series(daemon, "bytes_total", GPU, "ok") == 5 * (1 << 20) + 11000
        assert series(daemon, "blocks_total", GPU, "ok") == 13 and series(daemon, "busy_seconds_total", GPU) > 0
        assert series(daemon, "size_bytes_sum", GPU) == 5 * (1 << 20) + 11000 and series(daemon, "size_bytes_count", GPU) == 8
        assert series(daemon, "seconds_count", GPU) == 8
        assert daemon.metric("kvcache_transfer_impossible_counts_total") == 0


def test_a_series_that_is_the_daemons_too_is_one(daemon):
    with daemon.client() as admin, daemon.client() as c, page_of(c) as page:
        admin.bench(INIT, "A")
        put_all(c, c.namespace("n"), items("own", 10, 8192), ack=Ack.WRITTEN)
        own = row(admin.bench(STATUS), *HOST)
        page.add(*HOST, n=4, size=100)
        both = row(admin.bench(STATUS), *HOST)
        assert both["transfer_count"] == own["transfer_count"] + 4 and both["total_bytes"] == own["total_bytes"] + 400
        assert series(daemon, "ops_total", HOST, "ok") == both["transfer_count"]


def test_two_clients_add_up_and_a_killed_one_stays(daemon):
    with daemon.client() as admin, daemon.client() as c, page_of(c) as page:
        admin.bench(INIT, "A")
        page.add(*GPU, n=10, size=4096)
        child = os.fork()
        if child == 0:
            other = daemon.client()
            with page_of(other) as its:
                its.add(*GPU, n=7, size=4096)
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        wait_until(lambda: row(admin.bench(STATUS), *GPU)["transfer_count"] == 17, "its counts are there")
        assert row(admin.bench(STATUS), *GPU)["total_bytes"] == 17 * 4096


def test_a_reset_under_load_leaves_nothing_of_before(daemon):
    stop, written = threading.Event(), [0]

    def load(page):
        while not stop.is_set():
            page.add(*GPU, n=1, size=2**20 if written[0] % 2 else 4096)
            written[0] += 1

    with daemon.client() as admin, daemon.client() as c, page_of(c) as page:
        admin.bench(INIT, "A")
        thread = threading.Thread(target=load, args=(page,))
        thread.start()
        try:
            for _ in range(20):
                wait_until(lambda: (row(admin.bench(STATUS), *GPU) or {"transfer_count": 0})["transfer_count"] > 50, "something moved")
                before = written[0]
                assert admin.bench(RESET)["metrics"] == []
                some = row(admin.bench(STATUS), *GPU)
                assert not some or some["transfer_count"] <= written[0] - before + 2
        finally:
            stop.set()
            thread.join()
        total = written[0]
        assert admin.bench(RESET)["metrics"] == [] == admin.bench(STATUS)["metrics"]
        assert series(daemon, "ops_total", GPU, "ok") == total, "and nothing was counted twice, or lost"
        assert daemon.metric("kvcache_transfer_impossible_counts_total") == 0


def test_a_disabled_session_counts_nothing(daemon):
    with daemon.client() as admin, daemon.client() as c, page_of(c) as page:
        admin.bench(INIT, "A")
        page.add(*GPU, n=1, size=100)
        off = admin.bench(DISABLE)
        page.add(*GPU, n=1, size=7)
        assert admin.bench(STATUS) == off
        admin.bench(ENABLE)
        page.add(*GPU, n=1, size=200)
        m = row(admin.bench(STATUS), *GPU)
        assert (m["transfer_count"], m["min_transfer_size"], m["max_transfer_size"]) == (2, 100, 200)


def test_missing_minimum_and_maximum_come_from_the_buckets(daemon):
    """Simulates a record that was begun before a reset and stored after it."""
    with daemon.client() as admin, daemon.client() as c, page_of(c) as page:
        admin.bench(INIT, "A")
        page.begin()
        page.write(0, 1 << 24 | 3 << 16 | 2 << 8 | 5, epoch=page.epoch - 1, transfers=3, blocks=3, regions=3, bytes=9000,
                   device_bytes=9000, min=1, max=2**40, latency=3000, sizes={11: 1, 12: 2}.items(), latencies={10: 3}.items())
        page.end()
        m = row(admin.bench(STATUS), *GPU)
        assert (m["min_transfer_size"], m["max_transfer_size"], m["transfer_count"]) == (1025, 4096, 3)


GOOD = dict(transfers=2, blocks=2, regions=2, bytes=200, device_bytes=200, min=100, max=100, latency=10, sizes={7: 2}.items(),
            latencies={3: 2}.items())
KEY = 1 << 24 | 3 << 16 | 2 << 8 | 5


@pytest.mark.parametrize("key,bad", [
    (KEY, dict(bytes=2**63)), (KEY, dict(device_bytes=NONE)), (KEY, dict(blocks=2**62)), (KEY, dict(regions=NONE)),
    (KEY, dict(transfers=2**61, sizes={7: 2**61}.items(), latencies={3: 2**61}.items())),
    (KEY, dict(sizes={7: NONE, 6: 3}.items())), (KEY, dict(latencies={1: NONE}.items())), (KEY, dict(latency=NONE)),
    (KEY, dict(errors=(0, NONE, 2))), (KEY & ~(1 << 24), {}), (KEY | 9 << 16 | 255, {}), (1 << 24 | 9 << 16, {}), (NONE & 0xffffffff, {}),
])
def test_R2_impossible_records_are_ignored(daemon, key, bad):
    with daemon.client() as admin, daemon.client() as c, page_of(c) as page:
        admin.bench(INIT, "A")
        page.begin()
        page.write(0, key, **{**GOOD, **bad})
        page.write(1, KEY + 1, **GOOD)
        page.end()
        session = admin.bench(STATUS)
        assert [m["total_bytes"] for m in session["metrics"]] == [200], "the other slot counts"
        assert daemon.metric("kvcache_transfer_impossible_counts_total") == 1


def test_decreasing_counters_add_nothing_and_counting_continues(daemon):
    with daemon.client() as admin, daemon.client() as c, page_of(c) as page:
        admin.bench(INIT, "A")
        page.add(*GPU, n=10, size=100)
        assert row(admin.bench(STATUS), *GPU)["transfer_count"] == 10
        assert ctypes.CDLL(None).fallocate(page.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(16384)) == 0
        page.word(8, 2)
        assert row(admin.bench(STATUS), *GPU)["transfer_count"] == 10
        page.slots.clear()
        page.add(*GPU, n=3, size=100)
        assert row(admin.bench(STATUS), *GPU)["transfer_count"] in (10, 13), "the first reading after it may be one that went back"
        page.add(*GPU, n=1, size=100)
        assert row(admin.bench(STATUS), *GPU)["transfer_count"] in (11, 14)


def test_counts_of_a_client_killed_during_a_write_are_kept(daemon):
    with daemon.client() as admin, daemon.client() as c:
        admin.bench(INIT, "A")
        with page_of(c) as page:
            page.add(*GPU, n=1, size=100)
            assert row(admin.bench(STATUS), *GPU)["transfer_count"] == 1
            page.begin()  # like a client that is killed here
            page.write(0, KEY, epoch=page.epoch, transfers=2, blocks=2, regions=2, bytes=200, device_bytes=200, min=100, max=100,
                       latency=8000, busy=200, sizes={7: 2}.items(), latencies={12: 2}.items())
        c.close()
        wait_until(lambda: row(admin.bench(STATUS), *GPU)["transfer_count"] == 2, "the last reading")


def test_R2_any_bytes_at_all(daemon):
    numbers = random.Random(7)
    with daemon.client() as admin, daemon.client() as c, page_of(c) as page:
        admin.bench(INIT, "A")
        for _ in range(50):
            page.page[:] = numbers.randbytes(kvwire.TRANSFERS_BYTES)
            page.word(8, numbers.randrange(0, 2**60, 2))
            admin.bench(STATUS)
        daemon.metrics()
        assert admin.bench(STATUS)["metrics"] == []
        assert daemon.metric("kvcache_transfer_impossible_counts_total") >= 50


def test_R2_the_page_cannot_be_cut_or_got_twice(daemon):
    with daemon.client() as c, page_of(c) as page:
        for size in 0, 2**20:
            with pytest.raises(OSError) as e:
                os.ftruncate(page.fd, size)
            assert e.value.errno == errno.EPERM
        with pytest.raises(OSError):
            fcntl.fcntl(page.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        with pytest.raises(kvwire.Refused, match=f"TRANSFERS: {Status.EXISTS.name}"):
            c.call(Op.TRANSFERS, n_fds=1)
        assert c.exists(c.namespace("n"), [key_of("none")]) == [0]


def test_R2_kinds_that_are_one_too_many_are_added_to_other(daemon):
    """No client can fill the metrics with series."""
    kinds = [(p, l, "cuda_copy") for p in PATHS[1:] for l in LAYOUTS][:24]
    with contextlib.ExitStack() as stack:
        for part in kinds[:12], kinds[12:]:
            page = stack.enter_context(page_of(stack.enter_context(daemon.client())))
            for kind in part:
                page.add(*kind, n=1, size=1000)
        metrics = daemon.metrics()
        ops = {k: v for k, v in metrics.items() if k.startswith("kvcache_transfer_ops_total") and 'result="ok"' in k and "cuda_copy" in k}
        assert len(ops) == 16
        assert series(daemon, "ops_total", ("other", "other", "other"), "ok") == 24 - 16
