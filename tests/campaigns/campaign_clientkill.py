# SPDX-License-Identifier: Apache-2.0
"""clientkill: kills client processes at any moment; all of their resources must be free within 100 ms.

The resources are sessions, leases, staging areas, registered buffers and their bytes, from the daemon's own report, and its open
descriptors, as counted by /proc. Half of the clients are killed in a state that they have reached and stay in, half at any moment before
it. A bystander reads and checks all the time.

Time in which the daemon's threads were runnable but had no CPU does not count, because it belongs to the machine. The time of a disk does
not count either: I/O in flight holds its client until the disk has answered (R11). Every other life therefore has its store in memory,
where the limit is strictly 100 ms; on a disk it is DISK_DEADLINE.

After each kill, a client of another tenant must find none of the victims' bytes in any memory that it can see (marks.py)."""

import contextlib
import fcntl
import json
import mmap
import os
import pathlib
import random
import select
import shutil
import signal
import socket
import tempfile
import time
import traceback

import harness
import kvwire
import marks
from harness import KIB, MIB, die_with_parent, slow
from kvwire import Ack, Flag, Op, Status, Tier
from oracle import Finding

LEG = harness.Leg("campaign", deprive=[harness.die_with_parent])
DEADLINE, DISK_DEADLINE = 0.1, 1.0
TIMEOUT_S = 20


def items(prefix, count, length):
    """Returns chunks whose contents identify their owner."""
    return [(key, marks.value_of(key, length)) for key in (marks.key_of("clientkill", prefix, i) for i in range(count))]


COMMON = items("common", 48, 32 * KIB)


# --- states of a client that is killed; each function gets a session, and may return a further resource to hold ---

def greeted(c, rng):
    pass


def staging(c, rng):
    c.staging(rng.choice([1, 4096, 100000, MIB, 64 * MIB]))
    if rng.random() < 0.5:
        c.staging_write(0, bytes(c.staging_bytes))  # allocates its memory


def leases(c, rng):
    ns = c.namespace("common")
    c.get(ns, [k for k, _ in rng.sample(COMMON, rng.randint(1, 30))])


def put_with_leases(c, rng):
    c.put(c.namespace("victims"), items(("leases", rng.random()), rng.randint(1, 10), 50000), lease=True,
          ack=rng.choice(list(Ack)))


def mid_put(c, rng):
    ns = c.namespace("victims")
    if c.staging_map is None:
        c.staging()
    entries = c.put_entries(items(("mid", rng.random()), rng.randint(1, 40), rng.choice([1000, 70000, 256 * KIB])))
    for i in range(0, len(entries), 4):
        c.submit_batch(Op.PUT, ns, entries[i:i + 4], ack=rng.choice(list(Ack)),
                       flags=rng.choice([0, Flag.LEASE, Flag.MORE]))


def mid_get(c, rng):
    ns = c.namespace("common")
    for key, _ in rng.sample(COMMON, rng.randint(1, 48)):
        c.submit_batch(Op.GET, ns, [kvwire.GET_ENTRY.pack(key, 0, 0, 0, 0, 0)])


def mid_into(c, rng):
    ns = c.namespace("common")
    c.staging(MIB * 2)
    for i, (key, value) in enumerate(rng.sample(COMMON, rng.randint(1, 48))):
        c.submit_batch(Op.GET, ns, [kvwire.GET_ENTRY.pack(key, 0, 0, i * len(value), len(value), 0)], flags=Flag.INTO)


def lend(c, size, on_shm=False):
    """Registers a buffer of zeros. Returns (its number, its mapping, a descriptor of it)."""
    if on_shm and os.access("/dev/shm", os.W_OK):
        fd = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    else:
        fd = os.memfd_create("lent", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    mapping = mmap.mmap(fd, size)
    mapping[:] = bytes(size)
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, kvwire.F_SEAL_SHRINK)
    return c.register(fd, size), mapping, fd


def lent(c, rng):
    return [lend(c, rng.choice([1, 5, 256]) * 4096, rng.random() < 0.3) for _ in range(rng.randint(1, 5))]


