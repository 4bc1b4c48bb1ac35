# SPDX-License-Identifier: Apache-2.0
"""Several tenants: each user belongs to one, none learns of another, and each stays within its limits (R1, R9, R10).

A peer's credentials are those of the connecting process, so these tests temporarily become another user.
"""

import json
import os
import re
import signal

import pytest

import harness
import kvwire
from harness import KIB, MIB, get_all, items, put_all, wait_until
from kvwire import Ack, Status
from users import client_as

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs to become other users")

ALICE, BOB, CAROL, DAVE = 20001, 20002, 20003, 20004
ML = 30001

TENANTS = f"""tenants:
  - name: red
    users: [{ALICE}]
    groups: [{ML}]
    pool: 16MiB
  - name: blue
    users: [{BOB}, {ALICE}]
    pool: 16MiB
"""


@pytest.fixture
def make(make_daemon):
    """Provides make(text, settings), which starts a daemon with that configuration file."""
    def made(text=TENANTS, settings=None, start=True, **how):
        daemon = make_daemon(settings={"listen.mode": "0666", **(settings or {})}, **how)
        daemon.config = daemon.directory / "kvcache.yaml"
        daemon.config.write_text(text)
        return daemon.start() if start else daemon
    return made


def tenant_of(daemon, *who, **how):
    """Returns the name of the tenant that the daemon reports to that user."""
    with client_as(daemon, *who, **how) as c:
        tenants = json.loads(c.report(kvwire.Report.STATUS))["tenants"]
        assert len(tenants) == 1
        return tenants[0]["name"]


def usage(daemon, name):
    tenant, = (t for t in daemon.status()["tenants"] if t["name"] == name)
    return tenant


def test_the_first_tenant_that_matches_decides_and_default_comes_last(make):
    daemon = make(TENANTS + f"access:\n  users: [{CAROL}]\n")
    assert tenant_of(daemon, ALICE) == "red"
    assert tenant_of(daemon, BOB) == "blue"
    assert tenant_of(daemon, BOB, groups=[1, ML]) == "red"
    assert tenant_of(daemon, CAROL) == "default"
    assert tenant_of(daemon, DAVE, gid=ML) == "red"
    with pytest.raises(kvwire.SessionEnded):
        client_as(daemon, DAVE)
    with pytest.raises(kvwire.SessionEnded):
        client_as(daemon, 65534, groups=[ML])
    assert daemon.metric('kvcache_sessions_refused_total{reason="credentials"}') == 2


def test_R9_another_tenants_names_and_keys_are_not_there(make):
    """Namespaces of the same name in two tenants are different ones; lookups, lists and reports reveal nothing of the other's."""
    daemon = make()
    pairs = items("secret", 8, 30000)
    red, blue = client_as(daemon, ALICE), client_as(daemon, BOB)
    for i in range(3):
        red.namespace(f"other-{i}")
    put_all(red, red.namespace("shared"), pairs, ack=Ack.WRITTEN)
    keys = [k for k, _ in pairs]

    with pytest.raises(kvwire.Refused) as e:
        blue.namespace("shared", attach=True)
    with pytest.raises(kvwire.Refused) as never:
        blue.namespace("never there", attach=True)
    assert (e.value.status, str(e.value)) == (never.value.status, str(never.value).replace("never there", "shared"))
    ns = blue.namespace("shared", fingerprint="model=another\n")
    assert ns == 1, "the number tells how many others there are"
    assert get_all(blue, ns, keys) == dict.fromkeys(keys)
    assert blue.match(ns, keys) == 0 and not any(blue.exists(ns, keys))
    assert blue.touch(ns, keys) == [Status.MISS] * len(keys)
    assert blue.evict(ns, keys) == [Status.MISS] * len(keys)
    assert [s.status for s in blue.stat(ns, keys)] == [Status.MISS] * len(keys)
    assert not list(blue.list(ns))
    for number in range(2, 9):  # numbers that the other has, or the store
        with pytest.raises(kvwire.Refused) as e:
            blue.get(number, keys[:1])
        assert e.value.status == Status.NO_NAMESPACE
    status = json.loads(blue.report(kvwire.Report.STATUS))
    assert [n["name"] for n in status["namespaces"]] == ["shared"]
    assert {t["name"] for t in status["tenants"]} == {"blue"}
    for what in (kvwire.Report.STATS, kvwire.Report.METRICS):
        assert "red" not in re.findall(r"[a-z]+", blue.report(what))

    blue.purge(ns)
    assert blue.evict(ns, keys) == [Status.MISS] * len(keys)
    assert get_all(red, 4, keys) == dict(pairs)
    admin = daemon.status()
    assert {(n["tenant"], n["name"]) for n in admin["namespaces"]} == {
        ("red", "shared"), ("blue", "shared"), ("red", "other-0"), ("red", "other-1"), ("red", "other-2")}
    red.close()
    blue.close()


