# SPDX-License-Identifier: Apache-2.0
"""environment: the world around a store changes at any moment, with and without a restart.

One run is one event while a client puts, or while the daemon is stopped: the directory is emptied, moved, replaced by an empty one, by
a copy or by a symbolic link, or another file system is mounted over it; a file in it is removed, emptied, cut, or exchanged for a copy;
the file system fills up or becomes read-only; the daemon meets a file size limit; the clock jumps. The event is undone before or after
a restart, or without one. Then the client asks for every chunk that was answered `written`: the chunk is there with its bytes, or its
loss was reported by a line of the log that names the volume. Where the lines have numbers, they cover the missing chunks. The daemon
never ends unasked, and starts again on what is left, or refuses with a message that names the directory. An event that loses nothing is
not reported as a loss, and a loss is reported by one startup only.

The store lies on a file system in memory of its own, if this process may mount one; otherwise the events that need it are skipped,
and the output names them.
"""

import mmap
import os
import re
import resource
import shutil
import struct
import subprocess
import threading
import time

import harness
import kvwire
from harness import MIB, wait_until
from kvwire import Ack, Status
from oracle import Finding, value_of

LEG = harness.Leg("environment", deprive=[harness.die_with_parent])
SETTINGS = {"store.limit": "96MiB", "store.segment": "4MiB", "memory.pool": "16MiB", "store.prewrite": "off"}
SYSTEM_MIB = 160
MOST_WRITTEN = 48 * MIB  # in a life: the store never has to evict for its limit
CLOCK = harness.BUILD / "tests" / "campaigns" / "shifted-clock.so"
SHIFTS = [-10 ** 9, -86400 * 40, -3600, 60, 3600, 86400 * 40, 10 ** 9]  # seconds

# Lines that report a loss. The first kind has the number of chunks, the second kind covers all that is missing.
COUNTED = [re.compile(r"warning: volume \S+: .*?(\d+) chunks? (?:is|are) lost"),
           re.compile(r"warning: volume \S+: evicted the data file segment-[0-9a-f]{4} with (\d+) chunks?")]
COVERING = re.compile(r"error: volume \S+ is bypassed|: all chunks are lost|was emptied while a daemon|is a copy, or was restored|"
                      r"written there since then (?:are|may be) lost|a new volume was created in it|only the missing pages recorded are lost|"
                      r"written after that are lost|table pages? as damaged")
DROPPED = re.compile(r"warning: \S+/segment-[0-9a-f]{4}: \d+ bytes at \d+ .*; the chunk is dropped")  # several may share a line
LOST = re.compile(r"warning: volume .*(is|are) lost")


def key_of(life, i):
    return life.to_bytes(4, "little") + i.to_bytes(8, "little") + bytes(20)


def count_reported(log, errors):
    """Returns the number of chunks that are reported as lost, or None if a line covers all that is missing.

    Chunks that fail when they are read share lines of the log; the status counts them."""
    if COVERING.search(log):
        return None
    found = sum(int(m.group(1)) for pattern in COUNTED for m in pattern.finditer(log))
    return found + (errors["read"] + errors["checksum"] if DROPPED.search(log) else 0)


# --- events; each returns the function that undoes it ---

def nothing():
    pass


def emptied(c):
    for path in c.store.iterdir():
        path.unlink()
    return nothing


def moved(c):
    away = c.store.with_name("away")
    c.store.rename(away)

    def undo():
        if c.store.is_symlink():
            c.store.unlink()
        elif c.store.exists():
            shutil.rmtree(c.store)
        away.rename(c.store)
    return undo


def replaced(c):
    undo = moved(c)
    c.store.mkdir(mode=0o700)
    return undo


def copied(c):
    undo = moved(c)
    shutil.copytree(c.store.with_name("away"), c.store)
    return undo


def linked(c):
    """Moves the directory, and gives its name to a symbolic link to it, so that the name still leads to the same directory."""
    undo = moved(c)
    c.store.symlink_to(c.store.with_name("away"))
    return undo