def mid_lent_put(c, rng):
    ns = c.namespace("victims")
    number, mapping, fd = lend(c, 4 * MIB, rng.random() < 0.3)
    mapping[:] = rng.randbytes(4 * MIB)
    length = rng.choice([1000, 70000, 256 * KIB])
    for i in range(rng.randint(1, 30)):
        at = rng.randrange(1024 - 64) * 4096 + rng.choice([0, 0, 0, 7])
        place = [(at, length - 500, number), (0, 500, number)] if rng.random() < 0.2 else (at, length, number)
        c.submit_put_from(ns, [(rng.randbytes(32), place)], ack=rng.choice(list(Ack)), lease=rng.random() < 0.2)
    return mapping, fd


def mid_lent_get(c, rng):
    ns = c.namespace("common")
    number, mapping, fd = lend(c, 2 * MIB, rng.random() < 0.3)
    c.evict(ns, [k for k, _ in COMMON], Tier.MEMORY)
    for i, (key, value) in enumerate(rng.sample(COMMON, rng.randint(1, 48))):
        at = i * len(value) + rng.choice([0, 0, 0, 3]) * (i < 40)
        place = [(at, 9, number), (at + 9, len(value) - 9, number)] if rng.random() < 0.2 else (at, len(value), number)
        c.submit_get_to(ns, [(key, place)])
    return mapping, fd


def unregistering(c, rng):
    kept = mid_lent_get(c, rng) if rng.random() < 0.7 else lend(c, MIB)
    for number in range(1, rng.randint(2, 5)):
        c.submit(Op.UNREGISTER, number.to_bytes(8, "little"))
    return kept


def cut(c, rng):
    """Truncates registered memory while the daemon uses it."""
    number, mapping, fd = lend(c, 2 * MIB, True)
    ns = c.namespace("victims")
    for i in range(20):
        c.submit_put_from(ns, [(rng.randbytes(32), (rng.choice([0, 4096, 5]), MIB, number))], ack=rng.choice(list(Ack)))
        if i == 3:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, rng.choice([0, 4096, MIB]))
    return fd


def waiting_for_room(c, rng):
    ns = c.namespace("victims")
    if c.staging_map is None:
        c.staging()
    entries = c.put_entries(items(("room", rng.random()), 40, MIB))
    c.submit_batch(Op.PUT, ns, entries, timeout_ms=600000, flags=rng.choice([0, Flag.LEASE]))


def not_reading(c, rng):
    ns = c.namespace("common")
    keys = [k for k, _ in COMMON] * 20
    c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.timeout = 0.03
    try:
        for _ in range(500):
            c.submit_batch(Op.STAT, ns, keys)
            c.submit(Op.REPORT, bytes(8))  # each reply has a descriptor
    except kvwire.ReplyTimeout:
        pass


def half_a_chain(c, rng):
    ns = c.namespace("victims")
    pairs = items(("half", rng.random()), rng.randint(1, 20), 5000)
    c.put(ns, pairs, more=True)
    c.touch(ns, [k for k, _ in pairs], more=True)


def ended_by_the_daemon(c, rng):
    put_with_leases(c, rng)
    c.send(rng.choice([b"bad", b"", bytes(16), harness.frame(Op.GET, length=7), harness.frame(99)]))
    try:
        while True:
            c.receive()
    except kvwire.SessionEnded:
        pass


def half_closed(c, rng):
    kept = rng.choice([leases, mid_put, mid_into, mid_lent_put, mid_lent_get])(c, rng)
    c.shutdown()
    return kept


def descriptors(c, rng):
    """Sends descriptors, which no client may do."""
    staging(c, rng)
    c.send(harness.frame(Op.PING), fds=[0] * rng.randint(1, 3))


def several(c, rng):
    for _ in range(rng.randint(2, 4)):
        rng.choice([leases, put_with_leases, mid_put, mid_get, mid_lent_put, mid_lent_get, half_a_chain])(c, rng)


STATES = [greeted, staging, leases, put_with_leases, mid_put, mid_get, mid_into, lent, mid_lent_put, mid_lent_get,
          unregistering, cut, waiting_for_room, not_reading, half_a_chain, ended_by_the_daemon, half_closed, descriptors,
          several]


