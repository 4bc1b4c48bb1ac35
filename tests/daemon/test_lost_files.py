# SPDX-License-Identifier: Apache-2.0
"""Files of a store that are missing, empty or short at startup: the loss is reported by file and number, once."""

import os
import re
import shutil

import pytest

from harness import KIB, ctl, get_all, items, put_all
from kvwire import Ack, Status, Tier

PAIRS = dict(items("stored", 120, 60 * KIB))


def put(daemon, pairs, name="n"):
    with daemon.client() as c:
        assert {r.status for r in put_all(c, c.namespace(name), list(pairs.items()), ack=Ack.WRITTEN).values()} == {Status.OK}


def stored(daemon, name="n"):
    with daemon.client() as c:
        found = get_all(c, c.namespace(name), list(PAIRS))
    assert all(v is None or v == PAIRS[k] for k, v in found.items())
    return {k for k, v in found.items() if v is not None}


def volume(daemon):
    return daemon.status()["store"]["volumes"][0]


def losses(log):
    return [line for line in log.splitlines() if re.search(r"warning: volume .*(is|are) lost", line)]


@pytest.fixture
def daemon(make_daemon):
    daemon = make_daemon(settings={"store.prewrite": "off", "store.limit": "64MiB", "memory.pool": "16MiB"})
    daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"
    daemon.start()
    put(daemon, PAIRS)
    return daemon


def segments(daemon):
    return sorted(daemon.store.glob("segment-*"))


def remove(path):
    path.unlink()


def empty(path):
    os.truncate(path, 0)


