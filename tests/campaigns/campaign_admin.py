# SPDX-License-Identifier: Apache-2.0
"""admin: several users and tenants purge, evict, put and get while volumes are suspended and resumed, files fail, the store is full, and
the daemon is stopped or killed.

A run is a life of one daemon: some rounds of work, and an end. In a round each session has one request in flight, so that requests overlap
each other, suspends, resumes and faults. A session uses its own namespaces, so that each answer has one meaning. In some runs a volume is
left out of the configuration. Several runs share a store.

An oracle outside of the daemon checks:

  - A hit has the bytes of one put of that key that was answered as stored, or not answered because the daemon died.
  - An evicted or purged key is never a hit before it is put again: no suspend, resume, fault, stop or kill restores it.
  - A key answered `written` or `durable` is a hit once all volumes are up, unless it was evicted or purged, or a volume that was offline
has
    missed a change and came back empty; in a full store, unless there was no room.
  - No memory that a client can see has bytes of another tenant: after each start, during faults, and once everything is settled.

Faults are those of tests/lib/faulty-files.c: errors, writes that are done but report EIO, slow syncs."""

import contextlib
import itertools
import json
import os
import random
import signal
import struct
import time

import harness
import kvwire
import marks
import oracle
from faults import SYNC_FAILS, SYNC_IS_SLOW, WRITE_FAILS, WRITE_IS_SLOW, WRITE_LIES, Faults
from harness import MIB, key_of, slow
from kvwire import Ack, Flag, Op, Status, Tier
from marks import user
from oracle import SIZES, Finding

LEG = harness.Leg("campaign", settings={"io.backend": "posix"}, deprive=[harness.die_with_parent])
TIMEOUT_S = 30
SUSPEND, RESUME = 1, 2
USERS = [("t1", 20001), ("t1", 20002), ("t2", 20003)]
NAMESPACES, KEYS = 2, 12
ROOM = 4 * MIB



def identify(tenant, key, data):
    """Identifies the version of the bytes. Returns 0 if they are too short to identify it, None if they belong to no version."""
    if len(data) < 4:
        return 0 if len(data) in SIZES else None
    version, = struct.unpack_from("<I", data)
    return version if data == marks.stamped(tenant, oracle.value_of(key, version)) else None


EVENTS = []                # changes to volumes, files and the daemon in this life
CLOCK = itertools.count()  # the order of all events


def event(what):
    EVENTS.append((next(CLOCK), what))


class Record:
    """One key. `may`: the versions, and None, that may be found; `owed`: the key must be found once all volumes are up."""
    __slots__ = ("may", "owed", "version", "story")

    def __init__(self):
        self.may, self.owed, self.version, self.story = {None}, False, 0, []

    def tell(self, what):
        self.story = self.story[-24:] + [(next(CLOCK), what)]

    def tale(self):
        """Returns the history of the key, merged with the events of the life."""
        began = self.story[0][0] if self.story else 0
        lines = sorted([(n, 1, what) for n, what in self.story] + [(n, 0, what) for n, what in EVENTS if n >= began])
        return "".join(f"\n    {'' if about_it else '  '}{what}" for _, about_it, what in lines)


