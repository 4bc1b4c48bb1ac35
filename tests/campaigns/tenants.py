# SPDX-License-Identifier: Apache-2.0
"""Tenants whose pools and store are so small that data files constantly pass from one to another, and a daemon that is killed, or whose
table cannot be written, meanwhile. Every second run of the campaign kill does this.

Each tenant puts chunks that identify it (marks.py), gets what it has recently put in all possible ways, and scans all memory that it can
see for bytes of the others: while it works, after each death of the daemon, after each fault, and after startup on files whose contents
have been exchanged or cut. A hit must be the right bytes."""

import contextlib
import fcntl
import json
import mmap
import os
import random
import signal
import struct
import threading
import time

import harness
import kvwire
import marks
from faults import WRITE_FAILS, WRITE_KILLS, WRITE_LIES, WRITE_THEN_KILLS, Faults
from harness import KIB, MIB, slow
from kvwire import Ack, Flag, Op, Status, Tier
from oracle import Finding

USERS = {"red": 20021, "green": 20022, "blue": 20023}
SIZES = [(1, 4096, 5000), (16 * KIB - 1, 16 * KIB), (62900, 64 * KIB), (64 * KIB, 200001), (700000,), (5000, 62900, 300 * KIB)]
ROOM = 4 * MIB   # size of the staging area, and of the registered region
RECENT = 16 * MIB  # bytes that a tenant gets again, the last ones put, and at most 600 keys
TIMEOUT_S = 20
ENDS = ["kill", "kill", "kill at a write", "kill at a write", "kill after a write", "fault", "fault", "device", "stop",
        "exchange", "cut"]
DAMAGES = ("exchange", "cut")
SUSPEND = 1


