# SPDX-License-Identifier: Apache-2.0
"""The parts that random histories of the engines' adapters share: the daemon's fate, and the values of keys.

KVCACHE_HISTORY_SEEDS ("7" or "100-199") replaces the seeds of the histories. KVCACHE_HISTORY_SLACK_S is how much longer than its documented
bound a call may take, for a busy machine."""

import contextlib
import functools
import hashlib
import itertools
import os
import shutil
import threading

import harness
import kvcache
import pytest
from kvcache.sglang import identity as of_sglang

SLACK_S = float(os.environ.get("KVCACHE_HISTORY_SLACK_S", "20")) * harness.slow()

MOST_PARTS = 4  # chunks of an object that is stored in parts

WORLDS = {
    "roomy": {"memory.pool": "16MiB", "limits.leased_bytes": "4MiB"},
    "tight": {"memory.pool": "8MiB", "limits.leased_bytes": "2MiB", "store.limit": "16MiB", "store.segment": "1MiB"},
    "slow": {"memory.pool": "8MiB", "io.backend": "posix"},
    "failing": {"memory.pool": "8MiB", "io.backend": "posix", "store.segment": "1MiB"},
    "shared": {"memory.pool": "8MiB", "io.backend": "posix", "remote.backend": "directory", "remote.write": "all", "remote.write_rate": "0",
               "remote.generation_interval": "1s", "remote.absence_lifetime": "100ms", "remote.timeout": "1s"},
}
FAULTS_OF = {  # the faults that only daemons of a world have, and the switch of each (tests/daemon/hang.c)
    "slow": {"slow": "HANG_SWITCH"},
    "failing": {"full": "FAIL_SWITCH", "broken": "FAIL_SWITCH"},
    "shared": {"away": "SHARED_SWITCH", "spoiled": "SHARED_SPOILED"},
}


def histories(forms, in_submission=None):
    """Returns the form, the world and the seed of each history. A submission plays each form once, and the first form in every world, or else
    those that `in_submission` accepts."""
    first, _, last = os.environ.get("KVCACHE_HISTORY_SEEDS", "").partition("-")
    numbers = range(int(first), int(last or first) + 1) if first else range(1, 8)
    for form, world, seed in itertools.product(forms, WORLDS, numbers):
        chosen = in_submission(form, world) if in_submission else world == "roomy" or form == next(iter(forms))
        is_short = first or seed == 1 and chosen
        yield pytest.param(form, world, seed, marks=() if is_short else pytest.mark.nightly)


@functools.lru_cache(1 << 12)
def value_of(owner, key, nbytes):
    """Returns the bytes that engines of a model and layout compute under a key."""
    return hashlib.shake_128(f"{owner} {key}".encode()).digest(nbytes)


