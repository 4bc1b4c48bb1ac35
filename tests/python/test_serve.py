# SPDX-License-Identifier: Apache-2.0
"""python -m kvcache serve runs a daemon of the user's own. Clients find it without a setting; there is only one; it ends when idle, and refuses
directories in which another user could put a socket."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import stat
import subprocess
import sys
import types

import harness
import kvcache
import pytest
from harness import wait_until
from kvcache import _programs, serve

PACKAGE = pathlib.Path(kvcache.__file__).parents[1]
SMALL = ("--pool", "32MiB", "--disk", "64MiB")
# Clients would find a daemon of the machine before that of a test.
pytestmark = pytest.mark.skipif(os.path.exists("/run/kvcache/kvcache.sock"), reason="a daemon serves this machine")


class Home:
    """The directories of a user, and the daemons that were started in them."""

    def __init__(self, directory):
        self.directory, self.runtime, self.cache = directory, directory / "run", directory / "cache"
        self.runtime.mkdir(mode=0o700)
        self.socket = self.runtime / "kvcache/kvcache.sock"
        self.pids = set()

    def environment(self, **more):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("KVCACHE_", "XDG_")) or k == "KVCACHE_LIBRARY"}
        path = f"{harness.BUILD / 'daemon'}:{os.environ['PATH']}"
        given = {**clean, "PATH": path, "PYTHONPATH": str(PACKAGE), "XDG_RUNTIME_DIR": str(self.runtime), "XDG_CACHE_HOME": str(self.cache), **more}
        return {k: v for k, v in given.items() if v is not None}

    def command(self, *arguments):
        return [sys.executable, "-m", "kvcache", "serve", *arguments]

    def serve(self, *arguments, check=0, small=SMALL, **environment):
        ran = subprocess.run(self.command(*small, *arguments), env=self.environment(**environment), stdin=subprocess.DEVNULL,
                             capture_output=True, text=True, timeout=60 * harness.slow())
        if self.status():
            self.pids.add(self.status()["pid"])
        assert ran.returncode == check, ran.stdout + ran.stderr + self.log()
        return ran.stdout if check == 0 else ran.stderr

    def log(self):
        path = self.cache / "kvcache/daemon.log"
        return path.read_text() if path.exists() else ""

    def status(self, path=None):
        return serve.running(str(path or self.socket))

    def end(self):
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def lives(pid):
    """Returns whether a process runs; one that has ended and is not reaped does not count."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.fixture
def home(directory):
    made = Home(directory)
    yield made
    made.end()


def python(home, code, **environment):
    ran = subprocess.run([sys.executable, "-c", code], env=home.environment(**environment), capture_output=True, text=True,
                         timeout=60 * harness.slow())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


ROUND_TRIP = """
import kvcache
with kvcache.Client(required=True) as client:
    blocks = client.namespace("n", {})
    assert blocks.put([b"k" * 32], [b"value"]).ok
    room = bytearray(5)
    assert blocks.get([b"k" * 32], [room]).ok and room == b"value"
    print(client.status()["socket"])
"""


def test_a_client_finds_the_daemon_without_a_setting_and_it_ends_when_idle(home):
    said = home.serve("--background", "--idle", "1s")
    assert f"serving at {home.socket} (memory 32 MiB; disk 64 MiB in {home.cache}/kvcache/store; pid " in said
    assert stat.S_IMODE(os.stat(home.socket).st_mode) == 0o600 and stat.S_IMODE(os.stat(home.socket.parent).st_mode) == 0o700
    assert python(home, ROUND_TRIP).strip() == str(home.socket)
    pid, = home.pids
    wait_until(lambda: not lives(pid), lambda: home.log(), 30)
    assert "no client has been connected for 1 s (listen.idle)" in home.log() and not home.socket.exists()


def test_a_second_serve_finds_the_first_daemon(home):
    home.serve("--background")
    first = home.status()["pid"]
    for arguments in ((), ("--background",), ("--socket", str(home.socket))):
        assert f"a daemon serves at {home.socket} already" in home.serve(*arguments)
    assert home.status()["pid"] == first


@pytest.mark.parametrize("words, variables", [(("--set", "listen.socket=@"), {}), ((), {"KVCACHE_LISTEN_SOCKET": "@"})])
def test_a_second_serve_finds_the_first_daemon_where_a_setting_put_it(home, words, variables):
    other = str(home.directory / "other.sock")
    words, variables = [w.replace("@", other) for w in words], {k: other for k in variables}
    home.serve("--background", *words, **variables)
    home.pids.add(home.status(other)["pid"])
    assert f"a daemon serves at {other} already" in home.serve("--background", *words, **variables)


