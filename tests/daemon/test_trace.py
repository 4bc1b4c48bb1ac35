# SPDX-License-Identifier: Apache-2.0
"""kvcache-bench trace, and io.stages, by which it sees where the time of a batch goes."""

import json
import os
import struct

import pytest

import kvwire
from harness import bench, ctl, wait_until
from kvwire import Op, Status
from test_gds import STRANGER
from users import client_as

SAMPLE = 'kvcache_stage_duration_seconds_count{stage="%s"}'
STAGES = ("wait", "submit", "queue", "device", "compute", "return")


@pytest.fixture
def traced(make_daemon, directory):
    """Provides a daemon with io.stages off, whose configuration can be reloaded, and the configuration file."""
    path = directory / "kvcache.yaml"
    path.write_text("io:\n  stages: off\n")
    return make_daemon(config=path, settings={"memory.pool": "32MiB"}).start(), path


def turn(daemon, path, word):
    path.write_text(f"io:\n  stages: {word}\n")
    ctl("reload", daemon=daemon, check=0)


def stages(client):
    return json.loads(client.report(kvwire.Report.STAGES))


def test_trace_shows_every_stage_of_a_batch(traced):
    daemon, path = traced
    turn(daemon, path, "on")
    said = json.loads(bench("--json", "trace", "--batches", "8", daemon=daemon, check=0).stdout)
    assert said["wrong_bytes"] == 0 and said["keys"] == 16 and said["block_bytes"] == 65536
    assert [p["phase"] for p in said["phases"]] == ["put", "cold get", "hot get"]
    for phase in said["phases"]:
        points = {p["point"]: p["p50_us"] for p in phase["points"]}
        assert phase["batches"] == 8 and phase["unseen"] == 0
        # The points are ordered by time, from the loop's to the end of the call.
        assert list(points.values()) == sorted(points.values())
        assert points["the daemon's loop has the request"] >= 0
        assert points["the client's call returns"] == phase["p50_us"] > 0
    put, cold, hot = ({p["point"] for p in phase["points"]} for phase in said["phases"])
    assert {"a worker gives the device the first write", "the loop has the table's page"} <= put
    assert {"the device is done with the last read", "the last read's checksum is compared"} <= cold
    assert not any("write" in point for point in cold)
    assert not any("the device" in point for point in hot)
    for stage in STAGES:
        assert daemon.metric(SAMPLE % stage) > 0, stage
    # Copies by the library are counted like copies by the daemon.
    copies = 'kvcache_transfer_ops_total{path="host_to_host",layout="fully_contiguous",technology="memcpy",result="ok"}'
    wait_until(lambda: daemon.metrics().get(copies, 0) >= 8 * 16, "the copies of the hot gets")
    # The command leaves nothing behind.
    assert daemon.status()["store"]["chunks"] == 0


def test_people_read_a_table(traced):
    daemon, path = traced
    turn(daemon, path, "on")
    said = bench("trace", "--batches", "2", "--keys", "3", "--block-bytes", "5000", daemon=daemon, check=0).stdout
    for line in ("put of 3 x 4.88 KiB: ", "cold get of 3 x 4.88 KiB: ", "hot get of 3 x 4.88 KiB: ", "the reply is in the socket", "wrong bytes: 0"):
        assert line in said, said


def test_trace_without_io_stages_reports_the_remedy(traced):
    daemon, path = traced
    refused = bench("trace", daemon=daemon, check=4)
    assert refused.stdout == "" and "set io.stages to on" in refused.stderr and "kvcachectl reload" in refused.stderr
    assert all(daemon.metric(SAMPLE % stage) == 0 for stage in STAGES)
    with daemon.client() as c:
        assert stages(c) == {"on": False, "events": []}


def test_turned_off_nothing_more_is_counted(traced):
    daemon, path = traced
    turn(daemon, path, "on")
    bench("trace", "--batches", "1", daemon=daemon, check=0)
    turn(daemon, path, "off")
    before = [daemon.metric(SAMPLE % stage) for stage in STAGES]
    with daemon.client() as c:
        ns = c.namespace("stages", chunk_bytes=4096)
        c.exists(ns, [bytes(31) + b"\1"])
        assert stages(c)["on"] is False
    assert [daemon.metric(SAMPLE % stage) for stage in STAGES] == before


def test_only_admins_see_them(traced):
    daemon, path = traced
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    turn(daemon, path, "on")
    os.chmod(daemon.directory, 0o755)
    os.chmod(daemon.socket, 0o666)
    with client_as(daemon, STRANGER) as stranger:
        assert stranger.features & kvwire.FEATURE_STAGES
        assert stranger.call(Op.REPORT, struct.pack("<II", kvwire.Report.STAGES, 0), check=False).status == Status.DENIED


@pytest.mark.parametrize("arguments, says", [(["--keys", "0"], "--keys"), (["--keys", "513"], "--keys"), (["--batches", "0"], "--batches"),
                                             (["--block-bytes", "0"], "1 byte to 64MiB"), (["--block-bytes", "8MiB"], "1 byte to 64MiB"),
                                             (["operand"], "no arguments")])
def test_wrong_options_are_named(arguments, says):
    assert says in bench("trace", *arguments, check=2).stderr


def test_a_store_that_is_too_small_is_named(make_daemon):
    daemon = make_daemon(settings={"io.stages": "on", "store.limit": "16MiB", "memory.pool": "8MiB"}).start()
    assert "too small for 40 batches" in bench("trace", "--batches", "40", daemon=daemon, check=4).stderr
