# SPDX-License-Identifier: Apache-2.0
"""conf/grafana/kvcache.json: a real Prometheus that scrapes daemons under replay returns data for each query. Without Grafana, the test also
checks that panels do not overlap, and that each states its subject and unit, and shows the chosen daemons."""

import json
import math
import re
import runpy
import subprocess
import time

import pytest

import harness
from harness import BENCH, KIB, SOURCE, ctl, get_all, items, key_of, put_all, wait_until
from kvwire import Ack, Tier
from prometheus import Prometheus, free_port, scale

DASHBOARD = json.loads((SOURCE / "conf/grafana/kvcache.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
# Panels that are empty while nothing is wrong.
QUIET = {"Alerts", "Degraded"}
# Panels that should show 0; all others must show more during a replay.
GOOD_AT_ZERO = {"Not scraped", "Refused for a limit", "Volumes that are not in use", "Errors by volume", "Waiting for disk",
                "Share of limits in use", "Waiting for the shared tier", "Faults of the shared tier"}


def queries():
    """Yields (title of the panel, query as Prometheus gets it)."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], (target["expr"].replace("$__rate_interval", "10s").replace("$job", "kvcache.*")
                                   .replace("$instance", ".*"))


def test_panels_are_described_and_do_not_overlap():
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["w"] > 0 and place["x"] + place["w"] <= 24, panel["title"]
        for cell in ((x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])):
            assert cell not in taken, f"{panel['title']} lies over {taken.get(cell)}"
            taken[cell] = panel["title"]
    for panel in PANELS:
        assert panel["title"] and panel["description"] and panel["fieldConfig"]["defaults"]["unit"], panel
        assert panel["datasource"]["uid"] == "${datasource}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert target["expr"].count('job=~"$job", instance=~"$instance"') >= 1, target["expr"]
    assert [v["name"] for v in DASHBOARD["templating"]["list"]] == ["datasource", "job", "instance"]


def test_a_query_over_a_time_uses_the_interval_of_the_page():
    for panel in PANELS:
        for target in panel["targets"]:
            assert target["expr"].count("rate(") == target["expr"].count("[$__rate_interval]"), target["expr"]


def traffic(client):
    """Generates traffic that the replay lacks: written and durable puts, reads from disk, misses, a limit that refuses."""
    namespace = client.namespace("some")
    pairs = items(("dashboard", time.monotonic()), 8, 16 * KIB)
    keys = [k for k, _ in pairs]
    for part, ack in ((pairs[:3], Ack.WRITTEN), (pairs[3:6], Ack.DURABLE), (pairs[6:], Ack.ACCEPTED)):
        put_all(client, namespace, part, ack=ack)
    client.evict(namespace, keys[:6], Tier.MEMORY)
    get_all(client, namespace, keys + [key_of("none", time.monotonic())])
    client.evict(namespace, keys[3:6])  # found on the shared tier, where the others may have got to as well
    get_all(client, namespace, keys)
    refused = client.get(namespace, keys)
    client.release([r.lease for r in refused if r.lease])
    return refused


@pytest.fixture
def two(make_daemon, directory):
    """Starts a daemon under replay that has data for every panel, and an idle one."""
    ports = free_port(), free_port()
    (directory / "shared").mkdir()
    busy = make_daemon(settings={"store.path": f"{directory / 'a'},{directory / 'b'}", "store.limit": "32MiB", "memory.pool": "16MiB",
                                 "remote.backend": "directory", "remote.path": directory / "shared", "remote.write": "all",
                                 "remote.absence_lifetime": "100ms", "store.write_budget": "100TiB", "listen.http": f"127.0.0.1:{ports[0]}", "log.level": "info"})
    idle = make_daemon(settings={"listen.http": f"127.0.0.1:{ports[1]}"})
    busy.paths = [str(directory / name) for name in "ab"]
    return busy.start(), idle.start(), {"kvcache": {"busy": ports[0], "idle": ports[1]}}


def shows(prometheus, title, query):
    """Returns whether the query has a value that can be drawn; a quantile of no samples is NaN."""
    return any(math.isfinite(value) and (value > 0 or title in GOOD_AT_ZERO) for _, value in prometheus.query(query))


@pytest.mark.documents
def test_prometheus_takes_each_query_and_the_daemon_has_its_metrics(make_daemon, directory):
    """Nothing has happened to the daemon, so most queries are empty; test_each_query_returns_data_under_replay waits for data."""
    port = free_port()
    make_daemon(settings={"listen.http": f"127.0.0.1:{port}"}).start()
    samples, _ = runpy.run_path(str(SOURCE / "tests/check-alerts.py"))["metrics_of"](SOURCE)
    with Prometheus(directory / "prometheus", {"kvcache": {"idle": port}}) as prometheus:
        for title, query in queries():
            prometheus.query(query)
            assert set(re.findall(r"\b(?:kvcache|process)_\w+", query)) <= samples, title
        with pytest.raises(AssertionError, match="unclosed"):
            prometheus.query("sum(kvcache_up")


@pytest.mark.documents
@pytest.mark.serial
def test_each_query_returns_data_under_replay(two, directory):
    busy, idle, jobs = two
    rules = scale((SOURCE / "conf/prometheus/alerts.yaml").read_text(), 600)
    replay = [str(BENCH), "-s", busy.socket, "replay", "--synthetic", "chat", "--requests", "1000000", "--block-bytes", "32KiB"]
    with Prometheus(directory / "prometheus", jobs, rules, interval_ms=500) as prometheus:
        running = subprocess.Popen(replay, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   preexec_fn=harness.die_with_parent)
        try:
            with busy.client() as client:
                missing = list(queries())

                def all_shown():
                    traffic(client)
                    missing[:] = [(title, query) for title, query in missing if not shows(prometheus, title, query)]
                    return {title for title, _ in missing} <= QUIET
                wait_until(all_shown, lambda: "\n".join(f"{t}: {q}" for t, q in missing) + " return data", 60)
            assert running.poll() is None, "the replay ended too soon"
            assert {title for title, _ in missing} == QUIET, prometheus.query("ALERTS")

            ctl("device", "suspend", "1", daemon=busy, check=0)
            idle.stop()
            wait_until(lambda: all(shows(prometheus, *query) for query in missing), "what is wrong shows", 30)
        finally:
            running.kill()
            running.wait()
