# SPDX-License-Identifier: Apache-2.0
"""Starts a daemon that belongs to the user, without root and without a configuration file. `python -m kvcache serve` and ensure() use it.

One daemon serves all engines of a user. The process that starts the daemon has a lock in the user's runtime directory until the daemon answers,
so that a second process finds this daemon instead of starting another one. The runtime directory is $XDG_RUNTIME_DIR/kvcache, else
/tmp/kvcache-UID; libkvcache looks for the socket in both directories without any setting. A directory in which another user could
put a socket is refused.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import fcntl
import math
import os
import pathlib
import re
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import _library as c
from . import _programs
from ._client import Client
from ._errors import Error

MOST_POOL, LEAST_POOL = 32 << 30, 64 << 20  # bytes of the largest and the smallest default pool
MOST_WORKERS = 4  # largest number of workers that the daemon chooses with io.workers: auto
START_S = 120.0   # time within which a started daemon must answer
IDLE = "10min"    # default time without clients after which a daemon in the background ends


# --- directories ---

def _check_alone(path: str, found: os.stat_result, what: str, variable: str) -> None:
    """Raises Error if another user could replace the content of a directory. `what`: the content; `variable`: the variable that selects another
    directory."""
    if found.st_uid != os.geteuid():
        raise Error(errno.EPERM, f"{path} belongs to user {found.st_uid}, who could replace the {what}: it must belong to user {os.geteuid()}; "
                      f"remove it, or set {variable}")
    if found.st_mode & 0o022:
        raise Error(errno.EPERM, f"other users may write to {path}, and could replace the {what}: chmod 700 {path}")


def _private(path: str) -> str:
    """Makes a directory that only this user can access, or checks that an existing one is safe. Returns the path."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise Error(errno.EPERM, f"{path} is not a directory: remove it, or set XDG_RUNTIME_DIR")
    _check_alone(path, found, "socket", "XDG_RUNTIME_DIR")
    os.chmod(path, 0o700)
    return path


def runtime_directory() -> str:
    """Returns the directory of the socket, and makes it if necessary. The $XDG_RUNTIME_DIR of another user, which sudo and su may leave set, is not
    used."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base.startswith("/"):
        try:
            found = os.stat(base)
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
                return _private(os.path.join(base, "kvcache"))
            why = ("it is not a directory" if not stat.S_ISDIR(found.st_mode) else f"it belongs to user {found.st_uid}"
                   if found.st_uid != os.geteuid() else f"other users may write to it (chmod 700 {base})")
        except FileNotFoundError:
            why = "it does not exist"
        except PermissionError:
            why = "this user may not read it"
        print(f"kvcache: XDG_RUNTIME_DIR={base} is not used, but /tmp/kvcache-{os.geteuid()} instead: {why}", file=sys.stderr)
    return _private(f"/tmp/kvcache-{os.geteuid()}")


def _cache_directory() -> pathlib.Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):
        base = os.path.expanduser("~/.cache")
    if not base.startswith("/"):
        raise Error(errno.ENOENT, "this user has no home directory: set HOME or XDG_CACHE_HOME")
    return pathlib.Path(base, "kvcache")


def _make_cache_directory() -> pathlib.Path:
    """Makes the directory of the store and the log, or checks that an existing one is safe. The directory may be a symbolic link of this user to
    another disk."""
    path = _cache_directory()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    link, found = os.lstat(path), os.stat(path)
    if not stat.S_ISLNK(link.st_mode) or link.st_uid != os.geteuid():
        found = link
    _check_alone(str(path), found, "store", "XDG_CACHE_HOME")
    return path


# --- sizes ---

def _number(path: pathlib.Path, name: str = "") -> int | None:
    """Returns the number in a file that has only a number, or, with a `name`, the number after it in the first line that begins with it.
    Returns None if there is no such number or the file cannot be read."""
    try:
        text = path.read_text()
        if name:
            text = next(line[len(name):] for line in text.splitlines() if line.startswith(name))
        return int(text.split()[0])
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _group_free(root: pathlib.Path) -> int | None:
    """Returns how many bytes of memory the control groups of this process still allow, or None if they have no limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    free: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file ")
        elif "memory" in controllers.split(","):
            top, names = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
        else:
            continue
        parts = [p for p in path.split("/") if p]
        for depth in range(len(parts) + 1 if ".." not in parts else 1):
            folder = top.joinpath(*parts[:depth])
            limit, used = _number(folder / names[0]), _number(folder / names[1])
            if limit is not None:  # "max" is not a number, and means no limit
                free.append(max(limit - (used or 0) + (_number(folder / "memory.stat", names[2]) or 0), 0))
    return min(free, default=None)


