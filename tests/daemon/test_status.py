# SPDX-License-Identifier: Apache-2.0
"""kvcachectl status: one screen, details by section, --watch, and colours."""

import json
import os
import re
import subprocess

import pytest

import harness
from harness import CTL, KIB, ctl, items, wait_until
from kvwire import Ack
from test_top import OK, UNREACHABLE, USAGE, Terminal

SECTIONS = ["io", "sessions", "memory", "store", "writes", "eviction", "tenants", "limits", "namespaces", "totals"]


def put_some(daemon, name, count=4):
    with daemon.client() as c:
        ns = c.namespace(name)
        harness.put_all(c, ns, items(name, count, 64 * KIB))
        harness.get_all(c, ns, [k for k, _ in items(name, count + 1, 64 * KIB)])


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_status_fits_a_screen(make_daemon):
    daemon = make_daemon(settings={"store.write_budget": "1TB", "store.rated_endurance": "7PB"}).start()
    for name in ("llama-3.1-8b/tp8-rank0", "qwen", "mixtral"):
        put_some(daemon, name)
    said = ctl("status", daemon=daemon, check=OK).stdout
    assert 24 <= len(said.splitlines()) <= 40
    assert all(len(line) <= 80 for line in said.splitlines() if str(daemon.directory) not in line), said
    for line in ("kvcache-daemon ", "  I/O ", "  sessions ", "Memory", "Store", "  written ", "  budget ", "Namespaces: 3 of ", "  qwen ",
                 "Since it started", "  hit ratio ", "More: kvcachectl status --all"):
        assert f"\n{line}" in "\n" + said, line
    host = os.uname().nodename
    assert daemon.status()["host"] == host and f" on {host.split('.')[0][:32]}, " in said.splitlines()[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become other users")
def test_many_tenants_volumes_and_namespaces_fit_as_well(make_daemon, directory):
    daemon = make_daemon(settings={"listen.mode": "0666", "store.limit": "512MiB",
                                   "store.path": ",".join(str(directory / f"v{i}") for i in range(8))})
    daemon.config = daemon.directory / "kvcache.yaml"
    daemon.config.write_text("tenants:\n" + "".join(f"  - {{name: t{i}, users: [{20000 + i}], pool: 8MiB}}\n" for i in range(8)))
    daemon.start()
    with daemon.client() as c:
        for i in range(50):
            harness.put_all(c, c.namespace(f"model-{i}"), items(f"model-{i}", 1, 4 * KIB + i * 4096), ack=Ack.WRITTEN)
    said = ctl("status", daemon=daemon, check=OK).stdout
    assert len(said.splitlines()) <= 50, said
    assert "and 4 more in use: kvcachectl device ls" in said and "... and 4 more: kvcachectl status tenants" in said
    assert "  model-49 " in said and "  model-44 " not in said and "... and 45 more: kvcachectl namespace ls" in said
    said = ctl("status", "tenants", daemon=daemon, check=OK).stdout
    assert all(re.search(rf"^  t{i} ", said, re.M) for i in range(8)) and "more" not in said
    assert ctl("status", "store", daemon=daemon, check=OK).stdout.count("  volume ") == 8


def test_sections_and_all(daemon):
    put_some(daemon, "model")
    everything = ctl("status", "--all", daemon=daemon, check=OK).stdout
    assert "More: " not in everything and "  instance " in everything and "  ring flags " in everything
    for section, line in (("io", "  ring flags "), ("memory", "  lookup index "), ("store", "  segments "), ("eviction", "  policy "),
                          ("writes", "none (store.write_budget)"), ("sessions", "  now "), ("namespaces", "fingerprint"), ("totals", "  put ")):
        said = ctl("status", section, daemon=daemon, check=OK).stdout
        assert line in said and line in everything and said.startswith("kvcache-daemon ") and "  socket " not in said, section
    both = ctl("status", "store", "totals", daemon=daemon, check=OK).stdout
    assert "\nStore\n" in both and "\nSince it started\n" in both and "\nMemory\n" not in both
    named = ctl("status", "xyzzy", daemon=daemon, check=USAGE).stderr
    assert all(section in named for section in SECTIONS)
    # With --json the output is complete, whichever section is requested.
    assert json.loads(ctl("status", "--json", "store", daemon=daemon, check=OK).stdout).keys() == daemon.status().keys()


def test_hits_by_namespace(daemon):
    put_some(daemon, "model")
    # The daemon reads the clients' own lookup counters at intervals.
    wait_until(lambda: re.search(r"^  model +4 +256 KiB +- +80\.0 %$", ctl("status", daemon=daemon, check=OK).stdout, re.M),
               "the hits of the namespace")


def test_watch_in_a_pipe(daemon):
    said = ctl("status", "--watch=0.1", "--count", "3", daemon=daemon, check=OK).stdout
    assert said.count("\nkvcache-daemon ") == 3 and "\x1b" not in said
    lines = ctl("status", "--json", "-w0.1", "--count", "3", daemon=daemon, check=OK).stdout.splitlines()
    assert len(lines) == 3 and all(json.loads(line)["ready"] for line in lines)
    said = ctl("status", "--watch", "0.1", "io", "--count", "2", daemon=daemon, check=OK).stdout
    assert said.count("\nI/O\n") == 2 and "Memory" not in said


@pytest.mark.parametrize("arguments", [["--watch=0"], ["--watch=x"], ["--watch", "5000"], ["--count", "2"], ["--watch=1", "2"], ["-w", "--count", "0"]])
def test_wrong_usage(daemon, arguments):
    said = ctl("status", *arguments, daemon=daemon, check=USAGE)
    assert said.stderr and not said.stdout


def test_watch_on_a_terminal(daemon):
    put_some(daemon, "model")
    with Terminal(daemon, command=["status", "--watch=0.1"], rows=45) as watch:
        frame = watch.wait_frames(2)
        assert frame[0].endswith("every 0.1 s; q quits") and frame[1].startswith("kvcache-daemon ")
        assert any(line.startswith("  model ") for line in frame) and all(len(line) <= 80 for line in frame)
        daemon.stop()
        watch.until(lambda: any(line.startswith("NO ANSWER since ") for line in watch.frames()[-1]), "it is not shown")
        daemon.start()
        watch.until(lambda: not any("NO ANSWER" in line for line in watch.frames()[-1]), "it does not come back")
        watch.resize(5, 30)
        watch.until(lambda: len(watch.frames()[-1]) == 5 and max(map(len, watch.frames()[-1])) <= 30, "not cut to the size")
        watch.type(b"q")
        assert watch.ended() == OK


def test_watch_of_a_daemon_that_does_not_come_back(daemon, directory):
    ctl("-s", directory / "none", "status", "--watch", check=UNREACHABLE)
    daemon.stop()
    ctl("status", "--watch", daemon=daemon, check=UNREACHABLE)


@pytest.mark.parametrize("words, meant", [(["stor"], "store"), (["namespace"], "namespaces"), (["--wach"], "--watch"), (["xyzzy"], None)])
def test_did_you_mean(daemon, words, meant):
    said = ctl("status", *words, daemon=daemon, check=USAGE).stderr
    assert (f'did you mean "{meant}"?' in said) == (meant is not None), said


# --- colour ---

def test_colour_marks_faults_and_is_never_the_only_sign(make_daemon, directory):
    daemon = make_daemon(settings={"store.path": f"{directory}/a,{directory}/b", "store.limit": "128MiB"}).start()
    assert "\x1b" not in ctl("--color=always", "status", "--all", daemon=daemon, check=OK).stdout, "nothing is wrong"
    ctl("device", "suspend", "1", daemon=daemon, check=OK)
    daemon.populated_status()
    colored = ctl("--color=always", "status", daemon=daemon, check=OK).stdout
    assert re.search(r"\x1b\[33mDEGRADED +\x1b\[0m", colored) and re.search(r"\x1b\[33mvolume +\x1b\[0m", colored)
    assert re.sub(r"[\d.]+ ?\w*", "", plain(colored)) == re.sub(r"[\d.]+ ?\w*", "", ctl("status", daemon=daemon, check=OK).stdout)
    ctl("device", "suspend", "0", daemon=daemon, check=OK)
    colored = ctl("status", "--color", "always", daemon=daemon, check=OK).stdout
    assert "\x1b[1;31m, not ready: offline, degraded\x1b[0m" in colored and re.search(r"\x1b\[1;31mOFFLINE +\x1b\[0m", colored)


@pytest.mark.parametrize("options, env, wanted", [
    ([], {}, True), ([], {"NO_COLOR": "1"}, False), ([], {"NO_COLOR": ""}, True), ([], {"TERM": "dumb"}, False),
    (["--color=never"], {}, False), (["--color=always"], {"NO_COLOR": "1"}, True), (["--color", "auto"], {}, True)])
def test_when_there_is_colour(tmp_path, options, env, wanted):
    """On a terminal, the message that no daemon is running has colour; in a pipe it has none by default."""
    command = [str(CTL), *options, "-s", str(tmp_path / "none"), "ping"]
    master, slave = os.openpty()
    clean = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    subprocess.run(command, stderr=slave, env={**clean, "TERM": "xterm", **env})
    seen = os.read(master, 4096).decode()
    os.close(master)
    os.close(slave)
    assert ("\x1b[1;31mkvcachectl:\x1b[0m cannot connect" in seen) == wanted and "kvcachectl: cannot connect" in plain(seen)
    said = subprocess.run(command, stderr=subprocess.PIPE, text=True, env={**clean, "TERM": "xterm", **env}).stderr
    assert ("\x1b" in said) == ("--color=always" in options)


@pytest.mark.parametrize("words", [["--color"], ["--color=sometimes", "status"], ["status", "--color", "yes"]])
def test_wrong_colours(words):
    said = ctl(*words, check=USAGE)
    assert "--color" in said.stderr and not said.stdout