def test_R9_http_does_not_reveal_names_of_tenants_namespaces(make):
    """HTTP has no authentication."""
    daemon = make(settings={"listen.http": None})
    daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"
    daemon.restart()
    with client_as(daemon, ALICE) as c:
        c.namespace("secret-project")
    text = daemon.http("/status")[2].decode()
    assert json.loads(text)["namespaces"] == [] and "secret-project" not in text
    assert "secret-project" not in daemon.http("/metrics")[2].decode()
    assert "secret-project" in json.dumps(daemon.status())


def test_R1_each_tenant_has_a_pool_of_its_own(make):
    """Chunks of one tenant are never in memory that the other maps."""
    daemon = make()
    mark = b"the red tenant's own bytes, of no other: " * 400
    red, blue = client_as(daemon, ALICE), client_as(daemon, BOB)
    put_all(red, red.namespace("n"), [(harness.key_of("r", i), mark) for i in range(100)], ack=Ack.WRITTEN)
    put_all(blue, blue.namespace("n"), items("b", 100, len(mark)), ack=Ack.WRITTEN)
    assert mark[:40] in red.pool_read(0, red.pool_bytes)
    assert mark[:40] not in blue.pool_read(0, blue.pool_bytes)
    assert usage(daemon, "red")["pool_bytes"]["limit"] == 16 * MIB
    red.close()
    blue.close()


def test_R1_a_file_that_passes_to_another_tenant_has_no_byte_of_the_first(make):
    """A store is full of one tenant's chunks. The other tenant's chunks get its data files, which are zeroed first."""
    daemon = make(settings={"store.limit": "24MiB", "store.segment": "1MiB"})
    red, blue = client_as(daemon, ALICE), client_as(daemon, BOB)
    mark = b"#red#" * 13000
    put_all(red, red.namespace("n"), [(harness.key_of("r", i), mark) for i in range(500)], ack=Ack.WRITTEN)
    mine = items("b", 400, 60000)
    ns = blue.namespace("n")
    put_all(blue, ns, mine, ack=Ack.WRITTEN)
    left = {k: v for k, v in get_all(blue, ns, [k for k, _ in mine]).items() if v}
    assert left and left.items() <= dict(mine).items()
    red.close()
    blue.close()
    daemon.stop()
    mixed = []
    for segment in sorted(daemon.store.glob("segment*")):
        data = segment.read_bytes()
        has_blue = any(value[:64] in data for value in left.values())
        if has_blue and mark[:64] in data:
            mixed.append(segment.name)
    assert not mixed
    assert any(mark[:64] in s.read_bytes() for s in daemon.store.glob("segment*")) or len(left) == len(mine)
    daemon.start()
    blue = client_as(daemon, BOB)
    again = get_all(blue, blue.namespace("n"), list(left))
    assert all(v is None or v == left[k] for k, v in again.items()) and any(again.values())
    blue.close()