def test_relative_paths_are_those_of_the_caller(home, monkeypatch):
    monkeypatch.chdir(home.directory)
    home.serve("--background", "--set", "store.path=mine")
    assert (home.directory / "mine").exists()


def test_daemons_that_are_started_at_the_same_time_are_one(home):
    started = [harness.spawn(home.command(*SMALL, "--background"), env=home.environment(), stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [process.communicate(timeout=60 * harness.slow())[0] for process in started]
    home.pids.add(home.status()["pid"])
    assert [process.returncode for process in started] == [0] * 4
    assert sum("kvcache: serving at" in line for line in said) == 1 and sum("already" in line for line in said) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_in_the_foreground_it_serves_until_a_signal(home, number):
    with harness.spawn(home.command(*SMALL), env=home.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert f"serving at {home.socket}" in process.stdout.readline()
        pid = home.status()["pid"]
        home.pids.add(pid)
        process.send_signal(number)
        assert process.wait(60 * harness.slow()) == 0
    assert not lives(pid) and not home.socket.exists()


def test_the_socket_of_a_killed_daemon_is_taken_over(home):
    home.serve("--background")
    python(home, ROUND_TRIP)
    pid, = home.pids
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not lives(pid), "it is killed")
    assert home.socket.exists()
    assert "kvcache: serving at" in home.serve("--background")
    assert home.status()["pid"] != pid
    assert home.status()["store"]["chunks"] == 1


def test_one_engine_may_lease_half_of_the_pool(home):
    """A connection may lease all of it here; by default it may lease a quarter."""
    home.serve("--background", small=("--disk", "256MiB", "--pool", "64MiB"))
    assert python(home, """
import kvcache
keys = [bytes([i + 1]) * 32 for i in range(56)]
with kvcache.Client(required=True) as client:
    blocks = client.namespace("n", {})
    for i in range(0, 56, 8):
        done = blocks.put(keys[i:i + 8], [b"x" * 500000] * 8)
        assert done.ok, list(done.status)
    leased = blocks.get_map(keys[:48])
    print(sum(place is not None for place in leased))
""") == "48\n"


# --- hostile ---

def test_a_runtime_directory_of_another_user_is_not_used(home):
    """Refuses a runtime directory of another user, whose variable sudo and su keep."""
    if os.geteuid() != 0:
        pytest.skip("needs to give a directory away")
    os.chown(home.runtime, harness.STRANGER, harness.STRANGER)
    with private_tmp(home) as tmp:
        ran = tmp.serve("--background", check=0)
        assert f"serving at /tmp/kvcache-{os.geteuid()}/kvcache.sock" in ran
    assert not home.socket.parent.exists()


@contextlib.contextmanager
def private_tmp(home):
    """Lets /tmp/kvcache-UID be a directory of the test: no daemon or directory of this machine's user is touched."""
    place = pathlib.Path(f"/tmp/kvcache-{os.geteuid()}")
    if place.exists() or place.is_symlink():
        pytest.skip(f"{place} exists")
    other = types.SimpleNamespace(place=place)

    def serving(*arguments, check):
        try:
            return home.serve(*arguments, check=check)
        finally:
            status = home.status(place / "kvcache.sock")
            if status:
                home.pids.add(status["pid"])

    other.serve = serving
    try:
        yield other
    finally:
        home.end()
        if place.is_symlink() or place.is_file():
            place.unlink()
        else:
            shutil.rmtree(place, ignore_errors=True)


@pytest.mark.parametrize("what", ["another owner", "writable by others", "a link", "a file"])
def test_a_directory_in_tmp_that_is_not_private_is_refused(home, what):
    if what == "another owner" and os.geteuid() != 0:
        pytest.skip("needs to give a directory away")
    with private_tmp(home) as tmp:
        if what == "a link":
            tmp.place.symlink_to(home.directory)
        elif what == "a file":
            tmp.place.touch()
        else:
            tmp.place.mkdir(mode=0o700)
        if what == "another owner":
            os.chown(tmp.place, harness.STRANGER, harness.STRANGER)
        if what == "writable by others":
            tmp.place.chmod(0o777)
        home.runtime.chmod(0o777)  # is not used either
        said = tmp.serve("--background", check=1)
        expected = {"another owner": f"belongs to user {harness.STRANGER}", "writable by others": f"chmod 700 {tmp.place}"}
        assert expected.get(what, f"{tmp.place} is not a directory") in said and "XDG_RUNTIME_DIR=" in said
        assert not home.pids and not (home.directory / "kvcache.sock").exists()
        assert what in ("a link", "a file") or not list(tmp.place.iterdir())  # no lock either, which the other user could hold


@pytest.mark.parametrize("what", ["another owner", "a link of another owner", "writable by others"])
def test_a_cache_directory_in_which_others_could_replace_the_store_is_refused(home, what):
    place, target = home.cache / "kvcache", home.directory / "target"
    if what != "writable by others" and os.geteuid() != 0:
        pytest.skip("needs to give a directory away")
    home.cache.mkdir()
    target.mkdir(mode=0o700)
    if what == "a link of another owner":
        place.symlink_to(target)
    else:
        place.mkdir()
        place.chmod(0o777 if what == "writable by others" else 0o700)
    if what != "writable by others":
        os.chown(place, harness.STRANGER, harness.STRANGER, follow_symlinks=False)
    said = home.serve("--background", check=1)
    assert (f"chmod 700 {place}" if what == "writable by others" else f"belongs to user {harness.STRANGER}") in said
    assert not list(place.iterdir()) and not home.pids


def test_a_cache_directory_may_be_a_link_to_another_disk(home):
    home.cache.mkdir()
    (home.directory / "disk").mkdir(mode=0o700)
    (home.cache / "kvcache").symlink_to(home.directory / "disk")
    home.serve("--background")
    assert (home.directory / "disk/store").exists()


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a user whom the host does not know gets this
    with pytest.raises(kvcache.Error, match="set HOME or XDG_CACHE_HOME"):
        serve.settings("/run", {})


@pytest.mark.parametrize("limit, pool, chosen", [(8 << 20, "1GiB", "off"), (8 << 20, str(1 << 30), "off"), (8 << 20, "8 MiB", "off"),
                                                (32 << 20, "8 MiB", "auto"), (8 << 20, "1.5GiB", "off"), (8 << 20, ".5 GiB", "off"),
                                                (48 << 20, "12.0MiB", "auto"), (47 << 20, "12.0MiB", "off"), (8 << 20, "8388608B", "off"),
                                                (48 << 20, "12 MB", "auto"), (48 << 20, "48000kB", "off"), (48 << 20, "12000KB", "auto"),
                                                (8 << 20, "auto", "off"), (-1, "1GiB", "auto"), (-1, "auto", "auto"),
                                                (8 << 20, "a lot", "off")])
def test_a_user_who_may_not_lock_the_pool_has_no_degraded_daemon(monkeypatch, limit, pool, chosen):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(serve.resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setenv("XDG_CACHE_HOME", "/tmp")
    assert serve.settings("/run", {"memory.pool": pool})["io.registration"] == chosen
    assert serve.settings("/run", {"memory.pool": pool, "io.registration": "auto"})["io.registration"] == "auto"


def test_a_lock_that_is_a_link_is_not_followed(home):
    home.socket.parent.mkdir(mode=0o700)
    target = home.directory / "target"
    (home.socket.parent / "serve.lock").symlink_to(target)
    home.serve("--background", check=1)
    assert not target.exists()


def test_a_file_in_the_place_of_the_socket_is_left_alone(home):
    home.socket.parent.mkdir(mode=0o700)
    home.socket.write_text("mine")
    assert "exists and is not a socket; remove it, or use another path" in home.serve("--background", check=1)
    assert home.socket.read_text() == "mine"


def test_a_process_that_listens_and_does_not_answer_is_not_replaced(home):
    home.socket.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.bind(str(home.socket))
        s.listen(16)
        assert "; stop it, or use another path" in home.serve("--background", check=1)


@pytest.mark.parametrize("arguments, said", [
    (("--idle", "soon"), "listen.idle"), (("--set", "memory.pool"), "write --set KEY=VALUE"), (("--set", "memory.poll=1GiB"), "memory.pool")])
def test_a_wrong_setting_is_named(home, arguments, said):
    assert said in home.serve("--background", *arguments, check=1)


def test_a_variable_and_a_setting_take_the_place_of_a_default(home):
    other = home.directory / "other.sock"
    home.serve("--background", "--set", "io.workers=1", KVCACHE_SOCKET=str(other), KVCACHE_STORE_PATH=str(home.directory / "mine"))
    status = home.status(other)
    home.pids.add(status["pid"])
    assert status["socket"] == str(other) and status["store"]["volumes"][0]["volume"] == str(home.directory / "mine")
    assert python(home, ROUND_TRIP, KVCACHE_SOCKET=str(other)).strip() == str(other)


def test_a_store_on_several_disks_is_the_callers(home):
    disks = [home.directory / "a", home.directory / "b"]
    home.serve("--background", "--set", f"store.path={disks[0]},{disks[1]}", small=("--pool", "32MiB", "--disk", "128MiB"))
    assert [v["volume"] for v in home.status()["store"]["volumes"]] == [str(d) for d in disks]
    assert {p.name for p in home.directory.iterdir()} == {"a", "b", "run", "cache"}


def test_without_a_daemon_in_the_package_the_message_says_what_to_install(monkeypatch, tmp_path):
    (tmp_path / "no-daemon.txt").write_text("its build lacked libevent-dev\n")
    monkeypatch.setattr(_programs, "_HERE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(kvcache.Error, match=r"kvcache-daemon is neither in \$PATH nor .*its build lacked libevent-dev.*daemon=yes"):
        _programs.find("kvcache-daemon")


# --- how much ---

@pytest.mark.parametrize("group, files, expected", [
    ("0::/", {}, 2 << 30),
    ("0::/a/b", {"sys/fs/cgroup/a/memory.max": "max", "sys/fs/cgroup/a/b/memory.max": str(1 << 30), "sys/fs/cgroup/a/b/memory.current": "0"}, 256 << 20),
    ("0::/a/b", {"sys/fs/cgroup/a/memory.max": str(1 << 30), "sys/fs/cgroup/a/memory.current": str(768 << 20),
                 "sys/fs/cgroup/a/memory.stat": f"anon 7\ninactive_file {256 << 20}\n"}, 128 << 20),
    ("0::/a", {"sys/fs/cgroup/a/memory.max": "1000"}, 64 << 20),
    ("4:cpu:/\n3:memory:/x", {"sys/fs/cgroup/memory/x/memory.limit_in_bytes": str(4 << 30)}, 1 << 30),
    ("0::/../outside", {"sys/fs/cgroup/memory.max": str(4 << 30), "sys/fs/outside/memory.max": "1"}, 1 << 30),
    ("0::/a", {"sys/fs/cgroup/a/memory.max": "nonsense"}, 2 << 30),
])
def test_the_pool_is_a_quarter_of_what_memory_and_control_groups_leave(tmp_path, group, files, expected):
    for name, text in {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable:  {8 << 20} kB\n", "proc/self/cgroup": group + "\n", **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert serve.pool_bytes(str(tmp_path)) == expected


# --- an engine that asks for it ---

START = """
import logging, types, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
sys.modules["kvcache.vllm"] = types.ModuleType("kvcache.vllm")
sys.modules["kvcache.vllm"].__path__ = [OPTIONS_FOLDER]
from kvcache.vllm.start import start_if_asked
start_if_asked(OPTIONS)
"""


def start_engine(home, **options):
    """Runs start_if_asked() in an engine's process, which then ends. kvcache.vllm itself needs vLLM."""
    code = START.replace("OPTIONS_FOLDER", repr(str(PACKAGE / "kvcache/vllm"))).replace("OPTIONS", repr(options))
    said = python(home, code, KVCACHE_STORE_LIMIT="64MiB", KVCACHE_MEMORY_POOL="32MiB")
    if home.status():
        home.pids.add(home.status()["pid"])
    return said


def test_an_engine_starts_a_daemon_only_if_asked_and_the_next_one_finds_it(home):
    assert start_engine(home) == start_engine(home, kvcache_start=False) == "" and not home.status()
    assert f"this engine uses the kvcache-daemon at {home.socket}" in start_engine(home, kvcache_start=True)
    first = home.status()
    assert first["pid"] in home.pids and lives(first["pid"])
    assert f"this engine uses the kvcache-daemon at {home.socket}" in start_engine(home, kvcache_start=True)
    assert home.status()["pid"] == first["pid"]
    said = subprocess.run([harness.CTL, "-s", home.socket, "config"], capture_output=True, text=True, check=True).stdout
    assert "idle: 10min" in said


def test_an_engine_goes_on_without_a_daemon_that_does_not_start(home):
    assert "so this engine runs without a cache: kvcache-daemon ended with status" in start_engine(home, kvcache_start=True, kvcache_idle="x")


def test_kvcache_start_is_true_or_false(home):
    with pytest.raises(AssertionError, match="kvcache_start must be true or false, not 'yes'"):
        start_engine(home, kvcache_start="yes")


def test_status_is_json_of_the_daemon(home):
    home.serve("--background")
    assert json.dumps(home.status()) and home.status()["host"] == os.uname().nodename
