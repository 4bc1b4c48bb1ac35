# SPDX-License-Identifier: Apache-2.0
"""conf/prometheus/alerts.yaml with a real Prometheus and daemons with real faults: each alert fires for its fault and for no other daemon, and
none fires for a daemon that replays for an hour. Time is scaled by SCALE; see prometheus.py. tests/check-alerts.py tests the rules with
made-up series, which needs no daemon."""

import contextlib
import functools
import os
import re
import sys
import subprocess
import threading
import time

import pytest

import harness
from harness import BENCH, DAEMON, KIB, MIB, SOURCE, get_all, items, key_of, put_all, wait_until
from kvwire import Ack, Status, Tier
from prometheus import Prometheus, free_port, scale
from test_tiers import flip_byte

sys.path.insert(0, str(SOURCE / "tests/campaigns"))

from faults import WRITE_FAILS, Faults  # noqa: E402

pytestmark = pytest.mark.serial

SCALE = 60
RULES = SOURCE / "conf/prometheus/alerts.yaml"
HOUR = 3600 / SCALE


class Fault:
    """A daemon, a fault, and the alert that must fire. `before` is called repeatedly until all daemons are scraped and well, then `begin` once,
    and then `go_on` repeatedly."""
    alert, job, settings = None, "kvcache", {}

    def __init__(self, make_daemon, directory):
        self.name = type(self).__name__
        self.directory = directory / self.name
        self.directory.mkdir()
        self.switch = self.directory / "switch"
        self.port = free_port()
        self.daemon = make_daemon(leg=self.leg(), settings={"listen.http": f"127.0.0.1:{self.port}", "store.prewrite": "off",
                                                            "log.level": "info", **self.settings}, env=self.env())
        self.prometheus = None

    def leg(self):
        return harness.Leg("posix", settings={"io.backend": "posix"})

    def env(self):
        return {}

    def before(self):
        pass

    def begin(self):
        pass

    def go_on(self):
        pass

    def end(self):
        self.switch.unlink(missing_ok=True)

    @functools.cached_property
    def client(self):
        return self.daemon.client()

    @functools.cached_property
    def namespace(self):
        return self.client.namespace("n")


class Clean(Fault):
    """A replay at the pace of its timestamps, which is scaled like the alerts."""

    def leg(self):
        return harness.DEFAULT_LEG if os.geteuid() == 0 else super().leg()

    def start_replay(self):
        self.replay = subprocess.Popen([str(BENCH), "-s", self.daemon.socket, "replay", "--synthetic", "chat", "--requests", "100000",
                                        "--block-bytes", "8KiB", "--speed", str(SCALE)], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, preexec_fn=harness.die_with_parent)

    def end(self):
        assert self.replay.poll() is None, "the replay ended too soon"
        self.replay.kill()
        self.replay.wait()


class Stopped(Fault):
    alert = "KvcacheDown"

    def begin(self):
        self.daemon.stop()


class CrashLoop(Fault):
    alert = "KvcacheCrashLoop"

    def begin(self):
        for _ in range(4):
            before = self.seen()
            self.daemon.restart(kill=True)
            wait_until(lambda: self.seen() not in (None, before), "the restart is seen", 20)

    def seen(self):
        return self.prometheus.value(f'kvcache_start_time_seconds{{instance="{self.name}"}}')


class Hangs(Fault):
    """Writes wait while the switch is there."""

    def env(self):
        return {"LD_PRELOAD": harness.preload("tests/daemon/hang.so"), "HANG_SWITCH": str(self.switch)}

    def begin(self):
        self.switch.touch()
        self.client.put(self.namespace, items("hang", 1, 40 * KIB))


class DeviceHangs(Hangs):
    alert, settings = "KvcacheVolumeHung", {"io.hang": "1s", "limits.drain": "1s"}


class Unwritten(Hangs):
    alert, settings = "KvcacheUnwrittenBytes", {"io.hang": "1h"}

    def begin(self):
        super().begin()
        for n in range(1000):
            self.client.put(self.namespace, items(("unwritten", n), 1, 64 * KIB), nowait=True)
            if self.daemon.metric("kvcache_put_postponed_total") > 0:
                return
        raise AssertionError("no put was postponed")


