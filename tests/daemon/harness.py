# SPDX-License-Identifier: Apache-2.0
"""Starts daemons and observes them from outside, by processes, files and sockets, without the project's C code.

A Daemon owns one process at a time and one directory. Its store outlives the process, so that a test can stop or kill the daemon and start it
again. A Leg is a way to run: an I/O backend, limits, and a file system. The main data tests run on all legs.
"""

import concurrent.futures
import contextlib
import ctypes
import functools
import hashlib
import http.client
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

import kvwire
from processes import die_with_parent, spawn

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("KVCACHE_BUILD", SOURCE / "build-test")).resolve()
DAEMON = BUILD / "daemon" / "kvcache-daemon"
CTL = BUILD / "client" / "ctl" / "kvcachectl"
BENCH = BUILD / "client" / "bench" / "kvcache-bench"

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PAGE = 4096
# An unused uid and gid, different in each run, because RLIMIT_MEMLOCK is charged to the user.
STRANGER = 300000 + os.getpid()

POOL_IS_POPULATED = re.compile("of the memory pool are in memory|the host is short of memory")    # in the daemon's log, at level debug
SANITIZER_REPORT = re.compile(
    r"(ERROR: (Address|Leak|Thread|Memory)Sanitizer|WARNING: ThreadSanitizer|: runtime error: |Assertion .* failed)")


@functools.lru_cache(None)
def is_sanitized():
    return DAEMON.exists() and bool(re.search(rb"__asan_init|__tsan_init", DAEMON.read_bytes()))


def preload(library):
    """Returns LD_PRELOAD for a daemon with a library of the tests. A sanitizer's own library must be loaded first."""
    linked = subprocess.run(["ldd", DAEMON], capture_output=True, text=True, check=True).stdout if is_sanitized() else ""
    return " ".join(re.findall(r"=> (\S*/lib[at]san\.so\S*)", linked) + [str(BUILD / library)])


def slow():
    """Returns by which factor things may take longer, because sanitizers are slow."""
    return float(os.environ.get("KVCACHE_TEST_SLOW", "1")) * (5 if is_sanitized() else 1)


def is_thread_sanitized():
    return b"__tsan_init" in DAEMON.read_bytes()


def wait_until(condition, what, timeout=10.0):
    """Waits until condition() returns a true value, and returns that. Fails if it does not do so in time. `what` describes the condition, and
    may be a function that is called on failure."""
    deadline, pause_s = time.monotonic() + timeout * slow(), 0.005
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout * slow():.0f} s in vain: {what() if callable(what) else what}")
        time.sleep(pause_s)
        pause_s = min(1.1 * pause_s, 0.05)  # longer pauses leave the processor to the awaited process


