# SPDX-License-Identifier: Apache-2.0
"""The directory of a running store is moved, emptied or replaced: the daemon notices, reports it, and acknowledges nothing more."""

import contextlib
import os
import re
import shutil
import subprocess

import pytest

from harness import KIB, ctl, get_all, items, put_all, wait_until
from kvwire import Ack, Refused, Status


def empty(path):
    for name in path.iterdir():
        shutil.rmtree(name) if name.is_dir() else name.unlink()


def empty_but_for_a_new_file(path):
    """Empties the directory except for a data file that the daemon made after the files to remove were listed."""
    for name in path.iterdir():
        if not name.name.startswith("segment-"):
            name.unlink()
    for name in sorted(path.glob("segment-*"))[:-1]:
        name.unlink()


def move(path):
    path.rename(path.with_name("moved"))


def replace(path):
    move(path)
    path.mkdir(mode=0o700)


def copy(path):
    """Replaces the directory by a copy."""
    move(path)
    shutil.copytree(path.with_name("moved"), path)


def link_to_copy(path):
    """Replaces the directory by a symbolic link to a copy."""
    copy(path)
    path.rename(path.with_name("copied"))
    path.symlink_to(path.with_name("copied"))


def mount_over(path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "kvcache-test", path], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")


def replace_lock(path):
    (path / "LOCK").unlink()
    (path / "LOCK").touch()


def remove(name):
    def act(path):
        found = sorted(path.glob(name))
        assert found
        for file in found:
            file.unlink()

    act.__name__ = f"remove {name}"
    return act


def exchange(name):
    """Copies take the names of files."""
    def act(path):
        for file in sorted(path.glob(name)):
            shutil.copy2(file, path / "copy")
            (path / "copy").rename(file)

    act.__name__ = f"exchange {name}"
    return act


def cut(name):
    def act(path):
        for file in sorted(path.glob(name)):
            os.truncate(file, file.stat().st_size // 2)

    act.__name__ = f"cut {name}"
    return act


def volume(daemon, number=0):
    return daemon.status()["store"]["volumes"][number]


def written(daemon, pairs):
    """Returns the statuses of puts with the acknowledgement `written`."""
    with daemon.client() as c:
        return {r.status for r in put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN).values()}


@pytest.fixture(autouse=True)
def unmounted(directory):
    yield
    while subprocess.run(["umount", "-l", directory / "d0" / "store"], capture_output=True).returncode == 0:
        pass


@pytest.fixture
def daemon(make_daemon):
    daemon = make_daemon(settings={"store.prewrite": "off"})
    daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"
    daemon.start()
    assert written(daemon, items("before", 20, 20 * KIB)) == {Status.OK}
    return daemon


@pytest.mark.parametrize("act", [empty, move, replace, copy, link_to_copy, mount_over, replace_lock, remove("LOCK"), remove("superblock"),
                                 remove("table"), remove("segment-*"), exchange("table"), exchange("segment-*"), cut("table"),
                                 cut("segment-*")], ids=lambda act: act.__name__)
def test_a_directory_that_is_no_longer_the_stores_own_is_noticed(daemon, act):
    """The volume is bypassed with this reason in the log, in health and in /readyz, and no put is answered `written`."""
    act(daemon.store)
    wait_until(lambda: volume(daemon)["state"] == "bypassed", "the volume is bypassed", 20)
    reason = volume(daemon)["reason"]
    assert "lost: restart the daemon" in reason and re.search("removed|was replaced by another|was cut", reason), reason
    assert f"volume {daemon.store} is bypassed: {reason}" in daemon.log()
    code, _, body = daemon.http("/readyz")
    assert code == 503 and reason.encode() in body
    assert reason in ctl("device", "ls", daemon=daemon, check=0).stdout
    assert Status.OK not in written(daemon, items("after", 5, 20 * KIB))


