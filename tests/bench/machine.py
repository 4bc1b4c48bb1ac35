# SPDX-License-Identifier: Apache-2.0
"""Starts the benchmark's processes (the daemon with its own store, the load program, fio, spinners), and reads properties of the machine."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time


class Trouble(Exception):
    """A figure cannot be measured. The text is the reason."""


def own_environment(build):
    """Returns the environment of the build's programs, with the libraries that tests/gpu/pack.sh has put beside them, and no KVCACHE_* variable."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KVCACHE_")}
    if (build / "lib").is_dir():
        environment["LD_LIBRARY_PATH"] = ":".join([str(build / "lib"), *filter(None, [environment.get("LD_LIBRARY_PATH")])])
    return environment


def read(path, default=""):
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError:
        return default


def last_line(path):
    """Returns the last message of a program, without the time."""
    lines = read(path).splitlines() or ["it gave no reason"]
    return lines[-1].split(": error: ")[-1]


def size_of(text):
    """Returns a text such as "32768K" in bytes."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    if text and text[-1] in units:
        return int(text[:-1]) * units[text[-1]]
    return int(text or 0)


def memory_available():
    for line in read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def mount_of(path):
    """Returns (device, file system) of the mount that holds the path."""
    best = ("", "?", "?")
    path = os.path.realpath(path)
    for line in read("/proc/mounts").splitlines():
        device, where, kind = line.split()[:3]
        where = where.replace("\\040", " ")
        if (path == where or path.startswith(where.rstrip("/") + "/")) and len(where) >= len(best[0]):
            best = (where, device, kind)
    return best[1], best[2]


def has_volatile_cache(directory):
    """Returns whether the directory's disk loses written data at a power loss until it is flushed, or None if the disk does not report that."""
    number = os.stat(directory).st_dev
    device = pathlib.Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    for queue in (device / "queue", device / "../queue"):  # the disk's own; a partition's
        said = read(queue / "write_cache", "")
        if said:
            return said == "write back"
    return None


def facts(directory):
    cpu = "unknown processor"
    for line in read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    device, kind = mount_of(directory)
    l3 = read("/sys/devices/system/cpu/cpu0/cache/index3/size", "0K")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu,
        "kernel": os.uname().release,
        "architecture": os.uname().machine,
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "l3_bytes": size_of(l3),
        "transparent_huge_pages": read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "device": device,
        "file_system": kind,
        "volatile_cache": has_volatile_cache(directory),
        "free_bytes": shutil.disk_usage(directory).free,
        "load_before": os.getloadavg()[0],
    }


def cpu_seconds(pid):
    """Returns the processor time of all threads of a process, including ended ones, by its exact clock."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        raise Trouble("the system does not tell the processor time of another process") from None


def note_mode(report, daemon):
    daemon.settle()  # the status is complete once the pool exists
    status = daemon.status()
    report["daemon"] = dict(status["io"], huge_pages=status["pool"].get("huge_pages"), version=status["version"],
                            spin=daemon.bench.settings["io.spin"])


def listens(path):
    """Returns whether the socket accepts connections, without starting a program, which would compete with a starting server for the processor."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        return s.connect_ex(str(path)) == 0


