# SPDX-License-Identifier: Apache-2.0
"""A volume whose device returns wrong bytes is reported in every place that an operator checks, and is finally bypassed."""

import json

import pytest

from harness import KIB, ctl, get_all, items, put_all
from kvwire import Ack, Status, Tier

CHUNKS, BUDGET = 200, 16


@pytest.fixture
def two(make_daemon, directory):
    """Makes a daemon with two volumes, both full of chunks that are only on disk; `pairs` are its chunks."""
    paths = [directory / "v1", directory / "v2"]
    daemon = make_daemon(settings={"store.path": ",".join(map(str, paths)), "store.scrub_rate": "0", "store.prewrite": "off",
                                   "store.error_budget": BUDGET})
    daemon.paths = paths
    daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"
    daemon.start()
    daemon.pairs = items("c", CHUNKS, 20 * KIB)
    with daemon.client() as c:
        put_all(c, c.namespace("n"), daemon.pairs, ack=Ack.DURABLE)
    return daemon


def damage(path):
    """Inverts a byte in each page of the volume's data files."""
    files = sorted(path.glob("segment-*"))
    assert files
    for name in files:
        data = bytearray(name.read_bytes())
        for at in range(100, len(data), 4096):
            data[at] ^= 255
        with open(name, "r+b") as f:
            f.write(data)


def missing(daemon, pairs):
    """Reads these chunks from disk. Returns how many are misses; no get may return a wrong byte."""
    with daemon.client() as c:
        ns = c.namespace("n")
        for at in range(0, len(pairs), 64):
            c.evict(ns, [k for k, _ in pairs[at:at + 64]], tiers=Tier.MEMORY)
        found = get_all(c, ns, [k for k, _ in pairs])
    assert all(v is None or v == dict(pairs)[k] for k, v in found.items())
    return sum(v is None for v in found.values())


def volumes(daemon):
    return daemon.status()["store"]["volumes"]


def metric(daemon, name, volume):
    return daemon.metric(f'kvcache_{name}{{volume="{volume}"}}')


def one_by_one(daemon, wanted):
    """Gets chunks one by one until `wanted` of them were damaged."""
    wrong = 0
    for pair in daemon.pairs:
        wrong += missing(daemon, [pair])
        if wrong == wanted:
            return
    raise AssertionError(f"only {wrong} chunks were wrong")


def test_wrong_bytes_are_shown_for_their_volume(two):
    """Failures below the budget appear in the status, device ls, the page, the metrics, health and /readyz; the other volume has none."""
    damage(two.paths[1])
    one_by_one(two, 3)
    status = two.status()
    good, bad = status["store"]["volumes"]
    assert (good["state"], bad["state"]) == ("up", "up")
    assert (good["errors"]["checksum"], bad["errors"]["checksum"]) == (0, 3)
    assert f"volume {two.paths[1]} returned wrong bytes for 3 chunks" in json.dumps(status["degraded"])
    assert metric(two, "volume_checksum_errors_total", two.paths[0]) == 0
    assert metric(two, "volume_checksum_errors_total", two.paths[1]) == 3
    assert two.metric('kvcache_degraded{reason="volume_checksums"}') == 1
    code, _, body = two.http("/readyz")
    assert code == 200 and f"degraded: volume {two.paths[1]} returned wrong bytes".encode() in body
    text = ctl("device", "ls", daemon=two, check=0).stdout
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("/")}
    assert " 3 " in rows[str(two.paths[1])] and " 3 " not in rows[str(two.paths[0])], text
    assert f"{two.paths[1]}: 3 chunks did not match their checksums" in text
    assert f"{two.paths[0]}:" not in text
    assert "DEGRADED" in ctl("status", daemon=two, check=None).stdout
    page = two.http("/")[2].decode()
    assert page.count('errors: <data value="3">3</data> checksum') == 1 and page.count("no errors") == 1, page


def test_a_volume_of_wrong_bytes_is_bypassed_and_resumed(two):
    """One more failure than the budget in a minute bypasses the volume: its chunks are misses, and the other volume serves all of its own."""
    on_good = volumes(two)[0]["chunks"]
    damage(two.paths[1])
    assert missing(two, two.pairs) == CHUNKS - on_good
    good, bad = volumes(two)
    assert (good["state"], bad["state"]) == ("up", "bypassed")
    assert "store.error_budget" in bad["reason"] and "checksum" in bad["reason"]
    assert BUDGET < bad["errors"]["checksum"] <= CHUNKS - on_good
    assert good["errors"]["checksum"] == 0
    assert metric(two, "volume_failed", two.paths[1]) == 1
    assert b"is bypassed: more than 16 errors in a minute" in two.http("/readyz")[2]
    assert missing(two, two.pairs) == CHUNKS - on_good
    fresh = items("fresh", 40, 20 * KIB)
    with two.client() as c:
        replies = put_all(c, c.namespace("n"), fresh, ack=Ack.DURABLE)
    assert {r.status for r in replies.values()} == {Status.OK}
    assert missing(two, fresh) == 0
    ctl("device", "resume", str(two.paths[1]), daemon=two, check=0)
    assert volumes(two)[1]["state"] == "up"
    said = json.loads(ctl("verify", "--json", daemon=two, check=1).stdout)
    assert said["complete"] and said["mismatched"] > 0
    assert json.loads(ctl("verify", "--json", daemon=two, check=0).stdout)["mismatched"] == 0


def test_verify_finds_and_counts_all_damage(two):
    """Damage that `kvcachectl verify` finds is counted and shown, and does not bypass the volume."""
    on_bad = volumes(two)[1]["chunks"]
    assert on_bad > BUDGET
    damage(two.paths[1])
    said = json.loads(ctl("verify", "--json", daemon=two, check=1).stdout)
    assert said["complete"] and said["mismatched"] == on_bad
    good, bad = volumes(two)
    assert bad["state"] == "up" and (good["errors"]["checksum"], bad["errors"]["checksum"]) == (0, on_bad)
    assert two.metric('kvcache_degraded{reason="volume_checksums"}') == 1