class Tenant:
    def __init__(self, life, name):
        self.life, self.name = life, name
        self.others = [n for n in life.names if n != name]
        self.keys, self.made, self.client = [], 0, None  # keys: (key, length), the last ones
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, ROOM)
        self.region = mmap.mmap(self.fd, ROOM)
        self.region[:] = bytes(ROOM)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, kvwire.F_SEAL_SHRINK)

    def connect(self):
        with marks.user(USERS[self.name]):
            self.client = self.life.daemon.client(name=self.name, timeout=TIMEOUT_S * slow())
        self.client.staging(ROOM)
        self.number = self.client.register(self.fd, ROOM)
        self.ns = self.client.namespace("n", chunk_bytes=self.life.declared)

    def disconnect(self):
        if self.client:
            self.client.close()
            self.client = None

    def close(self):
        self.disconnect()
        self.region.close()
        os.close(self.fd)

    def scan(self, where, everything=True):
        marks.scan(self.client, self.name, self.others, [self.region], everything, where, self.life.facts)

    # --- work ---

    def offers(self, rng):
        """Returns new keys, at most as many as fit into the room of a request: (key, length, place)."""
        at, offers = 0, []
        for _ in range(rng.randint(1, 24 if max(self.life.sizes) > 16 * KIB else 240)):
            length = rng.choice(self.life.sizes)
            if at + length > ROOM:
                break
            self.made += 1
            offers.append((marks.key_of(self.name, self.made), length, at))
            at += (length + 4095) & ~4095
        return offers

    def put(self, rng):
        """Sends a put. Returns (its tag, the bytes offered)."""
        offers, from_region = self.offers(rng), rng.random() < 0.5
        for key, length, at in offers:
            (self.region if from_region else self.client.staging_map)[at:at + length] = marks.value_of(key, length)
        number = self.number if from_region else 0
        entries = [kvwire.PUT_ENTRY.pack(key, at, length, number, 0) for key, length, at in offers]
        self.keys += [(key, length) for key, length, _ in offers]
        total = sum(length for _, length in self.keys)
        while total > RECENT or len(self.keys) > 600:
            total -= self.keys.pop(0)[1]
        self.life.facts.add("puts", len(offers))
        ack = rng.choice([Ack.ACCEPTED, Ack.WRITTEN, Ack.WRITTEN, Ack.DURABLE])
        return (self.client.submit_batch(Op.PUT, self.ns, entries, ack=ack, timeout_ms=3000),
                sum(length for _, length, _ in offers))

    def some(self, rng):
        """Returns keys that were put in sequence, which often lie in sequence, or any keys."""
        n = min(rng.randint(1, 20), len(self.keys))
        if rng.random() < 0.6:
            first = rng.randrange(len(self.keys) - n + 1)
            return self.keys[first:first + n]
        return rng.sample(self.keys, n)

    def span(self, rng, length):
        """Returns a range of a chunk: all of it, or some."""
        if length < 2 or rng.random() < 0.6:
            return 0, length
        at = rng.randrange(length)
        return at, rng.randint(1, length - at)

    def get(self, rng, keys):
        """Gets the keys in some way, and checks each hit."""
        how = rng.choice(["map", "map", "prefetch", "staging", "region", "region", "odd", "pieces"])
        asked = [(key, *self.span(rng, length), length) for key, length in keys]
        if rng.random() < 0.3:
            self.client.evict(self.ns, [key for key, *_ in asked], Tier.MEMORY)
        if how == "prefetch":
            self.client.prefetch(self.ns, [key for key, *_ in asked])
        if how in ("map", "prefetch"):
            spans = [(at, n) if n != length else (0, 0) for _, at, n, length in asked]
            results = self.client.get(self.ns, [key for key, *_ in asked], ranges=spans, timeout_ms=5000)
            data = [r.data for r in results]
            self.client.release([r.lease for r in results if r.lease])
        else:
            asked, places = self.places(rng, asked, how)
            memory, number = (self.client.staging_map, 0) if how == "staging" else (self.region, self.number)
            spans = [(at, n) if n != length else (0, 0) for _, at, n, length in asked]
            if how == "pieces":
                items = [(key, self.cut(rng, at, room, number)) for (key, *_), (at, room) in zip(asked, places)]
            else:
                items = [(key, (at, room, number)) for (key, *_), (at, room) in zip(asked, places)]
            results = self.client.get_to(self.ns, items, ranges=spans, timeout_ms=5000)
            data = [memory[at:at + n] if r.status == Status.OK else None
                    for r, (at, _), (_, _, n, _) in zip(results, places, asked)]
        for (key, at, n, length), result, found in zip(asked, results, data):
            if found is not None and found != marks.value_of(key, length)[at:at + n]:
                raise Finding("wrong", f"{how}: {len(found)} wrong bytes of {self.name}: {found[:64]!r} at {at} of {key.hex()}")
            if result.status not in (Status.OK, Status.MISS, Status.BUSY, Status.QUOTA, Status.FAILED):
                raise Finding("wrong", f"{how}: {result.status.name}")
            self.life.facts.add("hits" if found is not None else "misses")

    def places(self, rng, asked, how):
        """Returns a target for each key: one after the other, or with gaps."""
        spare = rng.choice([0, 0, 4096, 64 * KIB])
        at, kept, places = (rng.randrange(1, 4096) if how == "odd" else 0), [], []
        for one in asked:
            room = one[2] + spare
            if how != "odd":
                room = (room + 4095) & ~4095
            if at + room > ROOM:
                break
            kept.append(one)
            places.append((at, room))
            at += room
        return kept, places

    @staticmethod
    def cut(rng, at, room, number):
        cuts = sorted(rng.sample(range(1, room), min(room - 1, 3))) if room > 1 else []
        if rng.random() < 0.5:
            cuts = sorted({c & ~4095 for c in cuts} - {0})
        return [(at + a, b - a, number) for a, b in zip([0] + cuts, cuts + [room])]

    def ask_for_all(self, rng, where):
        """Gets everything put recently, and scans memory for bytes of other tenants before later answers cover them."""
        keys, at, unseen = self.keys, 0, 0
        while at < len(keys):
            part = keys[at:at + rng.randint(1, 24)]
            self.get(rng, part)
            at += len(part)
            unseen += sum(length for _, length in part)
            if unseen > 2 * MIB:
                unseen = 0
                self.scan(where, False)
        self.scan(where)


