# SPDX-License-Identifier: Apache-2.0
"""filesystems: performs the same job on stores on different file systems, which must give the same answers.

ext4, xfs and btrfs on loop devices, with sectors of 512 bytes and of 4 KiB, are compared with a store in memory. On one that is nearly
full, puts may fail, but no byte may be wrong and the daemon must stay up. Needs root; file systems that cannot be created or mounted here
are named with the reason and do not count. One run is one seed on one file system."""

import os
import shutil
import subprocess

import harness
from harness import MIB
from job import SETTINGS, Job, differences
from oracle import Finding

LEG = harness.Leg("filesystems", deprive=[harness.die_with_parent])
# Name, mkfs command, bytes per sector, MiB, MiB left free (None: all).
SYSTEMS = [
    ("ext4-512", ["mkfs.ext4", "-q", "-F", "-b", "4096"], 512, 512, None),
    ("ext4-4096", ["mkfs.ext4", "-q", "-F", "-b", "4096"], 4096, 512, None),
    ("ext4-1k-blocks", ["mkfs.ext4", "-q", "-F", "-b", "1024"], 512, 512, None),
    ("xfs-512", ["mkfs.xfs", "-q", "-f"], 512, 512, None),
    ("xfs-4096", ["mkfs.xfs", "-q", "-f", "-s", "size=4096"], 4096, 512, None),
    ("btrfs-4096", ["mkfs.btrfs", "-q", "-f"], 4096, 512, None),
    ("ext4-nearly-full", ["mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0"], 512, 256, 40),
]


class Skip(Exception):
    pass


def command(*what):
    result = subprocess.run([str(w) for w in what], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        raise Skip(f"{what[0]}: {(result.stderr or result.stdout).strip().splitlines()[-1:]}")
    return result.stdout.strip()


class Mounted:
    def __init__(self, directory, mkfs, sector, mib, left):
        if os.geteuid() != 0:
            raise Skip("mounting needs root")
        if not shutil.which(mkfs[0]):
            raise Skip(f"there is no {mkfs[0]}")
        self.device, self.mounted, self.point = None, False, directory / "mnt"
        self.point.mkdir()
        image = directory / "image"
        with open(image, "wb") as file:
            file.truncate(mib * MIB)
        try:
            self.device = command("losetup", "--find", "--show", "--sector-size", sector, image)
            command(*mkfs, self.device)
            command("mount", self.device, self.point)
            self.mounted = True
            if left is not None:
                free = shutil.disk_usage(self.point).free
                with open(self.point / "filler", "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, free - left * MIB)
        except BaseException:
            self.close()
            raise

    def close(self):
        if self.mounted:
            # The rings of a process that has ended hold their files a little longer.
            harness.wait_until(lambda: subprocess.run(["umount", self.point], capture_output=True).returncode == 0,
                               f"{self.point} can be unmounted", 20)
            self.mounted = False
        if self.device:
            command("losetup", "--detach", self.device)
            self.device = None


class Campaign:
    LIFE = len(SYSTEMS)
    told = set()

    def __init__(self, directory, life, facts):
        self.directory, self.seed, self.facts, self.number = directory, life, facts, 0
        self.daemon = self.mounted = self.right = None

    def on(self, name, store, durable=True, roomy=True):
        own = self.directory / name
        own.mkdir(mode=0o755, exist_ok=True)
        self.daemon = harness.Daemon(own, LEG, SETTINGS, store=store).start()
        job = Job(self.seed, durable, roomy)
        seen = job.run(self.daemon)
        self.daemon.clean_up()
        self.daemon = None
        if job.bad:
            raise Finding("wrong", f"{name}: {job.bad[0]}")
        return seen

    def run(self, rng, left):
        """Performs no run on a file system that is not available; a life without any file system ends the campaign."""
        if self.number == 0:
            self.done = 0
            self.right = self.on("plain", self.directory / "plain" / "store")
        name, mkfs, sector, mib, room = SYSTEMS[self.number]
        own = self.directory / name
        own.mkdir(mode=0o755)
        try:
            self.mounted = Mounted(own, mkfs, sector, mib, room)
        except Skip as skip:
            if name not in Campaign.told:
                print(f"skipped: {name}: {skip}", flush=True)
                Campaign.told.add(name)
            if self.number == len(SYSTEMS) - 1 and self.done == 0:
                print("no file system can be mounted here")
                raise SystemExit(77)
            return 0
        seen = self.on(name, self.mounted.point / "store", roomy=room is None)
        self.mounted.close()
        self.mounted = None
        (own / "image").unlink()
        if room is None and differences(self.right, seen):
            raise Finding("wrong", f"{name} and the disk here differ: {differences(self.right, seen)}")
        self.facts.add(f"on {name}")
        self.done += 1
        return 1

    def end(self):
        pass

    def stop(self):
        if self.daemon is not None:
            try:
                self.daemon.clean_up()
            except AssertionError as e:
                print(e)
        if self.mounted is not None:
            try:
                self.mounted.close()
            except Skip as e:
                print(e)
