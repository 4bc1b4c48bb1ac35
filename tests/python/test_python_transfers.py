# SPDX-License-Identifier: Apache-2.0
"""Client.count_transfer() counts the bytes that a program moves by itself."""

import os

import kvcache
import pytest

HERE = "host_to_device", "layer_separate_block_first", "cuda_copy"


def moved(daemon, kind, name="bytes_total"):
    labels = 'path="{}",layout="{}",technology="{}"'.format(*kind)
    return daemon.metrics().get(f'kvcache_transfer_{name}{{{labels},result="ok"}}', 0)


def test_it_is_in_the_metrics_and_in_a_session(daemon, client, blocks):
    with daemon.client() as admin:
        admin.bench(1, "A")
        assert client.count_transfer(*HERE, transfers=64, nbytes=64 * 4096, seconds=0.001, blocks=2, regions=64)
        assert client.count_transfer(*HERE, transfers=64, nbytes=64 * 4096, seconds=0.001, blocks=2, regions=64, device_bytes=64 * 8192)
        assert client.count_transfer(*HERE, transfers=1, nbytes=9, seconds=0, result="short")
        blocks.put([os.urandom(32)], [b"x" * 4096])  # makes the client receive the page
        assert client.count_transfer(*HERE, transfers=2, nbytes=4096, seconds=1e-6, blocks=1)
        row, = (m for m in admin.bench(2)["metrics"] if m["path"] == HERE[0])
        assert (row["layout"], row["technology"]) == HERE[1:]
        assert row["transfer_count"] == 130 and row["total_blocks"] == 5 and row["region_count"] == 128
        assert row["total_bytes"] == 128 * 4096 + 4096 and row["device_bytes"] == 64 * 4096 + 64 * 8192 + 4096
        assert (row["min_transfer_size"], row["max_transfer_size"]) == (2048, 4096)
        assert row["size_histogram"] == [[11, 2], [12, 128]] and row["errors"]["short"] == 1
        assert 0.0009 < row["busy_secs"] < 0.0021 and row["latency_secs"] == pytest.approx(0.002001)
    assert moved(daemon, HERE) == 129 * 4096 and moved(daemon, HERE, "ops_total") == 130


def test_there_is_room_for_sixteen_kinds(daemon, client, blocks):
    kinds = [("host_to_host", layout, technology) for layout in kvcache._library.LAYOUTS for technology in kvcache._library.TECHNOLOGIES]
    counted = [client.count_transfer(*kind, transfers=1, nbytes=1, seconds=0) for kind in kinds]
    assert counted == [True] * 16 + [False] * (len(kinds) - 16)
    assert client.count_transfer(*kinds[0], transfers=1, nbytes=1, seconds=0)


@pytest.mark.parametrize("wrong", [
    dict(path="disk_to_disk"), dict(layout="contiguous"), dict(technology="rdma"), dict(result="late"), dict(transfers=-1),
    dict(nbytes=2**64), dict(nbytes="1"), dict(seconds=-1.0), dict(blocks=1.5),
])
def test_what_it_does_not_take(client, wrong):
    with pytest.raises(kvcache.ArgumentError):
        client.count_transfer(**{**dict(zip(("path", "layout", "technology"), HERE)), "transfers": 1, "nbytes": 1, "seconds": 0.0, **wrong})


def test_no_operation_at_all_is_not_counted(client):
    assert not client.count_transfer(*HERE, transfers=0, nbytes=0, seconds=0)


def test_without_a_daemon_it_is_not_counted(directory):
    with kvcache.Client(directory / "nobody") as c:
        assert not c.count_transfer(*HERE, transfers=1, nbytes=1, seconds=0)
    with pytest.raises(kvcache.ClosedError):
        c.count_transfer(*HERE, transfers=1, nbytes=1, seconds=0)


def test_after_a_restart_it_goes_on_from_nothing(daemon, client, blocks):
    assert client.count_transfer(*HERE, transfers=5, nbytes=5000, seconds=0)
    daemon.kill()
    daemon.start()
    blocks.put([os.urandom(32)], [b"x" * 4096])
    assert client.count_transfer(*HERE, transfers=2, nbytes=200, seconds=0)
    blocks.put([os.urandom(32)], [b"x" * 4096])
    assert client.count_transfer(*HERE, transfers=1, nbytes=100, seconds=0)
    assert moved(daemon, HERE) == 300


def test_a_child_does_not_count(client, blocks, daemon):
    assert client.count_transfer(*HERE, transfers=1, nbytes=10, seconds=0)
    blocks.put([os.urandom(32)], [b"x" * 4096])
    child = os.fork()
    if child == 0:
        try:
            client.count_transfer(*HERE, transfers=1, nbytes=10, seconds=0)
        except kvcache.ForkedError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert moved(daemon, HERE) == 10