class Session:
    """One client of one user, with its own namespaces."""

    def __init__(self, campaign, number, tenant, uid):
        self.campaign, self.number, self.tenant, self.uid = campaign, number, tenant, uid
        self.books = [{key_of("admin", number, n, k): Record() for k in range(KEYS)} for n in range(NAMESPACES)]
        self.client = None

    def connect(self):
        with user(self.uid):
            self.client = self.campaign.daemon.client(name=f"session {self.number}", timeout=TIMEOUT_S * slow())
        self.client.staging(ROOM)
        self.ids = [None] * NAMESPACES
        for n in range(NAMESPACES):
            with contextlib.suppress(kvwire.Refused):  # a fault: the namespace is requested again when it is needed
                self.ids[n] = self.client.namespace(f"s{self.number}/n{n}")

    def close(self):
        if self.client:
            self.client.close()
            self.client = None

    def namespace(self, n):
        if self.ids[n] is None:
            with contextlib.suppress(kvwire.Refused):
                self.ids[n] = self.client.namespace(f"s{self.number}/n{n}")
        return self.ids[n]

    # Each function sends a request, and returns the function that takes its reply (None: the daemon died), or None.

    def put(self, rng):
        n = rng.randrange(NAMESPACES)
        number, keys = self.namespace(n), rng.sample(list(self.books[n]), rng.randint(1, 5))
        if number is None:
            return None
        offers = []
        for key in keys:
            record = self.books[n][key]
            record.version += 1
            offers.append((key, record.version))
        ack = rng.choice([Ack.ACCEPTED, Ack.WRITTEN, Ack.WRITTEN, Ack.DURABLE])
        entries = self.client.put_entries([(k, marks.stamped(self.tenant, oracle.value_of(k, v))) for k, v in offers])
        tag = self.client.submit_batch(Op.PUT, number, entries, ack=ack, timeout_ms=10000)

        def done(reply):
            results = self.client.put_results(reply, len(offers)) if reply else [None] * len(offers)
            for (key, version), result in zip(offers, results):
                self.put_answered(self.books[n][key], key, version, ack, result.status if result else None)
        return tag, done

    def put_answered(self, record, key, version, ack, status):
        record.tell(f"put {version} {ack.name}: {status.name if status is not None else 'died'}")
        if status in (Status.OK, Status.NOT_DURABLE) or status is None:
            record.may = record.may | {version}
        if status in (Status.OK, Status.NOT_DURABLE):
            record.owed = record.owed or ack != Ack.ACCEPTED
        elif status == Status.EXISTS:
            if record.may == {None}:
                raise Finding("wrong", f"put: EXISTS where there is nothing: {key.hex()}{record.tale()}")
            record.owed = record.owed or ack != Ack.ACCEPTED
        elif status not in (None, Status.FAILED, Status.BUSY, Status.NO_SPACE, Status.SHUTDOWN):
            raise Finding("wrong", f"put: {status.name}: {key.hex()}")

    def evict(self, rng):
        n = rng.randrange(NAMESPACES)
        number, keys = self.namespace(n), rng.sample(list(self.books[n]), rng.randint(1, 4))
        if number is None:
            return None
        tag = self.client.submit_batch(Op.EVICT, number, keys, tiers=Tier.ALL)

        def done(reply):
            statuses = [Status(s) for s, in struct.iter_unpack("<H", reply.body)] if reply else [None] * len(keys)
            for key, status in zip(keys, statuses):
                record = self.books[n][key]
                record.tell(f"evict: {status.name if status is not None else 'died'}")
                if status == Status.MISS:
                    if record.owed and self.campaign.whole():
                        raise Finding("lost", f"evict: a miss: {key.hex()}{record.tale()}")
                    continue
                self.campaign.miss_something()
                record.owed = False
                record.may = {None} if status == Status.OK else record.may | {None}
                if status not in (None, Status.OK, Status.FAILED, Status.SHUTDOWN):
                    raise Finding("wrong", f"evict: {status.name}: {key.hex()}")
        return tag, done

    def evict_nothing(self, rng):
        number = self.namespace(0)
        if number is None:
            return None
        tag = self.client.submit_batch(Op.EVICT, number, [rng.randbytes(32) for _ in range(3)], tiers=Tier.ALL)

        def done(reply):
            if reply and {s for s, in struct.iter_unpack("<H", reply.body)} != {Status.MISS}:
                raise Finding("wrong", f"evict of keys that were never put: {reply.body!r}")
        return tag, done

    def forget_memory(self, rng):
        """Evicts keys from memory only, so that they are next found on disk."""
        n = rng.randrange(NAMESPACES)
        number = self.namespace(n)
        if number is None:
            return None
        return self.client.submit_batch(Op.EVICT, number, list(self.books[n]), tiers=Tier.MEMORY), lambda reply: None

    def purge(self, rng):
        n = rng.randrange(NAMESPACES)
        number = self.namespace(n)
        if number is None:
            return None
        tag = self.client.submit(Op.PURGE, struct.pack("<II", number, 0))
        self.campaign.miss_something()

        def done(reply):
            self.campaign.miss_something()
            ok = reply is not None and reply.status == Status.OK
            for record in self.books[n].values():
                record.tell(f"purge: {reply.status.name if reply else 'died'}")
                record.owed = False
                record.may = {None} if ok else record.may | {None}
        return tag, done

    def open(self, rng):
        """Opens another name, or an existing one with another chunk size. Not while a volume is left out, because volumes that were used
        separately, each with its own names, are refused."""
        if not self.campaign.is_complete():
            return None
        name = f"s{self.number}/more{rng.randrange(20)}".encode()
        tag = self.client.submit(Op.NAMESPACE, kvwire.NAMESPACE.pack(rng.choice([0, 8192, 65536]), len(name), 0, 0) + name)
        return tag, lambda reply: None

    def get(self, rng):
        n = rng.randrange(NAMESPACES)
        number, keys = self.namespace(n), rng.sample(list(self.books[n]), rng.randint(1, 6))
        if number is None:
            return None
        entries = [kvwire.GET_ENTRY.pack(k, 0, 0, 0, 0, 0) for k in keys]
        tag = self.client.submit_batch(Op.GET, number, entries, timeout_ms=10000)

        def done(reply):
            if reply:
                self.check(n, keys, self.client.get_results(reply, len(keys)), "get", self.campaign.whole())
        return tag, done

    def check(self, n, keys, results, where, whole):
        leases = [r.lease for r in results if r.lease]
        for key, result in zip(keys, results):
            record = self.books[n][key]
            if result.status in (Status.BUSY, Status.QUOTA):
                continue
            if result.status not in (Status.OK, Status.MISS):
                if whole:
                    raise Finding("wrong", f"{where}: {result}: {key.hex()}{record.tale()}")
                continue
            if result.data is None:
                if record.owed and whole:
                    raise Finding("lost", f"{where}: a miss of what was stored: {key.hex()}{record.tale()}")
                continue
            version = identify(self.tenant, key, result.data)
            if version == 0:  # too short to identify
                if record.may == {None}:
                    raise Finding("wrong", f"{where}: a hit of a dropped key: {key.hex()}{record.tale()}")
            elif version not in record.may:
                raise Finding("wrong", f"{where}: version {version}, allowed are {record.may}: {key.hex()}{record.tale()}")
            self.campaign.facts.add("hits")
        if leases:
            with contextlib.suppress(kvwire.SessionEnded):  # the daemon may be stopping; otherwise the next request reports the end
                self.client.release(leases)

    def scan(self, where, everything=True):
        others = {tenant for tenant, _ in USERS} - {self.tenant}
        if os.geteuid() == 0:  # otherwise all sessions belong to one tenant
            marks.scan(self.client, self.tenant, others, (), everything, where, self.campaign.facts)

    def verify(self, where, whole):
        for n in range(NAMESPACES):
            number = self.client.namespace(f"s{self.number}/n{n}")
            keys = list(self.books[n])
            for i in range(0, len(keys), 4):
                part = keys[i:i + 4]
                self.check(n, part, self.client.get(number, part, timeout_ms=TIMEOUT_S * 1000), where, whole)
        self.scan(where)