def pool_bytes(root: str = "/") -> int:
    """Returns the default size of the pool in bytes: a quarter of the memory that this process may still use, rounded down to 2 MiB,
    between 64 MiB and 32 GiB. `root`: replaced by tests, which have files of their own in place of /proc and /sys."""
    available = (_number(pathlib.Path(root, "proc/meminfo"), "MemAvailable:") or 0) << 10
    allowed = _group_free(pathlib.Path(root))
    quarter = (available if allowed is None else min(available, allowed)) // 4
    return min(max(quarter & ~((2 << 20) - 1), LEAST_POOL), MOST_POOL)


def _bytes(size: str) -> float:
    """Returns the number of bytes of a size as the daemon reads it: a number and an optional unit, such as "1.5GiB"; infinity for "auto" and
    any other text."""
    parts = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *(|B|[kKMGTP]B|[KMGTP]iB)", size.strip())
    if parts is None:
        return math.inf
    power = " KMGTP".index(parts[2][0].upper()) if parts[2] not in ("", "B") else 0
    return float(parts[1]) * (1024.0 if "i" in parts[2] else 1000.0) ** power


def _may_lock(pool: str) -> bool:
    """Returns whether this process may lock a pool of this size for io_uring, once for each of the daemon's workers (io.workers: auto). The
    limit RLIMIT_MEMLOCK of a user is usually 8 MiB, and the user cannot raise it."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return limit == resource.RLIM_INFINITY or os.geteuid() == 0 or limit >= _bytes(pool) * min(os.cpu_count() or 1, MOST_WORKERS)


def settings(directory: str, given: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings to pass to the daemon: those in `given`, and a default for each other key whose environment variable
    KVCACHE_SECTION_KEY is not set."""
    pool = given.get("memory.pool") or os.environ.get("KVCACHE_MEMORY_POOL") or str(pool_bytes())
    defaults = {
        "listen.socket": os.path.join(directory, "kvcache.sock"),
        "listen.http": f"unix:{directory}/http.sock",  # a TCP port would be open to all users of the host
        "listen.mode": "0600",
        "memory.pool": pool,
        "store.path": str(_cache_directory() / "store"),
        "store.prewrite": "off",
        # Removes the limit of one connection, three eighths of the pool. The daemon's user is an admin, so one engine may lease as much as
        # the daemon permits all connections together, which is half of the pool.
        "limits.leased_bytes": pool,
        "io.registration": "auto" if _may_lock(pool) else "off",
    }
    unset = {key: value for key, value in defaults.items() if not os.environ.get("KVCACHE_" + key.upper().replace(".", "_"))}
    return {**unset, **given}


# --- the daemon ---

def running(socket: str | None = None) -> dict[str, Any] | None:
    """Returns the status of the daemon that clients of this user find at `socket`, or None if no daemon answers. Without `socket`, the usual places
    are searched."""
    if not _answers(socket):
        return None
    try:
        with Client(socket, name="kvcache.serve", connect_timeout=5.0, required=True) as client:
            return client.status()
    except Error:
        return None


