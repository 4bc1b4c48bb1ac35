# SPDX-License-Identifier: Apache-2.0
"""Removed rights end with the restart that applies the change, also for memory that survives the restart (R1).

A client keeps its mappings and descriptors beyond its session. With memory.keep, a pool is used again only if every client that has received
it may still connect as the same tenant.
"""

import contextlib
import mmap
import os

import pytest

import kvwire
from harness import KIB, ctl, put_all
from kvwire import Ack, Op, Status, Tier
from test_keep_memory import mounts, read, service  # noqa: F401 - fixtures
from users import client_as

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs to become other users")

ALICE, MALLORY, BOB, TEAM = 20001, 20002, 20003, 30001
RED = "tenants:\n  - name: red\n    pool: 16MiB\n    users: {}\n    groups: {}\n  - name: blue\n    pool: 16MiB\n    users: {}\n"


@pytest.fixture
def started(service, directory):  # noqa: F811
    """Provides started(configuration), which starts a daemon that keeps its pools and whose socket every user may connect to."""
    def make(text):
        s = service(settings={"store.limit": "64MiB", "store.prewrite": "off"})
        s.daemon.config = directory / "rights.yaml"
        s.daemon.config.write_text(text)
        os.chmod(s.daemon.socket, 0o666)
        s.start()
        return s
    return make


def map_pool(client):
    return mmap.mmap(client.pool_fd, os.fstat(client.pool_fd).st_size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)


def put_secret(s, uid, name):
    """Puts as this user; returns bytes that appear nowhere else, the key and the value."""
    secret = os.urandom(32) * 64
    with client_as(s.daemon, uid) as c:
        key = os.urandom(32)
        put_all(c, c.namespace(name), [(key, secret + bytes(64 * KIB))], ack=Ack.WRITTEN)
    return secret, key, secret + bytes(64 * KIB)


def red(users, groups="[]", blue=f"[{BOB}]"):
    return RED.format(users, groups, blue)


def access(users="[]", groups="[]", admins="[]"):
    return f"access:\n  users: {users}\n  groups: {groups}\n  admin_users: {admins}\n"


REMOVED = {
    "user": (red(f"[{ALICE}, {MALLORY}]"), red(f"[{ALICE}]"), ()),
    "group": (red(f"[{ALICE}]", f"[{TEAM}]"), red(f"[{ALICE}]"), (TEAM,)),
    "moved to another tenant": (red(f"[{ALICE}, {MALLORY}]"), red(f"[{ALICE}]", blue=f"[{BOB}, {MALLORY}]"), ()),
    "taken by an earlier tenant": (red(f"[{ALICE}]", f"[{TEAM}]"), "tenants:\n  - name: new\n    users: [%d]\n    pool: 16MiB\n%s" % (
        MALLORY, red(f"[{ALICE}]", f"[{TEAM}]").partition("\n")[2]), (TEAM,)),
    "default user": (access(f"[{ALICE}, {MALLORY}]"), access(f"[{ALICE}]"), ()),
    "default group": (access(f"[{ALICE}]", f"[{TEAM}]"), access(f"[{ALICE}]"), (TEAM,)),
    "default for all": ("", access(f"[{ALICE}]"), ()),
    "admin": (access(f"[{ALICE}]", admins=f"[{MALLORY}]"), access(f"[{ALICE}]"), ()),
}


@pytest.mark.parametrize("how", REMOVED)
@pytest.mark.parametrize("later", [False, True], ids=["at once", "two restarts later"])
def test_R1_a_user_without_rights_does_not_see_later_puts_in_its_mapping(started, how, later):
    before, after, groups = REMOVED[how]
    s = started(before)
    secret, _, _ = put_secret(s, ALICE, "n")
    with client_as(s.daemon, MALLORY, groups=groups) as m:
        shown = map_pool(m)
    assert shown.find(secret) >= 0
    for _ in range(2 if later else 0):
        s.restart()
        assert shown.find(put_secret(s, ALICE, "n")[0]) >= 0, "nothing has changed, so the pool was kept"
    s.daemon.config.write_text(after)
    s.restart()
    assert f"user {MALLORY}, who had mapped it, may no longer connect as this tenant" in s.daemon.log()
    secret, key, value = put_secret(s, ALICE, "n")
    assert shown.find(secret) < 0
    s.restart()
    secret = put_secret(s, ALICE, "n")[0]
    assert shown.find(secret) < 0
    with client_as(s.daemon, ALICE) as c:
        assert read(c, c.namespace("n"), [(key, value)]) == [(Tier.MEMORY, True)], "the new pool is kept in turn"
    shown.close()


