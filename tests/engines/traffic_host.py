# SPDX-License-Identifier: Apache-2.0
"""Starts and ends the processes of the traffic benchmark (programs, daemons, engines), and reads memory cgroups and disk counters of the host.

A Host owns a scratch folder and every process that it starts. close() kills all of them, and the kernel does if the driver is killed.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile

from traffic_child import die_with_parent

SHARED = pathlib.Path("/dev/shm")
REGIONS = ("vllm_offload_*", "lmcache_l1_pool_*", "sglang_loads_*")  # memory that killed engines leave in /dev/shm
HERE = pathlib.Path(__file__).resolve().parent


def mib(nbytes):
    return f"{max(1, nbytes >> 20)}MiB"


class Programs:
    """The daemon, kvcachectl, the library and the folders of Python packages, from a pack (tests/gpu/pack.sh) or from a build folder."""

    def __init__(self, folder, sites, scratch):
        self.folder = self._unpacked(pathlib.Path(folder), scratch / "pack")
        if not (self.folder / "daemon/kvcache-daemon").exists() and (self.folder / "pack/daemon/kvcache-daemon").exists():
            self.folder /= "pack"
        self.daemon, self.ctl = self.folder / "daemon/kvcache-daemon", self.folder / "client/ctl/kvcachectl"
        self.client_library = self.folder / "client/lib/libkvcache.so.1"
        for program in (self.daemon, self.client_library):
            if not program.exists():
                raise SystemExit(f"traffic: {program} does not exist; --pack takes a build folder, or what tests/gpu/pack.sh made of it")
        if not sites and (self.folder / "site.tar.xz").exists():
            sites = [self.folder / "site.tar.xz"]
        self.python = [self._unpacked(pathlib.Path(one), scratch / f"site{number or ''}") for number, one in enumerate(sites)]
        wheels = sorted(self.folder.glob("kvcache-*.whl"))
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(scratch / "wheel")
        self.python.insert(0, scratch / "wheel" if wheels else HERE.parents[1] / "client/python")

    @staticmethod
    def _unpacked(source, folder):
        if source.is_dir():
            return source.resolve()
        folder.mkdir()
        print(f"unpack {source}", flush=True)
        if subprocess.run(["tar", "-xf", source.resolve(), "-C", folder], check=False).returncode:
            raise SystemExit(f"traffic: {source} could not be unpacked")
        return folder

    def environment(self):
        """Returns the environment of engines: the packages, and the library that was built with the daemon unless another is set."""
        env = dict(os.environ, PYTHONUNBUFFERED="1", PYTHONHASHSEED="0")
        env.setdefault("KVCACHE_LIBRARY", str(self.client_library))
        env["PYTHONPATH"] = os.pathsep.join(map(str, [*self.python, HERE]))
        return dict(env, LD_LIBRARY_PATH=self.libraries())

    def libraries(self):
        return os.pathsep.join(filter(None, [str(self.folder / "lib"), str(self.folder / "client/lib"), os.environ.get("LD_LIBRARY_PATH")]))


# --- memory that is smaller than the working set ---


class MemoryLimit:
    """A memory cgroup for one arm, which counts its engine, its daemon and the page cache that they cause. `reason` says why there is none."""

    def __init__(self, nbytes, name):
        self.procs = self.reason = ""
        self.folder, self.is_v1 = pathlib.Path("/nonexistent"), False
        try:
            root, self.is_v1 = self._root()
            self.folder = root / f"kvcache-traffic-{name}"
            self.folder.mkdir()
            (self.folder / ("memory.limit_in_bytes" if self.is_v1 else "memory.max")).write_text(str(nbytes))
            with contextlib.suppress(OSError):  # a host without swap has no such file
                (self.folder / ("memory.swappiness" if self.is_v1 else "memory.swap.max")).write_text("0")
            self.procs = str(self.folder / "cgroup.procs")
        except OSError as problem:
            self.reason = f"no memory cgroup: {problem}"
            self.close()

    @staticmethod
    def _root():
        """Returns the folder in which memory cgroups can be made, and whether it is of version 1."""
        mounts = [line.split()[:4] for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
        for _, folder, kind, options in mounts:
            if kind == "cgroup" and "memory" in options.split(","):
                return pathlib.Path(folder), True
        root = next((pathlib.Path(folder) for _, folder, kind, _ in mounts if kind == "cgroup2"), None)
        if root is None:
            raise OSError("no cgroup file system is mounted")
        if "memory" not in (root / "cgroup.subtree_control").read_text().split():
            (root / "cgroup.subtree_control").write_text("+memory")
        return root, False

    def figures(self):
        """Returns the highest use, and the page cache at this moment."""
        if not self.procs:
            return dict(unlimited=self.reason)
        highest = self.folder / ("memory.max_usage_in_bytes" if self.is_v1 else "memory.peak")
        statistics = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        return dict(highest_bytes=int(highest.read_text()) if highest.exists() else None,
                    page_cache_bytes=int(statistics.get("cache" if self.is_v1 else "file", 0)))

    def close(self):
        """Removes the cgroup. Its processes were killed and need a moment to leave it."""
        for _ in range(100):
            try:
                self.folder.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.02)


def disk_counters(folder):
    """Returns (bytes read, bytes written) of the disk below a folder, or of all disks where the folder's device is not a disk."""
    device = os.stat(folder).st_dev
    one = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    files = [one] if one.exists() else [f for f in pathlib.Path("/sys/block").glob("*/stat") if not f.parent.name.startswith(("loop", "ram", "dm-"))]
    counters = [f.read_text().split() for f in files]
    return sum(int(c[2]) for c in counters) * 512, sum(int(c[6]) for c in counters) * 512