def _answers(socket: str | None) -> bool:
    """Returns whether a daemon answers. A socket that a dead daemon has left does not count. Does not use a Client, which would log a warning if no
    daemon answers."""
    path = os.fsencode(socket) if socket is not None else None
    options = c.OPTIONS.pack(c.OPTIONS.size, 0, c.address_of(path) if path else 0, 0, 5000, 0, 0)
    kv, why = ctypes.c_void_p(), ctypes.create_string_buffer(1024)
    if c.connect(ctypes.byref(kv), options, why, len(why)) < 0:
        return False
    c.close(kv)
    return True


@contextlib.contextmanager
def _lock(directory: str, timeout_s: float) -> Iterator[None]:
    """Has, within `with`, the lock that a process needs to start a daemon. Raises Error if another process has the lock for `timeout_s`."""
    fd = os.open(os.path.join(directory, "serve.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Error(errno.ETIMEDOUT, f"another process has been starting a daemon for {timeout_s:.0f} s and has the lock "
                                f"{os.path.join(directory, 'serve.lock')}: look at its output, which with --background is in "
                                f"{_cache_directory() / 'daemon.log'}") from None
            time.sleep(0.05)
        yield
    finally:
        os.close(fd)


def _spawn(values: Mapping[str, str], log: pathlib.Path | None) -> subprocess.Popen[bytes]:
    """Starts the daemon's process. With `log`, the daemon writes to this file and runs in a session of its own, so that it outlives this
    process."""
    command = [_programs.find("kvcache-daemon"), "--config", os.devnull]
    for key, value in values.items():
        command += ["--set", f"{key}={value}"]
    environment = {k: v for k, v in os.environ.items() if k not in ("KVCACHE_LIBRARY", "LD_PRELOAD")}
    if values.get("store.path") == str(_cache_directory() / "store"):  # the daemon does not make parent directories
        _make_cache_directory()
    if log is None:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
    _make_cache_directory()
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=fd, stderr=fd, env=environment, start_new_session=True)
    finally:
        os.close(fd)


def _end_of(log: pathlib.Path | None) -> str:
    """Returns ": " and the last line of the daemon's log, for an error message; an empty string if there is no line."""
    if log is None:
        return ""
    lines = log.read_text(errors="replace").splitlines()
    return f": {lines[-1]}" if lines else ""


def _ended(status: int) -> str:
    """Returns how the daemon's process ended, as text. `status`: an exit status, or a signal's number as a negative number."""
    if status >= 0:
        return f"kvcache-daemon ended with status {status}"
    return f"kvcache-daemon was ended by signal {-status} ({signal.strsignal(-status) or 'unknown'})"


def _wait_ready(child: subprocess.Popen[bytes], path: str | None, log: pathlib.Path | None) -> dict[str, Any]:
    deadline = time.monotonic() + START_S
    while True:
        if child.poll() is not None:
            raise Error(errno.ECHILD, f"{_ended(child.returncode)}{_end_of(log)}")
        status = running(path)
        if status is not None:
            return status
        if time.monotonic() > deadline:
            child.terminate()
            raise Error(errno.ETIMEDOUT, f"kvcache-daemon did not answer{f' at {path}' if path else ''} within {START_S:.0f} s and was ended"
                        f"{f': look at its log, {log}' if log is not None else ''}")
        time.sleep(0.02)


def start(given: Mapping[str, str] | None = None, *, socket: str | None = None,
          detach: bool = True) -> tuple[dict[str, Any], subprocess.Popen[bytes] | None]:
    """Starts a daemon unless one answers. `given`: settings of the daemon. `socket`: path of its socket; None: the usual places. `detach`: the
    daemon outlives this process. Returns the status of the daemon, and its process if this call has started it, else None. Raises Error if the
    daemon does not start."""
    asked = socket or os.environ.get("KVCACHE_SOCKET") or None
    status = running(socket)
    if status is not None:
        return status, None
    directory = runtime_directory()
    elsewhere = (given or {}).get("listen.socket") or os.environ.get("KVCACHE_LISTEN_SOCKET")
    with _lock(directory, START_S):
        status = running(socket) or (running(elsewhere) if elsewhere else None)
        if status is not None:
            return status, None
        values = settings(directory, {**({"listen.socket": os.path.abspath(asked)} if asked else {}), **(given or {})})
        log = _cache_directory() / "daemon.log" if detach else None
        child = _spawn(values, log)
        return _wait_ready(child, values.get("listen.socket") or elsewhere, log), child  # without a path: the usual places