class DeviceFails(Fault):
    alert = "KvcacheVolumeFailed"

    def env(self):
        self.faults = Faults(self.directory)
        return self.faults.environment()

    def begin(self):
        assert self.namespace
        self.faults.set([(f"/{name}", WRITE_FAILS, 1 << 30, 0) for name in ("segment-0000", "segment-0001", "table")])

    def go_on(self):
        self.client.put(self.namespace, items(("fails", time.monotonic()), 4, 40 * KIB))

    def end(self):
        self.faults.set([])


class DiskFull(Fault):
    alert, settings = "KvcacheVolumeFull", {"store.limit": "256MiB", "store.reserve": "8MiB"}

    def __init__(self, make_daemon, directory):
        super().__init__(make_daemon, directory)
        self.mount = self.directory / "small"
        self.mount.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", self.mount], capture_output=True)
        self.mounted = done.returncode == 0
        if self.mounted:
            self.daemon.store = self.mount / "store"
            self.daemon.settings["store.path"] = self.daemon.store
        else:
            self.alert = None

    def begin(self):
        if self.mounted:
            (self.mount / "others").write_bytes(bytes(40 * MIB))
            put_all(self.client, self.namespace, items("full", 400, 200 * KIB), ack=Ack.WRITTEN, timeout_ms=60000)

    def end(self):
        if self.mounted:
            self.daemon.stop()
            subprocess.run(["umount", "-l", self.mount], check=True)


class Memlock(Fault):
    alert = "KvcacheMemlock"

    def leg(self):
        leg, = [leg for leg in harness.LEGS if leg.name == "memlock"]
        if leg.why_not():
            self.alert = None
            return super().leg()
        return leg


class Misses(Fault):
    """Engines whose keys all change at once, so that nothing stored is found."""
    alert = "KvcacheHitRatioCollapse"

    def before(self):
        pairs = items("hits", 20, 4 * KIB)
        put_all(self.client, self.namespace, pairs)
        get_all(self.client, self.namespace, [k for k, _ in pairs])

    def go_on(self):
        get_all(self.client, self.namespace, [key_of("other", time.monotonic(), n) for n in range(20)])


class Damage(Fault):
    alert = "KvcacheChecksumFailures"

    def begin(self):
        (key, value), = items("flip", 1, 50000)
        self.client.put(self.namespace, [(key, value)], ack=Ack.DURABLE)
        self.client.evict(self.namespace, [key], Tier.MEMORY)
        flip_byte(self.daemon.store, value, 40000)
        result, = self.client.get(self.namespace, [key])
        assert result.status == Status.MISS


class Leak(Fault):
    """A client that gets chunks and does not release them."""
    alert, settings = "KvcacheQuotaExhausted", {"limits.uid_leases": 10}

    def begin(self):
        self.pairs = items("leak", 12, 4 * KIB)
        put_all(self.client, self.namespace, self.pairs)

    def go_on(self):
        self.client.get(self.namespace, [k for k, _ in self.pairs])


class SlowLoop(Fault):
    """A daemon whose replies take 80 ms each, as on an overloaded processor."""
    alert = "KvcacheSlowLoop"

    def env(self):
        return {"LD_PRELOAD": harness.preload("tests/daemon/hang.so"), "SLOW_SWITCH": str(self.switch)}

    def begin(self):
        self.switch.touch()

    def go_on(self):
        self.client.ping()


class Shared(Fault):
    """A host with a shared tier that has all of its chunks."""

    def __init__(self, make_daemon, directory):
        shared = directory / type(self).__name__ / "shared"
        self.settings = {"remote.backend": "directory", "remote.path": shared, "remote.write": "all", "remote.timeout": "100ms",
                         "remote.absence_lifetime": "100ms"}
        super().__init__(make_daemon, directory)
        shared.mkdir()
        self.shared = shared

    def env(self):
        return {"LD_PRELOAD": harness.preload("tests/daemon/hang.so"), "SHARED_SWITCH": str(self.switch)}


class RemoteHangs(Shared):
    alert = "KvcacheRemoteOffline"

    def begin(self):
        self.switch.touch()

    def go_on(self):
        self.client.put(self.namespace, items(("remote", time.monotonic()), 1, 4 * KIB))
        self.client.get(self.namespace, [key_of("remote", time.monotonic(), "none")], timeout_ms=100)


