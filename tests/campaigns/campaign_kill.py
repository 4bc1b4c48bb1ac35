# SPDX-License-Identifier: Apache-2.0
"""kill: kills the daemon while several client processes use it, and compares everything with the oracle afterwards.

A client process owns some namespaces, which only it changes, with up to 8 requests in flight; it also reads those of others. It puts from
its staging area and from registered memory, in whole pages or at odd places, in one piece or several, and gets into both. It checks every
answer on arrival, and passes on its book when the daemon is dead. The parent kills, starts again, and asks for every key.

Every second run has several tenants in a store that is too small for them, on a daemon of its own: see tenants.py."""

import fcntl
import mmap
import os
import pickle
import random
import select
import signal
import struct
import time
import traceback

import harness
import kvwire
from harness import KIB, MIB, die_with_parent, key_of, slow
from kvwire import Ack, Flag, Op, Status, Tier
from oracle import Finding, Record, identify, size_of, value_of
from tenants import Tenants

LEG = harness.Leg("campaign", deprive=[harness.die_with_parent])
CLIENTS, NAMESPACES, KEYS = 4, 3, 20
ROOM = 2 * MIB  # size of the staging area, and of registered memory, for one request
FINGERPRINT = kvwire.fingerprint(dtype="fp8", model="campaign")
LIMIT = 2.0     # seconds until a killed daemon is ready again
TIMEOUT_S = 20   # seconds until a request counts as hung


def new_books():
    """Returns a book for each client: namespace -> key -> Record."""
    return [{f"c{c}/n{n}": {key_of("kill", c, n, k): Record() for k in range(KEYS)} for n in range(NAMESPACES)}
            for c in range(CLIENTS)]