class Tenants:
    """A life of a daemon and its store."""

    def __init__(self, directory, seed, facts):
        rng = random.Random(f"tenants {seed}")
        self.facts, self.directory = facts, directory
        directory.mkdir(mode=0o755)
        self.names = list(USERS)[:rng.choice([2, 2, 3])]
        self.sizes = rng.choice(SIZES)
        self.declared = rng.choice([0, 0, max(self.sizes)])
        self.volumes = [f"store-{v}" for v in "ab"[:rng.choice([1, 1, 2])]]
        self.is_faulty = rng.random() < 0.75
        self.faults = Faults(directory)
        config = directory / "config.yaml"
        config.write_text("tenants:\n" + "".join(f"  - {{name: {n}, users: [{USERS[n]}], pool: 16MiB}}\n" for n in self.names))
        os.chmod(config, 0o644)
        self.daemon = harness.Daemon(
            directory, harness.Leg("campaign", deprive=[harness.die_with_parent]), config=config,
            env=self.faults.environment() if self.is_faulty else {},
            settings={"listen.mode": "0666", "memory.pool": "16MiB", "log.level": "notice", "limits.wait": "5s",
                      "store.path": ",".join(f"{directory}/{v}" for v in self.volumes),
                      "store.limit": f"{24 * len(self.volumes)}MiB", "store.prewrite": rng.choice(["on", "off"]),
                      "store.scrub_rate": rng.choice(["0", "16MiB"]), "memory.huge_pages": rng.choice(["auto", "off"]),
                      "io.workers": rng.randint(1, 3), "io.backend": "posix" if self.is_faulty else "auto"})
        self.tenants = [Tenant(self, name) for name in self.names]
        self.admin = None
        self.start()

    def start(self):
        try:
            self.daemon.start()
        except AssertionError as e:
            raise Finding("hung", str(e)) from None
        self.admin = self.daemon.client(name="admin", timeout=TIMEOUT_S * slow())
        for tenant in self.tenants:
            tenant.connect()

    def disconnect(self):
        for tenant in self.tenants:
            tenant.disconnect()
        if self.admin:
            self.admin.close()
            self.admin = None

    def died(self):
        """Confirms that the daemon was killed; nothing else may have ended it."""
        process = self.daemon.process
        if process.poll() is None:
            process.kill()
        self.daemon._reap()
        if process.returncode != -signal.SIGKILL:
            raise Finding("wrong", f"the daemon ended by itself, with {process.returncode}:\n{self.daemon.log()[-3000:]}")
        self.check_log()

    def check_log(self):
        try:
            self.daemon.check_log()
        except AssertionError as e:
            raise Finding("wrong", str(e)) from None

    # --- a run ---

    def arm(self, rng, end):
        """Arms the faults that occur while files pass to the next tenant."""
        volume = rng.choice(self.volumes)
        if end in ("kill at a write", "kill after a write"):
            name = rng.choice(["table", "table", "table", f"segment-{rng.randrange(12):04x}"])
            self.faults.set([(f"{volume}/{name}", WRITE_KILLS if end == "kill at a write" else WRITE_THEN_KILLS,
                              rng.randint(1, 5), 0)])
        elif end == "fault":
            name, kind = rng.choice([("table", WRITE_FAILS), ("table", WRITE_FAILS), ("table", WRITE_LIES),
                                     ("segment-0000", WRITE_FAILS), ("segment-0002", WRITE_LIES), ("superblock", WRITE_FAILS)])
            self.faults.set([(f"{volume}/{name}", kind, rng.choice([1, 1, 2, 20]), 0)])

    def work(self, rng, end):
        """Lets each tenant in turn fill a good part of the store, while the others get what they have."""
        order = rng.sample(self.tenants, len(self.tenants)) * 2
        armed, pid, timer = rng.randrange(1, len(order)), self.daemon.pid, None
        devices = []
        try:
            for turn, tenant in enumerate(order):
                if turn == armed:
                    self.arm(rng, end)
                    if end == "kill":
                        timer = threading.Timer(rng.uniform(0, 0.25) * slow(), os.kill, (pid, signal.SIGKILL))
                        timer.start()
                    elif end == "device":
                        devices.append(self.admin.submit(Op.DEVICE, struct.pack("<II", rng.randrange(len(self.volumes)), SUSPEND)))
                left = rng.randint(1, 20 if turn <= armed else 8) * MIB
                while left > 0:
                    tag, sent = tenant.put(rng)
                    left -= sent
                    other = rng.choice(self.tenants)
                    if other is not tenant and other.keys and rng.random() < 0.3:
                        other.get(rng, other.some(rng))
                        other.scan("while others put", False)
                    tenant.client.wait(tag, check=False)
                tenant.scan("after its puts", rng.random() < 0.3)
            for tag in devices:
                self.admin.wait(tag, check=False)
            return True
        except (kvwire.SessionEnded, ConnectionError):
            return False
        finally:
            if timer:
                timer.cancel()
                timer.join()

    def ask(self, rng, where):
        for tenant in self.tenants:
            tenant.ask_for_all(rng, where)

    def resume(self):
        """Waits until all volumes are up."""
        self.faults.set([])
        deadline = time.monotonic() + TIMEOUT_S * slow()
        while True:
            states = [p["state"] for p in json.loads(self.admin.report())["store"]["volumes"]]
            for path, state in enumerate(states):
                if state != "up":
                    self.admin.device("resume", path, check=False)
            if all(s == "up" for s in states):
                return
            if time.monotonic() > deadline:
                raise Finding("hung", f"a path is not resumed: {states}\n{self.daemon.log()[-3000:]}")

    def segments(self):
        return sorted(p for v in self.volumes for p in (self.directory / v).glob("segment-*"))

    def damage(self, rng, end):
        """Damages files as a broken disk might: contents of other files, or too few bytes."""
        files = self.segments()
        for _ in range(rng.randint(1, 4)):
            a, b = rng.sample(files, 2) if len(files) > 1 else files * 2
            if end == "exchange":
                one, other = a.read_bytes(), b.read_bytes()
                for path, content in ((a, other), (b, one)):
                    with open(path, "r+b") as f:
                        f.write(content)
            else:
                os.truncate(a, rng.choice([0, rng.randrange(os.path.getsize(a) // 512 + 1) * 512]))

    def run(self, rng):
        end = rng.choice(ENDS if self.is_faulty else [e for e in ENDS if "write" not in e and e != "fault"])
        try:
            lives = self.work(rng, end)
            self.facts.add("end_" + end.replace(" ", "_"))
            if lives and end in ("fault", "device"):
                self.ask(rng, f"amid a {end}")
                if rng.random() < 0.6:
                    self.resume()
                    self.ask(rng, f"after a {end} and a resume")
                if rng.random() < 0.3:
                    with contextlib.suppress(kvwire.Refused):  # that volume is offline
                        self.admin.verify_volume(rng.randrange(len(self.volumes)))
                    for tenant in self.tenants:
                        tenant.scan("after a verify")
                end = rng.choice(["kill", "stop"])
        except (kvwire.SessionEnded, ConnectionError):
            raise Finding("wrong", f"the daemon ended a session, or itself: {self.daemon.process.poll()}\n"
                          f"{self.daemon.log()[-5000:]}") from None
        except kvwire.ReplyTimeout as e:
            raise Finding("hung", f"{e}\n{self.daemon.log()[-3000:]}") from None
        self.faults.set([])
        if lives and (end == "stop" or end in DAMAGES):
            self.disconnect()
            try:
                self.daemon.stop()
            except AssertionError as e:
                raise Finding("wrong", str(e)) from None
            if end in DAMAGES:
                self.damage(rng, end)
        else:
            self.died()
            self.disconnect()
            if rng.random() < 0.2:
                self.daemon.spawn()
                time.sleep(rng.uniform(0, 0.04) * slow())
                self.died()
                self.facts.add("killed_while_starting")
        self.start()
        try:
            self.ask(rng, f"after a {end}")
            self.resume()
        except kvwire.ReplyTimeout as e:
            raise Finding("hung", f"after a {end}: {e}\n{self.daemon.log()[-3000:]}") from None
        except kvwire.WireError as e:
            raise Finding("wrong", f"after a {end}: {e}\n{self.daemon.log()[-3000:]}") from None

    def stop(self):
        self.disconnect()
        for tenant in self.tenants:
            tenant.close()
        self.daemon.discard()