def in_threads(count, work):
    """Runs work(0), work(1), ... at once; what they returned, in order. The first failure is the caller's."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return [f.result() for f in [pool.submit(work, n) for n in range(count)]]


# --- data ---

def key_of(*name):
    return hashlib.sha256(repr(name).encode()).digest()


def value_of(key, length):
    """Returns the bytes that a test puts under a key: no two keys share them, and no two pages are equal."""
    return hashlib.shake_128(key).digest(length)


def items(prefix, count, length):
    return [(k, value_of(k, length)) for k in (key_of(prefix, i) for i in range(count))]


# --- restrictions of a daemon; called in the child between fork and exec ---

_libc = ctypes.CDLL(None, use_errno=True)


class _Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(_Filter))]


# Makes the system calls 425 to 427 (io_uring_setup, _enter, _register; the same numbers on every architecture) fail with EPERM.
_NO_IO_URING = (_Filter * 5)(
    _Filter(0x20, 0, 0, 0),            # ld [0]
    _Filter(0x35, 0, 2, 425),          # jge 425, else to the end
    _Filter(0x25, 1, 0, 427),          # jgt 427: to the end
    _Filter(0x06, 0, 0, 0x00050001),   # ret ERRNO | EPERM
    _Filter(0x06, 0, 0, 0x7FFF0000),   # ret ALLOW
)
_NO_IO_URING_PROGRAM = _Program(5, _NO_IO_URING)


def refuse_io_uring():
    """Installs a seccomp filter like those of container runtimes."""
    if _libc.prctl(38, 1, 0, 0, 0) != 0 or _libc.prctl(22, 2, ctypes.byref(_NO_IO_URING_PROGRAM), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def limit_memlock():
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 * KIB, 64 * KIB))


def become_stranger():
    os.setgroups([])
    os.setgid(STRANGER)
    os.setuid(STRANGER)


def has_io_uring():
    """Returns whether this host lets a process create a ring."""
    params = (ctypes.c_uint8 * 120)()
    fd = _libc.syscall(425, 1, ctypes.byref(params))
    if fd < 0:
        return False
    os.close(fd)
    return True


def filesystem_of(path):
    return subprocess.run(["stat", "-f", "-c", "%T", str(path)], check=True, capture_output=True, text=True).stdout.strip()


class Leg:
    """A way to run the daemon, and the status that it must report."""

    def __init__(self, name, *, settings=None, deprive=(), unprivileged=False, base=None):
        self.name, self.settings, self.deprive = name, dict(settings or {}), tuple(deprive)
        self.unprivileged, self.base = unprivileged, base

    def why_not(self):
        """Returns why this leg cannot run here, or None."""
        if self.name in ("io_uring", "memlock") and not has_io_uring():
            return "this host refuses io_uring"
        if self.base and (not os.access(self.base, os.W_OK) or filesystem_of(self.base) != "tmpfs" or
                          shutil.disk_usage(self.base).free < GIB):
            return f"{self.base} is no tmpfs with room"
        return None

    def check(self, io):
        """Checks that the status's `io` reports the mode and its reason."""
        if self.name == "io_uring":
            assert io["backend"] == "io_uring" and io["ring_flags"]
        elif self.name == "posix":
            assert io["backend"] == "posix" and not io["registered"]
        elif self.name == "seccomp":
            assert io["backend"] == "posix"
            assert "io_uring" in io["reason"] and "seccomp" in io["reason"]
        elif self.name == "memlock":
            assert io["backend"] == "io_uring"
            assert not io["registered"] and "RLIMIT_MEMLOCK" in io["registered_reason"]
        assert io["registered"] or io["registered_reason"]
        assert io["direct"] or io["direct_reason"]


LEGS = [
    Leg("io_uring", settings={"io.backend": "io_uring"}),
    Leg("posix", settings={"io.backend": "posix"}),
    Leg("seccomp", deprive=[refuse_io_uring]),
    Leg("tmpfs", base="/dev/shm"),
    Leg("memlock", deprive=[limit_memlock], unprivileged=True),
]
DEFAULT_LEG = Leg("default")


@functools.lru_cache(None)
def daemon_for_strangers(directory):
    """Returns a copy of the binary that any uid can execute, because the build folder may be out of reach."""
    copy = pathlib.Path(directory) / "kvcache-daemon"
    shutil.copy(DAEMON, copy)
    os.chmod(copy, 0o755)
    return copy


# Samples that some daemon of this run has shown with a value other than 0: test_zz_metrics.py. Processes that share a run
# tell each other by a file.
MOVED = set()
MOVED_FILE = os.environ.get("KVCACHE_TEST_MOVED")


def remember_moved(samples):
    new = {name for name, value in samples.items() if value} - MOVED
    MOVED.update(new)
    if new and MOVED_FILE:
        with open(MOVED_FILE, "a") as f:
            f.write("".join(f"{name}\n" for name in sorted(new)))


def all_moved():
    return MOVED | set(pathlib.Path(MOVED_FILE).read_text().splitlines() if MOVED_FILE else ())