# --- daemons ---


class Daemon:
    """A daemon with a store of its own. start() after kill() opens the store again."""

    def __init__(self, host, name, pool_bytes, store_bytes, registered_bytes, settings, cgroup=""):
        self.host, self.cgroup, self.process = host, cgroup, None
        self.folder = host.scratch / name
        self.folder.mkdir()
        self.socket, self.log = str(self.folder / "s"), host.logs / f"{name}-daemon.log"
        options = {"listen.socket": self.socket, "listen.http": "off", "store.path": self.folder / "store", "store.limit": mib(store_bytes),
                   "memory.pool": mib(pool_bytes), "limits.registered": mib(registered_bytes), "limits.uid_registered": mib(registered_bytes)}
        options.update(setting.split("=", 1) for setting in settings)
        self.command = [str(host.programs.daemon), *(word for key, value in options.items() for word in ("--set", f"{key}={value}"))]

    def start(self):
        """Starts the daemon and waits until its memory is populated: before that an engine would share the bus with it. A pool that no
        longer grows has met the limit of the host's memory, and is used as it is."""
        env = dict(os.environ, LD_LIBRARY_PATH=self.host.programs.libraries())
        self.process = self.host.spawn(self.command, self.log, env=env, cgroup=self.cgroup)
        deadline, populated, grew_at = time.monotonic() + 90, -1, time.monotonic()
        while time.monotonic() < deadline and self.process.poll() is None:
            status = self.status() or {}
            pool, now = status.get("pool", {}), time.monotonic()
            if pool.get("populated_bytes", 0) > populated:
                populated, grew_at = pool.get("populated_bytes", 0), now
            if status.get("ready") and (populated >= pool["bytes"] or now > grew_at + 5):
                return
            time.sleep(0.05)
        raise RuntimeError(f"the daemon did not become ready: {tail(self.log, 3)}")

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        if self.is_running():
            os.kill(self.process.pid, number)

    def kill(self):
        self.host.end(self.process)

    def _ctl(self, *words):
        if not self.host.programs.ctl.exists() or not self.is_running():
            return ""
        env = dict(os.environ, LD_LIBRARY_PATH=self.host.programs.libraries())
        with contextlib.suppress(subprocess.TimeoutExpired):
            return subprocess.run([self.host.programs.ctl, "--socket", self.socket, *words], env=env, capture_output=True, text=True,
                                  timeout=5, check=False).stdout
        return ""

    def status(self):
        """Returns what `kvcachectl status --json` prints; None where no daemon answers."""
        with contextlib.suppress(ValueError):
            return json.loads(self._ctl("status", "--json"))
        return None

    def status_text(self):
        return self._ctl("status")

    def stored(self):
        """Returns a line with the chunks and bytes of each namespace that has some."""
        found = []
        with contextlib.suppress(ValueError):
            found = [f"{n['name']}: {n['chunks']:,} chunks, {n['bytes']:,} bytes" for n in json.loads(self._ctl("namespace", "ls", "--json"))["namespaces"]
                     if n["chunks"]]
        return "; ".join(found) or "no chunk is stored"

    def close(self):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