def cut(path):
    os.truncate(path, path.stat().st_size // 3)


def restart(daemon, act, kill):
    """Stops the daemon, acts, starts it, and returns the lines that report losses."""
    daemon.kill() if kill else daemon.stop()
    at = len(daemon.log())
    act()
    daemon.start()
    return losses(daemon.log()[at:])


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
@pytest.mark.parametrize("act", [remove, empty, cut], ids=lambda act: act.__name__)
def test_chunks_of_a_missing_or_short_file_are_reported_where_operators_look(daemon, act, kill):
    path = segments(daemon)[1]
    lines = restart(daemon, lambda: act(path), kill)
    lost = len(PAIRS) - len(stored(daemon))
    assert lost > 0 and len(lines) == 1, lines
    how = "is shorter than it was" if act is cut else "is missing or empty"
    assert lines[0].endswith(f"volume {daemon.store}: the data file {path.name} {how}: {lost} chunks are lost")
    assert (volume(daemon)["lost_chunks"], volume(daemon)["lost_files"]) == (lost, 1)
    assert daemon.metric("kvcache_store_lost_chunks_total") == lost
    assert daemon.metric(f'kvcache_volume_lost_chunks_total{{volume="{daemon.store}"}}') == lost
    assert daemon.metric(f'kvcache_volume_lost_files_total{{volume="{daemon.store}"}}') == 1
    assert daemon.metric('kvcache_degraded{reason="volume_losses"}') == 1
    assert any(f"lost {lost} chunks" in text for text in map(str, daemon.status()["degraded"]))
    assert f"lost {lost} chunks" in daemon.http("/readyz")[2].decode()
    assert f"1 file missing or short when the volume was opened, and {lost} chunks lost" in ctl("device", "ls", daemon=daemon).stdout
    doctor = ctl("doctor", daemon=daemon, check=None).stdout
    assert f"1 files were missing or short when the volume was opened, with {lost} chunks" in doctor
    # The next startup is clean, and so is a put of the same chunks.
    assert restart(daemon, lambda: None, kill) == []
    assert volume(daemon)["lost_chunks"] == 0 and daemon.metric('kvcache_degraded{reason="volume_losses"}') == 0
    with daemon.client() as c:
        put_all(c, c.namespace("n"), list(PAIRS.items()), ack=Ack.WRITTEN)
    assert stored(daemon) == set(PAIRS)
    assert restart(daemon, lambda: None, kill) == [] and stored(daemon) == set(PAIRS)


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
def test_all_data_files_may_be_missing(daemon, kill):
    """The last data files, to which no file with a higher number points, are covered as well: every chunk is counted."""
    lines = restart(daemon, lambda: [path.unlink() for path in segments(daemon)], kill)
    assert stored(daemon) == set()
    assert sum(int(re.search(r"(\d+) chunks? (is|are) lost", line).group(1)) for line in lines) == len(PAIRS)
    assert volume(daemon)["lost_chunks"] == len(PAIRS)
    assert restart(daemon, lambda: None, kill) == []


def test_new_files_with_the_numbers_of_lost_ones_have_no_chunk_of_before(daemon):
    """A chunk that was reported as lost is absent, and does not come back as one whose checksum fails."""
    restart(daemon, lambda: [path.unlink() for path in segments(daemon)], False)
    for _ in range(2):
        with daemon.client() as c:
            assert not any(tiers & Tier.DISK for tiers in c.exists(c.namespace("n"), list(PAIRS)))
        assert volume(daemon)["errors"]["checksum"] == 0
        restart(daemon, lambda: None, False)


def test_both_lists_of_namespaces_may_be_missing(daemon):
    lines = restart(daemon, lambda: [path.unlink() for path in daemon.store.glob("namespaces.*")], False)
    assert len(lines) == 1 and f"both lists of namespaces are missing or damaged: {len(PAIRS)} chunks are lost" in lines[0]
    assert stored(daemon) == set() and volume(daemon)["lost_chunks"] == len(PAIRS)
    assert restart(daemon, lambda: None, False) == []


@pytest.mark.parametrize("act, said", [(remove, 'the file "table" is missing or empty: all chunks are lost'),
                                       (empty, 'the file "table" is missing or empty: all chunks are lost'),
                                       (cut, 'the file "table" has ')], ids=["remove", "empty", "cut"])
def test_a_missing_or_short_table_is_reported(daemon, act, said):
    lines = restart(daemon, lambda: act(daemon.store / "table"), False)
    assert len(lines) == 1 and said in lines[0]
    assert daemon.metric('kvcache_degraded{reason="volume_losses"}') == 1
    assert restart(daemon, lambda: None, False) == []


def test_a_copy_of_a_running_store_is_reported_and_one_at_rest_is_not(daemon):
    def copy(name):
        shutil.copytree(daemon.store, daemon.store.with_name(name))
        shutil.rmtree(daemon.store)
        daemon.store.with_name(name).rename(daemon.store)

    lines = restart(daemon, lambda: copy("at rest"), False)
    assert lines == [] and "is a copy" not in daemon.log() and stored(daemon) == set(PAIRS)
    daemon.kill()
    copy("in use")
    daemon.start()
    assert "its directory is a copy, or was restored, and was in use when it was copied" in daemon.log()
    assert stored(daemon) == set(PAIRS)


def test_a_removal_by_the_volume_itself_is_no_loss(daemon):
    """A lower limit removes data files; raised again, the files are made again, and no startup reports a loss."""
    put(daemon, dict(items("more", 400, 60 * KIB)))
    for limit in ("20MiB", "64MiB", "16MiB", "64MiB"):
        daemon.settings["store.limit"] = limit
        assert restart(daemon, lambda: None, False) == []
        assert volume(daemon)["lost_files"] == 0
    with daemon.client() as c:
        put_all(c, c.namespace("n"), list(PAIRS.items()), ack=Ack.WRITTEN)
    assert restart(daemon, lambda: None, True) == [] and stored(daemon) == set(PAIRS)


@pytest.mark.parametrize("act", [remove, cut], ids=lambda act: act.__name__)
def test_a_stop_reports_a_loss_of_the_last_second(daemon, act):
    """The daemon compares its files about once a second; a stop does it once more."""
    at = len(daemon.log())
    act(segments(daemon)[0])
    daemon.stop()
    said = daemon.log()[at:]
    assert "while the daemon used it" in said and "chunks written there since then are lost" in said


def test_verify_reports_losses_and_leaves_them_to_the_daemon(daemon):
    daemon.stop()
    segments(daemon)[1].unlink()
    done = ctl("verify", "--store", daemon.store, check=None)
    assert re.search(r"1 file is missing or short, and \d+ chunks are lost", done.stdout), done.stdout
    assert done.returncode == 1
    at = len(daemon.log())
    daemon.start()
    assert len(losses(daemon.log()[at:])) == 1
