# SPDX-License-Identifier: Apache-2.0
"""The audit trail: an operation that removes stored data, or changes how long data is kept, is logged."""

import json
import os
import struct

import pytest

import kvwire
from harness import ctl, key_of, put_all, wait_until
from kvwire import Op, Status

NAME = "ns-of-audit"
CHUNKS = 12


def lines_of(daemon, operation):
    """Returns the audit lines of this operation as objects. The daemon logs JSON."""
    lines = (json.loads(line) for line in daemon.log().splitlines() if line.startswith("{"))
    return [line for line in lines if line.get("operation") == operation]


def fill(daemon, name=NAME, count=CHUNKS):
    with daemon.client() as c:
        put_all(c, c.namespace(name), [(key_of(name, i), b"%5000d" % i) for i in range(count)], ack=kvwire.Ack.DURABLE)


@pytest.fixture
def audited(make_daemon):
    return make_daemon(settings={"log.format": "json", "log.level": "notice"}).start()


def one_line(daemon, operation, **fields):
    wait_until(lambda: lines_of(daemon, operation), f"the line of {operation}")
    lines = lines_of(daemon, operation)
    assert len(lines) == 1, lines
    assert {k: lines[0].get(k) for k in fields} == fields, lines[0]
    assert lines[0]["uid"] == os.getuid() and lines[0]["pid"] > 0 and lines[0]["level"] == "notice"
    return lines[0]


@pytest.mark.parametrize("arguments, operation, chunks", [
    (["purge", NAME], "purge", CHUNKS),
    (["purge", "--all", "--yes"], "purge of everything", CHUNKS),
    (["evict", "-n", NAME, "--all"], "evict", CHUNKS),
    (["evict", "-n", NAME, "--all", "--tier", "memory"], "evict from memory", CHUNKS),
    (["namespace", "lifetime", NAME, "7d"], "lifetime", CHUNKS),
    (["namespace", "rm", "--purge", NAME], "removal of a namespace", CHUNKS),
])
def test_an_operation_on_stored_data_is_logged_with_its_user_and_process(audited, arguments, operation, chunks):
    """kvcachectl's operations are logged at level notice."""
    fill(audited)
    ctl(*arguments, daemon=audited, check=0)
    whole = operation == "purge of everything"
    one_line(audited, operation, chunks=chunks, namespace=None if whole else NAME, tenant=None if whole else "default")


def test_pinned_chunks_are_logged_and_counted_once_for_many_messages(audited):
    """The messages of one run of kvcachectl cause one audit line; pin and unpin cause one each."""
    fill(audited, count=600)
    names = [key_of(NAME, i).hex() for i in range(600)]
    ctl("pin", "-n", NAME, *names, daemon=audited, check=0)
    one_line(audited, "pin", chunks=600, namespace=NAME, tenant="default")
    ctl("unpin", "-n", NAME, *names, daemon=audited, check=0)
    one_line(audited, "unpin", chunks=600, namespace=NAME, tenant="default")


def test_keys_of_a_long_session_are_logged_before_it_ends(audited):
    """The line is written before the session ends, and only if something was evicted."""
    fill(audited)
    with audited.client() as c:
        ns = c.namespace(NAME)
        c.evict(ns, [key_of(NAME, "absent")])
        c.evict(ns, [key_of(NAME, i) for i in range(3)])
        c.evict(ns, [key_of(NAME, i) for i in range(3, 5)])
        line = one_line(audited, "evict", chunks=5, namespace=NAME)
        assert line["pid"] == os.getpid()


def test_each_namespace_has_its_own_line(audited):
    for name in ("one", "two"):
        fill(audited, name)
    with audited.client() as c:
        for name in ("one", "two", "one"):
            c.evict(c.namespace(name), [key_of(name, 2 if name == "two" else len(lines_of(audited, "evict")))])
        wait_until(lambda: len(lines_of(audited, "evict")) == 3, "three lines")
    assert [line["namespace"] for line in lines_of(audited, "evict")] == ["one", "two", "one"]


def test_the_lines_of_one_user_are_bounded_over_its_sessions(audited):
    """A user that reconnects gets no new allowance, and the next line has the number of suppressed ones."""
    fill(audited)
    for _ in range(3):
        with audited.client() as c:
            tags = [c.submit(Op.PURGE, struct.pack("<II", c.namespace(NAME), 0)) for _ in range(110)]
            assert all(c.wait(t).status == Status.OK for t in tags)
    lines = lines_of(audited, "purge")
    assert 256 <= len(lines) < 330, len(lines)
    assert audited.metric("kvcache_log_lines_held_back_total") == 330 - len(lines)

    def told():
        with audited.client() as c:
            c.purge(c.namespace(NAME))
        return any("similar lines held back" in line["message"] for line in lines_of(audited, "purge"))

    wait_until(told, "a line that counts those that were held back")