def test_tenants_keep_their_chunks_when_the_configuration_changes(make):
    """A tenant is identified by its name, even if entries are reordered, added, or missing for a while."""
    daemon = make()
    red_pairs, blue_pairs = items("red", 5, 20000), items("blue", 5, 20000)
    for uid, pairs in ((ALICE, red_pairs), (BOB, blue_pairs)):
        with client_as(daemon, uid) as c:
            put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)

    def check(uid, pairs, others):
        with client_as(daemon, uid) as c:
            ns = c.namespace("n")
            assert get_all(c, ns, [k for k, _ in pairs + others]) == {**dict(pairs), **dict.fromkeys(k for k, _ in others)}

    entry = {"red": f"  - {{name: red, users: [{ALICE}], pool: 16MiB}}\n",
             "blue": f"  - {{name: blue, users: [{BOB}], pool: 16MiB}}\n",
             "new": f"  - {{name: new, users: [{CAROL}], pool: 16MiB}}\n"}
    for order in (["blue", "red"], ["new", "blue", "red"], ["new", "red"], ["blue", "new", "red"]):
        daemon.stop()
        daemon.config.write_text("tenants:\n" + "".join(entry[name] for name in order))
        daemon.start()
        if "new" in order:
            check(CAROL, [], red_pairs + blue_pairs)
        check(ALICE, red_pairs, blue_pairs)
        if "blue" in order:
            check(BOB, blue_pairs, red_pairs)
        else:  # now a user of tenant default, which has no chunks
            check(BOB, [], red_pairs + blue_pairs)
    daemon.restart(kill=True)
    check(ALICE, red_pairs, blue_pairs)
    check(BOB, blue_pairs, red_pairs)


def test_R10_stored_bytes_over_the_limit_take_the_tenants_own_coldest(make):
    daemon = make(f"tenants:\n"
                  f"  - {{name: red, users: [{ALICE}], pool: 16MiB, stored_bytes: 4MiB}}\n"
                  f"  - {{name: blue, users: [{BOB}], pool: 16MiB}}\n")
    red, blue = client_as(daemon, ALICE), client_as(daemon, BOB)
    kept = items("blue", 40, 64 * KIB)
    put_all(blue, blue.namespace("n"), kept, ack=Ack.WRITTEN)
    pairs = items("red", 200, 64 * KIB)
    ns = red.namespace("n")
    put_all(red, ns, pairs, ack=Ack.WRITTEN, batch=1)  # the keys of a message are a chain, whose end goes first
    stored = usage(daemon, "red")["stored_bytes"]
    assert stored["limit"] == 4 * MIB and 3 * MIB < stored["used"] <= 4 * MIB
    here = [i for i, tiers in enumerate(red.exists(ns, [k for k, _ in pairs])) if tiers & kvwire.Tier.DISK]
    assert here == list(range(200 - len(here), 200)), "its coldest, and no others"
    assert all(t & kvwire.Tier.DISK for t in blue.exists(1, [k for k, _ in kept]))
    assert daemon.metric('kvcache_tenant_max_stored_bytes{tenant="red"}') == 4 * MIB
    assert daemon.metric('kvcache_tenant_max_stored_bytes{tenant="blue"}') == float("inf")

    # Lowered by a reload: at once.
    daemon.config.write_text(daemon.config.read_text().replace("4MiB", "2MiB"))
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: usage(daemon, "red")["stored_bytes"]["used"] <= 2 * MIB, "the lower limit is kept")
    assert all(t & kvwire.Tier.DISK for t in blue.exists(1, [k for k, _ in kept]))
    # And at startup.
    red.close()
    blue.close()
    daemon.stop()
    daemon.config.write_text(daemon.config.read_text().replace("2MiB", "1MiB"))
    daemon.start()
    assert 0 < usage(daemon, "red")["stored_bytes"]["used"] <= MIB
    with client_as(daemon, BOB) as blue:
        assert get_all(blue, blue.namespace("n"), [k for k, _ in kept]) == dict(kept)