class Campaign:
    LIFE = 6

    def __init__(self, directory, seed, facts):
        rng = random.Random(f"admin {seed}")
        self.facts, self.number, self.directory = facts, 0, directory
        EVENTS.clear()
        self.n_paths = rng.choice([1, 2, 2, 2, 3])
        self.is_full = rng.random() < 0.2
        self.names = [f"store-{'abc'[i]}" for i in range(self.n_paths)]
        self.faults = Faults(directory)
        self.sessions = [Session(self, i, *USERS[i]) for i in range(len(USERS))]
        self.away = False     # a volume may be down, or may have been since all were known to be up
        self.missed = False   # ... and data that the volume may have held was purged or evicted
        tenants = {t: [u for s, u in USERS if s == t] for t, _ in USERS}
        config = directory / "config.yaml"
        config.write_text("tenants:\n" + "".join(f"  - {{name: {t}, users: {u}, pool: 16MiB}}\n" for t, u in tenants.items())
                          if os.geteuid() == 0 else "")
        os.chmod(config, 0o644)
        self.daemon = harness.Daemon(directory, LEG, config=config, env=self.faults.environment(), settings={
            "listen.mode": "0666", "memory.pool": "16MiB", "io.workers": rng.randint(1, 2), "log.level": "notice",
            "store.prewrite": "off", "store.limit": f"{(16 if self.is_full else 96) * self.n_paths}MiB",
            "limits.wait": "10s", "store.error_budget": rng.choice([2, 16])})
        self.configure(range(self.n_paths))
        self.admin = None
        self.start()

    # --- the daemon ---

    def configure(self, which):
        self.which = list(which)
        event(f"configured: {[self.names[i] for i in self.which]}")
        self.daemon.settings["store.path"] = ",".join(f"{self.directory}/{self.names[i]}" for i in self.which)
        self.daemon.settings["store.limit"] = f"{(16 if self.is_full else 96) * len(self.which)}MiB"

    def start(self):
        try:
            self.daemon.start()
        except AssertionError as e:
            raise Finding("hung", str(e)) from None
        self.admin = self.daemon.client(name="admin", timeout=TIMEOUT_S * slow())
        for session in self.sessions:
            session.connect()

    def end_clients(self):
        for session in self.sessions:
            session.close()
        if self.admin:
            self.admin.close()
            self.admin = None

    def states(self):
        return [p["state"] for p in json.loads(self.admin.report())["store"]["volumes"]]

    def whole(self):
        """Returns whether owed keys must be found now."""
        return not self.away and not self.is_full

    def is_complete(self):
        return len(self.which) == self.n_paths

    def miss_something(self):
        self.missed = self.missed or self.away

    def all_are_up(self):
        """Decides what a volume that came back has: its chunks, or nothing, according to the rules."""
        if self.missed:
            self.facts.add("excused")
            for session in self.sessions:
                for book in session.books:
                    for record in book.values():
                        record.owed = False
                        record.tell("what is on a volume may be lost")
        self.away = self.missed = False

    # --- a run ---

    def some_faults(self, rng):
        path = rng.choice(self.names)
        what = rng.random()
        if what < 0.35:
            return [(f"{path}/table", rng.choice([WRITE_LIES, WRITE_LIES, WRITE_FAILS]), rng.randint(1, 2), 0)]
        if what < 0.5:
            return [(f"{path}/table", WRITE_LIES, 1, 0),
                    (f"{rng.choice(self.names)}/{rng.choice(['table', 'superblock'])}", WRITE_FAILS, rng.randint(1, 3), 0)]
        if what < 0.65:
            return [("table", SYNC_IS_SLOW, 30, rng.randint(5, 60)), ("namespaces.0", SYNC_IS_SLOW, 30, rng.randint(5, 60)),
                    ("superblock", SYNC_IS_SLOW, 30, rng.randint(5, 60))]
        if what < 0.8:
            return [(f"{path}/namespaces.{rng.randrange(2)}", rng.choice([WRITE_LIES, WRITE_FAILS, SYNC_FAILS]), 1, 0)]
        if what < 0.9:
            return [(f"{path}/superblock", rng.choice([WRITE_LIES, WRITE_FAILS]), 1, 0),
                    (f"{path}/table", WRITE_IS_SLOW, 10, rng.randint(5, 40))]
        return [(f"{path}/segment-0000", rng.choice([WRITE_LIES, WRITE_FAILS]), 2, 0)]

    def device(self, rng, action, path):
        self.away = True
        self.facts.add("suspends" if action == SUSPEND else "resumes")
        event(f"{'suspend' if action == SUSPEND else 'resume'} of {self.names[self.which[path]]}: volumes are {self.states()}")
        return self.admin.submit(Op.DEVICE, struct.pack("<II", path, action))

    def round(self, rng, devices):
        if rng.random() < self.device_share and len(devices) < 3:
            devices.append(self.device(rng, rng.choice([SUSPEND, RESUME, RESUME]), rng.randrange(len(self.which))))
        begun = []
        for session in self.sessions:
            act = rng.choices([session.put, session.get, session.evict, session.forget_memory, session.purge, session.open,
                               session.evict_nothing], [40, 25, 14, 8, 4, 3, 3])[0]
            one = act(rng)
            if one:
                begun.append((session, *one))
        return begun

    def collect(self, begun):
        for session, tag, done in begun:
            try:
                done(session.client.wait(tag, check=False))
            except kvwire.ReplyTimeout as e:
                raise Finding("hung", f"{e}\n{self.daemon.log()[-3000:]}") from None
            except (kvwire.SessionEnded, ConnectionError):
                raise self.died() from None

    def died(self):
        return Finding("wrong", f"the daemon ended a session, or itself: {self.daemon.process.poll()}\n{self.daemon.log()[-5000:]}")

    def run(self, rng, left):
        devices, begun = [], []
        self.device_share, fault_share = rng.choice([0, 0.06, 0.35]), rng.choice([0, 0.03, 0.12])
        for _ in range(rng.randint(4, 24)):
            if rng.random() < fault_share:
                self.away = True
                self.facts.add("faults")
                rules = self.some_faults(rng)
                event(f"faults: {rules}")
                self.faults.set(rules)
            elif rng.random() < 0.1:
                self.faults.set([])
            begun = self.round(rng, devices)
            self.collect(begun)
        end = rng.choice(["kill", "kill", "kill at work", "kill at work", "stop", "stop at work", "settle", "settle"])
        self.facts.add(end.replace(" ", "_"))
        event(f"end: {end}: volumes are {self.states()}")
        if end == "settle":
            self.settle(devices)
            end = rng.choice(["kill", "stop"])
        if end.endswith("at work"):
            begun = self.round(rng, devices)
            time.sleep(rng.choice([0, rng.random() * 0.02]))
        if end.startswith("kill"):
            self.kill()
            for _, _, done in begun if end.endswith("at work") else ():
                done(None)
        else:
            self.stop_daemon(begun if end.endswith("at work") else ())
        self.faults.set([])
        self.end_clients()
        if self.n_paths > 1 and self.is_complete() and rng.random() < 0.2:
            self.away = True
            self.facts.add("left_out")
            out = rng.randrange(self.n_paths)
            self.configure([i for i in range(self.n_paths) if i != out])
            self.start()
        elif not self.is_complete():
            self.configure(rng.sample(range(self.n_paths), self.n_paths))
            self.start()
        else:
            self.start()
        self.verify(f"after a {end}")
        return 1

    def settle(self, devices):
        """Waits until all requests about volumes are answered and all volumes are up; then every expectation must hold."""
        self.faults.set([])
        for tag in devices:
            self.admin.wait(tag, check=False)
        for path in range(len(self.which)):
            deadline = time.monotonic() + TIMEOUT_S * slow()
            while self.states()[path] != "up":
                self.admin.device("resume", path, check=False)
                if time.monotonic() > deadline:
                    raise Finding("hung", f"path {path} is not resumed: {self.states()}\n{self.daemon.log()[-3000:]}")
        self.verify("once all volumes are up")

    def verify(self, where):
        """Checks that all configured volumes are up."""
        try:
            if self.is_complete():
                states = self.states()
                if set(states) != {"up"}:
                    raise Finding("wrong", f"{where}: volumes are {states}\n{self.daemon.log()[-3000:]}")
                self.all_are_up()
            for session in self.sessions:
                session.verify(where, self.whole())
                self.facts.add("checked", NAMESPACES * KEYS)
        except kvwire.ReplyTimeout as e:
            raise Finding("hung", f"{where}: {e}") from None
        except kvwire.WireError as e:
            raise Finding("wrong", f"{where}: {e}\n{self.daemon.log()[-3000:]}") from None

    # --- its end ---

    def kill(self):
        process = self.daemon.process
        process.kill()
        self.daemon._reap()
        if process.returncode != -signal.SIGKILL:
            raise Finding("wrong", f"the daemon ended by itself, with {process.returncode}:\n{self.daemon.log()[-5000:]}")
        self.check_log()

    def stop_daemon(self, begun):
        self.daemon.process.send_signal(signal.SIGTERM)
        for session, tag, done in begun:
            try:
                reply = session.client.wait(tag, check=False)
            except kvwire.ReplyTimeout as e:
                raise Finding("hung", f"{e}\n{self.daemon.log()[-3000:]}") from None
            except (kvwire.SessionEnded, ConnectionError):
                reply = None
            done(reply)
        try:
            code = self.daemon._reap()
        except AssertionError as e:
            raise Finding("hung", str(e)) from None
        if code != 0:
            raise Finding("wrong", f"a clean stop ends with {code}:\n{self.daemon.log()[-5000:]}")
        self.check_log()

    def check_log(self):
        try:
            self.daemon.check_log()
        except AssertionError as e:
            raise Finding("wrong", str(e)) from None

    def end(self):
        self.stop_daemon(())
        self.end_clients()
        self.configure(range(self.n_paths))
        self.start()
        self.verify("at the end")

    def stop(self):
        self.end_clients()
        self.daemon.discard()
