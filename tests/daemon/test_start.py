# SPDX-License-Identifier: Apache-2.0
"""Each obstacle to startup gives one clear message and a documented exit status, and destroys nothing."""

import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

import harness
import kvwire
from harness import KIB, MIB, PAGE, items, put_all, wait_until
from kvwire import Ack, Status

OK, FAILURE, USAGE, STORE, IO, BUSY, PERMISSION, CONFIG = 0, 1, 2, 65, 74, 75, 77, 78


def errors(daemon):
    return [line for line in daemon.log().splitlines() if " error: " in line]


def ends_with(daemon, status, *said):
    """Starts the daemon, which must end with this status and one error line that contains all of these texts."""
    assert daemon.spawn().wait_exit() == status, daemon.log()
    lines = errors(daemon)
    assert len(lines) == 1, f"one clear message, not {lines}"
    for part in said:
        assert str(part) in lines[0]
    return lines[0]


def run(*arguments, env=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KVCACHE_")}
    return subprocess.run([str(harness.DAEMON), *arguments], capture_output=True, text=True, env={**clean, **(env or {})},
                          timeout=30 * harness.slow(), stdin=subprocess.DEVNULL)


def test_help_and_version():
    result = run("--help")
    assert result.returncode == OK and result.stderr == ""
    for key in ("listen.socket", "store.limit", "memory.pool", "io.backend", "eviction.policy", "log.level", "--check-config"):
        assert key in result.stdout
    result = run("--version")
    assert result.returncode == OK and result.stdout.startswith("kvcache-daemon ")


@pytest.mark.parametrize("arguments", [["--no-such-option"], ["operand"], ["--set"]])
def test_wrong_usage(arguments):
    result = run(*arguments)
    assert result.returncode == USAGE and result.stderr and result.stdout == ""


def test_the_harness_knows_when_the_pool_is_populated(make_daemon):
    """Daemon.start() would lose two seconds at each start if it searched the log for words that the daemon does not write."""
    daemon = make_daemon().start()
    wait_until(daemon.has_populated_its_pool, "a line of the log says that the pool has its memory")


def test_second_daemon_on_the_same_store(make_daemon):
    first = make_daemon().start()
    second = make_daemon(store=first.store)
    ends_with(second, BUSY, first.store, "another")
    first.client().close()


def test_two_daemons_on_two_stores(make_daemon):
    first, second = make_daemon().start(), make_daemon().start()
    with first.client() as a, second.client() as b:
        assert a.instance != b.instance


def test_busy_socket(make_daemon):
    first = make_daemon().start()
    second = make_daemon(settings={"listen.socket": first.socket})
    ends_with(second, BUSY, first.socket)
    first.client().close()


def test_socket_that_a_killed_daemon_left_is_taken_over(make_daemon):
    daemon = make_daemon().start()
    daemon.kill()
    assert os.path.exists(daemon.socket)
    daemon.start()


def test_socket_goes_with_the_daemon(make_daemon):
    daemon = make_daemon().start()
    daemon.stop()
    assert not os.path.exists(daemon.socket)


def test_a_file_in_the_sockets_place_is_left_alone(make_daemon):
    daemon = make_daemon()
    with open(daemon.socket, "w") as f:
        f.write("precious")
    ends_with(daemon, FAILURE, daemon.socket)
    assert open(daemon.socket).read() == "precious"


def test_socket_path_that_is_too_long(make_daemon):
    ends_with(make_daemon(settings={"listen.socket": "/tmp/" + "x" * 120}), CONFIG, "listen.socket")


def test_mode_of_the_socket(make_daemon):
    daemon = make_daemon(settings={"listen.mode": "0600"}).start()
    assert os.stat(daemon.socket).st_mode & 0o777 == 0o600


def test_unreadable_store(make_daemon):
    daemon = make_daemon(unprivileged=True)
    daemon.store.mkdir(mode=0)
    ends_with(daemon, PERMISSION, daemon.store)


def test_store_that_cannot_be_made(make_daemon):
    daemon = make_daemon(unprivileged=True)
    parent = daemon.directory / "locked"
    parent.mkdir(mode=0o555)
    daemon.settings["store.path"] = parent / "store"
    ends_with(daemon, PERMISSION, parent / "store")


@pytest.mark.parametrize("below", ["", "store", "deep/er/store"])
def test_store_on_a_file_system_that_is_read_only(make_daemon, below):
    if not can_mount():
        pytest.skip("cannot mount a file system")
    daemon = make_daemon()
    mount = daemon.directory / "ro"
    mount.mkdir()
    daemon.settings["store.path"] = mount / below
    daemon.settings["store.limit"] = "64MiB"
    daemon.prefix = ["unshare", "-m", "sh", "-c", f"mount -t tmpfs -o ro,size=1g none '{mount}' && exec \"$@\"", "sh"]
    assert "Read-only file system" in ends_with(daemon, PERMISSION, mount / below)


@pytest.mark.parametrize("below", ["", "store", "deep/er/store"])
def test_store_in_a_directory_of_somebody_else(make_daemon, below):
    daemon = make_daemon(unprivileged=True)
    home = daemon.directory / "home"
    home.mkdir(mode=0o555)
    daemon.settings["store.path"] = home / below
    assert "Permission denied" in ends_with(daemon, PERMISSION, home / below)


def test_socket_directory_that_may_not_be_written(make_daemon):
    daemon = make_daemon(unprivileged=True)
    parent = daemon.directory / "locked"
    parent.mkdir(mode=0o555)
    daemon.settings["listen.socket"] = parent / "s"
    ends_with(daemon, PERMISSION, parent / "s")


def closed_directory(directory):
    directory.mkdir(mode=0o555)
    return directory / "s"


def open_directory(directory):
    directory.mkdir()
    directory.chmod(0o777)
    return directory / "s"


def directory_of_another_user(directory):
    directory.mkdir()
    os.chown(directory, 20001, 20001)
    return directory / "s"


def file_in_the_sockets_place(directory):
    directory.mkdir()
    (directory / "s").write_text("precious")
    return directory / "s"


@pytest.mark.parametrize("place, status, said, unprivileged", [
    (closed_directory, PERMISSION, "Permission denied", True),
    (open_directory, PERMISSION, "chmod o-w", False),
    (directory_of_another_user, PERMISSION, "start the daemon as that user", False),
    (file_in_the_sockets_place, FAILURE, "is not a socket", False),
], ids=lambda value: getattr(value, "__name__", ""))
def test_socket_that_cannot_be_bound_leaves_no_store(make_daemon, place, status, said, unprivileged):
    """A store that root creates before it fails would keep the service, which is another user, from starting."""
    if place is directory_of_another_user and os.geteuid() != 0:
        pytest.skip("needs root to give a directory away")
    daemon = make_daemon(unprivileged=unprivileged)
    path = daemon.settings["listen.socket"] = place(daemon.directory / "place")
    assert said in ends_with(daemon, status, path.parent)
    assert not daemon.store.exists()


def test_foreign_directory_is_refused_and_left_alone(make_daemon):
    daemon = make_daemon()
    daemon.store.mkdir()
    (daemon.store / "thesis.tex").write_text("precious")
    ends_with(daemon, STORE, daemon.store)
    assert [p.name for p in daemon.store.iterdir() if p.name != "LOCK"] == ["thesis.tex"]
    assert (daemon.store / "thesis.tex").read_text() == "precious"


def test_path_that_is_a_file(make_daemon):
    daemon = make_daemon()
    daemon.store.write_text("precious")
    assert daemon.spawn().wait_exit() != OK
    assert str(daemon.store) in errors(daemon)[0]
    assert daemon.store.read_text() == "precious"


def test_superblock_that_is_damaged_beyond_use(make_daemon):
    daemon = make_daemon().start()
    daemon.stop()
    superblock = daemon.store / "superblock"
    superblock.write_bytes(bytes(superblock.stat().st_size))
    ends_with(daemon, STORE, daemon.store)


def test_one_damaged_copy_of_the_superblock_does_no_harm(make_daemon):
    daemon = make_daemon().start()
    pairs = items("copies", 10, 1000)
    with daemon.client() as c:
        c.put(c.namespace("copies"), pairs, ack=Ack.WRITTEN)
    daemon.stop()
    with open(daemon.store / "superblock", "r+b") as f:
        f.write(b"\xff" * 512)
    daemon.start()
    with daemon.client() as c:
        assert all(c.exists(c.namespace("copies"), [k for k, _ in pairs]))


CONFIGS = {
    "unknown key": ("store:\n  limt: 1GiB\n", 2, 3, ["store.limt", "store.limit"]),
    "unknown section": ("log:\n  level: info\nstroe:\n  limit: 1GiB\n", 3, 1, ["stroe"]),
    "bad size": ("memory:\n  pool: 12 parsecs\n", 2, 9, ["memory.pool"]),
    "out of range": ("memory:\n  pool: 1KiB\n", 2, 9, ["memory.pool", "8MiB"]),
    "bad choice": ("io:\n  backend: windows\n", 2, 12, ["io.backend", "posix"]),
    "duplicate": ("log:\n  level: info\n  level: debug\n", 3, 3, ["log.level"]),
    "duplicate in two ways": ("log:\n  level: info\nlog.level: debug\n", 3, 1, ["log.level"]),
    "not YAML": ("store:\n  limit: [1GiB\n", None, None, []),
    "a list where a value belongs": ("store:\n  limit: [1GiB]\n", 2, 10, ["store.limit"]),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_wrong_configuration_names_file_line_and_column(make_daemon, directory, name):
    text, line, column, said = CONFIGS[name]
    path = directory / "wrong.yaml"
    path.write_text(text)
    where = f"{path}:{line}:{column}:" if line else f"{path}:"
    message = ends_with(make_daemon(config=path), CONFIG, where, *said)
    check = run("--config", str(path), "--check-config")
    assert check.returncode == CONFIG and message.split(" error: ", 1)[1] in check.stderr and check.stdout == ""


def check_config(path, *more, env=None):
    result = run("--config", str(path), *more, "--check-config", env=env)
    lines = [line.split(" error: ", 1)[1] for line in result.stderr.splitlines() if " error: " in line]
    return result, lines


def test_check_config_names_every_error_with_its_place(directory):
    path = directory / "wrong.yaml"
    text = """\
store:
  limt: 1GiB
  limit: 12 parsecs
  segment: {a: [1, {b: 2}], c: 3}
memory:
  pool: 900TiB
access:
  users: [no-such-user, root]
  admin_groups: no-such-group
  groups: [[deep], x]
tenants:
  - name: a
    users: [no-such-user-either]
  - name: b
    usrs: [x]
    pool: 1
  - nonsense
  - [also, nonsense]
  - name: c
    users: [root]
    groups: no-such-group-either
io:
  backend: windows
  &anchor depth: 4
  [a, b]: 3
  workers: *alias
log: 7
eviction: {policy: [lru, [1]]}
limits:
  keys: 1
"""
    path.write_text(text)
    result, lines = check_config(path, "--set", "no.such=key", "--set", "io.hang=never", env={"KVCACHE_LIMITS_WAIT": "soon"})
    assert result.returncode == CONFIG and result.stdout == ""
    wanted = [(2, 3, "store.limt"), (3, 10, "parsecs"), (4, 12, "store.segment"), (6, 9, "memory.pool"),
              (8, 10, '"no-such-user"'), (9, 17, '"no-such-group"'), (10, 12, "access.groups"),
              (13, 12, '"no-such-user-either"'), (15, 5, "usrs"), (16, 11, "tenants.pool"), (17, 5, "a tenant is a mapping"),
              (18, 5, "a tenant is a mapping"), (21, 13, '"no-such-group-either"'), (23, 12, "io.backend"), (24, 3, "anchors"),
              (25, 3, "plain text"), (26, 12, "aliases"), (27, 6, '"log" is a section'), (28, 26, "eviction.policy"),
              (30, 9, "limits.keys")]
    for line, column, said in wanted:
        found = [x for x in lines if x.startswith(f"{path}:{line}:{column}: ") and said in x]
        assert len(found) == 1, f"{line}:{column} {said} in {lines}"
    for said in ('--set "no.such=key": unknown key', '--set "io.hang=never": io.hang', "KVCACHE_LIMITS_WAIT: limits.wait"):
        assert sum(x.startswith(said) for x in lines) == 1, said
    assert len(lines) == len(set(lines)) == len(wanted) + 4, lines
    assert lines[-1] == f"the configuration is wrong: {len(wanted) + 3} errors"


@pytest.mark.parametrize("text,place,said", [
    ("access:\n  users: [no-such-user]\n", "2:10", "there is no user"),
    ("access:\n  admin_users: [no-such-user]\n", "2:16", "there is no user"),
    ("access:\n  groups: no-such-group\n", "2:11", "there is no group"),
    ("tenants:\n- name: a\n  groups: [no-such-group]\n", "3:11", "there is no group"),
    ("memory:\n  pool: 1TiB\n", "2:9", "machine's memory"),
    ("tenants:\n- {name: a, users: [root], pool: 1TiB}\n", None, "with the pools of all tenants"),
    ("memory:\n  pool: 10TiB\n", "2:9", "8MiB to 1TiB"),
])
def test_startup_and_check_config_refuse_alike_with_equal_messages(make_daemon, directory, text, place, said):
    if "1TiB" in text and os.sysconf("SC_PHYS_PAGES") * PAGE >= 1 << 40:
        pytest.skip("this machine has a TiB of memory")
    path = directory / "wrong.yaml"
    path.write_text(text)
    result, lines = check_config(path)
    assert result.returncode == CONFIG and len(lines) == 2 and lines[1] == "the configuration is wrong: 1 error"
    assert said in lines[0] and (place is None or lines[0].startswith(f"{path}:{place}: "))
    started = ends_with(make_daemon(config=path, settings={"memory.pool": None, "store.prewrite": "off"}), CONFIG, said)
    assert place is None or f" error: {path}:{place}: " in started


@pytest.fixture
def memory_group():
    """Provides memory_group(bytes), which makes a control group with that memory limit and returns its folder."""
    made = []

    def make(limit):
        first = pathlib.Path("/sys/fs/cgroup/memory")
        root, name = (first, "memory.limit_in_bytes") if first.is_dir() else (first.parent, "memory.max")
        group = root / f"kvcache-test-{os.getpid()}"
        try:
            group.mkdir()
            made.append(group)
            (group / name).write_text(str(limit))
        except OSError as e:
            pytest.skip(f"no control group for memory can be made: {e}")
        return group
    yield make
    for group in made:
        group.rmdir()


def test_pools_above_the_memory_limit_of_the_control_group_are_refused(memory_group, make_daemon, directory):
    group = memory_group(256 * MIB)
    path = directory / "group.yaml"
    path.write_text("memory:\n  pool: 300MiB\n")
    said = "300 MiB is more than the memory limit of the daemon's control group, 256 MiB"
    join = f'echo $$ > {group}/cgroup.procs && exec "$0" "$@"'
    checked = subprocess.run(["sh", "-c", join, str(harness.DAEMON), "--check-config", "--config", str(path)], capture_output=True,
                             text=True, timeout=30 * harness.slow())
    assert checked.returncode == CONFIG and f"{path}:2:9: " in checked.stderr and said in checked.stderr
    refused = make_daemon(config=path, settings={"memory.pool": None, "store.prewrite": "off"})
    refused.deprive.append(lambda: (group / "cgroup.procs").write_text(str(os.getpid())))
    ends_with(refused, CONFIG, f"{path}:2:9: ", said)
    daemon = make_daemon(settings={"memory.pool": "auto", "store.prewrite": "off"})
    daemon.deprive.append(lambda: (group / "cgroup.procs").write_text(str(os.getpid())))
    daemon.start()
    assert daemon.status()["pool"]["bytes"] <= 64 * MIB
    assert daemon.status()["health"] == "ok"
    daemon.stop()
    daemon.settings["memory.pool"] = "236MiB"
    assert daemon.start().log().count("nearly all of the 256 MiB that the control group allows") == 1


def test_check_config_looks_at_places_and_changes_nothing(directory):
    (directory / "file").write_text("precious")
    store, socket = directory / "deep/er/store", directory / "run/s"
    def check(**settings):
        sets = [word for key, value in settings.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]
        return check_config("/dev/null", *sets)
    result, lines = check(store__path=store, listen__socket=socket)
    assert (result.returncode, result.stdout, lines) == (OK, "configuration ok\n", [])
    result, lines = check(store__path=directory / "file/store", listen__socket=directory / "none/deep/s",
                          listen__http=f"unix:{directory / 'none/h'}")
    assert result.returncode == CONFIG and len(lines) == 4
    assert "store.path: " in lines[0] and "Not a directory" in lines[0]
    assert "listen.socket: no socket can be made" in lines[1] and "listen.http: no socket can be made" in lines[2]
    result, lines = check(store__path=store, listen__socket=directory / "file")
    assert result.returncode == CONFIG and "is not a socket" in lines[0]
    open_to_all = directory / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    result, lines = check(store__path=store, listen__socket=open_to_all / "s")
    assert result.returncode == CONFIG and "could replace the socket" in lines[0]
    open_to_all.rmdir()
    result, lines = check(store__path=f"{store},{directory / 'file/x'}", listen__socket=socket)
    assert result.returncode == OK and lines == [], "the daemon starts without one of several"
    assert sorted(p.name for p in directory.iterdir()) == ["file"]


def test_missing_configuration_file(make_daemon, directory):
    ends_with(make_daemon(config=directory / "none.yaml"), CONFIG, directory / "none.yaml")


def test_wrong_set_and_wrong_variable(make_daemon):
    ends_with(make_daemon(settings={"store.limt": "1GiB"}), CONFIG, "store.limt", "store.limit")
    ends_with(make_daemon(settings={"memory.pool": None}, env={"KVCACHE_MEMORY_POOL": "lots"}), CONFIG, "KVCACHE_MEMORY_POOL")


def test_unknown_variable_is_a_warning(make_daemon):
    daemon = make_daemon(env={"KVCACHE_STORE_LIMT": "1GiB", "KVCACHE_SOCKET": "/nowhere", "KVCACHE_BENCH_SESSION": "x"}).start()
    warnings = [line for line in daemon.log().splitlines() if " warning: " in line]
    assert any("KVCACHE_STORE_LIMT" in line for line in warnings)
    assert not any("KVCACHE_SOCKET" in line or "KVCACHE_BENCH_SESSION" in line for line in warnings)


def test_order_of_precedence(make_daemon, directory):
    path = directory / "kvcache.yaml"
    path.write_text("limits:\n  leases: 1\n  connections: 11\nlimits.http_connections: 21\n")
    daemon = make_daemon(settings={"limits.leases": 3}, config=path,
                         env={"KVCACHE_LIMITS_LEASES": "2", "KVCACHE_LIMITS_CONNECTIONS": "12"}).start()
    with daemon.client() as c:
        config = c.report(kvwire.Report.CONFIG)
    for line in ("leases: 3", "connections: 12", "http_connections: 21"):
        assert line in config


def test_the_printed_configuration_can_be_read(directory):
    result = run("--config", "/dev/null", "--set", "store.limit=1GiB", "--set", f"store.path={directory / 'x'}",
                 "--print-config")
    assert result.returncode == OK and "limit: 1GiB" in result.stdout
    path = directory / "printed.yaml"
    path.write_text(result.stdout)
    assert run("--config", str(path), "--check-config").returncode == OK
    again = run("--config", str(path), "--print-config")
    assert "limit: 1GiB" in again.stdout
    assert not (directory / "x").exists()


def test_runs_without_any_configuration(make_daemon):
    """For an ordinary user: a store under $XDG_STATE_HOME, a socket under $XDG_RUNTIME_DIR; the daemon reports its choice."""
    daemon = make_daemon(unprivileged=True)
    home = daemon.directory
    daemon.env.update(XDG_STATE_HOME=str(home / "state"), XDG_RUNTIME_DIR=str(home / "run"), HOME=str(home))
    (home / "run").mkdir()
    if os.geteuid() == 0:
        os.chown(home / "run", harness.STRANGER, harness.STRANGER)
    daemon.settings = {"store.prewrite": "off", "listen.http": "127.0.0.1:0"}
    daemon.socket = str(home / "run" / "kvcache" / "kvcache.sock")
    daemon.start()
    store = home / "state" / "kvcache"
    assert daemon.status()["store"]["volumes"][0]["volume"] == str(store) and store.is_dir()
    for said in (str(store), daemon.socket, "store.limit", "memory.pool"):
        assert said in daemon.log()
    with daemon.client() as c:
        ns = c.namespace("default")
        assert c.put(ns, items("default", 1, 100000), ack=Ack.WRITTEN)[0].status == Status.OK


def test_access_list_with_an_unknown_user(make_daemon):
    ends_with(make_daemon(settings={"access.users": "no-such-user"}), CONFIG, "no-such-user")


def test_access_users_limits_who_may_connect(make_daemon):
    """access.users admits the named users and admins; for others the connection ends."""
    if os.geteuid() != 0:
        pytest.skip("needs to become another user")
    daemon = make_daemon(settings={"access.users": "23456", "listen.mode": "0666"}).start()
    client_code = ("import sys, kvwire\n"
                   "c = kvwire.Client(sys.argv[1])\n"
                   "ns = c.namespace('x')\n"
                   "try:\n    c.purge(everything=True)\n    print('admin')\n"
                   "except kvwire.Refused as e:\n    print(e.status.name)\n"
                   "try:\n    c.report(kvwire.Report.CONFIG)\n"
                   "except kvwire.Refused as e:\n    print(e.status.name)\n")
    for module in pathlib.Path(kvwire.__file__).parent.glob("kvwire*.py"):
        os.chmod(shutil.copy(module, daemon.directory), 0o644)
    python = next((p for p in ("/usr/bin/python3", shutil.which("python3")) if p and os.path.exists(p)))

    def as_user(uid):
        def become():
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        return subprocess.run([python, "-c", client_code, daemon.socket], cwd=daemon.directory, preexec_fn=become,
                              capture_output=True, text=True, timeout=60 * harness.slow(), env={"PYTHONPATH": str(daemon.directory)})

    named = as_user(23456)
    if "Permission denied" in named.stderr and "kvwire" not in named.stderr:
        pytest.skip("another user cannot run Python here")
    assert named.stdout.split() == ["DENIED", "DENIED"], named.stderr
    for uid in (23457, 65534):
        other = as_user(uid)
        assert "SessionEnded" in other.stderr and other.stdout == ""
    assert daemon.metric('kvcache_sessions_refused_total{reason="credentials"}') == 2


def test_too_many_connections(make_daemon):
    daemon = make_daemon(settings={"limits.connections": 4}).start()
    clients = [daemon.client() for _ in range(3)]
    with daemon.client() as c:
        with pytest.raises(kvwire.SessionEnded):
            daemon.client()
        c.ping()
    for c in clients:
        c.ping()
        c.close()
    wait_until(lambda: daemon.status()["sessions"]["connections"] == 1, "connections end")
    assert daemon.metric('kvcache_sessions_refused_total{reason="limit"}') >= 1


def test_no_version_in_common(daemon):
    c = daemon.client(greet=False)
    with pytest.raises(kvwire.Refused) as refused:
        c.hello(versions=(2, 9))
    assert refused.value.status == Status.VERSION
    assert "1" in refused.value.text and "2" in refused.value.text
    with pytest.raises(kvwire.SessionEnded):
        c.receive()
    c.close()
    with daemon.client(greet=False) as c:
        c.hello(versions=(1, 7))
        assert c.version == 1


def test_sigint_ends_the_daemon(make_daemon):
    daemon = make_daemon().start()
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.wait_exit() == OK


def test_stop_is_not_held_up_by_clients(make_daemon):
    """Clients that hold leases, wait for room, or do not read their replies do not delay the end."""
    daemon = make_daemon().start()
    holder, silent = daemon.client(), daemon.client()
    ns = holder.namespace("stop")
    holder.put(ns, items("stop", 10, 100000), lease=True)
    for _ in range(64):
        silent.submit(kvwire.Op.REPORT, bytes(8))
    idle = daemon.raw()
    daemon.stop()
    with pytest.raises(kvwire.SessionEnded):
        holder.receive()
    for c in (holder, silent, idle):
        c.close()


def test_reload_applies_changeable_keys_and_names_the_others(make_daemon, directory):
    path = directory / "kvcache.yaml"
    path.write_text("limits:\n  leases: 2\nlog:\n  level: info\n")
    daemon = make_daemon(settings={"log.level": None}, config=path).start()
    with daemon.client() as c:
        ns = c.namespace("reload")
        keys = [k for k, _ in items("reload", 5, 100)]
        c.put(ns, items("reload", 5, 100))
        assert [r.status for r in c.get(ns, keys)].count(Status.OK) == 2
        path.write_text("limits:\n  leases: 4\nlog:\n  level: info\nio:\n  depth: 7\n")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: daemon.metric("kvcache_config_reloads_total") == 1, "the reload")
        assert [r.status for r in c.get(ns, keys)].count(Status.OK) == 2
        assert "io.depth: 32 becomes 7 only after a restart" in daemon.log()
        path.write_text("limits:\n  leases: none of your business\n")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: f"{path}:2:" in daemon.log(), "the refusal of the reload")
        c.ping()
        assert "leases: 4" in c.report(kvwire.Report.CONFIG)
    assert daemon.metric("kvcache_config_reloads_total") == 1