@pytest.mark.parametrize("act", [empty, empty_but_for_a_new_file, move, replace, copy, replace_lock, remove("LOCK"), remove("segment-*")],
                         ids=lambda act: act.__name__)
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "once noticed"])
def test_the_next_start_accepts_files_that_the_daemon_left(daemon, act, waits):
    """Files that the daemon wrote after its directory was emptied do not obstruct the next startup."""
    act(daemon.store)
    if waits:
        wait_until(lambda: volume(daemon)["state"] == "bypassed", "the volume is bypassed", 20)
    else:
        # A write may show the daemon that its directory is not there any more, and then it refuses the rest.
        with daemon.client() as c, contextlib.suppress(Refused):
            c.namespace("made after that")
            put_all(c, c.namespace("n"), items("after", 40, 20 * KIB), ack=Ack.ACCEPTED)
            c.purge(c.namespace("n"))
    daemon.restart()
    fresh = items("fresh", 20, 20 * KIB)
    assert written(daemon, fresh) == {Status.OK}
    with daemon.client() as c:
        assert get_all(c, c.namespace("n"), [k for k, _ in fresh]) == dict(fresh)


def test_a_kill_after_the_loss_was_noticed_leaves_no_data_file(daemon):
    empty_but_for_a_new_file(daemon.store)
    assert list(daemon.store.glob("segment-*"))
    wait_until(lambda: not list(daemon.store.glob("segment-*")), "the data file is removed", 20)
    daemon.kill()
    daemon.start()
    assert written(daemon, items("fresh", 5, 20 * KIB)) == {Status.OK}


def test_data_files_stay_while_a_superblock_or_table_is_there(daemon):
    (daemon.store / "superblock").rename(daemon.store.parent / "superblock")
    wait_until(lambda: volume(daemon)["state"] == "bypassed", "the volume is bypassed", 20)
    daemon.stop()
    (daemon.store.parent / "superblock").rename(daemon.store / "superblock")
    daemon.start()
    pairs = items("before", 20, 20 * KIB)
    with daemon.client() as c:
        assert get_all(c, c.namespace("n"), [k for k, _ in pairs]) == dict(pairs)


def test_a_symbolic_link_to_the_directory_is_the_same_directory(daemon):
    """The directory moves, and a link takes its name: chunks are found by the old name, so nothing is lost or reported."""
    move(daemon.store)
    daemon.store.symlink_to(daemon.store.with_name("moved"))
    pairs = items("after", 20, 20 * KIB)
    assert written(daemon, pairs) == {Status.OK}
    at = daemon.metric("kvcache_uptime_seconds")
    wait_until(lambda: daemon.metric("kvcache_uptime_seconds") > at + 4, "the daemon has compared its directory", 20)
    assert volume(daemon)["state"] == "up"
    daemon.restart()
    assert "lost" not in daemon.log()
    with daemon.client() as c:
        assert get_all(c, c.namespace("n"), [k for k, _ in pairs]) == dict(pairs)


def test_another_volume_continues(make_daemon, directory):
    paths = [directory / "v1", directory / "v2"]
    daemon = make_daemon(settings={"store.path": ",".join(map(str, paths)), "store.prewrite": "off"}).start()
    assert written(daemon, items("before", 40, 20 * KIB)) == {Status.OK}
    empty(paths[1])
    wait_until(lambda: volume(daemon, 1)["state"] == "bypassed", "the volume is bypassed", 20)
    assert volume(daemon, 0)["state"] == "up"
    assert written(daemon, items("after", 40, 20 * KIB)) == {Status.OK}


def test_R3_a_second_daemon_is_refused_though_the_lock_file_is_gone(daemon, make_daemon):
    """The directory itself is locked, so that removing the file opens the store to no other daemon."""
    (daemon.store / "LOCK").unlink()
    second = make_daemon(store=daemon.store)
    second.spawn()
    assert second.wait_exit() == 75
    assert "another kvcache-daemon has this store open" in second.log()
