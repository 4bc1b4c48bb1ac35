# SPDX-License-Identifier: Apache-2.0
"""The removal of a namespace that uses the shared tier holds there as well, or is refused."""

import shutil

import pytest

from harness import KIB, ctl, items, put_all, wait_until
from kvwire import Ack, Status
from test_remote import FINGERPRINT, got, host, known, open_on, put_on  # noqa: F401 (host is a fixture)

PAIRS = items("removed", 5, 40 * KIB)
KEYS = [key for key, _ in PAIRS]


def found(daemon):
    """Returns how many of the chunks are hits in the namespace, which is made if it does not exist."""
    with daemon.client() as c:
        ns = open_on(c, daemon)
        return sum(status == Status.OK for status, _, _ in got(c, ns, KEYS))


@pytest.mark.parametrize("kill", [False, True])
def test_a_removed_namespace_begins_empty_on_every_host(host, kill):  # noqa: F811
    a, b = host(), host()
    put_on(a, PAIRS)
    assert found(b) == 5
    with a.client() as c:
        assert c.namespace_remove("n", purge=True) == 5
    if kill:
        a.restart(kill=True)
    assert found(a) == 0
    wait_until(lambda: found(b) == 0, "the other host has learned of it")
    assert found(a) == 0, "and has written nothing back"
    assert a.metric('kvcache_remote_purges_total{by="own"}') == (0 if kill else 1)


def test_puts_right_after_a_removal_stay(host):  # noqa: F811
    a, b = host(), host()
    put_on(a, PAIRS)
    with a.client() as c:
        c.namespace_remove("n", purge=True)
        ns = c.namespace("n", FINGERPRINT)
        assert all(r.status == Status.OK for r in put_all(c, ns, PAIRS, ack=Ack.WRITTEN).values())
        known(a)
        assert [status for status, _, _ in got(c, ns, KEYS)] == [Status.OK] * 5
    assert a.metric('kvcache_remote_purges_total{by="other_host"}') == 0
    wait_until(lambda: found(b) == 5, "the new chunks reach the other host")


def test_a_removal_is_refused_while_the_shared_tier_cannot_confirm_it(host):  # noqa: F811
    a = host()
    put_on(a, PAIRS)
    away = a.shared.with_name("away")
    shutil.copytree(a.shared, away)
    shutil.rmtree(a.shared)
    with a.client() as c:
        refused = c.namespace_remove("n", purge=True, check=False)
        assert refused.status == Status.FAILED and b"not removed: the shared tier did not confirm the purge" in refused.body
        assert c.namespace_stat("n").chunks == 5
        ns = c.namespace("n", FINGERPRINT)
        assert [status for status, _, _ in got(c, ns, KEYS)] == [Status.OK] * 5, "nothing is purged here"
    result = ctl("namespace", "rm", "--purge", "n", daemon=a)
    assert result.returncode == 4 and "did not confirm the purge" in result.stderr
    away.rename(a.shared)

    def removed():
        with a.client() as c:
            return not hasattr(c.namespace_remove("n", purge=True, check=False), "status")
    wait_until(removed, "the shared tier is in use again", 30)
    assert found(a) == 0


def test_a_removal_without_a_purge_is_refused_where_the_shared_tier_may_have_chunks(host):  # noqa: F811
    a = host(remote__local_namespaces="mine")
    put_on(a, PAIRS)
    with a.client() as c:
        c.purge(open_on(c, a))
        refused = c.namespace_remove("n", check=False)
        assert refused.status == Status.NOT_EMPTY and b"the shared tier may hold chunks of the namespace" in refused.body
        c.namespace("mine", FINGERPRINT)
        assert c.namespace_remove("mine") == 0
    result = ctl("namespace", "rm", "n", daemon=a)
    assert result.returncode == 4 and "kvcachectl namespace rm --purge" in result.stderr
    assert found(a) == 5, "what is not removed stays"
