# SPDX-License-Identifier: Apache-2.0
"""The values of metrics, compared with known traffic and with the kernel's view of the process."""

import os
import resource
import time

import pytest

import harness
from harness import MIB, items, key_of, wait_until
from kvwire import Ack, Op, Status, Tier

RESULTS = ("memory", "disk", "lent", "remote", "miss")


def by_label(samples, name, label):
    """Returns {value of the label: value of the sample}."""
    start = f'{name}{{{label}="'
    return {k[len(start):].partition('"')[0]: v for k, v in samples.items() if k.startswith(start)}


def in_namespace(samples, name, namespace):
    return samples[f'{name}{{namespace="{namespace}"}}']


def test_gets_are_counted_and_timed_by_where_they_were_found(daemon):
    with daemon.client() as c:
        ns = c.namespace("values")
        pairs = items("values", 40, 9000)
        harness.put_all(c, ns, pairs, ack=Ack.WRITTEN)
        keys = [k for k, _ in pairs]
        c.evict(ns, keys[:10], Tier.MEMORY)
        c.get(ns, keys[:8])                                    # disk
        c.get_into(ns, keys[8:10], 9000)                       # disk
        c.get(ns, keys[20:33])                                 # memory, at once
        c.get_into(ns, keys[33:38], 9000)                      # memory, copied
        c.get(ns, [key_of("none", i) for i in range(7)])       # miss
    samples = daemon.metrics()
    expected = {"memory": 18, "disk": 10, "lent": 0, "remote": 0, "miss": 7}
    assert by_label(samples, "kvcache_gets_total", "result") == expected
    assert by_label(samples, "kvcache_get_duration_seconds_count", "result") == expected
    sums = by_label(samples, "kvcache_get_duration_seconds_sum", "result")
    assert all((sums[r] > 0) == (expected[r] > 0) for r in RESULTS)
    assert sums["disk"] < samples['kvcache_request_duration_seconds_sum{op="GET"}'] * 40
    assert in_namespace(samples, "kvcache_namespace_get_keys_total", "values") == 35
    assert in_namespace(samples, "kvcache_namespace_get_found_keys_total", "values") == 28


def test_a_get_of_several_iterations_counts_each_of_its_keys_once(daemon):
    with daemon.client() as c:
        ns = c.namespace("many")
        pairs = items("many", 300, 100)
        harness.put_all(c, ns, pairs)
        assert len(harness.get_all(c, ns, [k for k, _ in pairs], batch=300)) == 300
    samples = daemon.metrics()
    assert by_label(samples, "kvcache_get_duration_seconds_count", "result")["memory"] == 300
    assert samples['kvcache_get_duration_seconds_bucket{result="memory",le="+Inf"}'] == 300
    # No key took longer than its request, or less than no time.
    assert 0 < samples['kvcache_get_duration_seconds_sum{result="memory"}'] <= \
        samples['kvcache_request_duration_seconds_sum{op="GET"}'] * 300


def test_puts_are_timed_by_class(daemon):
    counts = {Ack.ACCEPTED: 3, Ack.WRITTEN: 5, Ack.DURABLE: 7}
    with daemon.client() as c:
        ns = c.namespace("classes")
        for ack, n in counts.items():
            harness.put_all(c, ns, items(ack.name, n, 5000), ack=ack)
        harness.put_all(c, ns, items("ACCEPTED", 3, 5000))  # existing chunks do not count as put
    samples = daemon.metrics()
    expected = {ack.name.lower(): n for ack, n in counts.items()}
    assert by_label(samples, "kvcache_put_duration_seconds_count", "class") == expected
    assert by_label(samples, "kvcache_put_acks_total", "class") == expected
    assert all(total > 0 for total in by_label(samples, "kvcache_put_duration_seconds_sum", "class").values())


@pytest.mark.parametrize("ack", [Ack.WRITTEN, Ack.DURABLE])
def test_a_put_that_waits_for_the_disk_is_timed_until_its_answer(make_daemon, directory, ack):
    """The time of a written put begins before that of an accepted one, which is answered while the disk hangs, and ends after it."""
    switch = directory / "hang"
    daemon = make_daemon(settings={"io.backend": "posix", "store.prewrite": "off"},
                         env={"LD_PRELOAD": harness.preload("tests/daemon/hang.so"), "HANG_SWITCH": str(switch)}).start()
    with daemon.client() as c:
        ns = c.namespace("waits")
        c.staging()
        switch.touch()
        waits = c.submit_batch(Op.PUT, ns, c.put_entries(items("disk", 1, 5000)), ack=ack)
        accepted = c.submit_batch(Op.PUT, ns, c.put_entries(items("memory", 1, 5000), at=MIB))
        assert c.put_results(c.wait(accepted), 1)[0].status == Status.OK
        switch.unlink()
        assert c.put_results(c.wait(waits), 1)[0].status == Status.OK
    seconds = by_label(daemon.metrics(), "kvcache_put_duration_seconds_sum", "class")
    assert 0 < seconds["accepted"] < seconds[ack.name.lower()]


def test_operations_are_timed_in_the_queue(daemon):
    with daemon.client() as c:
        ns = c.namespace("queue")
        pairs = items("queue", 16, 100000)
        harness.put_all(c, ns, pairs, ack=Ack.WRITTEN)
        c.evict(ns, [k for k, _ in pairs], Tier.MEMORY)
        assert None not in harness.get_all(c, ns, [k for k, _ in pairs]).values()
    samples = daemon.metrics()
    counts = by_label(samples, "kvcache_io_queue_seconds_count", "op")
    took = {"read": "disk_to_host", "write": "host_to_disk", "copy": "host_to_host"}
    for op, path in took.items():
        timed = [v for name, v in samples.items() if name.startswith(f'kvcache_transfer_seconds_count{{path="{path}"')]
        assert counts[op] == sum(timed) > 0, op
    assert all(v > 0 for v in by_label(samples, "kvcache_io_queue_seconds_sum", "op").values())


def test_the_process_is_as_the_kernel_has_it(make_daemon):
    daemon = make_daemon()
    daemon.deprive.append(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1234, 1234)))
    before = time.time()
    daemon.start()
    fds = len(os.listdir(f"/proc/{daemon.pid}/fd"))
    samples = daemon.metrics()
    after = daemon.cpu_seconds() + 0.02  # /proc counts in ticks
    assert before - 1 <= samples["process_start_time_seconds"] == samples["kvcache_start_time_seconds"] <= time.time()
    assert 0 < samples["process_cpu_seconds_total"] <= after
    assert samples["process_max_fds"] == 1234
    assert samples["process_open_fds"] == samples["kvcache_open_descriptors"] >= fds
    # A connection's socket and the report's file are added, and files that were open at startup must be closed first.
    wait_until(lambda: daemon.metric("process_open_fds") - len(os.listdir(f"/proc/{daemon.pid}/fd")) in range(4), "the descriptors")
    with open(f"/proc/{daemon.pid}/statm") as f:
        pages = [int(n) * resource.getpagesize() for n in f.read().split()[:2]]
    assert 0.5 * pages[0] < samples["process_virtual_memory_bytes"] < 2 * pages[0]
    assert 0.2 * pages[1] < samples["process_resident_memory_bytes"] <= 1.5 * pages[1]


def test_the_limit_of_unwritten_bytes_is_a_quarter_of_the_pool(daemon):
    samples = daemon.metrics()
    assert samples["kvcache_pool_max_unwritten_bytes"] == samples["kvcache_pool_size_bytes"] / 4
