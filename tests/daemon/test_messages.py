# SPDX-License-Identifier: Apache-2.0
"""Messages of the tools about obstacles: each names the obstacle and the remedy, and nothing is written to a wrong place."""

import contextlib
import json
import os
import re
import socket
import subprocess

import pytest

import harness
import kvwire
from harness import CTL, bench, ctl, wait_until

NOT_FOUND, USAGE, UNREACHABLE, REFUSED, BAD_INPUT, LOCAL = 1, 2, 3, 4, 5, 6
OTHER = 23456

# Valid arguments of each command, and its exit status without a daemon.
COMMANDS = [(["status"], UNREACHABLE), (["top"], UNREACHABLE), (["ping"], UNREACHABLE),
            (["stats"], UNREACHABLE), (["config"], UNREACHABLE), (["put", "k", __file__], UNREACHABLE), (["get", "k"], UNREACHABLE),
            (["exists", "k"], UNREACHABLE), (["stat", "k"], UNREACHABLE), (["ls"], UNREACHABLE), (["prefetch", "k"], UNREACHABLE),
            (["hint", "final", "k"], UNREACHABLE), (["evict", "k"], UNREACHABLE), (["evict", "--all"], UNREACHABLE),
            (["purge", "--yes", "n"], UNREACHABLE), (["namespace", "ls"], UNREACHABLE), (["namespace", "rm", "n"], UNREACHABLE),
            (["device", "ls"], UNREACHABLE), (["device", "suspend", "0"], UNREACHABLE), (["verify"], USAGE), (["reload"], UNREACHABLE),
            (["record", "-o", "rec"], UNREACHABLE)]
PRINTING = [["status"], ["top", "-c", "1", "-i", "0.1"], ["ping"], ["stats", "--all"], ["config"], ["put", "k2", __file__], ["get", "k"],
            ["exists", "k"], ["stat", "k"], ["ls"], ["prefetch", "k"], ["hint", "final", "k"], ["evict", "--tier", "memory", "k"],
            ["namespace", "ls"], ["device", "ls"], ["reload"], ["--help"], ["status", "--help"], ["--version"]]