# --- engines ---


class EngineProcess:
    """The process of a job. Its events are read from a file."""

    def __init__(self, host, path, job):
        self.host, self.job = host, job
        self.pid, self.status, self.stacked, self._killed = None, None, False, False
        self._rest, self._at, self._path = b"", 0, path
        pathlib.Path(job["events"]).touch()
        host.launch(self, path)

    def events(self):
        """Returns the events since the last call."""
        with open(self.job["events"], "rb") as file:
            file.seek(self._at)
            some = file.read()
        self._at += len(some)
        *lines, self._rest = (self._rest + some).split(b"\n")
        return [json.loads(line) for line in lines]

    def ended(self):
        self.host.collect()
        return self.status is not None

    def stacks(self):
        """Makes the process print the stacks of its threads to its log."""
        if self.pid and self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)
            self.stacked = True

    def kill(self):
        """Kills the process with its group, because the workers of an engine that has ended may survive, and hold GPU memory."""
        if self.pid and not self._killed:
            self._killed = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            deadline = time.monotonic() + 30
            while not self.ended() and time.monotonic() < deadline:
                time.sleep(0.01)


class ForkServer:
    """The process that has imported the engine's packages and forks an engine for each job."""

    def __init__(self, host, engine):
        self.host, self.waiting, self.running, self.rest = host, {}, {}, b""
        self.process = host.spawn([sys.executable, str(HERE / "traffic_child.py"), "serve", engine], host.logs / "fork-server.log",
                                  env=host.programs.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.refused = ""
        answer = self._wait_for_line(host.import_limit_s)
        if not answer and self.process.poll() is not None:
            print(f"traffic: the packages of {engine} cannot be imported: {tail(host.logs / 'fork-server.log', 3)}", file=sys.stderr, flush=True)
            raise SystemExit(2)
        if answer != "ready":
            self.refused = answer or f"the import did not end: {tail(host.logs / 'fork-server.log', 3)}"

    def _wait_for_line(self, limit_s):
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            lines = self._lines()
            if lines:
                return lines[0]
            if self.process.poll() is not None:
                return ""
            time.sleep(0.02)
        return ""

    def _lines(self):
        some = self.process.stdout.read() or b""
        *lines, self.rest = (self.rest + some).split(b"\n")
        return [line.decode() for line in lines]

    def launch(self, engine, path):
        self.waiting[str(path)] = engine
        self.process.stdin.write(f"{path}\n".encode())
        self.process.stdin.flush()
        deadline = time.monotonic() + 20
        while engine.pid is None and engine.status is None and time.monotonic() < deadline:
            self.collect()
            time.sleep(0.005)

    def collect(self):
        for line in self._lines():
            first, second, *rest = line.split()
            if first == "end":
                self.running.pop(second).status = int(rest[0])
            else:
                self.running[first] = engine = self.waiting.pop(second)
                engine.pid = int(first)
        if self.process.poll() is not None:  # forked engines died with it
            for engine in [*self.waiting.values(), *self.running.values()]:
                engine.status = -1


class Host:
    """The scratch folder, the logs and the processes of one run of the driver."""

    def __init__(self, options):
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="kvcache-traffic-", dir=options.scratch))
        self.logs = self.scratch / "logs"
        self.logs.mkdir()
        self.has_regions = options.engine != "stub"
        self.left_behind = self._regions()  # by engines that are not of this run
        self.import_limit_s, self.processes, self.plain, self.server, self.jobs = 180, [], {}, None, 0
        try:
            self.programs = Programs(options.pack, options.site, self.scratch)
            if not options.no_fork:
                self._serve(options.engine)
        except BaseException:
            self.close()
            raise

    def _serve(self, engine):
        began = time.monotonic()
        self.server = ForkServer(self, engine)
        if self.server.refused:
            print(f"each engine is a new process: {self.server.refused}", flush=True)
            self.stop_forking()
        else:
            print(f"imported {engine} in {time.monotonic() - began:.1f} s", flush=True)

    def stop_forking(self):
        self.end(self.server.process)
        self.server = None

    def spawn(self, command, log, *, env=None, cgroup="", stdin=subprocess.DEVNULL, stdout=None):
        """Starts a process in a session of its own, and in a cgroup if one is named. Its output goes to the log."""
        driver = os.getpid()

        def before_exec():
            die_with_parent(driver)
            if cgroup:
                with open(cgroup, "w") as file:
                    file.write(str(os.getpid()))

        with open(log, "ab") as output:
            process = subprocess.Popen([str(word) for word in command], env=env, stdin=stdin, stdout=stdout or output, stderr=output,
                                       start_new_session=True, preexec_fn=before_exec)
        self.processes.append(process)
        return process

    def end(self, process):
        """Kills a process with its group, and waits for it."""
        if process is not None and process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self.processes.remove(process)

    def beside(self, name, *words):
        """Starts a process that uses a daemon while engines do (traffic_beside.py)."""
        return self.spawn([sys.executable, HERE / "traffic_beside.py", *words], self.logs / f"{name}.log", env=self.programs.environment())

    def engine(self, job):
        self.jobs += 1
        name = f"{self.jobs:03}-{job['label']}"
        job = dict(job, number=self.jobs - 1, events=str(self.scratch / f"{name}.events"), log=str(self.logs / f"{name}.log"))
        path = self.scratch / f"{name}.json"
        path.write_text(json.dumps(job))
        return EngineProcess(self, path, job)

    def launch(self, engine, path):
        if self.server is not None and self.server.process.poll() is not None:
            print(f"the fork server ended: {tail(self.logs / 'fork-server.log', 3)}", flush=True)
            self.stop_forking()
        if self.server is not None:
            self.server.launch(engine, path)
            return
        process = self.spawn([sys.executable, HERE / "traffic_child.py", "run", path], engine.job["log"], env=self.programs.environment())
        engine.pid = process.pid
        self.plain[engine] = process

    @staticmethod
    def _regions():
        return {region for pattern in REGIONS for region in SHARED.glob(pattern)}

    def remove_regions(self):
        """Removes the memory that a killed engine leaves in /dev/shm, which the next engine needs, unless a process maps it."""
        left = self._regions() - self.left_behind if self.has_regions else set()
        for region in left:
            with contextlib.suppress(OSError):
                if not any(str(region) in maps_of(process) for process in pathlib.Path("/proc").glob("[0-9]*")):
                    region.unlink()

    def collect(self):
        if self.server is not None:
            self.server.collect()
        for engine, process in list(self.plain.items()):
            if process.poll() is not None:
                engine.status = process.returncode
                del self.plain[engine]
                self.processes.remove(process)

    def close(self):
        if self.server is not None:
            for engine in list(self.server.running.values()):
                engine.kill()
        for process in list(self.processes):
            self.end(process)
        self.remove_regions()
        shutil.rmtree(self.scratch, ignore_errors=True)


def gpu():
    """Returns names and drivers of the GPUs; an empty text where there is none."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        return "; ".join(subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip().splitlines())
    return ""


def maps_of(process):
    """Returns the mappings of a process as a text, or an empty one where it has ended."""
    with contextlib.suppress(OSError):
        return (process / "maps").read_text()
    return ""


def tail(path, lines):
    """Returns the last lines of a file as one line."""
    with contextlib.suppress(OSError):
        return " / ".join(pathlib.Path(path).read_text(errors="replace").strip().splitlines()[-lines:])[-600:]
    return ""