def linked_to_copy(c):
    other = c.store.with_name("other")
    shutil.copytree(c.store, other)
    undo_move = moved(c)
    c.store.symlink_to(other)

    def undo():
        undo_move()
        shutil.rmtree(other)
    return undo


def mounted_over(c):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=120m,mode=0700", "kvcache-test", c.store], check=True, capture_output=True)
    return lambda: subprocess.run(["umount", "-l", c.store], check=True, capture_output=True)


def one_file(c, act):
    names = sorted(p for p in c.store.iterdir() if p.is_file())
    if names:
        path = c.rng.choice(names)
        c.touched = path.name
        act(path)
    return nothing


def removed(c):
    return one_file(c, lambda path: path.unlink())


def cut(c):
    return one_file(c, lambda path: os.truncate(path, c.rng.choice([0, path.stat().st_size // 2 & ~4095, 4096 * c.rng.randrange(40)])
                                                if path.stat().st_size else 0))


def exchanged(c):
    """Replaces a file by a copy. Later writes to the original are missing in the copy."""
    def act(path):
        copy = path.with_name(path.name + ".copy")
        shutil.copy2(path, copy)
        copy.rename(path)
    return one_file(c, act)


def full(c):
    filler = c.store.with_name("filler")
    with open(filler, "wb") as f:
        left = shutil.disk_usage(c.store.parent).free - c.rng.choice([0, 4096, MIB])
        try:
            os.posix_fallocate(f.fileno(), 0, max(left, 1))
        except OSError:  # the daemon was faster: the file system is full
            pass
    return filler.unlink


def read_only(c):
    # The rings of a process that has ended hold their files a little longer.
    wait_until(lambda: subprocess.run(["mount", "-o", "remount,ro", c.mounted], capture_output=True).returncode == 0,
               "the file system can be made read-only", 20)
    return lambda: subprocess.run(["mount", "-o", "remount,rw", c.mounted], check=True, capture_output=True)


def limited(c):
    """Limits the size of the process's files. A restart removes the limit, too, and the process may be another one by then."""
    if c.daemon.process is None:
        return nothing
    pid = c.daemon.pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (c.rng.choice([4096, MIB, 4 * MIB]), resource.RLIM_INFINITY))

    def undo():
        if c.daemon.process is not None and c.daemon.pid == pid:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return undo


def shifted(c):
    c.shift_clock(c.rng.choice(SHIFTS))
    return lambda: c.shift_clock(0) if c.rng.random() < 0.5 else None


EVENTS = [emptied, moved, replaced, copied, linked, linked_to_copy, removed, removed, cut, cut, cut, exchanged, exchanged, limited, shifted]
MOUNTED_EVENTS = [full, mounted_over]
STOPPED_EVENTS = [read_only]  # impossible while files are open for writing
HARMLESS = {linked, shifted, read_only, limited}
LASTING = {emptied, removed, cut, exchanged}  # the daemon notices them: nothing takes them back
SWAPS = {moved, replaced, copied, linked_to_copy, mounted_over}


class Campaign:
    LIFE = 12
    told_of_mount = False

    def __init__(self, directory, life, facts):
        self.life, self.facts, self.number = life, facts, 0
        self.mounted = self.mount(directory / "fs")
        self.store = directory / "fs" / "store"
        (directory / "clock").write_bytes(bytes(8))
        with open(directory / "clock", "r+b") as f:
            self.clock = mmap.mmap(f.fileno(), 8)
        self.daemon = harness.Daemon(directory, LEG, SETTINGS, store=self.store, env={
            "LD_PRELOAD": str(CLOCK), "SHIFTED_CLOCK": str(directory / "clock"),
            "ASAN_OPTIONS": "exitcode=99:detect_leaks=1:verify_asan_link_order=0"}).start()
        self.written, self.puts, self.bytes = {}, 0, 0
        self.mark = 0        # position in the log up to which reports have been compared
        self.clean = True    # no startup has anything to report that an earlier run has lost
        self.crowded = False  # the file system was full while this daemon ran

    @classmethod
    def mount(cls, point):
        point.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SYSTEM_MIB}m", "kvcache-test", point], capture_output=True)
        if done.returncode == 0:
            return point
        if not cls.told_of_mount:
            cls.told_of_mount = True
            print(f"skipped: a file system that is full, read-only or mounted over: {done.stderr.decode().strip()}", flush=True)
        return None

    def shift_clock(self, seconds):
        self.clock[:] = struct.pack("<q", seconds)

    def volume(self):
        return self.daemon.status()["store"]["volumes"][0]

    # --- one run ---

    def put(self, stop, begun, batches):
        """Puts until told to stop or until the daemon ends, and records the chunks that were answered `written`."""
        try:
            with self.daemon.client() as c:
                ns, done = c.namespace("n"), 0
                while not stop.is_set() and self.bytes < MOST_WRITTEN:
                    keys = [key_of(self.life, self.puts + i) for i in range(4)]
                    self.puts += len(keys)
                    values = [value_of(key, 1) for key in keys]
                    for key, value, r in zip(keys, values, c.put(ns, list(zip(keys, values)), ack=Ack.WRITTEN)):
                        if r.status == Status.OK:
                            self.written[key] = value
                            self.bytes += len(value)
                            self.facts.add("written")
                    done += 1
                    if done >= batches:
                        begun.set()
        except (OSError, ConnectionError, kvwire.SessionEnded):
            pass
        finally:
            begun.set()

    def try_start(self):
        """Returns None if the daemon answers, or what it said when it refused to start."""
        before = len(self.daemon.log())
        self.daemon.spawn()
        try:
            wait_until(self.daemon.answers, "the daemon answers", 20)
            return None
        except AssertionError:
            if self.daemon.process is not None and self.daemon.process.poll() is None:
                raise Finding("hung", "the daemon neither answers nor ends") from None
        status = self.daemon.wait_exit()
        said = self.daemon.log()[before:]
        if status in (0, 1, 99) or status < 0 or str(self.store.parent) not in said:
            raise Finding("wrong", f"the daemon ended with {status} and did not name the directory:\n{said[-2000:]}")
        self.facts.add("refused_to_start")
        return said

    def start_again(self, undo):
        """Starts the daemon. If it refuses, the event is undone; if a file that it cannot do without is lost, the store begins anew."""
        if self.try_start() is None:
            return
        undo()
        said = self.try_start()
        if said is None:
            return
        if "superblock" not in said:
            raise Finding("wrong", f"the daemon does not start though all was undone:\n{said[-2000:]}")
        self.facts.add("begun_anew")
        shutil.rmtree(self.store)
        self.written.clear()  # the refusal has reported it
        self.daemon.start()

    def missing(self):
        """Returns the chunks that are no longer there, after a comparison of the others."""
        missing = []
        with self.daemon.client() as c:
            deadline = time.monotonic() + 20 * harness.slow()
            ns, left = c.namespace("n"), list(self.written)
            while left:
                keys, left = left[:8], left[8:]
                leases = []
                for key, r in zip(keys, c.get(ns, keys, timeout_ms=20000)):
                    if r.status == Status.MISS:
                        missing.append(key)
                    elif r.status in (Status.BUSY, Status.QUOTA) and time.monotonic() < deadline:  # leases of earlier ones
                        left.append(key)
                    elif r.status != Status.OK:
                        raise Finding("wrong", f"a get is answered {Status(r.status).name}: {key.hex()}")
                    elif bytes(r.data) != self.written[key]:
                        raise Finding("wrong", f"other bytes: {key.hex()}")
                    else:
                        leases.append(r.lease)
                c.release(leases)
        return missing

    def verify(self, where, event, has_restarted):
        """Expects everything answered `written`, or a report of its loss since the last time."""
        missing = self.missing()
        status = self.daemon.status()
        log = self.daemon.log()
        said, self.mark = log[self.mark:], len(log)
        reported = count_reported(said, status["store"]["volumes"][0]["errors"])
        covered = reported is None or status["degraded"] and "bypassed" in str(status["degraded"])
        # A volume that cannot grow evicts, as any cache does, and a kill loses the count of evictions.
        evicts = self.crowded and "does not grow" in log
        if not covered and not evicts and reported < len(missing):
            raise Finding("lost", f"{where}: {len(missing)} of {len(self.written)} chunks that were answered `written`, of which "
                                  f"{reported} were reported: {missing[0].hex()}\n{said[-3000:]}")
        if not missing and event in HARMLESS and self.clean and LOST.search(said):
            raise Finding("wrong", f"{where}: a loss was reported though nothing was lost:\n{said[-3000:]}")
        if missing:
            self.facts.add("losses_reported")
            self.facts.add("chunks_lost_and_reported", len(missing))
            for key in missing:
                del self.written[key]
        self.clean = not missing and event in HARMLESS and (self.clean or has_restarted)
        return status

    def expect_noticed(self, where):
        """The daemon bypasses its volume if files were replaced under it; other damage shows when it is read."""
        wait_until(lambda: self.volume()["state"] == "bypassed", f"{where}: the volume is bypassed", 30)
        self.facts.add("noticed")

    def expect_one_report(self, where):
        """Checks that another restart reports nothing."""
        self.daemon.stop()
        self.start_again(nothing)
        said = self.daemon.log()[self.mark:]
        if LOST.search(said) or self.volume()["lost_files"]:
            raise Finding("wrong", f"{where}: a loss is reported by another startup:\n{said[-3000:]}")
        self.mark += len(said)
        self.facts.add("second_restarts")

    def run(self, rng, left):
        self.rng, self.touched = rng, ""
        stopped = rng.random() < 0.3
        events = EVENTS + (MOUNTED_EVENTS if self.mounted else []) + (STOPPED_EVENTS if self.mounted and stopped else [])
        event = rng.choice(events)
        how = rng.choice(["stop", "kill"] if stopped else ["no restart", "stop", "kill"])
        undo_first = rng.random() < 0.5
        undone = []
        stop, begun = threading.Event(), threading.Event()

        def undo():
            if not undone:
                undone.append(True)
                take_back()

        thread = threading.Thread(target=self.put, args=(stop, begun, rng.randrange(1, 6)))
        thread.start()
        begun.wait()
        take_back = nothing if stopped else event(self)
        if how == "no restart" or undo_first:
            undo()
        if how == "kill":
            self.daemon.kill()
        stop.set()
        thread.join()
        if how == "stop":
            self.daemon.stop()
        if stopped:
            undone.clear()
            take_back = event(self)
            if undo_first:
                undo()
        where = (f"{event.__name__} {self.touched}{' while stopped' if stopped else ''}, {how}, undone "
                 f"{'before' if undo_first else 'after'} it")
        if how != "no restart":
            self.start_again(undo)
        swapped = not undone and event in SWAPS
        undo()
        if swapped:  # the daemon has started on another directory, whose chunks go with it
            self.expect_noticed(where)
        self.facts.add(event.__name__)
        self.crowded |= event in (full, limited)
        status = self.verify(where, event, how != "no restart")
        self.crowded &= how == "no restart" or event is full and not undo_first
        if status["degraded"] and any(v["state"] != "up" for v in status["store"]["volumes"]):
            self.daemon.stop()
            self.start_again(nothing)
            status = self.verify(where + ", and a restart", event, True)
            if any(v["state"] != "up" for v in status["store"]["volumes"]):
                raise Finding("wrong", f"{where}: the volume is not in use after the event was undone and the daemon restarted")
        if how != "no restart" and rng.random() < 0.2:
            self.expect_one_report(where)
        return 1

    def end(self):
        self.daemon.stop()

    def stop(self):
        self.daemon.discard()
        if self.mounted:
            # The rings of a process that has ended hold their files a little longer.
            wait_until(lambda: subprocess.run(["umount", self.mounted], capture_output=True).returncode == 0,
                       "the file system can be unmounted", 20)
            self.mounted = None