def why(e: OSError) -> str:
    """Returns the reason of an error as text, with the name of the file if the error has one."""
    return f"{e.filename}: {e.strerror}" if e.filename else str(e.strerror or e)


def ensure(idle: str = IDLE, socket: str | None = None) -> str:
    """Starts a daemon for an engine unless one answers. Returns the path of the daemon's socket. A daemon that this call has started ends
    after the time `idle` without clients; other engines find it until then. Raises OSError if the daemon does not start."""
    return str(start({"listen.idle": idle}, socket=socket)[0].get("socket", ""))


# --- the command ---

def _size(count: object) -> str:
    number, unit = float(count) if isinstance(count, (int, float)) else 0.0, 0
    while number >= 1024 and unit < 4:
        number, unit = number / 1024, unit + 1
    return f"{number:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def _describe(status: Mapping[str, Any]) -> str:
    pool, store = status.get("pool", {}), status.get("store", {})
    volumes = ", ".join(str(v.get("volume")) for v in store.get("volumes", []))
    return f"memory {_size(pool.get('bytes'))}; disk {_size(store.get('limit_bytes'))} in {volumes}; pid {status.get('pid')}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--background", action="store_true", help="return when the daemon answers; its log is ~/.cache/kvcache/daemon.log")
    parser.add_argument("--idle", metavar="TIME", help=f"end after TIME without clients, as in 30s or 2h (default: off; {IDLE} with --background)")
    parser.add_argument("--pool", metavar="SIZE", help="memory, as in 8GiB (default: a quarter of what is free, 32GiB at most)")
    parser.add_argument("--disk", metavar="SIZE", help="space on disk (default: half of what is free, 64GiB at most)")
    parser.add_argument("--socket", metavar="PATH", help="the socket (default: $KVCACHE_SOCKET, else in the user's runtime directory)")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="a key of kvcache.yaml(5); may be repeated")


def _given(arguments: argparse.Namespace) -> dict[str, str]:
    given = {}
    idle = arguments.idle or (IDLE if arguments.background else None)
    for key, value in (("listen.idle", idle), ("memory.pool", arguments.pool), ("store.limit", arguments.disk)):
        if value is not None:
            given[key] = value
    for pair in arguments.set:
        key, equals, value = pair.partition("=")
        if not equals:
            raise Error(errno.EINVAL, f"--set {pair} is not a setting; write --set KEY=VALUE")
        given[key] = value
    return given


def run(arguments: argparse.Namespace) -> int:
    """Starts a daemon, and waits until it ends, or with --background until it answers. Returns the exit status of the command."""
    children: list[subprocess.Popen[bytes]] = []
    ended: list[int] = []

    def forward(number: int, frame: object) -> None:
        ended.append(number)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()

    if not arguments.background:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, forward)
    try:
        status, child = start(_given(arguments), socket=arguments.socket, detach=arguments.background)
    except OSError as e:
        print(f"kvcache: {why(e)}", file=sys.stderr)
        return 1
    if child is None:
        print(f"kvcache: a daemon serves at {status.get('socket')} already ({_describe(status)})")
        return 0
    print(f"kvcache: serving at {status.get('socket')} ({_describe(status)})", flush=True)
    if arguments.background:
        return 0
    children.append(child)
    if ended:
        child.terminate()
    return child.wait()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvcache serve", description="Starts a daemon of the user's own, unless one serves already.")
    add_arguments(parser)
    return run(parser.parse_args(argv))