def test_R10_a_tenants_limits_are_its_own_and_are_seen(make):
    daemon = make(f"tenants:\n"
                  f"  - {{name: red, users: [{ALICE}], pool: 16MiB, connections: 2, leases: 3, staging_bytes: 1MiB}}\n"
                  f"  - {{name: blue, users: [{BOB}], pool: 16MiB}}\n")
    first, second = client_as(daemon, ALICE), client_as(daemon, ALICE)
    with pytest.raises(kvwire.SessionEnded):
        client_as(daemon, ALICE)
    blue = client_as(daemon, BOB)
    first.staging(MIB)
    with pytest.raises(kvwire.Refused) as e:
        second.staging(64 * KIB)
    assert e.value.status == Status.QUOTA
    blue.staging(2 * MIB)

    pairs = items("leases", 6, 10000)
    keys = [k for k, _ in pairs]
    ns = first.namespace("n")
    put_all(first, ns, pairs, ack=Ack.WRITTEN)
    results = first.get(ns, keys)
    assert [r.status for r in results] == [Status.OK] * 3 + [Status.QUOTA] * 3
    assert second.get(second.namespace("n"), keys[:1])[0].status == Status.QUOTA
    red = usage(daemon, "red")
    assert red["leases"] == {"used": 3, "limit": 3} and red["connections"] == {"used": 2, "limit": 2}
    assert red["staging_bytes"] == {"used": MIB, "limit": MIB} and red["refused"] >= 5
    shown = harness.ctl("status", daemon=daemon, check=0).stdout
    assert "red" in shown and "blue" in shown
    assert daemon.metric('kvcache_tenant_leases{tenant="red"}') == 3
    assert daemon.metric('kvcache_tenant_quota_refusals_total{tenant="red"}') == red["refused"]
    assert "tenant red: staging bytes are at the limit of the tenant (tenants.staging_bytes)" in daemon.log()
    first.close()
    wait_until(lambda: usage(daemon, "red")["leases"]["used"] == 0, "the leases are back")
    assert second.get(1, keys[:1])[0].status == Status.OK
    second.close()
    blue.close()


def test_R10_a_users_limits_hold_in_whatever_tenant(make):
    daemon = make(settings={"limits.uid_connections": 2, "limits.uid_leases": 1})
    a, b = client_as(daemon, ALICE), client_as(daemon, ALICE, groups=[ML])
    with pytest.raises(kvwire.SessionEnded):
        client_as(daemon, ALICE)
    c = client_as(daemon, BOB)
    pairs = items("x", 2, 5000)
    put_all(a, a.namespace("n"), pairs, ack=Ack.WRITTEN)
    assert a.get(1, [pairs[0][0]])[0].status == Status.OK
    assert b.get(b.namespace("n"), [pairs[1][0]])[0].status == Status.QUOTA
    assert f": leases of user {ALICE} are at the limit of one user (limits.uid_leases)" in daemon.log()
    put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)
    assert c.get(1, [pairs[1][0]])[0].status == Status.OK
    for s in (a, b, c):
        s.close()


def test_an_admin_purges_chunks_of_all_tenants(make):
    daemon = make()
    clients = [(client_as(daemon, uid), items(f"p{uid}", 5, 10000)) for uid in (ALICE, BOB)]
    for c, pairs in clients:
        put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)
    with daemon.client() as admin:
        assert admin.purge(everything=True) == 10
    for c, pairs in clients:
        assert get_all(c, 1, [k for k, _ in pairs]) == dict.fromkeys(k for k, _ in pairs)
        c.close()


def test_an_unknown_user_or_group_of_a_tenant_is_reported(make):
    daemon = make("tenants:\n  - {name: red, users: [no-such-user-here]}\n", start=False).spawn()
    assert daemon.wait_exit() == 78
    assert "no-such-user-here" in daemon.log()


def test_printed_tenants_can_be_read_back(make, directory):
    daemon = make()
    with daemon.client() as c:
        text = c.report(kvwire.Report.CONFIG)
    assert "- name: red" in text and "pool: 16MiB" in text
    again = directory / "again.yaml"
    again.write_text(text)
    result = harness.subprocess.run([harness.DAEMON, "--config", again, "--check-config"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