def test_R1_a_user_that_the_socket_no_longer_admits_does_not_see_later_puts(started):
    s = started("")
    with client_as(s.daemon, MALLORY) as m:
        shown = map_pool(m)
    s.daemon.stop()
    os.chmod(s.daemon.socket, 0o600)
    s.start()
    assert f"user {MALLORY}, who had mapped it" in s.daemon.log()
    assert shown.find(put_secret(s, 0, "n")[0]) < 0
    shown.close()


@pytest.mark.parametrize("after", [red(f"[{ALICE}, {MALLORY}, 20004]"), red(f"[{ALICE}]", f"[{TEAM}]"), red(f"[{ALICE}, {MALLORY}]", blue="[20004]")],
                         ids=["added", "by group", "another tenant's"])
def test_a_change_that_removes_no_right_keeps_the_pool(started, after):
    s = started(red(f"[{ALICE}, {MALLORY}]"))
    secret, key, value = put_secret(s, ALICE, "n")
    with client_as(s.daemon, MALLORY, groups=[TEAM]) as m:
        shown = map_pool(m)
    s.daemon.config.write_text(after)
    s.restart()
    s.verified()
    with client_as(s.daemon, ALICE) as c:
        assert read(c, c.namespace("n"), [(key, value)]) == [(Tier.MEMORY, True)]
    assert shown.find(secret) >= 0
    shown.close()


def test_a_pool_is_lost_only_for_the_tenant_that_lost_a_user(started):
    s = started(red(f"[{ALICE}, {MALLORY}]"))
    pairs = {uid: put_secret(s, uid, "n")[1:] for uid in (ALICE, BOB)}
    client_as(s.daemon, MALLORY).close()
    s.daemon.config.write_text(red(f"[{ALICE}]"))
    s.restart()
    s.verified()
    assert s.daemon.metric("kvcache_kept_forbidden_pools") == s.kept()["forbidden_pools"] == 1
    assert "1 of the previous daemon's pools: clients that had mapped" in ctl("status", "memory", daemon=s.daemon, check=0).stdout
    for uid, tier in ((ALICE, Tier.DISK), (BOB, Tier.MEMORY)):
        with client_as(s.daemon, uid) as c:
            assert read(c, c.namespace("n"), [pairs[uid]]) == [(tier, True)]


def test_R1_indexes_and_sockets_of_an_earlier_daemon_are_of_no_use(started):
    """A restart creates new indexes, and no daemon reads messages from an old socket."""
    s = started(red(f"[{ALICE}, {MALLORY}]"))
    _, key, _ = put_secret(s, ALICE, "n")
    m = client_as(s.daemon, MALLORY)
    held, = m.get(m.namespace("n"), [key])
    assert held.lease, "so its socket is handed over"
    with contextlib.closing(m.lookup()) as index:
        assert index.is_live()
        s.daemon.config.write_text(red(f"[{ALICE}]"))
        s.restart()
        later = put_secret(s, ALICE, "n")[1]
        assert not index.is_live() and not index.find("n", later)[0]
    with pytest.raises((OSError, kvwire.SessionEnded)):
        m.call(Op.PING)
    with client_as(s.daemon, ALICE) as c:
        assert read(c, c.namespace("n"), [(key, None)])[0][0] == Tier.DISK
    m.close()


def test_a_reload_removes_no_right_before_the_restart(started):
    s = started(red(f"[{ALICE}, {MALLORY}]"))
    s.daemon.config.write_text(red(f"[{ALICE}]"))
    assert "tenant red: users" in ctl("reload", daemon=s.daemon, check=0).stdout
    client_as(s.daemon, MALLORY).close()