def test_settings_of_the_command_line_outlive_a_reload(make_daemon, directory):
    path = directory / "kvcache.yaml"
    path.write_text("limits:\n  leases: 2\n")
    daemon = make_daemon(settings={"limits.leases": 9}, config=path).start()
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: daemon.metric("kvcache_config_reloads_total") == 1, "the reload")
    with daemon.client() as c:
        assert "leases: 9" in c.report(kvwire.Report.CONFIG)


# --- full disks ---

def can_mount():
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return False
    return subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0


def on_small_disk(daemon, kind, mib):
    """Runs the daemon with the store on a file system of its own, which only the daemon sees and which ends with it."""
    daemon.store.mkdir()
    if kind == "tmpfs":
        mount = f"mount -t tmpfs -o size={mib}m none '{daemon.store}'"
    else:
        image = daemon.directory / "image"
        with open(image, "wb") as f:
            f.truncate(mib * MIB)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True, capture_output=True)
        mount = f"mount -o loop '{image}' '{daemon.store}'"
    daemon.prefix = ["unshare", "-m", "sh", "-c", mount + ' && exec "$@"', "sh"]


@pytest.mark.parametrize("kind,mib", [("tmpfs", 1), ("tmpfs", 24), ("ext4", 4), ("ext4", 40)])
def test_full_disk(make_daemon, kind, mib):
    """The daemon either refuses to start with one clear message, or works with the available space and reports failures per key."""
    if not can_mount():
        pytest.skip("cannot mount a small file system")
    if kind == "ext4" and (not shutil.which("mkfs.ext4") or not os.path.exists("/dev/loop-control")):
        pytest.skip("no loop devices or no mkfs.ext4")
    daemon = make_daemon(settings={"store.limit": "128MiB"})
    on_small_disk(daemon, kind, mib)
    daemon.spawn()
    wait_until(daemon.has_ended_or_answers, "it ends or answers", 20)
    if daemon.process.poll() is not None:
        assert daemon.wait_exit() == IO, daemon.log()
        assert len(errors(daemon)) == 1 and str(daemon.store) in errors(daemon)[0]
        return
    with daemon.client() as c:
        ns = c.namespace("full")
        allowed = {Status.OK, Status.FAILED, Status.NO_SPACE, Status.BUSY, Status.NOT_DURABLE}
        pairs = items("full", 2 * mib, 512 * KIB)
        results = put_all(c, ns, pairs, batch=8, ack=Ack.WRITTEN, timeout_ms=1000)
        assert {r.status for r in results.values()} <= allowed
        for key, value in pairs:
            got = c.value(ns, key)
            assert got in (None, value)
        small = put_all(c, ns, items("small", 16, 100), ack=Ack.ACCEPTED)
        assert {r.status for r in small.values()} <= allowed
    assert daemon.status()["ready"] is True