@pytest.mark.parametrize("words, status", COMMANDS, ids=lambda x: " ".join(map(os.path.basename, x)) if isinstance(x, list) else "")
def test_without_a_daemon(words, status, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = ctl("-s", tmp_path / "none", *words, check=status)
    assert f"cannot connect to {tmp_path / 'none'}: No such file" in said.stderr and not said.stdout
    assert "Start it (systemctl start kvcache" in said.stderr and "--socket or KVCACHE_SOCKET" in said.stderr
    assert len(said.stderr.splitlines()) == 2
    # With --json the message is one object in one line.
    said = ctl("-s", tmp_path / "none", "--json", *words, *(["-o", "x"] if words[0] == "get" else []), check=status)
    assert "cannot connect" in json.loads(said.stderr)["error"]["message"]
    assert list(tmp_path.iterdir()) == [], "a file was made for nothing"


def test_a_path_that_is_not_a_socket_is_reported(tmp_path):
    (tmp_path / "file").touch()
    for tool, words, status in ((ctl, ["ping"], UNREACHABLE), (bench, ["replay", "--synthetic", "chat", "--reconnect", "0"], None)):
        assert "(that is not a socket)" in tool("-s", tmp_path / "file", *words, check=status).stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_a_user_who_may_not_connect_and_one_who_is_no_admin(make_daemon):
    daemon = make_daemon(settings={"listen.mode": "0666"}).start()
    os.chmod(daemon.socket, 0o600)

    def as_other(*words):
        return subprocess.run([str(CTL), "-s", daemon.socket, *words], capture_output=True, text=True, user=OTHER, group=OTHER,
                              extra_groups=[], stdin=subprocess.DEVNULL)
    said = as_other("ping")
    if "Permission denied" not in said.stderr:  # the programs themselves may be where that user cannot read
        pytest.skip(f"it cannot be run by another user: {said.stderr}")
    assert said.returncode == REFUSED and "usermod -aG kvcache" in said.stderr
    os.chmod(daemon.socket, 0o666)
    for words in (["config"], ["reload"], ["purge", "--all", "--yes"], ["device", "suspend", "0"], ["record", "-o", "/tmp/none"]):
        said = as_other(*words)
        assert said.returncode == REFUSED and "only admins may" in said.stderr and "access.admin_users" in said.stderr, words
    assert not os.path.exists("/tmp/none")
    daemon.stop()
    daemon.settings["access.users"] = "root"
    daemon.start()
    said = as_other("ping")
    assert said.returncode == REFUSED and "the daemon refuses this client: this user may not connect (access.users, " in said.stderr
    assert "this user may not connect (access.users, access.groups, tenants): refused" in daemon.log()


def test_a_refused_client_learns_the_reason(daemon):
    daemon.stop()
    daemon.settings.update({"limits.connections": 2, "limits.uid_connections": 1})
    daemon.start()

    def connected():
        """The connection by which start() has asked may still count."""
        try:
            return daemon.client()
        except (kvwire.ProtocolError, kvwire.SessionEnded):
            return None

    with wait_until(connected, "the first connection is accepted"):
        for _ in range(20):  # the daemon may close before or after the greeting comes
            said = ctl("ping", daemon=daemon, check=REFUSED).stderr
            assert "the daemon refuses this client: too many connections of this user (limits.uid_connections)" in said


@pytest.mark.parametrize("reads", [False, True])
def test_a_socket_that_is_closed_without_an_answer_is_no_refusal(directory, reads):
    """A manager that listens for a daemon, which does not start, closes what has connected."""
    path = str(directory / "activated")
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as listener:
        listener.bind(path)
        listener.listen(1)
        with harness.spawn([str(CTL), "-s", path, "ping"], stderr=subprocess.PIPE, text=True) as client:
            accepted, _ = listener.accept()
            if reads:
                accepted.recv(4096)
            accepted.close()
            said = client.communicate(timeout=60 * harness.slow())[1]
    assert client.returncode == UNREACHABLE and "it could not start, or has just stopped; its log says why" in said
    assert "may not connect" not in said
    said = ctl("-s", path, "ping", check=UNREACHABLE).stderr
    assert "is kvcache-daemon running?" in said, "the file is there, and no process listens"


def run_on(daemon, words, **how):
    return subprocess.run([str(CTL), "-s", daemon.socket, *words], stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
                          timeout=60 * harness.slow(), **how)


def test_output_on_a_full_disk(daemon):
    ctl("put", "k", daemon=daemon, input="x" * 100000, check=0)
    for words in PRINTING:
        with open("/dev/full", "w") as full:
            said = run_on(daemon, words, stdout=full)
        lines = [line for line in said.stderr.splitlines() if "chunk, " not in line]  # of ls
        assert said.returncode == LOCAL and lines == ["kvcachectl: cannot write the output: No space left on device"], words


def test_standard_output_that_is_closed(daemon):
    """Output must not reach the connection, which could otherwise get the number of the closed descriptor."""
    ctl("put", "k", daemon=daemon, input="x" * 100000, check=0)
    for words in PRINTING:
        said = run_on(daemon, words, preexec_fn=lambda: os.close(1))
        assert said.returncode == LOCAL, words
        assert "kvcachectl: cannot write the output: standard output is closed" in said.stderr, words
    assert run_on(daemon, ["status"], preexec_fn=lambda: os.closerange(0, 3)).returncode == LOCAL
    said = run_on(daemon, ["put", "k3"], stdout=subprocess.PIPE, preexec_fn=lambda: os.close(0))
    assert said.returncode == BAD_INPUT and "cannot read standard input" in said.stderr
    assert daemon.metric('kvcache_sessions_ended_total{reason="bad_frame"}') == 0


def test_files_that_cannot_be_read_or_written(daemon, directory):
    ctl("put", "k", daemon=daemon, input="x" * 100000, check=0)
    for words, status, part in ((["put", "k2", "/nowhere/x"], BAD_INPUT, "cannot read /nowhere/x: No such file"),
                                (["put", "k2", directory], BAD_INPUT, f"cannot read {directory}: Is a directory"),
                                (["get", "k", "-o", "/nowhere/x"], LOCAL, "cannot write /nowhere/x: No such file"),
                                (["get", "k", "-o", "/dev/full"], LOCAL, "cannot write /dev/full: No space left"),
                                (["exists", "--from", "/nowhere/x"], BAD_INPUT, "/nowhere/x: No such file")):
        assert part in ctl(*words, daemon=daemon, check=status).stderr


def test_a_file_that_could_not_be_written_whole_is_removed(daemon, directory):
    ctl("put", "k", daemon=daemon, input="x" * 100000, check=0)
    said = subprocess.run(["sh", "-c", f'ulimit -f 8; trap "" XFSZ; exec {CTL} -s {daemon.socket} get k -o {directory}/part'],
                          capture_output=True, text=True)
    assert said.returncode == LOCAL and f"cannot write {directory}/part: File too large" in said.stderr
    assert not (directory / "part").exists()


def test_colour_is_passed_to_the_other_tool(tmp_path):
    for when, wanted in (("always", True), ("never", False), ("auto", False)):
        said = ctl("-s", tmp_path / "none", f"--color={when}", "bench", "status", check=1).stderr
        assert ("\x1b[1;31mkvcache-bench:\x1b[0m" in said) == wanted and "cannot connect" in said


# --- names as typed ---

def test_the_name_that_was_typed_is_printed(daemon, directory):
    digits = "a937190b8131e5d3c60158e40e0ba9ecfde8fb21c30f1a95e8e1a7e2a04e5b8c"
    said = ctl("put", "first", daemon=daemon, input="a block", check=0).stdout.split()
    hashed = said[-1]
    assert said[:4] == ["first", "7", "B", "put,"] and len(hashed) == 64
    assert ctl("put", digits, daemon=daemon, input="another", check=0).stdout == f"{digits}  7 B put\n"
    assert ctl("put", "first", daemon=daemon, input="more", check=0).stdout.startswith("first  is stored already")
    assert ctl("exists", "first", digits, "third", daemon=daemon, check=NOT_FOUND).stdout == (
        f"first  memory, disk\n{digits}  memory, disk\nthird  missing\n")
    said = ctl("stat", "first", "third", daemon=daemon, check=NOT_FOUND)
    assert said.stderr == "kvcachectl: third: not found in namespace 'default'\n"
    rows = [line.split() for line in said.stdout.splitlines()]
    assert rows[1][:3] == ["first", "7", "B"] and rows[-1] == ["first", hashed] and max(map(len, said.stdout.splitlines())) <= 80
    assert hashed not in ctl("stat", digits, daemon=daemon, check=0).stdout
    assert "third: not found in namespace 'default'" in ctl("get", "third", daemon=daemon, check=NOT_FOUND).stderr
    assert ctl("evict", "--tier", "memory", "first", daemon=daemon, check=0).stdout == "first  evicted from memory\n"
    assert ctl("evict", "first", "third", daemon=daemon, check=NOT_FOUND).stdout == "first  evicted\nthird  missing\n"
    for words in (["exists", "first", "third"], ["stat", digits], ["evict", "third"], ["put", "third", __file__]):
        said = json.loads(ctl("--json", *words, daemon=daemon, check=None).stdout)
        assert [(k["name"], len(k["key"])) for k in said.get("keys", [said])] == [(w, 64) for w in words[1:] if "/" not in w]
    said = json.loads(ctl("--json", "get", "-o", directory / "x", "third", daemon=daemon, check=0).stdout)
    assert said["name"] == "third"


def test_a_name_cannot_steer_the_terminal(daemon):
    ctl("put", "a\x1b[2Jb", daemon=daemon, input="x", check=0)
    for words in (["put", "a\x1b[2Jb", __file__], ["exists", "a\x1b[2Jb"], ["stat", "a\x1b[2Jb"], ["evict", "a\x1b[2Jb"]):
        said = ctl(*words, daemon=daemon, check=0).stdout
        assert "a?[2Jb" in said and "\x1b" not in said, words


@pytest.mark.parametrize("tool", ["daemon", "kvcachectl", "kvcache-bench"])
def test_a_file_name_cannot_steer_the_terminal(daemon, directory, tool):
    odd = directory / "x\x1b[31my"
    odd.write_text('{"timestamp": 1, "hash_ids": [1], "input_length": 1, "output_length": 1}\n')
    (directory / "d\x1b[31m").mkdir()
    place = directory / "d\x1b[31m"
    if tool == "daemon":
        tries = [[odd], ["--x\x1b[31m"], ["--config", odd, "--check-config"], ["--config", place / "none", "--check-config"],
                 ["--set", f"store.path={odd}/below", "--check-config"], ["--set", f"{odd}=1"], ["--set\x1b[31m"]]
        done = [subprocess.run([harness.DAEMON, *words], capture_output=True, text=True) for words in tries]
        assert all(said.returncode != 0 for said in done)
    else:
        run = ctl if tool == "kvcachectl" else bench
        listed = run("--help", check=0).stdout.split("Options of every command")[0]
        commands = re.findall(r"^  ([a-z]+) {2,}\S", listed, re.M)
        tries = [[c, *words] for c in commands for words in ([odd], [odd, odd], ["--x\x1b"])]
        tries += [[odd], ["--x\x1b[31m"], ["--socket", odd, "ping"]]
        tries += [["report", "--out", place / "r"], ["get", "-o", place / "v", "k"], ["put", "k", odd]] if run is ctl else [["simulate", "--disk", "1GiB", odd]]
        done = [run(*words, daemon=daemon) for words in tries]
    for words, said in zip(tries, done):
        assert "\x1b" not in said.stdout + said.stderr, words


# --- mistyped names ---

@pytest.mark.parametrize("words, meant", [
    (["hint", "finl", "k"], "hint final"), (["top", "--intervall", "1"], "--interval"), (["--colr", "never", "status"], "--color"),
    (["hint", "xyzzy", "k"], None)])
def test_did_you_mean(daemon, words, meant):
    said = ctl(*words, daemon=daemon, check=USAGE).stderr
    assert (f'did you mean "{meant}"?' in said) == (meant is not None), said


@pytest.mark.parametrize("words, part", [
    (["--check-confg"], 'unknown option \'--check-confg\'; did you mean "--check-config"?'), (["--set"], "option '--set' needs an argument"),
    (["--check-config=3"], "option '--check-config' takes no argument"), (["-x"], "unknown option '-x'"),
    (["-xh"], "unknown option '-x'"), (["-c", "/dev/null", "-x"], "unknown option '-x'"),
    (["--c"], "option '--c' is ambiguous: --config or --check-config"),
    (["--set", "stor.limit=1G"], 'unknown key "stor.limit"; did you mean "store.limit"?'),
    (["--set", "eviction.policy=lrus"], 'did you mean "lru"?')])
def test_options_of_the_daemon(words, part):
    said = subprocess.run([str(harness.DAEMON), *words], capture_output=True, text=True)
    assert said.returncode in (USAGE, 78) and part in said.stderr and not said.stdout


@pytest.mark.parametrize("words", [["purge", "n"], ["purge", "--all"]])
def test_purge_asks_on_a_terminal(daemon, words):
    ctl("put", "-n", "n", "k", daemon=daemon, input="x", check=0)
    master, slave = os.openpty()
    for typed, kept in ((b"n\n", True), (b"\n", True), (b"y\n", False)):
        os.write(master, typed)
        said = subprocess.run([str(CTL), "-s", daemon.socket, *words], stdin=slave, capture_output=True, text=True)
        assert "from this host? [y/N]" in said.stderr and said.returncode == (130 if kept else 0)
        ctl("exists", "-n", "n", "k", daemon=daemon, check=0 if kept else NOT_FOUND)
    os.close(master)
    os.close(slave)