def stand_by(daemon):
    """Runs the bystander until it is killed. It holds no lease, so that the reported numbers belong to the victims alone."""
    with daemon.client(name="bystander", timeout=TIMEOUT_S * slow()) as c:
        ns = c.namespace("common")
        c.staging(2 * MIB)
        while True:
            for i in range(0, len(COMMON), 8):
                part = COMMON[i:i + 8]
                for (key, value), result in zip(part, c.get_into(ns, [k for k, _ in part], 32 * KIB)):
                    if result.status not in (Status.OK, Status.BUSY) or result.data not in (None, value):
                        raise Finding("wrong", f"the bystander got {result}, or wrong bytes, for {key.hex()}")
            yield


class Campaign:
    LIFE = 10  # rounds; each kills one to four clients, and each kill is a run

    def __init__(self, directory, seed, facts):
        rng = random.Random(f"{seed}")
        self.facts, self.number, self.monitor, self.children = facts, 0, None, {}
        tmpfs, = (leg for leg in harness.LEGS if leg.name == "tmpfs")
        in_memory = seed % 2 and not tmpfs.why_not()
        self.memory = tempfile.mkdtemp(prefix="kvcache-test-", dir=tmpfs.base) if in_memory else None
        self.deadline = (DEADLINE if self.memory else DISK_DEADLINE) * slow()
        self.config = marks.onlooker_config(directory)
        self.daemon = harness.Daemon(
            directory, LEG, store=self.memory and pathlib.Path(self.memory, "store"), config=self.config, settings={
                "memory.pool": "32MiB", "store.limit": "96MiB", "limits.leases": 100, "log.level": "error",
                "listen.mode": "0666", "io.backend": rng.choice(["auto", "posix"])}).start()
        with self.daemon.client() as c:
            harness.put_all(c, c.namespace("common"), COMMON, ack=Ack.WRITTEN)
            c.namespace("victims")
        self.look_on("at startup")
        self.daemon.populated_status()
        self.bystander = self.fork(lambda: stand_by(self.daemon), forever=True)
        self.wait_for(self.bystander)
        self.monitor = self.daemon.client(name="monitor", timeout=TIMEOUT_S * slow())
        self.before = self.at_rest(2)

    def give_cpu(self):
        """Raises the priority of the daemon, if permitted: the campaign measures the daemon rather than a machine with fewer cores than
        processes."""
        for task in pathlib.Path(f"/proc/{self.daemon.pid}/task").iterdir():
            try:
                os.setpriority(os.PRIO_PROCESS, int(task.name), -20)
            except PermissionError:
                self.facts["cpu_shared"] = 1
                return

    def fork(self, work, forever=False):
        """Starts a process that calls `work`, sends "!", and holds the result until it is killed. `forever`: `work` is a generator,
        iterated until then. Returns the process id."""
        ready, tell = os.pipe()
        pid = os.fork()
        if pid:
            os.close(tell)
            self.children[pid] = ready
            return pid
        try:
            die_with_parent()
            kept = work()
            if forever:
                next(kept)
            os.write(tell, b"!")
            while True:
                next(kept) if forever else signal.pause()
        except BaseException:
            os.write(tell, traceback.format_exc()[-4000:].encode())
        finally:
            os._exit(1)

    def says(self, pid, timeout):
        readable, _, _ = select.select([self.children[pid]], [], [], timeout)
        return os.read(self.children[pid], 4096) if readable else b""

    def wait_for(self, pid):
        """Waits until the process has done its work."""
        said = self.says(pid, TIMEOUT_S * slow())
        if said != b"!":
            raise Finding("wrong" if said else "hung", f"a client did not get into its state: {said.decode()}")

    def kill(self, pids):
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
            os.close(self.children.pop(pid))

    def ask(self, what):
        try:
            return self.monitor.report(what)
        except kvwire.ReplyTimeout as e:
            raise Finding("hung", f"the monitor: {e}") from None
        except kvwire.WireError as e:
            raise Finding("wrong", f"the monitor: {e}: the daemon's status is {self.daemon.process.poll()}") from None

    def at_rest(self, connections):
        """Returns holdings() with this number of connections, once nothing of earlier ones is being closed."""
        def rests():
            fds = json.loads(self.ask(kvwire.Report.STATS))["kvcache_client_descriptors"]
            return fds["connection"] == connections and not fds["closing"]
        harness.wait_until(rests, f"{connections} connections, and nothing that is being closed", TIMEOUT_S)
        return self.holdings()

    def is_back(self):
        """Returns whether the daemon holds exactly what it held before."""
        return self.holdings() == self.before

    def holdings(self):
        held = json.loads(self.ask(kvwire.Report.STATUS))["sessions"]
        self.monitor.ping()  # closes the report's own descriptor
        return dict(held, fds=self.daemon._fd_count())

    def run_delays(self):
        """Returns the seconds for which each thread of the daemon, and this process, were runnable but had no CPU."""
        delays = {}
        for who in (self.daemon.pid, os.getpid()):
            for task in pathlib.Path(f"/proc/{who}/task").iterdir():
                try:
                    delays[int(task.name)] = int((task / "schedstat").read_text().split()[1]) / 1e9
                except (OSError, IndexError):
                    pass
        return delays

    def without_cpu(self, before):
        """Returns how much of the time since run_delays() returned `before` the machine may be responsible for: this process, the daemon's
        loop and one of its workers wait for each other."""
        spent = {task: delay - before.get(task, delay) for task, delay in self.run_delays().items()}
        return spent.pop(os.getpid(), 0) + spent.pop(self.daemon.pid, 0) + max(spent.values(), default=0)

    def look_on(self, where):
        if self.config:
            marks.look_on(self.daemon, ["clientkill"], [key for key, _ in COMMON], where, self.facts)

    def run(self, rng, left):
        victims, states = [], rng.choices(STATES, k=min(left, rng.randint(1, 4)))
        for state in states:
            dice = random.Random(rng.random())
            victims.append(self.fork(lambda: self.live(state, dice)))
        if rng.random() < 0.5:
            for pid in victims:
                self.wait_for(pid)
        else:
            time.sleep(rng.uniform(0, 0.03) * slow())
        self.kill(victims)
        began, waited = time.monotonic(), self.run_delays()
        while (now := self.holdings()) != self.before:
            if time.monotonic() - began > TIMEOUT_S * slow():
                raise Finding("lost", f"long after {[s.__name__ for s in states]} were killed: {now}, "
                              f"before {self.before}")
            time.sleep(0.001)
        took = time.monotonic() - began
        owed = max(took - self.without_cpu(waited), 0.0)
        where = "in_memory" if self.memory else "on_disk"
        self.facts.add(f"most_seconds_{where}", took)
        self.facts.add(f"most_seconds_{where}_with_a_cpu", owed)
        if owed > self.deadline:
            raise Finding("hung", f"{took:.3f} s, {owed:.3f} s of them with a CPU, until all that "
                          f"{[s.__name__ for s in states]} held was back")
        for state in states:
            self.facts.add(state.__name__)
        if said := self.says(self.bystander, 0):
            raise Finding("wrong", f"the bystander: {said.decode()}")
        self.look_on(f"after {[s.__name__ for s in states]}")
        return len(states)

    def live(self, state, dice):
        if dice.random() < 0.03:
            return self.daemon.raw()  # connected, without any message
        c = self.daemon.client(name=state.__name__, timeout=TIMEOUT_S * slow())
        return c, state(c, dice)

    def end(self):
        """Kills the children, and checks resources that the sessions' numbers do not include."""
        self.kill(list(self.children))

        def idle():
            metrics = harness.parse_metrics(self.ask(kvwire.Report.METRICS))
            return not any(metrics[f"kvcache_{name}"] for name in
                           ("io_inflight", "pool_leased_bytes", "lease_bytes", "pool_unwritten_bytes"))

        try:
            harness.wait_until(idle, "nothing is in flight, leased or unwritten", TIMEOUT_S)
            self.monitor.close()
            self.daemon.stop()
        except AssertionError as e:
            raise Finding("wrong", str(e)) from None

    def stop(self):
        if self.memory:
            shutil.rmtree(self.memory, ignore_errors=True)
        self.kill(list(self.children))
        self.daemon.discard()