def test_a_disk_that_fills_while_running(make_daemon):
    """Another process takes the space: puts are refused or evict, gets continue, and nothing crashes."""
    if not can_mount():
        pytest.skip("cannot mount a small file system")
    daemon = make_daemon(settings={"store.limit": "64MiB", "store.prewrite": "off"})
    on_small_disk(daemon, "tmpfs", 80)
    daemon.start()
    before = items("before", 8, 512 * KIB)
    with daemon.client() as c:
        ns = c.namespace("fills")
        assert {r.status for r in c.put(ns, before, ack=Ack.WRITTEN)} == {Status.OK}
        # through /proc the test reaches the daemon's own mount
        hog = open(f"/proc/{daemon.pid}/root{daemon.store}/hog", "wb")
        try:
            while True:
                hog.write(bytes(MIB))
                hog.flush()
        except OSError:
            pass
        results = put_all(c, ns, items("during", 120, 512 * KIB), batch=8, ack=Ack.WRITTEN, timeout_ms=1000)
        assert {r.status for r in results.values()} <= {Status.OK, Status.FAILED, Status.NO_SPACE, Status.BUSY}
        for key, value in before:
            assert c.value(ns, key) in (None, value)
        try:
            hog.close()
        except OSError:
            pass


def test_the_log_as_JSON_and_as_text_after_a_reload(make_daemon, directory):
    path = directory / "kvcache.yaml"
    path.write_text("log:\n  level: debug\n  format: json\n")
    daemon = make_daemon(settings={"log.level": None}, config=path).start()
    with daemon.client(name='"quoted\\') as c:
        c.namespace("a")
    path.write_text("log:\n  level: debug\n  format: text\n")
    os.kill(daemon.pid, signal.SIGHUP)
    wait_until(lambda: "kvcache-daemon: info: " in daemon.log(), "the reload")
    lines = daemon.log().splitlines()
    first_text = next(i for i, line in enumerate(lines) if not line.startswith("{"))
    objects = [json.loads(line) for line in lines[:first_text]]
    assert all({"time", "level", "message", "id", "file", "line", "function"} <= o.keys() for o in objects)
    assert any(o["message"].startswith("ready:") for o in objects) and len({o["id"] for o in objects}) > 4
    assert any(o.get("client") == '"quoted\\' and o["pid"] == os.getpid() for o in objects)
    assert all(not line.startswith("{") for line in lines[first_text:]) and first_text < len(lines)