class Daemon:
    def __init__(self, directory, leg=DEFAULT_LEG, settings=None, env=None, config=None, store=None, arguments=(),
                 unprivileged=None):
        self.directory = pathlib.Path(directory)
        self.leg = leg
        self.unprivileged = leg.unprivileged if unprivileged is None else unprivileged
        self.socket = str(self.directory / "s")
        self.http_socket = str(self.directory / "h")
        self._own_store = None
        if store is None and leg.base:
            self._own_store = tempfile.mkdtemp(prefix="kvcache-test-", dir=leg.base)
            os.chmod(self._own_store, 0o755)
            store = pathlib.Path(self._own_store) / "store"
        self.store = pathlib.Path(store) if store is not None else self.directory / "store"
        self.settings = {
            "listen.socket": self.socket,
            "listen.http": "off",
            "store.path": self.store,
            "store.limit": "128MiB",
            "memory.pool": "32MiB",
            "io.workers": 2,
            "log.level": "debug",
            **leg.settings,
            **(settings or {}),
        }
        self.arguments = list(arguments)
        self.config = config
        self.env = dict(env or {})
        self.log_path = self.directory / "log"
        self.process = None
        self.exit_checked = True
        self.deprive = list(leg.deprive)
        self.pass_fds = ()
        self.prefix = []  # a command that executes the rest of its arguments
        if self.unprivileged and os.geteuid() == 0:
            self.deprive.append(become_stranger)
            os.chown(self.directory, STRANGER, STRANGER)
            if self._own_store:
                os.chown(self._own_store, STRANGER, STRANGER)

    # --- the process ---

    def command(self):
        binary = DAEMON
        if self.unprivileged and os.geteuid() == 0:
            binary = daemon_for_strangers(str(self.directory.parent))
        config = self.config if self.config is not None else "/dev/null"
        command = self.prefix + [str(binary), "--config", str(config)]
        for key, value in self.settings.items():
            if value is not None:
                command += ["--set", f"{key}={value}"]
        return command + self.arguments

    def environment(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith("KVCACHE_") and k not in
               ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_USEC", "WATCHDOG_PID")}
        env.setdefault("ASAN_OPTIONS", "exitcode=99:detect_leaks=1")
        env.setdefault("UBSAN_OPTIONS", "print_stacktrace=1:halt_on_error=1")
        env.update(self.env)
        return env

    def spawn(self):
        """Starts the process and does not wait for anything."""
        assert self.process is None, "it runs already"
        deprive = self.deprive

        def before_exec():
            for step in deprive:
                step()

        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        with open(self.log_path, "ab") as log:
            self.process = spawn(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment(),
                                 preexec_fn=before_exec if deprive else None, pass_fds=self.pass_fds, cwd=str(self.directory))
        self.exit_checked = False
        return self

    def start(self):
        """Starts it and waits as wait_started() does."""
        return self.spawn().wait_started()

    def wait_started(self):
        """Waits until the daemon answers, and until its pool has its memory, without which puts that must not wait are refused. It need
        not get all: a large pool, a host that is short of memory and a slow machine are given up after two seconds."""
        wait_until(self.answers, "the daemon answers", 20)
        if "debug: " in self._log_of_start():
            with contextlib.suppress(AssertionError):
                wait_until(self.has_populated_its_pool, "the pool is populated", 2)
        return self

    def has_populated_its_pool(self):
        """Returns whether the log says that the pool has all its memory, or that the host is short of it."""
        return POOL_IS_POPULATED.search(self._log_of_start()) is not None

    def _log_of_start(self):
        with open(self.log_path, "rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def answers(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon ended with {self.process.returncode} while starting:\n{self.log()}")
        try:
            with self.client() as c:
                c.ping(b"there?")
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    def has_ended_or_answers(self):
        """Returns whether the daemon has ended or answers, for a test that permits both."""
        if self.process.poll() is not None:
            return True
        try:
            return self.answers()
        except (AssertionError, OSError):  # the daemon is ending, which the next call sees
            return False

    @property
    def pid(self):
        return self.process.pid

    def _reap(self, timeout=40):
        try:
            code = self.process.wait(timeout * slow())
        except subprocess.TimeoutExpired:
            stacks = self._stacks()
            self.process.kill()
            self.process.wait()
            self.process = None
            raise AssertionError(f"the daemon did not end in {timeout * slow():.0f} s\n{stacks}") from None
        self.process = None
        return code

    def _stacks(self):
        lines = []
        for task in sorted(pathlib.Path(f"/proc/{self.pid}/task").iterdir()):
            try:
                lines.append(f"{(task / 'comm').read_text().strip()}: {(task / 'wchan').read_text().strip()}")
            except OSError:
                pass
        return "\n".join(lines)

    def wait_exit(self, timeout=40):
        """Waits until the daemon ends without being stopped. Returns its exit status."""
        code = self._reap(timeout)
        self.exit_checked = True
        self.check_log()
        return code

    def stop(self):
        """Stops the daemon with SIGTERM, and checks that it ends cleanly."""
        self.process.send_signal(signal.SIGTERM)
        code = self._reap()
        self.exit_checked = True
        self.check_log()
        assert code == 0, f"exit status {code} after SIGTERM\n{self.log()}"

    def kill(self):
        """Sends SIGKILL to a daemon that runs, waits for its end, and checks its log."""
        assert self.process.poll() is None, f"it ended by itself, with {self.process.returncode}\n{self.log()}"
        self.process.kill()
        self._reap()
        self.exit_checked = True
        self.check_log()

    def discard(self):
        """Ends it, if it runs, without a check: the caller has failed, or is done with it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self):
        """Sends SIGSTOP and waits until every thread has stopped, because a thread that runs on another CPU may still answer a request sent
        right after the signal. If the daemon has ended, the next request finds that."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def paused(self):
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def restart(self, kill=False):
        if kill:
            self.kill()
        else:
            self.stop()
        return self.start()

    def clean_up(self):
        """Ends a daemon that still runs at the end of a test, and checks that it ends well."""
        try:
            if self.process is not None:
                ended = self.process.poll()
                if ended is not None:
                    self.process = None
                    raise AssertionError(f"the daemon ended during the test, with {ended}\n{self.log()[-4000:]}")
                self.resume()  # a test that failed may have paused it
                self.stop()
        finally:
            self.discard()
            if self._own_store and not os.environ.get("KVCACHE_TEST_KEEP"):
                shutil.rmtree(self._own_store, ignore_errors=True)

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def check_log(self):
        found = SANITIZER_REPORT.search(self.log())
        assert not found, f"the daemon reported {found.group(0)!r}:\n{self.log()[-8000:]}"

    # --- looking at it ---

    def client(self, **how):
        how.setdefault("timeout", 30 * slow())
        return kvwire.Client(self.socket, **how)

    def raw(self):
        """Returns a connected socket on which nothing was sent."""
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.connect(self.socket)
        return s

    def status(self):
        with self.client(name="status") as c:
            return json.loads(c.report(kvwire.Report.STATUS))

    def populated_status(self):
        """Returns the status once the pool has all its memory, whether or not the rings have registered it."""
        def populated():
            status = self.status()
            return status if status["pool"]["populated_bytes"] == status["pool"]["bytes"] else None
        return wait_until(populated, "the pool is populated")

    def metrics(self):
        """Returns every sample of the Prometheus page, by its name with labels."""
        with self.client(name="metrics") as c:
            samples = parse_metrics(c.report(kvwire.Report.METRICS))
        remember_moved(samples)
        return samples

    def note_metrics(self):
        """Records which metrics this daemon has moved so far, if it can answer at once."""
        try:
            if self.process is not None and self.process.poll() is None:
                with self.client(name="metrics", timeout=2) as c:
                    samples = parse_metrics(c.report(kvwire.Report.METRICS))
                remember_moved(samples)
        except (OSError, kvwire.WireError):
            pass

    def metric(self, name):
        return self.metrics()[name]

    def fd_count(self):
        """Returns the number of open descriptors of the daemon, without the store's files, which increase as it fills.

        A client is connected meanwhile: once it is answered, the daemon has handled all earlier closes. The result is the minimum of three
        readings, because some files are open only briefly, such as those of /proc that report free memory."""
        with self.client(name="fds") as c:
            counts = []
            for _ in range(3):
                c.ping()
                counts.append(self._fd_count())
            return min(counts)

    def _fd_count(self):
        count = 0
        for fd in os.listdir(f"/proc/{self.pid}/fd"):
            try:
                count += not os.readlink(f"/proc/{self.pid}/fd/{fd}").startswith(str(self.store))
            except FileNotFoundError:
                pass
        return count

    def cpu_seconds(self):
        """Returns the CPU time that the process has used so far, in all threads."""
        with open(f"/proc/{self.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def assert_idle(self, seconds=0.4):
        """Checks that a daemon without requests uses no CPU time, as a spinning loop would."""
        def used():
            before = self.cpu_seconds()
            time.sleep(seconds)
            return self.cpu_seconds() - before
        wait_until(lambda: used() < 0.3 * seconds, "the daemon becomes idle", 5)

    def holdings(self):
        """Returns the resources that clients hold, and their cost, for comparison. The asking client is included."""
        with self.client(name="holdings") as c:
            sessions = json.loads(c.report(kvwire.Report.STATUS))["sessions"]
            c.ping()  # the report's own descriptor is closed now
            for later in ("registered_huge_bytes", "registered_in_rings_bytes"):
                sessions.pop(later, None)  # a thread moves registered memory to huge pages, and the rings pin it after that
            return dict(sessions, fds=self._fd_count())

    def holdings_at_rest(self):
        """Waits until the daemon's resources are the same several times in a row, because it sometimes opens a file of its own, and until no
        staging area of an ended session is left."""
        seen = []

        def settled():
            seen.append(self.holdings())
            return len(seen) >= 5 and all(h == seen[-1] and h["stagings_closing"] == 0 for h in seen[-5:])
        wait_until(settled, lambda: f"the same holdings five times, but it is {seen[-5:]}")
        return seen[-1]

    def wait_for_holdings(self, wanted):
        """Waits until clients hold exactly the resources of `wanted`."""
        wait_until(lambda: self.holdings() == wanted, lambda: f"{wanted} again; it is {self.holdings()}")

    def disk_usage(self):
        """Returns the bytes that the store occupies, as counted by du."""
        total = 0
        for directory, _, files in os.walk(self.store):
            for name in files:
                try:
                    total += os.lstat(os.path.join(directory, name)).st_blocks * 512
                except FileNotFoundError:
                    pass
        return total

    def http(self, path, method="GET", headers=None):
        """Sends a request over the HTTP Unix socket. Returns (status, headers, body)."""
        connection = UnixHTTPConnection(self.http_socket, timeout=30 * slow())
        try:
            connection.request(method, path, headers=headers or {})
            reply = connection.getresponse()
            return reply.status, dict((k.lower(), v) for k, v in reply.getheaders()), reply.read()
        finally:
            connection.close()


def ctl(*arguments, daemon=None, check=None, input=None, env=None, text=True, timeout=60, tool=CTL):
    """Runs kvcachectl; `check` is the exit status it must have."""
    command = [str(tool)] + (["--socket", daemon.socket] if daemon else []) + [str(a) for a in arguments]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KVCACHE_")}
    result = subprocess.run(command, input=input if input is not None else "" if text else b"", capture_output=True, text=text,
                            env={**clean, **(env or {})}, timeout=timeout * slow())
    assert check is None or result.returncode == check, f"exit status {result.returncode}, not {check}: {result.stderr}"
    assert not SANITIZER_REPORT.search(result.stderr if text else result.stderr.decode(errors="replace")), result.stderr
    return result


def bench(*arguments, **how):
    """Runs kvcache-bench, in the same way."""
    return ctl(*arguments, **how, tool=BENCH)


class UnixHTTPConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def parse_metrics(text):
    samples = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            samples[name] = float(value)
    return samples


class DiskWatch:
    """Looks at the store's disk usage all the time, in a thread: the most it ever was."""

    def __init__(self, daemon):
        self.daemon, self.most, self.looks = daemon, 0, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self._stop.is_set():
            self.most = max(self.most, self.daemon.disk_usage())
            self.looks += 1
            self._stop.wait(0.002)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._stop.set()
        self._thread.join()


# --- filling a daemon ---

def put_all(client, namespace, pairs, *, batch=32, **how):
    """Puts pairs in batches that fit the staging area; returns the results, by key."""
    results = {}
    pairs = list(pairs)
    if client.staging_map is None:
        client.staging()
    used, group = 0, []

    def flush():
        nonlocal group, used
        if group:
            for (key, _), result in zip(group, client.put(namespace, group, **how)):
                results[key] = result
        group, used = [], 0

    for key, value in pairs:
        room = (len(value) + 63) & ~63
        if len(group) == batch or used + room > client.staging_bytes:
            flush()
        group.append((key, value))
        used += room
    flush()
    return results


def get_all(client, namespace, keys, *, batch=16):
    """Returns the bytes of each key, or None; leases are released at once."""
    values = {}
    keys = list(keys)
    for i in range(0, len(keys), batch):
        part = keys[i:i + batch]
        results = client.get(namespace, part, timeout_ms=60000)
        for key, result in zip(part, results):
            assert result.status in (kvwire.Status.OK, kvwire.Status.MISS), result
            values[key] = result.data
        leases = [r.lease for r in results if r.lease]
        if leases:
            assert client.release(leases) == 0
    return values


def frame(op, body=b"", flags=0, tag=1, length=None):
    return struct.pack("<IHHQ", 16 + len(body) if length is None else length, op, flags, tag) + body


def batch_head(namespace=1, count=1, releases=0, timeout=0, ack=0, tiers=0, reserved=0, parent=bytes(32)):
    return struct.pack("<IHHIBBH32s", namespace, count, releases, timeout, ack, tiers, reserved, parent)