class RemoteDamage(Shared):
    alert = "KvcacheRemoteRejected"

    def begin(self):
        (key, value), = items("flip", 1, 50000)
        self.client.put(self.namespace, [(key, value)], ack=Ack.WRITTEN)
        path, = wait_until(lambda: [p for p in self.shared.rglob(key.hex())], "it is there")
        data = bytearray(path.read_bytes())
        data[20000] ^= 1
        path.write_bytes(data)
        self.client.evict(self.namespace, [key])
        result, = self.client.get(self.namespace, [key])
        assert result.status == Status.MISS


class Upgraded(Fault):
    job = "kvcache-skew"


class NotUpgraded(Fault):
    """A daemon of another version: the same program, with its version number changed."""
    job, alert = "kvcache-skew", "KvcacheVersionSkew"

    def __init__(self, make_daemon, directory):
        super().__init__(make_daemon, directory)
        said = subprocess.run([str(DAEMON), "--version"], capture_output=True, text=True, check=True).stdout
        version = re.search(r"\d+\.\d+\.\d+", said)[0]
        other = version[:-1] + ("8" if version[-1] == "9" else "9")
        program = self.directory / "kvcache-daemon"
        program.write_bytes(DAEMON.read_bytes().replace(version.encode(), other.encode()))
        program.chmod(0o755)
        self.daemon.command = lambda: [str(program)] + harness.Daemon.command(self.daemon)[1:]


FAULTS = [Clean, Stopped, CrashLoop, DeviceHangs, DeviceFails, DiskFull, Memlock, Misses, Damage, Leak, Unwritten, SlowLoop,
          RemoteHangs, RemoteDamage, Upgraded, NotUpgraded]


@contextlib.contextmanager
def again_and_again(work):
    """Calls it in a thread until the block ends; fails if it has."""
    stop, failures = threading.Event(), []

    def run():
        try:
            while not stop.is_set():
                work()
                stop.wait(0.02)
        except Exception as e:  # noqa: BLE001 the test raises it below
            failures.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
        assert not failures, failures


@pytest.fixture
def faults(make_daemon, directory):
    if harness.slow() > 1:
        pytest.skip("times are scaled")
    made = []
    try:
        for kind in FAULTS:
            made.append(kind(make_daemon, directory))
        for fault in made:
            fault.daemon.start()
        yield made
    finally:
        for fault in made:
            with contextlib.suppress(Exception):
                fault.end()


def scaled_rules():
    return scale(RULES.read_text(), SCALE)


@pytest.mark.documents
@pytest.mark.limit(180)  # the hour of replay alone takes 60 s
def test_each_alert_fires_on_its_fault_and_no_other_and_none_in_an_hour_of_replay(faults, directory):
    jobs = {}
    for fault in faults:
        jobs.setdefault(fault.job, {})[fault.name] = fault.port
    expected = {(f.alert, f.job if f.alert == "KvcacheVersionSkew" else f.name) for f in faults if f.alert}
    clean = faults[0]

    with contextlib.ExitStack() as running, Prometheus(directory / "prometheus", jobs, scaled_rules(), interval_ms=500) as prometheus:
        began = time.monotonic()
        clean.start_replay()
        with contextlib.ExitStack() as well:
            for fault in faults:
                fault.prometheus = prometheus
                well.enter_context(again_and_again(fault.before))
            wait_until(lambda: prometheus.value('instance:kvcache_hit_ratio:rate15m{instance="Misses"}') == 1, "a hit ratio", 30)
            wait_until(lambda: time.monotonic() - began > 900 / SCALE, "a quarter of an hour", 30)
        # Only conditions of the environment may fire before the first fault.
        early = prometheus.firing()
        assert early <= {(f.alert, f.name) for f in faults if f.alert == "KvcacheMemlock"}, early
        for fault in faults:
            fault.begin()
        for fault in faults:
            running.enter_context(again_and_again(fault.go_on))
        seen = set()

        def all_fired():
            seen.update(prometheus.firing())
            return seen >= expected
        wait_until(all_fired, lambda: f"{expected - seen} fire", 90)
        wait_until(lambda: time.monotonic() - began > HOUR, "an hour of replay", HOUR)
        assert prometheus.value('instance:kvcache_hit_ratio:rate15m{instance="Clean"}') > 0.1, "the replay does something"
        assert prometheus.firing(over="10m") == expected
