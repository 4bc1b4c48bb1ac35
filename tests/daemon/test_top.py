# SPDX-License-Identifier: Apache-2.0
"""kvcachectl top on a terminal, in a pipe and as JSON, during a restart of the daemon; and the state of the terminal afterwards."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time

import pytest

import harness
from harness import KIB, ctl, items

OK, USAGE, UNREACHABLE = 0, 2, 3
ENTER, LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"


def put_some(daemon, name, count=8):
    with daemon.client() as c:
        harness.put_all(c, c.namespace(name), items(name, count, 64 * KIB))


class Pipe:
    """Runs top with its output in a pipe, read line by line."""

    def __init__(self, daemon, *arguments):
        self.process = harness.spawn([str(harness.CTL), "-s", daemon.socket, "top", "--interval", "0.1", *arguments],
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def until(self, condition, timeout=30):
        late = threading.Timer(timeout * harness.slow(), self.process.kill)
        late.start()
        try:
            for line in self.process.stdout:
                if condition(line):
                    return line
        finally:
            late.cancel()
        raise AssertionError(f"it ended, or no such line came: {self.process.stderr.read()}")

    def wait_for_a_sample(self):
        """Waits for a sample; later activity shows in a rate."""
        self.until(lambda line: True)


class Terminal:
    """Runs top on a separate terminal, and collects its output."""

    def __init__(self, daemon, *arguments, rows=24, columns=80, term="xterm", command=("top", "--interval", "0.1"), env=None):
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        self.process = harness.spawn([str(harness.CTL), "-s", daemon.socket, *command, *arguments],
                                     stdin=self.slave, stdout=self.slave, stderr=self.slave, preexec_fn=self.own,
                                     start_new_session=True, env={**os.environ, "TERM": term, **(env or {})})

    @staticmethod
    def own():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the suite may have been started by nohup

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def resize(self, rows, columns):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self):
        if select.select([self.master], [], [], 0.05)[0]:
            self.seen += os.read(self.master, 65536)

    def until(self, condition, what, timeout=20):
        deadline = time.monotonic() + timeout * harness.slow()
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {self.seen[-4000:]}"
            self.read()

    def frames(self):
        """Returns the screen after each redraw, as lists of lines."""
        parts = self.seen.split(b"\x1b[H")[1:]
        return [re.sub(rb"\x1b\[(K|[0-9;]*m)", b"", p.partition(b"\x1b[J")[0]).decode().split("\r\n") for p in parts if b"\x1b[J" in p]

    def wait_frames(self, more=1):
        wanted = len(self.frames()) + more
        self.until(lambda: len(self.frames()) >= wanted, f"no {more} more frames")
        return self.frames()[-1]

    def type(self, keys):
        os.write(self.master, keys)

    def ended(self):
        """Waits until top has ended and all its output has been read. Returns the exit status."""
        self.until(lambda: self.process.poll() is not None, "it goes on")
        self.until(lambda: self.seen.endswith(LEAVE), "the terminal is not as it was")
        assert termios.tcgetattr(self.slave) == self.before, "the terminal's mode is not as it was"
        assert self.seen.count(ENTER) == self.seen.count(LEAVE)
        return self.process.returncode


# --- without a terminal ---

def test_rates_as_json(daemon):
    with Pipe(daemon, "--json") as top:
        top.wait_for_a_sample()
        put_some(daemon, "model", 16)
        said = json.loads(top.until(lambda line: json.loads(line)["puts"]["chunks_per_second"] > 0))
        assert said["connected"] is True and said["ready"] is True and said["puts"]["bytes_per_second"] > 0
        assert "PUT" in [o["op"] for o in said["requests"]["operations"]]
        put = next(o for o in said["requests"]["operations"] if o["op"] == "PUT")
        assert 0 < put["p50_seconds"] <= put["p99_seconds"]
        assert said["tenants"][0]["tenant"] == "default" and said["tenants"][0]["put_bytes_per_second"] > 0
        assert said["volumes"][0]["volume"] == str(daemon.store) and said["volumes"][0]["state"] == "up"
        got = daemon.client()
        with got as c:
            harness.get_all(c, c.namespace("model", attach=True), [k for k, _ in items("model", 16, 64 * KIB)])
        said = json.loads(top.until(lambda line: (json.loads(line)["gets"]["keys_per_second"] or 0) > 0))
        assert said["gets"]["memory_ratio"] == 1 and said["gets"]["miss_ratio"] == 0 and said["gets"]["bytes_per_second"] > 0
        assert said["tenants"][0]["get_bytes_per_second"] > 0
        # An interval without requests has rates of 0, and a row only for the report itself.
        said = json.loads(top.until(lambda line: json.loads(line)["gets"]["keys_per_second"] == 0))
        assert said["gets"]["memory_ratio"] is None and "GET" not in [o["op"] for o in said["requests"]["operations"]]


def test_batch_prints_frames_of_text(daemon):
    put_some(daemon, "model")
    text = ctl("top", "--batch", "--count", "3", "--interval", "0.1", daemon=daemon, check=OK).stdout
    assert text.count("kvcache-daemon ") == 3 and "\x1b" not in text
    assert text.count(f" on {os.uname().nodename.split('.')[0][:32]}, ready") == 3
    assert "model" in text and str(daemon.store) in text and "TENANT" not in text
    # In a pipe, that is the default.
    assert ctl("top", "-c", "1", "-i", "0.1", daemon=daemon, check=OK).stdout.count("kvcache-daemon ") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become other users")
def test_tenants_have_rows(make_daemon):
    daemon = make_daemon(settings={"listen.mode": "0666"})
    daemon.config = daemon.directory / "kvcache.yaml"
    daemon.config.write_text("tenants:\n  - {name: red, users: [20001], pool: 16MiB}\n  - {name: blue, users: [20002], pool: 16MiB}\n")
    daemon.start()
    text = ctl("top", "-c", "1", "-i", "0.1", daemon=daemon, check=OK).stdout
    assert re.search(r"^TENANT .*^red .*^default ", text, re.M | re.S) or re.search(r"^TENANT .*^default .*^red ", text, re.M | re.S)
    with Pipe(daemon, "--json") as top:
        top.wait_for_a_sample()
        os.setegid(20002)
        os.seteuid(20002)
        try:
            client = daemon.client()
        finally:
            os.seteuid(0)
            os.setegid(0)
        with client as c:
            harness.put_all(c, c.namespace("b"), items("b", 8, 64 * KIB))
        said = json.loads(top.until(lambda line: json.loads(line)["tenants"][0]["put_bytes_per_second"]))
        assert [t["tenant"] for t in said["tenants"]][0] == "blue", "the busiest is the first"


@pytest.mark.parametrize("arguments", [["--interval", "0"], ["--interval", "-1"], ["--interval", "nan"], ["--interval", "1e9"],
                                       ["--interval", "1s"], ["--count", "0"], ["--count", "x"], ["operand"], ["--once"]])
def test_wrong_usage(daemon, arguments):
    result = ctl("top", *arguments, daemon=daemon, check=USAGE)
    assert result.stderr and not result.stdout


def test_no_daemon_at_the_beginning(directory):
    result = ctl("--socket", directory / "none", "top", check=UNREACHABLE)
    assert "none" in result.stderr and not result.stdout


def test_a_daemon_that_restarts(daemon):
    with Pipe(daemon, "--json") as top:
        top.until(lambda line: json.loads(line)["connected"])
        daemon.stop()
        lost = json.loads(top.until(lambda line: not json.loads(line)["connected"]))
        assert lost["message"] and lost["lost_unix_ms"] <= lost["unix_ms"] and "gets" not in lost
        daemon.start()
        back = json.loads(top.until(lambda line: json.loads(line)["connected"]))
        assert back["requests"]["per_second"] is None, "a rate over two daemons"
        assert json.loads(top.until(lambda line: json.loads(line)["connected"]))["requests"]["per_second"] > 0
        assert top.process.poll() is None


def test_a_daemon_that_does_not_come_back(daemon):
    with Pipe(daemon, "--batch", "--count", "40") as top:
        top.until(lambda line: "kvcache-daemon " in line)
        daemon.stop()
        top.until(lambda line: line.startswith("NO ANSWER since "))
        top.process.communicate()
        assert top.process.returncode == UNREACHABLE


def test_output_that_is_closed(daemon):
    with open("/dev/full", "w") as full:
        result = subprocess.run([str(harness.CTL), "-s", daemon.socket, "top", "-i", "0.1"], stdout=full, stderr=subprocess.PIPE,
                                timeout=60 * harness.slow())
    assert result.returncode == 6 and b"cannot write the output" in result.stderr


def test_colour_is_asked_for(daemon):
    def said(*arguments, env=None):
        return ctl(*arguments, "top", "-c", "1", "-i", "0.1", daemon=daemon, check=OK, env=env).stdout
    with daemon.client() as c:
        assert c.device("suspend")
        assert "\x1b[33mDEGRADED  \x1b[0m" in said("--color=always") and "\x1b" not in said() + said("--color=never")
        assert "\x1b" in said("--color", "always", env={"NO_COLOR": "1"}), "an option is more than the environment"
        assert c.device("resume")


# --- on a terminal ---

def test_the_screen_is_redrawn_and_left(daemon):
    put_some(daemon, "model")
    with Terminal(daemon) as top:
        frame = top.wait_frames(3)
        assert top.seen.startswith(ENTER) and len(frame) <= 24 and all(len(line) <= 80 for line in frame)
        assert frame[1].startswith("kvcache-daemon ") and any(line.startswith("model") for line in frame)
        top.type(b"q")
        assert top.ended() == OK


@pytest.mark.parametrize("how, status", [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP)])
def test_a_signal_leaves_the_terminal_as_it_was(daemon, how, status):
    with Terminal(daemon) as top:
        top.wait_frames(2)
        top.process.send_signal(how)
        assert top.ended() == status


def test_control_c_is_such_a_signal(daemon):
    with Terminal(daemon) as top:
        top.wait_frames(2)
        top.type(b"\x03")
        assert top.ended() == -signal.SIGINT


def test_a_signal_while_the_daemon_hangs(daemon):
    with Terminal(daemon) as top:
        top.wait_frames(2)
        daemon.pause()
        try:
            shown = len(top.frames())
            quiet = time.monotonic()
            while time.monotonic() < quiet + 0.3 * harness.slow():  # a frame may have been in progress
                top.read()
                if len(top.frames()) > shown:
                    shown, quiet = len(top.frames()), time.monotonic()
            top.type(b"\x03")
            assert top.ended() == -signal.SIGINT
        finally:
            daemon.resume()


def test_colour_on_a_terminal(daemon):
    """Colours mark only faults, and only if wanted."""
    with Terminal(daemon) as top:
        top.wait_frames(2)
        assert b"m" not in re.findall(rb"\x1b\[[0-9;]*([A-Za-z])", top.seen)
        with daemon.client() as c:
            assert c.device("suspend")
            top.until(lambda: b"\x1b[33mDEGRADED  \x1b[0mstore_offline, volume_suspended" in top.seen, "it is not yellow")
            assert b"\x1b[1;31mnot ready\x1b[0m" in top.seen
            with Terminal(daemon, env={"NO_COLOR": "1"}) as plain:
                plain.wait_frames(2)
                assert any(line.startswith("DEGRADED") for line in plain.frames()[-1]) and b"\x1b[33m" not in plain.seen
            assert c.device("resume")


def test_the_height_and_width_are_kept(daemon):
    for n in range(30):
        put_some(daemon, f"namespace-{n}", 1)
    with Terminal(daemon, rows=24) as top:
        frame = top.wait_frames(2)
        assert len(frame) <= 24 and any(re.match(r"\.\.\. and \d+ more", line) for line in frame)
        top.resize(60, 40)
        top.until(lambda: len(top.frames()[-1]) > 24, "the new height is not used")
        assert all(len(line) <= 40 for line in top.frames()[-1])
        top.resize(3, 200)
        top.until(lambda: len(top.frames()[-1]) == 3, "the new height is not used")
        top.resize(1, 1)
        top.until(lambda: top.frames()[-1] == [top.frames()[-1][0]] and len(top.frames()[-1][0]) <= 1, "not cut to one cell")
        top.type(b"q")
        assert top.ended() == OK


def test_a_new_size_is_used_at_once(daemon):
    with Terminal(daemon, "--interval", "3600") as top:
        top.wait_frames(1)
        top.resize(5, 80)
        top.until(lambda: len(top.frames()[-1]) == 5, "it waits for the interval")
        top.type(b" ")
        top.wait_frames(1)
        top.type(b"xq")
        assert top.ended() == OK


def test_a_stopped_process_gives_the_terminal_back(daemon):
    with Terminal(daemon) as top:
        top.wait_frames(1)
        top.process.send_signal(signal.SIGTSTP)
        os.waitpid(top.process.pid, os.WUNTRACED)
        top.until(lambda: top.seen.endswith(LEAVE), "stopped with the terminal taken")
        assert termios.tcgetattr(top.slave) == top.before
        top.process.send_signal(signal.SIGCONT)
        top.wait_frames(2)
        assert top.seen.count(ENTER) == 2
        top.type(b"q")
        assert top.ended() == OK


def test_a_lost_daemon_is_shown_and_comes_back(daemon):
    with Terminal(daemon) as top:
        top.wait_frames(2)
        daemon.stop()
        top.until(lambda: any(line.startswith("NO ANSWER since ") for line in top.frames()[-1]), "it is not shown")
        assert any(line.startswith("The last figures") for line in top.frames()[-1])
        daemon.start()
        top.until(lambda: not any("NO ANSWER" in line for line in top.frames()[-1]), "it does not come back")
        top.type(b"q")
        assert top.ended() == OK


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_dumb_terminal_gets_plain_text(daemon, term):
    with Terminal(daemon, "--count", "2", term=term) as top:
        assert top.process.wait(30 * harness.slow()) == OK
        top.until(lambda: top.seen.count(b"kvcache-daemon ") == 2, "two frames")
        assert b"\x1b" not in top.seen