def descriptors():
    """Returns what the descriptors of this process refer to, sorted."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(found)


def held():
    """Returns how many threads of the package this process has, and how many descriptors."""
    return sum(t.name.startswith("kvcache") for t in threading.enumerate()), len(descriptors())


def daemon_of(make_daemon, directory, world, **changed):
    """Returns a running daemon, and by fault the file whose existence makes its disk or shared tier hang or fail."""
    switches = {fault: (variable, directory / variable) for fault, variable in FAULTS_OF.get(world, {}).items()}
    env = {"LD_PRELOAD": harness.preload("tests/daemon/hang.so")} if switches else {}
    env.update((variable, str(path)) for variable, path in switches.values() if variable != "SHARED_SPOILED")
    settings = {**WORLDS[world], **{name.replace("__", "."): value for name, value in changed.items()}}
    if world == "shared":
        settings["remote.path"] = directory / "shared"
        settings["remote.path"].mkdir()
    return make_daemon(settings=settings, env=env).start(), {fault: path for fault, (_, path) in switches.items()}


class Fate:
    """A daemon, and the faults that befall it.

    `epoch` grows with each fault and once it is over. Between two calls of settled() and the next fault, `is_calm` says that the daemon keeps
    what it acknowledges, and that nothing of an earlier fault is pending."""

    FAULTS = ("restart", "restart", "upgrade", "empty", "kill", "stop", "stop", "small")

    def __init__(self, daemon, rng, switches=None):
        self.daemon, self.rng, self.switches = daemon, rng, switches or {}
        self.is_tight = daemon.settings["store.limit"] == "16MiB"  # the daemon evicts on its own
        # A full disk makes the daemon evict, too. Killed afterwards, its successor may find a chunk whose place another one has taken.
        self.has_evicted = self.is_tight
        # The daemon assumes that the shared tier has all chunks of a chain before the last one that it finds there.
        self.may_assume = "remote.backend" in daemon.settings
        self.epoch, self.is_calm, self.state, self.settings = 0, False, "up", dict(daemon.settings)
        self.counts = {}
        self.lock = threading.Lock()

    def choose(self, *others):
        """Returns a fault, or one of the others."""
        often = [fault for fault in self.switches for _ in range(4 // len(self.switches))]
        return self.rng.choice([*self.FAULTS, *others, *["fill"] * 3 * self.is_tight, *often])

    def changes(self):
        with self.lock:
            self.epoch, self.is_calm = self.epoch + 1, False

    def settled(self):
        with self.lock:
            self.epoch, self.is_calm = self.epoch + 1, True

    def rests(self, links):
        """Returns whether the daemon has completed what it was asked, has seen the end of clients that have ended (so that the connections of
        these links are left), has their memory registered, and nothing is leased."""
        status = self.daemon.status()
        if status["sessions"]["connections"] != sum(3 + len(one.loaders) for one in links) + 1:  # and that of status()
            return False
        shared = sum(end - start for one in links for start, end, region in one._regions if region._fd is not None)
        if status["sessions"]["registered_bytes"] != shared:
            return False
        return (status["pool"]["unwritten_bytes"], status["resources"]["keys"]["used"], status["resources"]["requests"]["used"],
                status["sessions"]["leases"]) == (0, 0, 0, 0)

    def unrest(self):
        status = self.daemon.status()
        return {"unwritten": status["pool"]["unwritten_bytes"], "sessions": status["sessions"],
                "resources": {n: r["used"] for n, r in status["resources"].items()}}

    def is_still(self, epoch):
        """Returns whether nothing has happened since that epoch, which was calm."""
        with self.lock:
            return self.is_calm and self.epoch == epoch

    def befall(self, what):
        """Has a fault begin. Returns whether its end is a call of its own, heal()."""
        self.counts[what] = self.counts.get(what, 0) + 1
        self.changes()
        getattr(self, f"_{what}")()
        self.changes()
        return self.state != "up"

    def heal(self):
        state, self.state = self.state, "up"
        if state == "stopped":
            self.daemon.resume()
        elif state == "down":
            self.daemon.start()
        elif state in ("slow", "away"):
            self.switches[state].unlink()
        elif state in ("full", "broken"):
            self.switches[state].unlink()
            if state == "full" and not self._writes_again():  # the volume does not ask for space again for 30 s
                self._restart()
            harness.wait_until(self._writes_again, lambda: f"the disk is written to again: {self.daemon.status()['store']}", 30)
        elif state == "spoiled":
            self._restart()
        elif state == "small":
            self.daemon.kill()
            self.daemon.settings = dict(self.settings)
            self.daemon.start()
        self.changes()

    def _restart(self):
        self.daemon.kill()
        self.daemon.start()

    def _upgrade(self):
        self.daemon.stop()
        self.daemon.start()

    def _empty(self):
        self.daemon.kill()
        shutil.rmtree(self.daemon.store)
        self.daemon.start()

    def _kill(self):
        self.daemon.kill()
        self.state = "down"

    def _stop(self):
        self.daemon.pause()
        self.state = "stopped"

    def _fill(self):
        """Has another engine store more than there is room for."""
        with kvcache.Client(self.daemon.socket, required=True) as client:
            namespace = client.namespace("another engine", {"model": "another"})
            for _ in range(24):
                namespace.put([self.rng.randbytes(32)], [self.rng.randbytes(1 << 20)], ack="accepted")

    def _writes_again(self):
        """Returns whether the daemon writes chunks, after its volume was resumed if the errors were too many."""
        harness.ctl("device", "resume", self.daemon.store, daemon=self.daemon, check=None)
        with kvcache.Client(self.daemon.socket, required=True) as client:
            stored = client.namespace("a probe", {"model": "another"}).put([self.rng.randbytes(32)], [bytes(4096)], ack="durable")
        [volume] = self.daemon.status()["store"]["volumes"]
        return stored.status[0] == kvcache.OK and volume["state"] == "up" and not volume["full"]

    def _slow(self):
        self.switches["slow"].touch()
        self.state = "slow"

    def _full(self):
        self.switches["full"].write_text("full")
        self.state, self.has_evicted = "full", True

    def _broken(self):
        self.switches["broken"].touch()
        self.state = "broken"

    def _away(self):
        self.switches["away"].touch()
        self.state = "away"

    def _spoiled(self):
        """Starts a daemon that reads wrong bytes from the shared tier."""
        self.daemon.kill()
        self.daemon.env["SHARED_SPOILED"] = "1"
        self.daemon.start()
        del self.daemon.env["SHARED_SPOILED"]
        self.state = "spoiled"

    def _small(self):
        """Starts a daemon with little room, which answers BUSY and QUOTA."""
        self.daemon.kill()
        self.daemon.settings = {**self.settings, "memory.pool": "8MiB", "limits.leased_bytes": "1MiB", "limits.leases": 4,
                                "limits.requests": 64, "limits.registered": self.rng.choice(["4KiB", "64MiB"])}
        self.daemon.start()
        self.state = "small"


class Faulty:
    """A history of engines over one daemon: what may happen beside their calls. It has `daemon`, `fate`, `rng`, `ack` and `prompts`, and defines
    everyone(), which lets each engine act, comes_to_rest(), members(), the namespaces that a member has opened(), and key_of()."""

    MOST_STEPS = 6      # calls of everyone() under a fault
    MOST_EVICTED = 4    # prompts with chunks that are evicted together
    KEEPING = ("restart", "upgrade", "kill", "small", "evict", "leases", "replace", "stop", "slow", "fill")  # with chunks that are written
    HARMLESS = ("evict", "leases", "replace", "stop", "slow", "fill")

    def fault(self):
        rng, fate = self.rng, self.fate
        own = ("evict", "purge", "leases", "replace")
        what = fate.choose(*own)
        fate.changes()
        if what in own:
            fate.counts[what] = fate.counts.get(what, 0) + 1
            getattr(self, what)()
        elif fate.befall(what):
            self.everyone(rng.randint(1, self.MOST_STEPS))
            if rng.random() < 0.3:
                self.replace()
            fate.heal()
        if what not in (self.KEEPING if self.ack != "accepted" else self.HARMLESS):
            self.forget()
        self.comes_to_rest()

    def forget(self, keeps=lambda owner, key: False):
        """Tells the model that only these chunks are kept. A model without a memory of them ignores it."""

    def is_strict(self, epoch):
        return not self.fate.has_evicted and self.fate.is_still(epoch)

    def evict(self):
        keys = [k for p in self.rng.sample(self.prompts, min(self.MOST_EVICTED, len(self.prompts))) for k in p]
        opened = self.opened(self.rng.choice(self.members()))
        self.everyone(1)
        self.forget(lambda owner, key: key not in keys)
        names = [n for k in keys for n in self.some_parts_of(k)]
        self.rng.shuffle(names)
        with kvcache.Client(self.daemon.socket, required=True) as client:
            spaces = [client.namespace(*one) for one in opened]
            for first in range(3):  # between the lookups and the loads of these objects
                for space in spaces:
                    space.evict(names[first::3], memory_only=self.rng.random() < 0.3)
                self.everyone(1)

    def some_parts_of(self, key):
        """Returns keys of the daemon for some of the chunks in which an object is stored: often for all, if the object is one chunk."""
        parts = of_sglang.parts_of(self.key_of(key), MOST_PARTS)
        return parts[:1] if self.rng.random() < 0.5 else self.rng.sample(parts, self.rng.randint(1, MOST_PARTS - 1))

    def purge(self):
        member = self.rng.choice(self.members())
        self.everyone(1)
        for name, _ in self.opened(member):
            harness.ctl("purge", name, "--yes", daemon=self.daemon, check=None)

    def leases(self):
        opened = self.opened(self.rng.choice(self.members()))
        keys = [self.key_of(k) for k in {k for p in self.prompts for k in p}]
        if opened:
            with leases_used_up(self.daemon, opened[0], keys):
                self.everyone(3)


@contextlib.contextmanager
def leases_used_up(daemon, opened, keys):
    """Has another client of the user hold leases of these keys, as many as it gets."""
    with kvcache.Client(daemon.socket, required=True) as client:
        namespace = client.namespace(*opened)
        leased = [namespace.get_map(keys[i:i + 8]) for i in range(0, len(keys), 8)]
        yield
        for one in leased:
            one.release()


def is_connected(link):
    """Returns whether all connections have reached the present daemon. A connection that was idle has not noticed a restart."""
    if not link.well or link._probe() or link.searches.namespace_state("x") is None:
        return False
    misses = [space.get([os.urandom(32)], [bytearray(64)]).status[0] == kvcache.MISS for space in link._probed.loaders]
    return all(misses) and link.well
