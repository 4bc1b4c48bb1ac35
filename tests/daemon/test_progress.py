# SPDX-License-Identifier: Apache-2.0
"""Commands that take long show their progress on a terminal, clear it before anything else is printed, and print none of it elsewhere."""

import contextlib
import os
import pty
import re
import select
import subprocess
import time

import pytest

import harness
from harness import items, key_of, put_all, wait_until
from kvwire import Ack, Op

BAR = re.compile(rb"\r\[[#.]{10,40}\] +\d+ %  [\w ]+: [\d,]+ \w+\x1b\[K")
CLEAR = b"\r\x1b[K"


class Terminal:
    """A command whose standard error is a terminal; `shown` is all that it has printed there."""

    def __init__(self, *command, stdin=None):
        self.master, slave = pty.openpty()
        self.shown = b""
        env = {**{k: v for k, v in os.environ.items() if not k.startswith("KVCACHE_")}, "TERM": "xterm"}
        self.process = harness.spawn([str(c) for c in command], stdin=stdin, stdout=subprocess.PIPE, stderr=slave, env=env)
        os.close(slave)

    def read(self, seconds=0.1):
        with contextlib.suppress(OSError):  # EIO: the command has ended
            if select.select([self.master], [], [], seconds)[0]:
                self.shown += os.read(self.master, 65536)
        return self.shown

    def end(self):
        """Returns the exit status and the standard output."""
        deadline = time.monotonic() + 60 * harness.slow()
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read()
        output = self.process.communicate(timeout=10)[0]
        self.read(0)
        os.close(self.master)
        return self.process.returncode, output.decode()


def key_lines(daemon, count):
    return "".join(f"{key_of('progress', i).hex()} 1000 many\n" for i in range(count))


@pytest.fixture
def fed(daemon, directory):
    """Provides fed(command), which starts it with --from a pipe, and feeds keys until a bar is shown."""
    with daemon.client() as c:
        put_all(c, c.namespace("many"), items("progress", 50, 1000), ack=Ack.WRITTEN)

    def start(*command):
        ours, theirs = os.pipe()
        terminal = Terminal(harness.CTL, "--socket", daemon.socket, *command, "--from", "-", stdin=ours)
        os.close(ours)
        lines, deadline = key_lines(daemon, 5000).encode(), time.monotonic() + 60 * harness.slow()
        while not BAR.search(terminal.read(0.05)) and time.monotonic() < deadline:
            with contextlib.suppress(BrokenPipeError):
                os.write(theirs, lines)  # more than a batch
            if terminal.process.poll() is not None:
                break
        terminal.feed = theirs
        return terminal
    return start


@pytest.mark.documents
def test_a_bar_is_shown_and_cleared(fed):
    terminal = fed("prefetch")
    assert BAR.search(terminal.shown) and b"done: " in terminal.shown
    os.close(terminal.feed)
    status, output = terminal.end()
    assert terminal.shown.endswith(CLEAR) and BAR.search(output.encode()) is None and "\x1b" not in output
    assert status in (0, 1)


@pytest.mark.documents
def test_a_failure_is_printed_on_a_line_of_its_own(fed):
    terminal = fed("evict")
    assert BAR.search(terminal.shown)
    os.write(terminal.feed, b"no key\n")
    os.close(terminal.feed)
    status, _ = terminal.end()
    assert status not in (0, 1)
    _, message = re.sub(rb"\x1b\[[\d;]*m", b"", terminal.shown).rsplit(CLEAR, 1)
    assert message.startswith(b"kvcachectl: standard input:") and b"64 hex digits" in message


@pytest.mark.documents
def test_a_quick_command_shows_no_bar(daemon, directory):
    (directory / "keys").write_text(key_lines(daemon, 100))
    began = time.monotonic()
    terminal = Terminal(harness.CTL, "--socket", daemon.socket, "prefetch", "--from", directory / "keys")
    terminal.end()
    if time.monotonic() - began > 1:
        pytest.skip("the command took longer than a second")
    assert BAR.search(terminal.shown) is None and CLEAR not in terminal.shown


@pytest.mark.documents
def test_a_recording_shows_how_much_of_its_time_has_passed(daemon, directory):
    terminal = Terminal(harness.CTL, "--socket", daemon.socket, "record", "--out", directory / "trace", "--duration", "3s")
    status, output = terminal.end()
    assert status == 0 and output.startswith(str(directory / "trace"))
    assert b"recording: 0 requests" in terminal.shown and terminal.shown.endswith(CLEAR)
    parts = [int(p) for p in re.findall(rb"(\d+) %", terminal.shown)]
    assert parts == sorted(parts) and 25 <= parts[-1] <= 100


@pytest.mark.documents
def test_a_sweep_of_layouts_shows_how_many_measurements_are_done(daemon):
    terminal = Terminal(harness.BENCH, "--socket", daemon.socket, "session", "run", "--regions", "4KiB", "--bytes", "8MiB",
                        "--iterations", "100")
    shown, deadline = b"measuring: ", time.monotonic() + 60 * harness.slow()
    while shown not in terminal.read() and time.monotonic() < deadline and terminal.process.poll() is None:
        pass
    assert BAR.search(terminal.shown)
    status, output = terminal.end()
    parts = [int(p) for p in re.findall(rb"(\d+) %  measuring", terminal.shown)]
    assert parts == sorted(parts) and parts[-1] <= 100 and terminal.shown.endswith(CLEAR)
    assert status == 0 and "contiguous" in output and "measuring" not in output


@pytest.mark.documents
def test_a_call_that_waits_shows_its_seconds(make_daemon, directory):
    """A volume is suspended only after the put that its disk does not finish."""
    switch = directory / "hang"
    daemon = make_daemon(settings={"io.backend": "posix", "store.prewrite": "off"},
                         env={"LD_PRELOAD": harness.preload("tests/daemon/hang.so"), "HANG_SWITCH": str(switch)}).start()
    with daemon.client() as c:
        ns = c.namespace("waits")
        c.staging()
        switch.touch()
        put = c.submit_batch(Op.PUT, ns, c.put_entries(items("disk", 1, 5000)), ack=Ack.WRITTEN)
        wait_until(lambda: daemon.status()["store"]["volumes"][0]["pending"] > 0, "the write is at the disk")
        terminal = Terminal(harness.CTL, "--socket", daemon.socket, "device", "suspend", "0")
        deadline = time.monotonic() + 60 * harness.slow()
        while b" suspending: 2 s\x1b[K" not in terminal.read() and time.monotonic() < deadline and terminal.process.poll() is None:
            pass
        assert b"\r suspending: 1 s\x1b[K\r suspending: 2 s\x1b[K" in terminal.shown
        switch.unlink()
        c.wait(put)
        status, output = terminal.end()
    assert status == 0 and "suspended" in output and terminal.shown.endswith(CLEAR)