class Actor:
    """One client process."""

    def __init__(self, daemon, books, number, rng, soft, trigger):
        self.daemon, self.books, self.book, self.rng, self.soft = daemon, books, books[number], rng, soft
        self.trigger = trigger  # (kind of request, which, delay): kill the daemon after it; or None
        self.client = daemon.client(name=f"actor {number}", timeout=TIMEOUT_S * slow())
        self.client.staging(8 * ROOM)
        fd = os.memfd_create("actor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 8 * ROOM)
        self.lent = mmap.mmap(fd, 8 * ROOM)
        self.lent[:] = bytes(8 * ROOM)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, kvwire.F_SEAL_SHRINK)
        self.region = self.client.register(fd, 8 * ROOM)
        os.close(fd)
        self.numbers = {n: self.client.namespace(n, FINGERPRINT) for b in books for n in b}
        self.free = [i * ROOM for i in range(rng.choice([1, 2, 4, 8]))]
        self.flight = {}  # tag -> (handler, its arguments, place in staging area and region)
        self.watches = {}  # tag -> key -> versions that it may find
        self.purging, self.leases = set(), []
        self.tag, self.sent = 0, {}
        self.facts = {}

    # --- messages ---

    def ask(self, kind, op, body, flags, handler, *arguments):
        self.tag += 1
        place = self.free.pop()
        self.flight[self.tag] = (handler, arguments, place)
        self.client.send(kvwire.HEADER.pack(16 + len(body), op, flags, self.tag) + body)
        self.sent[kind] = self.sent.get(kind, 0) + 1
        if self.trigger and self.trigger[0] == kind and self.sent[kind] == self.trigger[1]:
            time.sleep(self.trigger[2])
            os.kill(self.daemon.pid, signal.SIGKILL)
        return self.tag

    def batch(self, kind, op, namespace, entries, handler, *arguments, flags=0, ack=0, tiers=0, releases=(), timeout=0,
              pieces=b""):
        head = kvwire.BATCH.pack(self.numbers[namespace], len(entries), len(releases), timeout, ack, tiers,
                                 len(pieces) // kvwire.PIECE.size, kvwire.ROOT)
        return self.ask(kind, op, head + b"".join(entries) + pieces + b"".join(kvwire.LEASE.pack(*r) for r in releases),
                        flags | (Flag.PIECES if pieces else 0), handler, *arguments)

    def answer(self, timeout=None):
        reply = self.client.receive(timeout)
        handler, arguments, place = self.flight.pop(reply.tag)
        watch = self.watches.pop(reply.tag, None)
        self.free.append(place)
        if reply.status not in (Status.OK, Status.SHUTDOWN):
            raise Finding("wrong", f"{reply.op.name}: {reply.status.name} {reply.body!r}")
        if reply.op in (Op.GET, Op.PUT, Op.EXISTS) and reply.value:
            raise Finding("wrong", f"{reply.op.name}: {reply.value} leases are said to be stale")
        handler(reply, watch, *arguments)
        self.facts[reply.op.name.lower()] = self.facts.get(reply.op.name.lower(), 0) + 1

    def changed(self, key, record):
        for watch in self.watches.values():
            if key in watch:
                watch[key] |= record.expected()

    # --- requests and their results ---

    def some(self, most, idle):
        """Returns one of the client's namespaces and some of its keys; `idle`: keys without a request in flight, because they are to be
        changed."""
        name = self.rng.choice(list(self.book))
        keys = self.rng.sample(list(self.book[name]), self.rng.randint(1, most))
        if idle:
            keys = [] if name in self.purging else [k for k in keys if not self.book[name][k].pending]
        return name, keys

    def lend(self, values, step):
        """Copies bytes to registered memory. Returns (entries, pieces) of a put."""
        at, places = self.free[-1], []
        split = self.rng.random() < 0.2
        for value in values:
            cuts = sorted(self.rng.sample(range(len(value)), min(len(value), 5))) if split else []
            cuts = [0] + [c for c in cuts if c] + [len(value)]
            self.lent[at:at + len(value)] = value
            places.append([(at + a, b - a, self.region) for a, b in zip(cuts, cuts[1:])])
            at += (len(value) + step - 1) & ~(step - 1)
        if not split:
            return [p[0] for p in places], b""
        pieces, keys = kvwire.pack_pieces(places)
        return [(first, length, n) for first, n, length in keys], pieces

    def put(self):
        name, keys = self.some(10, True)
        offers, room = [], ROOM
        lent = self.rng.random() < 0.5
        step = 4096 if lent and self.rng.random() < 0.8 else 64
        for key in keys:
            record = self.book[name][key]
            room -= (size_of(key, record.version + 1) + step - 1) & ~(step - 1)
            if room < 0:
                break
            offers.append((key, record.put_sent(time.monotonic())))
            self.changed(key, record)
        if not offers:
            return
        pieces = b""
        if lent:
            places, pieces = self.lend([value_of(k, v) for k, v in offers], step)
            entries = [kvwire.PUT_ENTRY.pack(k, *place, 0) for (k, _), place in zip(offers, places)]
        else:
            entries = self.client.put_entries([(k, value_of(k, v)) for k, v in offers], self.free[-1])
        ack = self.rng.choice(list(Ack))
        flags = (Flag.LEASE if self.rng.random() < 0.2 else 0) | (Flag.MORE if self.rng.random() < 0.1 else 0) | \
            (Flag.NOWAIT if self.rng.random() < 0.1 else 0)
        self.batch(f"put {ack.name.lower()}", Op.PUT, name, entries, self.put_answered, name, offers, ack,
                   flags=flags, ack=ack, pieces=pieces)
        self.facts["lent_puts"] = self.facts.get("lent_puts", 0) + lent

    def put_answered(self, reply, _, name, offers, ack):
        now = time.monotonic()
        for (key, version), result in zip(offers, self.client.put_results(reply, len(offers))):
            record = self.book[name][key]
            record.put_answered(key, version, result.status, ack, now, self.soft)
            self.changed(key, record)
            if result.leased:
                there = record.check(key, result.data, record.live - {None}, "put's lease")
                self.leases.append((key, result.lease, result.offset, there))

    def expecting(self, name, keys):
        mine = self.book.get(name)
        return {k: mine[k].expected() for k in keys} if mine else None

    def get(self, into):
        name, keys = self.some(10, False)
        if self.rng.random() < 0.2:  # key of another client
            book = self.rng.choice(self.books)
            name = self.rng.choice(list(book))
            keys = self.rng.sample(list(book[name]), len(keys))
        flags = Flag.NOWAIT if self.rng.random() < 0.1 else 0
        releases = []
        while self.leases and (len(self.leases) > 12 or self.rng.random() < 0.5):
            releases.append(self.end_lease(self.leases.pop(self.rng.randrange(len(self.leases)))))
        places = None
        lent = into and self.rng.random() < 0.6
        if into:
            keys = keys[:ROOM // (700 * KIB)]
            places = [self.free[-1] + i * 700 * KIB for i in range(len(keys))]
            flags |= Flag.INTO
        entries = [kvwire.GET_ENTRY.pack(k, 0, 0, places[i] if into else 0, 700 * KIB if into else 0,
                                         self.region if lent else 0)
                   for i, k in enumerate(keys)]
        watch = self.expecting(name, keys)
        tag = self.batch("into" if into else "get", Op.GET, name, entries, self.got, name, keys, places, lent,
                         flags=flags, releases=releases)
        self.facts["lent_gets"] = self.facts.get("lent_gets", 0) + lent
        if watch:
            self.watches[tag] = watch

    def got(self, reply, watch, name, keys, places, lent):
        for i, (key, result) in enumerate(zip(keys, self.client.get_results(reply, len(keys), places))):
            where = f"get of {name}"
            if result.status in (Status.BUSY, Status.QUOTA):
                self.facts["busy"] = self.facts.get("busy", 0) + 1
                continue
            if result.status not in (Status.OK, Status.MISS):
                raise Finding("wrong", f"{where}: {result}: {key.hex()}")
            data = result.data
            if lent and data is not None:
                data = self.lent[places[i]:places[i] + result.length]
            if watch is not None:
                version = self.book[name][key].check(key, data, watch[key], where)
            else:
                version = identify(key, data) if data is not None else None
                if data is not None and version is None:
                    raise Finding("wrong", f"{where}, another's: {len(data)} bytes of no version: {key.hex()}")
            if result.lease:
                self.leases.append((key, result.lease, result.offset, version))

    def end_lease(self, held):
        """Checks that the bytes under a lease are unchanged. Returns the lease, to be released."""
        key, lease, offset, version = held
        if version and identify(key, self.client.pool_read(offset, size_of(key, version))) not in (0, version):
            raise Finding("wrong", f"leased bytes of version {version} changed: {key.hex()}")
        return lease

    def look(self):
        name, keys = self.some(KEYS, False)
        tag = self.batch("look", Op.EXISTS, name, keys, self.looked, name, keys)
        self.watches[tag] = self.expecting(name, keys)

    def looked(self, reply, watch, name, keys):
        for key, tiers in zip(keys, reply.body):
            if (tiers == 0 and None not in watch[key]) or (tiers and watch[key] == {None}):
                raise Finding("wrong" if tiers else "lost",
                              f"exists in {name}: {tiers}, allowed are {watch[key]}: {key.hex()}")

    def evict(self):
        name, keys = self.some(5, True)
        for key in keys:
            self.book[name][key].evict_sent()
            self.changed(key, self.book[name][key])
        if keys:
            self.batch("evict", Op.EVICT, name, keys, self.evicted, name, keys, tiers=Tier.ALL)

    def evicted(self, reply, _, name, keys):
        for key, status in zip(keys, reply.body[::2]):
            self.book[name][key].evict_answered(key, Status(status))
            self.changed(key, self.book[name][key])

    def prefetch(self):
        name, keys = self.some(KEYS, False)
        self.batch("prefetch", Op.PREFETCH, name, keys, lambda *_: None)

    def evict_memory(self):
        name, keys = self.some(KEYS, False)
        self.batch("evict memory", Op.EVICT, name, keys, lambda *_: None, tiers=Tier.MEMORY)

    def purge(self):
        name = self.rng.choice(list(self.book))
        if name in self.purging:
            return
        self.purging.add(name)
        overlapped = {k for k, r in self.book[name].items() if r.pending}
        for key, record in self.book[name].items():
            record.purge_sent()
            self.changed(key, record)
        self.ask("purge", Op.PURGE, struct.pack("<II", self.numbers[name], 0), 0, self.purged, name, overlapped)

    def purged(self, reply, _, name, overlapped):
        self.purging.discard(name)
        for key, record in self.book[name].items():
            record.purge_answered(key in overlapped)
            self.changed(key, record)

    # --- the client ---

    def act(self):
        what = self.rng.choices([self.put, lambda: self.get(False), lambda: self.get(True), self.look, self.evict,
                                 self.evict_memory, self.prefetch, self.purge], [40, 25, 12, 4, 8, 6, 4, 3])[0]
        what()

    def work(self):
        try:
            while True:
                while self.free:
                    if self.flight and self.rng.random() < 0.3:
                        break
                    self.act()
                if self.flight:
                    self.answer()
        except kvwire.SessionEnded:
            pass
        for _ in range(2):  # the first end may be a reset, with answers after it
            try:
                while True:
                    self.answer(TIMEOUT_S * slow())
            except kvwire.SessionEnded:
                pass
        for held in self.leases:  # the pool outlives the daemon
            self.end_lease(held)
        self.facts["unanswered"] = len(self.flight)
        self.facts["unanswered_purges"] = len(self.purging)


class Child:
    """A process that runs an Actor and returns its knowledge, or its finding."""

    def __init__(self, make, gate):
        self.reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(writing)
            return
        code = 1
        try:
            die_with_parent()
            os.close(self.reading)
            os.close(gate[1])
            try:
                actor = make()
                os.write(writing, b"!")
                os.read(gate[0], 1)  # until all are ready
                actor.work()
                result = ("book", actor.book, actor.facts)
            except Finding as finding:
                result = ("finding", finding.kind, finding.text)
            except kvwire.ReplyTimeout as timeout:
                result = ("finding", "hung", str(timeout))
            except BaseException:
                result = ("finding", "wrong", traceback.format_exc())
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(result, pipe)
            code = 0
        finally:
            os._exit(code)

    def _read(self, most, deadline):
        readable, _, _ = select.select([self.reading], [], [], max(deadline - time.monotonic(), 0))
        if not readable:
            raise Finding("hung", "a client neither goes on nor ends")
        return os.read(self.reading, most)

    def started(self):
        first = self._read(1, time.monotonic() + TIMEOUT_S * slow())
        if first != b"!":
            raise Finding("wrong", f"a client could not start: {self._result(first)}")

    def _result(self, data):
        deadline = time.monotonic() + (TIMEOUT_S + 5) * slow()
        while part := self._read(1 << 20, deadline):
            data += part
        return pickle.loads(data)

    def result(self):
        result = self._result(b"")
        if result[0] == "finding":
            raise Finding(result[1], result[2])
        return result[1:]

    def end(self):
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self.reading)


class Campaign:
    LIFE = 12

    def __init__(self, directory, seed, facts):
        rng = random.Random(f"{seed}")
        self.facts, self.number, self.directory, self.seed, self.tenants = facts, 0, directory, seed, None
        self.books = new_books()
        self.daemon = harness.Daemon(directory, LEG, settings={
            "store.limit": "192MiB", "memory.pool": rng.choice(["24MiB", "48MiB"]),
            "store.prewrite": rng.choice(["on", "off"]), "io.workers": rng.randint(1, 3),
            "io.backend": rng.choice(["auto", "auto", "posix"]), "log.level": "notice"})
        if rng.random() < 0.4:
            self.daemon.settings.update({"store.path": f"{directory}/store-a,{directory}/store-b",
                                         "store.limit": "320MiB"})
        self.ready()

    def ready(self):
        """Starts the daemon. If it was killed before, checks the time that this takes."""
        began = time.monotonic()
        self.daemon.spawn()
        try:
            harness.wait_until(self.daemon.answers, "the daemon answers", TIMEOUT_S)
        except AssertionError as e:
            raise Finding("hung", str(e)) from None
        took = time.monotonic() - began
        self.facts.add("most_ready_s", took)
        if took > LIMIT * slow():
            raise Finding("hung", f"{took:.2f} s until the daemon answered")

    def reap(self):
        """Kills the daemon, or confirms that a client killed it; nothing else may have ended it."""
        process = self.daemon.process
        process.kill()
        self.daemon._reap()
        if process.returncode != -signal.SIGKILL:
            raise Finding("wrong", f"the daemon ended by itself, with {process.returncode}:\n{self.daemon.log()[-3000:]}")
        try:
            self.daemon.check_log()
        except AssertionError as e:
            raise Finding("wrong", str(e)) from None

    def run(self, rng, left):
        if self.number % 2 == 1 and os.geteuid() == 0:  # clients of several users
            self.tenants = self.tenants or Tenants(self.directory / "tenants", self.seed, self.facts)
            self.tenants.run(rng)
            return 1
        vanish = rng.random() < 0.25
        soft = {None} if vanish else set()
        if vanish:
            for record in self.records():
                record.live |= soft
        triggers = [None] * CLIENTS
        if rng.random() < 0.6:
            kind = rng.choice(["put accepted", "put written", "put durable", "into", "evict", "purge", "purge"])
            triggers[rng.randrange(CLIENTS)] = (kind, rng.randint(1, 4 if kind in ("purge", "evict") else 40),
                                                rng.choice([0, rng.random() * 0.003]))
        timer = rng.uniform(0.005, 0.3) * slow()
        seeds = [rng.random() for _ in range(CLIENTS)]
        children, purges, gate = [], [], list(os.pipe())
        try:
            for c in range(CLIENTS):
                children.append(Child(lambda c=c: Actor(self.daemon, self.books, c, random.Random(seeds[c]), soft,
                                                        triggers[c]), gate))
            for child in children:
                child.started()
            os.close(gate.pop())
            ends = time.monotonic() + timer
            if vanish:
                purges.append(self.purge_all(rng.uniform(0, timer)))
            if any(triggers):
                ends = max(ends, time.monotonic() + 0.3)
            while time.monotonic() < ends and self.lives():
                time.sleep(min(0.002, max(ends - time.monotonic(), 0)))
            self.reap()
            if rng.random() < 0.3:  # again, during recovery
                self.daemon.spawn()
                time.sleep(rng.uniform(0, 0.04) * slow())
                self.reap()
                self.facts.add("killed_while_starting")
            self.ready()  # at once: I/O of the dead daemon may still be in flight
            for c, child in enumerate(children):
                self.books[c], facts = child.result()
                self.facts.merge(facts)
        finally:
            for fd in gate:
                os.close(fd)
            for child in children:
                child.end()
        for sent, answered in purges:
            for record in self.records():
                record.purged_by_another(sent, answered)
        for record in self.records():
            record.never_answered()
        self.verify()
        return 1

    def lives(self):
        return os.waitid(os.P_PID, self.daemon.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None

    def records(self):
        return (r for book in self.books for records in book.values() for r in records.values())

    def purge_all(self, delay):
        """Returns when the purge was sent and when it was answered; None: it was not."""
        time.sleep(delay)
        sent = time.monotonic()
        try:
            with self.daemon.client(name="purger", timeout=TIMEOUT_S) as c:
                c.purge(everything=True)
                self.facts.add("purge_all")
                return sent, time.monotonic()
        except (kvwire.SessionEnded, ConnectionError):
            return sent, None
        except kvwire.ReplyTimeout:
            raise Finding("hung", "a purge of everything is not answered") from None

    def verify(self):
        """Verifies that everything found is right, and everything owed is found. The next run starts from the result."""
        try:
            with self.daemon.client(name="verify", timeout=TIMEOUT_S * slow()) as c:
                for book in self.books:
                    for name, records in book.items():
                        self.verify_namespace(c, name, records)
                metrics = harness.parse_metrics(c.report(kvwire.Report.METRICS))
        except kvwire.ReplyTimeout as e:
            raise Finding("hung", f"after the restart: {e}") from None
        except kvwire.WireError as e:
            raise Finding("wrong", f"after the restart: {e}") from None
        for name in ("kvcache_store_crc_failures_total", "kvcache_recovery_skipped_pages"):
            self.facts.add(name.removeprefix("kvcache_"), int(metrics[name]))
        if metrics["kvcache_evictions_total"]:
            raise Finding("wrong", "the store evicts: the campaign's limit is too low for its keys")

    def verify_namespace(self, client, name, records):
        number = client.namespace(name, FINGERPRINT, attach=True)
        listed = {e.key: e for e in client.list(number)}
        for key in listed:
            if key not in records:
                raise Finding("wrong", f"a key in {name} that was never put: {key.hex()}")
        keys = list(records)
        for i in range(0, len(keys), 5):
            part = keys[i:i + 5]
            results = client.get(number, part, timeout_ms=TIMEOUT_S * 1000)
            for key, result in zip(part, results):
                record = records[key]
                if result.status not in (Status.OK, Status.MISS):
                    raise Finding("wrong", f"after the restart: {result}: {key.hex()}")
                gone = record.after == {None}
                version = record.check(key, result.data, record.after, f"after the restart, {name}"
                                       f"{', which was dropped for good' if gone else ''}")
                if version is not None and key not in listed:
                    raise Finding("wrong", f"after the restart: a hit in {name} that is not listed: {key.hex()}")
                if version is not None and result.chunk_length != size_of(key, version):
                    raise Finding("wrong", f"after the restart: {result}: {key.hex()}")
                self.facts.add("checked" if version is None else "hits")
                record.found(version)
            client.release([r.lease for r in results if r.lease])

    def end(self):
        """Stops the daemon at the end of a life, and verifies that everything is still there."""
        self.daemon.stop()
        self.ready()
        self.verify()

    def stop(self):
        if self.tenants:
            self.tenants.stop()
        self.daemon.discard()
