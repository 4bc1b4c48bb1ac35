# SPDX-License-Identifier: Apache-2.0
"""Data files that were lent to a user without access now: its descriptors show no later chunk (R1).

A descriptor outlives its session and the daemon. Rights change with a restart. If they differ from those of the last startup, startup
replaces each data file that is still open in another process by a copy.
"""

import mmap
import os
import subprocess

import pytest

import harness
from harness import KIB, get_all, items, put_all, wait_until
from kvwire import Ack, Tier
from test_gds import forget
from users import client_as

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs to become other users")

ALICE, MALLORY, BOB, TEAM = 20001, 20002, 20003, 30001
RED = "tenants:\n  - name: red\n    pool: 16MiB\n    users: {}\n    groups: {}\n  - name: blue\n    pool: 16MiB\n    users: {}\n"
BEFORE = RED.format(f"[{ALICE}, {MALLORY}]", f"[{TEAM}]", f"[{BOB}]")
MARK = b"put after the rights have changed" * 2000

CHANGES = {
    "user": RED.format(f"[{ALICE}]", f"[{TEAM}]", f"[{BOB}]"),
    "group": RED.format(f"[{ALICE}, {MALLORY}]", "[]", f"[{BOB}]"),
    "moved to another tenant": RED.format(f"[{ALICE}]", f"[{TEAM}]", f"[{BOB}, {MALLORY}]"),
}


@pytest.fixture
def daemon(make_daemon, directory):
    """Makes a store that is full after two hundred chunks, so that later puts take the slots of earlier ones."""
    daemon = make_daemon(settings={"store.prewrite": "off", "io.gds": "on", "store.limit": "16MiB", "listen.mode": "0666"})
    daemon.config = directory / "rights.yaml"
    daemon.config.write_text(BEFORE)
    daemon.start()
    if not all(v["direct"] for v in daemon.status()["store"]["volumes"]):
        pytest.skip("no O_DIRECT here")
    return daemon


def borrow_files(daemon, uid, groups=()):
    """Returns the chunks that the user can read by itself, and the descriptors of their files."""
    pairs = dict(items("before", 200, 60 * KIB))
    with client_as(daemon, ALICE) as c:
        put_all(c, c.namespace("n"), list(pairs.items()), ack=Ack.WRITTEN)
    with client_as(daemon, uid, groups=groups) as c:
        ns = c.namespace("n")
        keys = [k for k, t in zip(pairs, c.exists(ns, list(pairs))) if t & Tier.DISK]
        forget(c, ns, keys)
        get_all(c, ns, keys)  # the daemon lends only chunks that it has read back
        forget(c, ns, keys)
        files = {r.loan.file for r in c.borrow(ns, keys) if r.loan}
        assert files
        return {k: pairs[k] for k in keys}, [c.lent_file(file) for file in files]


def put_later(daemon):
    with client_as(daemon, ALICE) as c:
        put_all(c, c.namespace("n"), [(harness.key_of("after", i), MARK) for i in range(400)], ack=Ack.WRITTEN)


def shows_later_puts(fds):
    found = False
    for fd in fds:
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as m:
            found |= m.find(MARK[:4096]) >= 0
    return found


def detached(daemon):
    return daemon.metric("kvcache_store_detached_files_total")


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill"])
@pytest.mark.parametrize("change", CHANGES)
def test_R1_a_lent_file_shows_no_later_chunk_to_a_user_without_rights(daemon, change, kill):
    stored, fds = borrow_files(daemon, MALLORY, groups=(TEAM,))
    daemon.config.write_text(CHANGES[change])
    daemon.restart(kill=kill)
    assert detached(daemon) == len(fds)
    assert "access rights have changed while other processes have data files open" in daemon.log()
    assert "replaced by copies, and the old files get no further chunk" in daemon.log()
    with client_as(daemon, ALICE) as c:  # the copies have all chunks
        assert get_all(c, c.namespace("n"), list(stored)) == stored
    assert daemon.status()["store"]["volumes"][0]["lost_chunks"] == 0
    daemon.restart(kill=kill)
    assert detached(daemon) == 0, "the files that have names are open in no other process"
    put_later(daemon)
    assert not shows_later_puts(fds)


def test_files_stay_as_they_are_while_rights_do(daemon):
    """A user that keeps its rights sees later chunks, as permitted, and nothing is copied."""
    _, fds = borrow_files(daemon, MALLORY)
    daemon.restart()
    assert detached(daemon) == 0
    put_later(daemon)
    assert shows_later_puts(fds)


def test_files_that_no_process_has_open_are_not_copied(daemon):
    _, fds = borrow_files(daemon, MALLORY)
    for fd in fds:
        os.close(fd)
    daemon.config.write_text(CHANGES["user"])
    daemon.restart()
    assert detached(daemon) == 0


def test_R1_a_lent_file_that_cannot_be_copied_is_removed_and_its_loss_reported(daemon, directory):
    """If there is no room for a copy, the file loses its name, and its chunks are misses."""
    daemon.stop()
    mount = directory / "small"
    mount.mkdir()
    image = directory / "image"
    with open(image, "wb") as f:
        f.truncate(24 << 20)
    if subprocess.run(["mkfs.ext4", "-q", "-m0", image], capture_output=True).returncode or \
            subprocess.run(["mount", "-o", "loop", image, mount], capture_output=True).returncode:
        pytest.skip("no loop device here")
    try:
        daemon.settings["store.path"] = mount / "store"
        daemon.start()
        _, fds = borrow_files(daemon, MALLORY)
        daemon.config.write_text(CHANGES["user"])
        daemon.stop()
        with open(mount / "filler", "wb") as f:
            os.posix_fallocate(f.fileno(), 0, os.statvfs(mount).f_bavail * os.statvfs(mount).f_frsize - 64 * KIB)
        daemon.start()
        volume = daemon.status()["store"]["volumes"][0]
        assert volume["lost_chunks"] > 0
        assert "was open in another process after access rights had changed, could not be copied, and was removed" in daemon.log()
        os.unlink(mount / "filler")
        put_later(daemon)
        assert not shows_later_puts(fds)
    finally:
        for fd in fds:
            os.close(fd)
        daemon.stop()
        # The rings of a process that has ended hold their files a little longer.
        wait_until(lambda: subprocess.run(["umount", mount], capture_output=True).returncode == 0, "the file system is unmounted", 20)