class Process:
    """A process of a program that only runs, or that answers each line of its input with a line of JSON."""

    def __init__(self, command, log, environment=None):
        self.command = [str(part) for part in command]
        self.log = log
        self.errors = open(log, "ab")
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
                                        env=environment)

    def ask(self, line):
        self.tell(line)
        return self.answer()

    def tell(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise Trouble(f"{os.path.basename(self.command[0])} {self.command[1]} ended: {last_line(self.log)}")
        return json.loads(line)

    def run(self, seconds=0.0, count=0):
        return self.ask(f"run {seconds} {count}")

    def close(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()

    def end(self):
        """Ends a process that does not end by itself."""
        self.process.terminate()
        self.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class Daemon:
    """A daemon on an empty store, or on an existing one, which it keeps."""

    def __init__(self, bench, settings, store=None):
        self.bench = bench
        self.socket = bench.sockets / "kvcache.sock"
        self.keep = store is not None
        self.store = store or bench.work / "store"
        if not self.keep:
            shutil.rmtree(self.store, ignore_errors=True)
        self.log = bench.work / "daemon.log"
        self.command = [bench.build / "daemon/kvcache-daemon", "--config", "/dev/null"]
        bench.note_settings({**bench.settings, **settings})
        for key, value in {"listen.socket": self.socket, "listen.http": "off", "store.path": self.store, "log.level": "warning",
                           **bench.settings, **settings}.items():
            self.command += ["--set", f"{key}={value}"]
        self.reporter = None
        bench.running.append(self)
        try:
            self._spawn()
        except Trouble:
            self.stop()
            raise

    def _spawn(self):
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([str(part) for part in self.command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=own_environment(self.bench.build))
        self._wait_for_answers()

    def kill_and_start(self):
        """Kills the daemon with kill -9 and starts it again. Returns the seconds until the first answer."""
        self.reporter.close()
        self.reporter = None
        begin = time.monotonic()
        self.process.kill()
        self.process.wait()
        self._spawn()
        return time.monotonic() - begin

    def memory_bytes(self):
        """Returns the daemon's anonymous and shared memory, excluding the pool."""
        fields = dict(line.split(":", 1) for line in read(f"/proc/{self.process.pid}/status").splitlines())
        resident = sum(int(fields[word].split()[0]) * 1024 for word in ("RssAnon", "RssShmem"))
        return resident - self.stats()["kvcache_pool_populated_bytes"]

    def _wait_for_answers(self):
        deadline = time.monotonic() + 30
        while True:
            if self.process.poll() is not None:
                raise Trouble(f"the daemon does not start: {last_line(self.log)}")
            if listens(self.socket):
                reporter = self.load("report", "--steps")
                try:
                    reporter.ask("status")
                    self.reporter = reporter
                    return
                except Trouble:
                    reporter.close()
            if time.monotonic() > deadline:
                raise Trouble("the daemon does not answer")
            time.sleep(0.01)

    def load(self, mode, *arguments):
        return self.bench.measure(mode, "--socket", self.socket, *arguments)

    def status(self):
        return self.reporter.ask("status")

    def stats(self):
        return self.reporter.ask("stats")

    def cpu_seconds(self):
        return cpu_seconds(self.process.pid)

    def settle(self, limit_s=60):
        """Waits until the daemon is idle: the pool is populated, all chunks are written, and nothing is being prewritten."""
        deadline, before, quiet = time.monotonic() + limit_s, None, 0
        while quiet < 3:
            if time.monotonic() > deadline:
                raise Trouble("the daemon does not come to rest")
            stats = self.stats()
            now = sum(stats["kvcache_io_operations_total"].values())
            busy = (stats["kvcache_io_inflight"] or stats["kvcache_io_queued"] or stats["kvcache_pool_unwritten_bytes"] or
                    stats["kvcache_pool_populated_bytes"] < stats["kvcache_pool_size_bytes"])
            quiet = quiet + 1 if now == before and not busy else 0
            before = now
            time.sleep(0.01)

    def stop(self):
        if self.reporter:
            self.reporter.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self in self.bench.running:
            self.bench.running.remove(self)
        if not self.keep:
            shutil.rmtree(self.store, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()


class Fio:
    """Runs fio on a file in the directory of the store. The whole file was written once before."""

    def __init__(self, bench, file_bytes, depth):
        self.bench, self.file_bytes, self.depth = bench, file_bytes, depth
        self.file = bench.work / "fio.file"
        self.binary = shutil.which("fio") or self._install()
        self.version = subprocess.run([self.binary, "--version"], capture_output=True, text=True).stdout.strip()
        self.extra = ["--fixedbufs=1", "--registerfiles=1"]
        self._fio("write", 1 << 20, ["--ioengine=psync", "--iodepth=1"], extra=False)
        try:
            self.slice("randread", 1 << 16, 0.05)
        except Trouble:
            self.extra = []
            self.slice("randread", 1 << 16, 0.05)

    @staticmethod
    def _install():
        if os.geteuid() == 0 and shutil.which("apt-get"):
            subprocess.run(["apt-get", "install", "-y", "-q", "--no-install-recommends", "fio"], stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = shutil.which("fio")
        if not found:
            raise Trouble("fio is not installed")
        return found

    def remove(self):
        self.file.unlink(missing_ok=True)

    def describe(self):
        return f"{self.version}, io_uring, O_DIRECT, depth {self.depth}, {' '.join(self.extra) or 'no registered buffers: they were refused'}"

    @staticmethod
    def huge_pages():
        """Returns why fio's buffers cannot be in huge pages, or None. malloc() requests huge pages if a setting requires that."""
        setting = read("/sys/kernel/mm/transparent_hugepage/enabled", "[never]")
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
        if "[never]" in setting:
            return "the kernel gives no transparent huge pages"
        if not libc.startswith("glibc ") or tuple(int(n) for n in libc.split()[1].split(".")[:2]) < (2, 35):
            return "it takes glibc 2.35 to give fio huge pages"
        return None

    def _fio(self, rw, block_bytes, how, extra=True, huge=False):
        command = [self.binary, "--name=bench", f"--filename={self.file}", f"--size={self.file_bytes}", f"--bs={block_bytes}",
                   f"--rw={rw}", "--direct=1", "--fallocate=none", "--allrandrepeat=0", "--output-format=json", *how]
        environment = dict(os.environ, **({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} if huge else {}))
        done = subprocess.run(command + (self.extra if extra else []), capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              cwd=self.bench.work, env=environment)
        try:
            job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
        except (ValueError, KeyError, IndexError):
            job = None
        if done.returncode != 0 or not job or job.get("error"):
            words = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise Trouble(f"fio fails: {words[0] if words else 'no reason given'}")
        return job

    def slice(self, rw, block_bytes, seconds, count=0, huge=False, depth=None, options=()):
        """Runs fio. Returns bytes per second, and CPU seconds per byte."""
        how = ["--ioengine=io_uring", f"--iodepth={depth or self.depth}", *options]
        if count:
            how += [f"--io_size={count}"]
        else:
            how += ["--time_based", f"--runtime={int(seconds * 1000)}ms"]
        job = self._fio(rw, block_bytes, how, huge=huge)
        side = job["read" if "read" in rw else "write"]
        if side["io_bytes"] == 0 or side["runtime"] == 0:
            raise Trouble("fio moved nothing")
        seconds = side["runtime"] / 1000
        return side["io_bytes"] / seconds, (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds / side["io_bytes"]
