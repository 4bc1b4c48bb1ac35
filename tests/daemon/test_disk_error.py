# SPDX-License-Identifier: Apache-2.0
"""A real disk error: one of two volumes is on a loop device whose disk fails on command (fusedisk.py), so that the daemon gets the kernel's
answers for a broken device: EIO of O_DIRECT reads and writes, of syncs, and of the file system."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from harness import KIB, MIB, ctl, get_all, items, put_all, slow, spawn, wait_until
from kvwire import Ack, Status, Tier

HERE = pathlib.Path(__file__).resolve().parent


def run(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=60 * slow())


def must(*command):
    done = run(*command)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout.strip()


class Disk:
    """A file system on a loop device, whose disk fails on command if `can_fail`. Volumes share the limit in proportion to their file systems, so
    the good one has the same size."""

    def __init__(self, directory, can_fail):
        self.directory, self.can_fail = directory, can_fail
        self.switch = directory / "switch"
        self.mount = directory / "mount"
        self.loop = None
        self.server = None

    def why_not(self):
        if os.geteuid() != 0:
            return "needs root"
        for tool in ("losetup", "mkfs.ext4", "mount", "umount"):
            if not shutil.which(tool):
                return f"there is no {tool} here"
        if not os.path.exists("/dev/fuse") or not os.path.exists("/dev/loop-control"):
            return "this kernel has no FUSE, or no loop devices"
        return None

    def open(self):
        """Mounts it. Returns the reason if this machine does not allow that."""
        reason = self.why_not()
        if reason:
            return reason
        for folder in (self.directory, self.directory / "fuse", self.mount):
            folder.mkdir()
        backing = self.directory / "backing"
        with open(backing, "wb") as f:
            f.truncate(256 * MIB)
        under = backing
        if self.can_fail:
            under = self.directory / "fuse" / "disk"
            reason = self._serve(backing)
            if reason:
                return reason
        done = run("losetup", "--find", "--show", under)
        if done.returncode != 0:
            return f"no loop device: {done.stderr.strip()}"
        self.loop = done.stdout.strip()
        # A failing journal would leave the file system read-only permanently.
        must("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=0", self.loop)
        must("mount", "-o", "errors=continue", self.loop, self.mount)
        return None

    def _serve(self, backing):
        self.server = spawn([sys.executable, str(HERE / "fusedisk.py"), str(self.directory / "fuse"),
                             str(backing), str(self.switch)], stdout=subprocess.PIPE, text=True)
        if self.server.stdout.readline() != "ready\n":
            return "this host does not allow FUSE mounts"
        return None

    def fail(self, *what):
        os.sync()
        self.switch.write_text(" ".join(what))

    def heal(self):
        self.switch.unlink(missing_ok=True)

    def close(self):
        self.heal()
        run("umount", "-l", self.mount)
        if self.loop:
            run("losetup", "--detach", self.loop)
        if self.server:
            self.server.send_signal(signal.SIGTERM)
            self.server.wait(30 * slow())
            run("umount", "-l", self.directory / "fuse")


@pytest.fixture
def disks(directory):
    disks = [Disk(directory / "good", False), Disk(directory / "bad", True)]
    try:
        for disk in disks:
            reason = disk.open()
            if reason:
                pytest.skip(reason)
        yield disks
    finally:
        for disk in disks:
            disk.close()


@pytest.fixture
def disk(disks):
    return disks[1]


@pytest.fixture
def two(make_daemon, disks):
    paths = [str(disk.mount / "store") for disk in disks]
    daemon = make_daemon(settings={"store.path": ",".join(paths), "store.limit": "192MiB", "memory.pool": "16MiB",
                                   "store.prewrite": "off", "io.hang": "1s"})
    daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"
    daemon.paths = paths
    yield daemon
    disks[1].heal()
    if daemon.process is not None:
        daemon.stop()


def volumes_of(daemon):
    return daemon.status()["store"]["volumes"]


def from_disk(client, namespace, pairs):
    """Returns the keys that are hits when read from disk; none may have a wrong byte."""
    keys = [k for k, _ in pairs]
    client.evict(namespace, keys, tiers=Tier.MEMORY)
    found = get_all(client, namespace, keys)
    assert all(v is None or v == dict(pairs)[k] for k, v in found.items())
    return {k for k, v in found.items() if v is not None}


def test_a_disk_that_returns_EIO_is_bypassed_the_other_path_serves_and_it_resumes(two, disk):
    daemon = two.start()
    before, during, after = (items(name, 200, 40 * KIB) for name in ("before", "during", "after"))
    with daemon.client() as c:
        ns = c.namespace("n")
        assert {r.status for r in put_all(c, ns, before, ack=Ack.WRITTEN).values()} == {Status.OK}
        on_good, on_bad = (p["chunks"] for p in volumes_of(daemon))
        assert on_good > 20 and on_bad > 20
        assert len(from_disk(c, ns, before)) == len(before)

        disk.fail("read")
        assert len(from_disk(c, ns, before)) == on_good
        good, bad = volumes_of(daemon)
        assert good["state"] == "up" and bad["state"] == "bypassed"
        assert "error_budget" in bad["reason"] and bad["errors"]["read"] > 0
        assert daemon.metric(f'kvcache_volume_bypassed{{volume="{daemon.paths[1]}"}}') == 1
        assert daemon.metric(f'kvcache_volume_failed{{volume="{daemon.paths[1]}"}}') == 1
        assert daemon.metric(f'kvcache_volume_hung{{volume="{daemon.paths[1]}"}}') == 0
        assert daemon.http("/healthz")[0] == 200
        status, _, body = daemon.http("/readyz")
        assert status == 200 and f"degraded: volume {daemon.paths[1]} is bypassed: ".encode() in body
        assert b"error_budget" in body
        assert daemon.metric(f'kvcache_volume_read_errors_total{{volume="{daemon.paths[1]}"}}') == bad["errors"]["read"]
        assert daemon.log().count(f"volume {daemon.paths[1]} is bypassed") == 1
        assert {r.status for r in put_all(c, ns, during, ack=Ack.WRITTEN).values()} == {Status.OK}
        assert len(from_disk(c, ns, during)) == len(during)
        assert "bypassed" in ctl("device", "ls", daemon=daemon, check=0).stdout

        disk.fail("read", "write")
        # The device is probed with real I/O: as long as it fails, the path stays aside.
        wait_until(lambda: volumes_of(daemon)[1]["pending"] == 0, "nothing stands at the device")
        ctl("device", "resume", daemon.paths[1], daemon=daemon, check=4)
        assert volumes_of(daemon)[1]["state"] == "bypassed"

        disk.heal()
        ctl("device", "resume", daemon.paths[1], daemon=daemon, check=0)
        assert [p["state"] for p in volumes_of(daemon)] == ["up", "up"]
        # Each failed read dropped its chunk.
        assert len(from_disk(c, ns, before)) >= len(before) - bad["errors"]["read"]
        assert len(from_disk(c, ns, during)) == len(during)
        assert {r.status for r in put_all(c, ns, after, ack=Ack.WRITTEN).values()} == {Status.OK}
        assert len(from_disk(c, ns, after)) == len(after)
        assert volumes_of(daemon)[1]["chunks"] > on_bad - bad["errors"]["read"]
    daemon.restart(kill=True)
    with daemon.client() as c:
        assert len(from_disk(c, c.namespace("n"), after)) == len(after)


def test_a_device_that_hangs_is_called_hung_not_failed(two, disk):
    daemon = two.start()
    name = daemon.paths[1]
    pairs = items("hang", 100, 40 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        on_good = volumes_of(daemon)[0]["chunks"]
        disk.fail("hang")
        assert len(from_disk(c, ns, pairs)) == on_good
        bad = wait_until(lambda: next((p for p in volumes_of(daemon) if p["state"] == "hung"), None), "the volume is hung")
        assert bad["volume"] == name and "has not completed for 1 s" in bad["reason"] and bad["errors"]["read"] == 0
        told = f"volume {name} is hung: an operation has not completed for 1 s (io.hang)"
        assert daemon.http("/healthz")[0::2] == (200, b"ok\n"), "a device that hangs is not a process that does"
        assert daemon.http("/readyz")[0::2] == (200, f"ready\ndegraded: {told}\n".encode())
        assert daemon.metric(f'kvcache_volume_hung{{volume="{name}"}}') == 1
        assert daemon.metric(f'kvcache_volume_failed{{volume="{name}"}}') == 0
        assert daemon.metric('kvcache_degraded{reason="volume_hung"}') == 1
        listed = ctl("device", "ls", daemon=daemon, check=0).stdout
        assert [line.split()[1] for line in listed.splitlines()[1:3]] == ["up", "hung"]
        assert "fail" not in listed and told in ctl("status", daemon=daemon, check=0).stdout
        disk.heal()
        wait_until(lambda: volumes_of(daemon)[1]["pending"] == 0, "what was at the device is back")
        assert volumes_of(daemon)[1]["state"] == "bypassed"
        assert b"its device answers again: resume the volume" in daemon.http("/readyz")[2]
        wait_until(lambda: c.device("resume", 1, check=False) is True, "the volume is resumed")
        assert daemon.http("/readyz")[0::2] == (200, b"ready\n")
        assert daemon.metric(f'kvcache_volume_hung{{volume="{name}"}}') == 0


def test_writes_that_fail_go_to_the_other_path(two, disk):
    daemon = two.start()
    pairs = items("writes", 300, 40 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, items("first", 20, 40 * KIB), ack=Ack.WRITTEN)
        disk.fail("write")
        assert {r.status for r in put_all(c, ns, pairs, ack=Ack.WRITTEN).values()} == {Status.OK}
        assert len(from_disk(c, ns, pairs)) == len(pairs)
        assert [p["state"] for p in volumes_of(daemon)] == ["up", "bypassed"]
        disk.heal()
        wait_until(lambda: c.device("resume", 1, check=False) is True, "the volume is resumed")
        assert len(from_disk(c, ns, pairs)) == len(pairs)


def test_chunks_purged_while_the_disk_failed_do_not_return_with_it(two, disk):
    daemon = two.start()
    pairs = items("purged", 200, 40 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        disk.fail("read", "write")
        assert c.purge(ns) == len(pairs)
        assert volumes_of(daemon)[1]["state"] == "bypassed"
    daemon.kill()
    disk.heal()
    daemon.start()
    with daemon.client() as c:
        assert from_disk(c, c.namespace("n"), pairs) == set()


def test_startup_with_a_failing_disk_continues_without_it(two, disk):
    daemon = two.start()
    pairs = items("start", 200, 40 * KIB)
    with daemon.client() as c:
        put_all(c, c.namespace("n"), pairs, ack=Ack.WRITTEN)
        on_good = volumes_of(daemon)[0]["chunks"]
    daemon.stop()
    run("umount", disk.mount)
    run("mount", "-o", "errors=continue", disk.loop, disk.mount)  # nothing of it is cached afterwards
    disk.fail("read", "write")
    daemon.start()
    assert [p["state"] for p in volumes_of(daemon)] == ["up", "bypassed"]
    with daemon.client() as c:
        ns = c.namespace("n")
        assert len(from_disk(c, ns, pairs)) == on_good
        disk.heal()
        wait_until(lambda: c.device("resume", 1, check=False) is True, "the volume is resumed")
        assert len(from_disk(c, ns, pairs)) == len(pairs)
