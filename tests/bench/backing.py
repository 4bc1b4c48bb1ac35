# SPDX-License-Identifier: Apache-2.0
"""Makes file systems for the volumes of a store: in memory, with O_DIRECT, so that no disk limits what is measured.

tmpfs       a tmpfs for each volume, which takes root; without root, a directory of /dev/shm for each. O_DIRECT takes Linux 6.6.
loop        an ext4 for each volume, on a loop device over a file of a tmpfs; takes root, losetup and mkfs.ext4
directory   a directory of --dir for each volume, on whatever device that is
auto        the first of tmpfs and loop that works

Mounts are made in a mount namespace of the benchmark's own, so they end with its processes, whatever ends those.
"""

import ctypes
import os
import pathlib
import shutil
import subprocess
import tempfile

from machine import Trouble

KINDS = ("auto", "tmpfs", "loop", "directory")
CLONE_NEWNS, SPARE = 0x20000, 512 << 20
SHARED = pathlib.Path("/dev/shm")


class NoBacking(Trouble):
    """A kind of file system cannot be made on this host. The text is the reason."""


def command(*words):
    try:
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError as e:
        raise NoBacking(f"{words[0]}: {e.strerror}") from None
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise NoBacking(f"{words[0]} fails: {lines[-1] if lines else 'no reason given'}")
    return done.stdout.strip()


def check_direct(directory):
    """Raises NoBacking unless the file system opens files with O_DIRECT."""
    path = pathlib.Path(directory) / "direct"
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600))
    except OSError as e:
        raise NoBacking(f"{directory}: no O_DIRECT ({e.strerror}); tmpfs has it from Linux 6.6 on") from None
    finally:
        path.unlink(missing_ok=True)


def own_mounts():
    """Moves this process into a mount namespace of its own."""
    if os.geteuid() != 0:
        raise NoBacking("mounting takes root")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        raise NoBacking(f"no mount namespace: {os.strerror(ctypes.get_errno())}")
    command("mount", "--make-rprivate", "/")


class Backing:
    """The file systems of one number of volumes. `directories` has one for each volume."""

    def __init__(self, work, kind, n, bytes_each):
        self.work, self.kind, self.bytes_each = work, kind, bytes_each + SPARE
        self.directories, self.mounted, self.made, self.loops = [], [], [], []
        try:
            getattr(self, f"_make_{kind}")(n)
            for directory in self.directories:
                check_direct(directory)
        except Trouble:
            self.close()
            raise

    def _mount(self, path, *how):
        path.mkdir()
        self.made.append(path)
        command("mount", *how, path)
        self.mounted.append(path)

    def _make_tmpfs(self, n):
        try:
            own_mounts()
            for i in range(n):
                path = self.work / f"volume{i}"
                self._mount(path, "-t", "tmpfs", "-o", f"size={self.bytes_each}", "tmpfs")
                self.directories.append(path)
        except NoBacking as e:
            if self.directories or not SHARED.is_dir() or not os.access(SHARED, os.W_OK):
                raise
            if shutil.disk_usage(SHARED).free < n * self.bytes_each:
                raise NoBacking(f"{e}; and {SHARED} has too little room") from None
            self._make_directories(n, SHARED)

    def _make_directory(self, n):
        if shutil.disk_usage(self.work).free < n * self.bytes_each:
            raise NoBacking(f"{self.work.parent} has too little room")
        self._make_directories(n, self.work)

    def _make_directories(self, n, parent):
        for i in range(n):
            self.made.append(pathlib.Path(tempfile.mkdtemp(prefix=f"kvcache-volume{i}-", dir=parent)))
        self.directories = list(self.made)

    def _make_loop(self, n):
        own_mounts()
        below = self.work / "below"
        self._mount(below, "-t", "tmpfs", "-o", f"size={n * (self.bytes_each + SPARE)}", "tmpfs")
        for i in range(n):
            image, path = below / f"image{i}", self.work / f"volume{i}"
            with open(image, "wb") as file:
                file.truncate(self.bytes_each)
            try:
                device = command("losetup", "--find", "--show", "--direct-io=on", image)
            except NoBacking:
                device = command("losetup", "--find", "--show", image)
            self.loops.append(device)
            command("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,nodiscard", device)
            self._mount(path, device)
            self.directories.append(path)

    def close(self):
        for path in reversed(self.mounted):
            subprocess.run(["umount", "-l", str(path)], stderr=subprocess.DEVNULL)
        for device in self.loops:
            subprocess.run(["losetup", "-d", device], stderr=subprocess.DEVNULL)
        for path in self.made:
            shutil.rmtree(path, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def choose(work, kind):
    """Returns the kind to use, after making one small volume of it. Raises Trouble with the reasons if none works."""
    reasons = []
    for candidate in ("tmpfs", "loop") if kind == "auto" else (kind,):
        try:
            with Backing(work, candidate, 1, 0):
                return candidate
        except NoBacking as e:
            reasons.append(f"{candidate}: {e}")
    raise Trouble("; ".join(reasons) + "; --backing directory --dir DIR measures the device of a directory instead")
