# SPDX-License-Identifier: Apache-2.0
"""kvcachectl with a running daemon: its answers, as text and as JSON, and its exit statuses."""

import hashlib
import json
import os
import pty
import re
import subprocess

import pytest

import harness
import kvwire
from harness import KIB, bench, ctl, items, key_of, value_of
from kvwire import Ack, Tier

OK, NOT_FOUND, USAGE, UNREACHABLE, REFUSED, BAD_INPUT, LOCAL = 0, 1, 2, 3, 4, 5, 6


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


TOOLS = {"kvcachectl": (ctl, {"status", "top", "ping", "put", "get", "exists", "stat", "ls", "events", "evict", "purge", "prefetch", "stats",
                              "config", "namespace", "device", "doctor", "gds", "verify", "report", "store", "hint", "bench", "record",
                              "reload", "pin", "unpin", "remote"}),
         "kvcache-bench": (bench, {"replay", "trace", "remote", "simulate", "plan", "profile", "kvcache", "iosize", "session"})}


@pytest.mark.parametrize("name", TOOLS)
def test_every_command_has_help(name):
    tool, expected = TOOLS[name]
    listed = tool("--help", check=OK).stdout
    commands = re.findall(r"^  ([a-z]+) {2,}\S", listed.split("Options of every command")[0], re.M)
    assert set(commands) == expected
    for command in commands:
        text = tool(command, "--help", check=OK).stdout
        assert text.startswith(f"usage: {name} {command}") and "--socket" in text and "--json" in text
        assert tool("help", command, check=OK).stdout == text


def test_a_command_of_the_other_tool_is_named():
    for name, other in (("kvcachectl", "kvcache-bench"), ("kvcache-bench", "kvcachectl")):
        for command in TOOLS[other][1] - TOOLS[name][1]:  # both tools have `remote`
            result = TOOLS[name][0](command, "--help", check=USAGE)
            assert f"unknown command '{command}'; did you mean \"{other} {command}\"?" in result.stderr and not result.stdout


@pytest.mark.parametrize("words, meant", [
    (["stauts"], "status"), (["evct", "k"], "evict"), (["name-space"], "namespace"), (["reply", "x"], "kvcache-bench replay"),
    (["kvcache-bench", "replay"], "kvcache-bench"),
    (["get", "--ofset", "1", "k"], "--offset"), (["--sokcet", "x", "ping"], "--socket"), (["ping", "--jsn"], "--json"),
    (["namespace", "lsx"], "namespace ls"), (["namespace", "sta", "n"], "namespace stat"), (["device", "resum", "0"], "device resume"),
    (["device", "supsend", "0"], "device suspend"), (["device", "xx"], None), (["namespace", "\x1b[31m"], None),
    (["put", "--finger", "k"], None), (["xyzzy"], None), (["get", "--xyzzy", "k"], None), (["get", "-Z", "k"], None)])
def test_did_you_mean(words, meant):
    result = ctl(*words, check=USAGE)
    assert (f'did you mean "{meant}"?' in result.stderr) if meant else "did you mean" not in result.stderr, result.stderr
    assert not result.stdout


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["get"], ["get", "--no-such-option", "k"], ["exists"],
                                       ["purge"], ["put", "--ack", "someday", "k"], ["evict", "--tier", "disk", "k"],
                                       ["ping", "--count", "0"]])
def test_wrong_usage(daemon, arguments):
    result = ctl(*arguments, daemon=daemon, check=USAGE)
    assert result.stderr and not result.stdout


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["replay"], ["replay", "--block-bytes", "huge", "x"],
                                       ["replay", "--no-such-option", "x"]])
def test_wrong_usage_of_the_bench(daemon, arguments):
    result = bench(*arguments, daemon=daemon, check=USAGE)
    assert result.stderr.startswith("kvcache-bench: ") and not result.stdout


def test_no_daemon_there(directory):
    for command in (["ping"], ["status"], ["get", "k"], ["purge", "x"]):
        result = ctl("--socket", str(directory / "none"), *command, check=UNREACHABLE)
        assert str(directory / "none") in result.stderr and not result.stdout


def test_socket_from_the_environment(daemon):
    ctl("ping", env={"KVCACHE_SOCKET": daemon.socket}, check=OK)
    ctl("ping", "--socket", daemon.socket, env={"KVCACHE_SOCKET": "/nowhere"}, check=OK)


def test_put_and_get_a_file(daemon, directory):
    data = value_of(key_of("file"), 300001)
    source, target = directory / "in", directory / "out"
    source.write_bytes(data)
    said = json.loads(ctl("put", "--json", "name", source, daemon=daemon, check=OK).stdout)
    assert said["key"] == sha256("name") and said["length"] == len(data) and said["existed"] is False
    said = json.loads(ctl("put", "--json", "name", source, daemon=daemon, check=OK).stdout)
    assert said["status"] == "exists" and said["existed"] is True
    ctl("get", "name", "--output", target, daemon=daemon, check=OK)
    assert target.read_bytes() == data
    assert ctl("get", "name", daemon=daemon, check=OK, text=False).stdout == data
    assert ctl("get", sha256("name"), "--offset", "1000", "--length", "77", daemon=daemon, check=OK,
               text=False).stdout == data[1000:1077]
    with daemon.client() as c:
        assert c.value(c.namespace("default", attach=True), bytes.fromhex(sha256("name"))) == data


@pytest.mark.parametrize("ack", ["accepted", "written", "durable"])
def test_put_from_standard_input(daemon, ack):
    ctl("put", "--ack", ack, "--namespace", "piped", "k", daemon=daemon, input="from a pipe", check=OK)
    assert ctl("get", "-n", "piped", "k", daemon=daemon, check=OK).stdout == "from a pipe"
    assert daemon.metric(f'kvcache_put_acks_total{{class="{ack}"}}') == 1


def test_missing_keys_and_namespaces_are_reported(daemon, directory):
    ctl("put", "k", daemon=daemon, input="x", check=OK)
    target = directory / "out"
    for command in (["get", "other"], ["get", "other", "-o", target], ["exists", "k", "other"], ["stat", "other"],
                    ["evict", "other"], ["ls", "nowhere"], ["purge", "nowhere"], ["get", "k", "-n", "nowhere"]):
        assert ctl(*command, daemon=daemon, check=NOT_FOUND)
    assert not target.exists(), "a failed get left a file"
    ctl("put", "k2", directory / "none", daemon=daemon, check=BAD_INPUT)


def test_puts_that_the_daemon_refuses_are_reported(daemon):
    with daemon.client() as c:
        size = c.max_chunk + 1
    result = ctl("put", "large", daemon=daemon, input=b"x" * size, text=False, check=REFUSED)
    assert result.stderr
    ctl("put", "-f", "dtype=fp8", "-n", "model", "k", daemon=daemon, input="x", check=OK)
    result = ctl("put", "-f", "dtype=bf16", "-n", "model", "k", daemon=daemon, input="x", check=REFUSED)
    assert "dtype" in result.stderr and "fp8" in result.stderr


def test_output_that_cannot_be_written(daemon, directory):
    ctl("put", "k", daemon=daemon, input="x" * 100000, check=OK)
    ctl("get", "k", "-o", directory / "no" / "such" / "place", daemon=daemon, check=LOCAL)
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            for command in (["get", "k"], ["status"], ["ls"]):
                result = subprocess.run([str(harness.CTL), "-s", daemon.socket, *command], stdout=full,
                                        stderr=subprocess.PIPE, timeout=60 * harness.slow())
                assert result.returncode == LOCAL and result.stderr


def test_exists_stat_and_ls(daemon):
    pairs = items("ctl", 50, 3000)
    with daemon.client() as c:
        ns = c.namespace("things")
        c.put(ns, pairs, ack=Ack.WRITTEN)
        c.evict(ns, [pairs[0][0]], Tier.MEMORY)
    keys = [k.hex() for k, _ in pairs]
    said = json.loads(ctl("exists", "--json", "-n", "things", *keys, "none", daemon=daemon, check=NOT_FOUND).stdout)
    assert (said["found"], said["missing"]) == (50, 1)
    assert said["keys"][0]["tiers"] == ["disk"] and said["keys"][1]["tiers"] == ["memory", "disk"]
    said = json.loads(ctl("stat", "--json", "-n", "things", keys[3], daemon=daemon, check=OK).stdout)
    chunk, = said["keys"]
    assert chunk["length"] == 3000 and int(chunk["crc32c"], 16) == kvwire.crc32c(pairs[3][1])
    said = json.loads(ctl("ls", "--json", "things", daemon=daemon, check=OK).stdout)
    assert {c["key"] for c in said["chunks"]} == set(keys) and said["count"] == 50 and said["bytes"] == 150000
    assert len(json.loads(ctl("ls", "--json", "--limit", "7", "things", daemon=daemon, check=OK).stdout)["chunks"]) == 7
    listed = ctl("ls", "things", daemon=daemon, check=OK).stdout
    assert {line.split()[0] for line in listed.splitlines()} == set(keys)
    said = json.loads(ctl("ls", "--namespaces", "--json", daemon=daemon, check=OK).stdout)
    assert [(n["name"], n["chunks"]) for n in said["namespaces"]] == [("things", 50)]


def test_exists_from_a_file(daemon, directory):
    pairs = items("from", 2500, 10)
    with daemon.client() as c:
        harness.put_all(c, c.namespace("default"), pairs[:-2], batch=1000, ack=Ack.WRITTEN)
    path = directory / "keys"
    path.write_text("# a comment\n" + "".join(f"{k.hex()} 10\n" for k, _ in pairs[:-2]))
    said = json.loads(ctl("exists", "--from", path, "--json", daemon=daemon, check=OK).stdout)
    assert (said["found"], said["missing"]) == (2498, 0)
    path.write_text("".join(f"{k.hex()}\n" for k, _ in pairs))
    result = ctl("exists", "--from", path, daemon=daemon, check=NOT_FOUND)
    assert pairs[-1][0].hex() in result.stdout + result.stderr
    path.write_text("not a key\n")
    assert ":1" in ctl("exists", "--from", path, daemon=daemon, check=BAD_INPUT).stderr
    ctl("exists", "--from", directory / "none", daemon=daemon, check=BAD_INPUT)


def test_prefetch(daemon, directory):
    pairs = items("pf", 5, 1000)
    keys = [k.hex() for k, _ in pairs]
    with daemon.client() as c:
        ns = c.namespace("default")
        c.put(ns, pairs, ack=Ack.WRITTEN)
        ctl("evict", "--tier", "memory", *keys, daemon=daemon, check=OK)
        assert "3 in memory or being read" in ctl("prefetch", *keys[:3], daemon=daemon, check=OK).stdout
        harness.wait_until(lambda: [bool(t & Tier.MEMORY) for t in c.exists(ns, [k for k, _ in pairs])] ==
                           [True] * 3 + [False] * 2, "three are in memory")
        said = ctl("prefetch", "--json", keys[4], "other", daemon=daemon, check=NOT_FOUND).stdout
        assert json.loads(said) == {"prefetched": 1, "missing": 1, "no_room": 0}
    listed = directory / "keys"
    listed.write_text("".join(f"{k}\n" for k in keys))
    assert "5 in memory" in ctl("prefetch", "--from", listed, daemon=daemon, check=OK).stdout
    assert "1 missing" in ctl("prefetch", "-n", "nowhere", "k", daemon=daemon, check=NOT_FOUND).stdout
    ctl("prefetch", daemon=daemon, check=USAGE)


def test_evict_and_purge(daemon):
    pairs = items("ep", 10, 1000)
    keys = [k.hex() for k, _ in pairs]
    with daemon.client() as c:
        a, b = c.namespace("a"), c.namespace("b")
        c.put(a, pairs, ack=Ack.WRITTEN)
        c.put(b, pairs, ack=Ack.WRITTEN)
        ctl("evict", "-n", "a", "--tier", "memory", keys[0], daemon=daemon, check=OK)
        assert c.exists(a, [pairs[0][0]]) == [Tier.DISK]
        ctl("evict", "-n", "a", keys[0], daemon=daemon, check=OK)
        assert c.exists(a, [pairs[0][0]]) == [Tier(0)]
        assert json.loads(ctl("evict", "--json", "-n", "a", "--all", daemon=daemon, check=OK).stdout)["evicted"] == 9
        assert not any(c.exists(a, [k for k, _ in pairs]))
        assert json.loads(ctl("purge", "--json", "b", daemon=daemon, check=OK).stdout)["dropped"] == 10
        c.put(a, pairs[:3], ack=Ack.WRITTEN)
        c.put(b, pairs[:4], ack=Ack.WRITTEN)
        assert json.loads(ctl("purge", "--json", "--all", "--yes", daemon=daemon, check=OK).stdout)["dropped"] == 7
        assert not any(c.exists(b, [k for k, _ in pairs]))


@pytest.mark.parametrize("arguments, asked", [(["a"], "all chunks of namespace a from this host?"), (["--all"], "all chunks of all namespaces from this host?")])
def test_purge_asks_on_a_terminal(daemon, arguments, asked):
    pairs = items("asked", 3, 100)

    def purge(*options, says=""):
        ours, theirs = pty.openpty()
        os.write(ours, says.encode())
        try:
            return subprocess.run([harness.CTL, "--socket", daemon.socket, "purge", *options, *arguments], stdin=theirs,
                                  capture_output=True, text=True, timeout=60 * harness.slow())
        finally:
            os.close(ours)
            os.close(theirs)

    with daemon.client() as c:
        a = c.namespace("a")
        c.put(a, pairs, ack=Ack.WRITTEN)
        for no in ("n\n", "\n", "no\n", "\x04"):
            refused = purge(says=no)
            assert (refused.returncode, refused.stdout) == (130, "") and asked in refused.stderr and "nothing was done" in refused.stderr
        assert all(c.exists(a, [k for k, _ in pairs]))
        done = purge(says="y\n")
        assert (done.returncode, done.stdout) == (0, "3 chunks purged\n") and asked in done.stderr
        c.put(a, pairs, ack=Ack.WRITTEN)
        done = purge("--yes")
        assert (done.returncode, done.stdout, done.stderr) == (0, "3 chunks purged\n", "")


def test_evicting_a_leased_chunk_leaves_it_readable_to_its_holder(daemon):
    (key, value), = items("leased", 1, 5000)
    for tier in ([], ["--tier", "memory"]):
        with daemon.client() as c:
            ns = c.namespace("default")
            c.put(ns, [(key, value)], ack=Ack.WRITTEN)
            result, = c.get(ns, [key])
            said = json.loads(ctl("evict", "--json", *tier, key.hex(), daemon=daemon, check=OK).stdout)
            assert [said[n] for n in ("evicted", "missing", "unwritten")] == [1, 0, 0]
            assert ctl("exists", key.hex(), daemon=daemon).returncode == (OK if tier else NOT_FOUND)
            assert c.exists(ns, [key]) == [Tier.DISK if tier else Tier(0)]
            assert result.data == value
            c.release([result.lease])


def test_status_stats_config_and_ping(leg_daemon):
    status = json.loads(ctl("status", "--json", daemon=leg_daemon, check=OK).stdout)
    assert status.keys() == leg_daemon.status().keys() and status["pid"] == leg_daemon.pid
    leg_daemon.leg.check(leg_daemon.populated_status()["io"])
    text = ctl("status", daemon=leg_daemon, check=OK).stdout
    io = leg_daemon.status()["io"]
    for part in (io["backend"], io["reason"], "" if io["registered"] else io["registered_reason"],
                 "" if io["direct"] else io["direct_reason"], leg_daemon.socket, str(leg_daemon.store)):
        assert part in text
    stats = json.loads(ctl("stats", "--json", daemon=leg_daemon, check=OK).stdout)
    assert stats["kvcache_ready"] == 1 and stats["kvcache_requests_total"]["REPORT"] >= 2
    page = ctl("stats", "--prometheus", daemon=leg_daemon, check=OK).stdout
    assert harness.parse_metrics(page)["kvcache_ready"] == 1
    assert "kvcache_requests_total" in ctl("stats", daemon=leg_daemon, check=OK).stdout
    assert "limit: 128MiB" in ctl("config", daemon=leg_daemon, check=OK).stdout
    assert "limit: 128MiB" in json.loads(ctl("config", "--json", daemon=leg_daemon, check=OK).stdout)["yaml"]
    said = json.loads(ctl("ping", "--json", "-c", "20", daemon=leg_daemon, check=OK).stdout)
    assert said["count"] == 20 and 0 < said["min_us"] <= said["p50_us"] <= said["p99_us"] <= said["max_us"]


def test_status_counts_in_grammar(make_daemon):
    daemon = make_daemon(settings={"io.workers": 1}).start()
    with daemon.client() as c:
        ns = c.namespace("one")
        (key, value), = pairs = items("one", 1, 1000)
        c.put(ns, pairs, ack=Ack.WRITTEN)
        assert c.value(ns, key) == value and c.value(ns, key_of("none")) is None
        lease = c.get(ns, [key])[0].lease
        said = ctl("status", daemon=daemon, check=OK).stdout
        for line in ("put               1 chunk, 1000 B", "got               2 chunks, ",
                     "gets              2 from memory, 0 from disk; 1 miss", "with 1 lease and "):
            assert line in said, said
        assert not re.search(r"\b1 (?!miss\b)\w+s\b", said), said
        c.release([lease])
    assert "1 worker of depth" in daemon.log() and "0 chunks found in" in daemon.log() and "limit 128 MiB" in daemon.log()


def test_large_chunk_through_a_pipe(make_daemon):
    daemon = make_daemon(settings={"memory.pool": "64MiB", "store.limit": "512MiB"}).start()
    data = value_of(key_of("pipe"), 5000 * KIB)
    ctl("put", "big", daemon=daemon, input=data, text=False, check=OK)
    ctl("evict", "--tier", "memory", "big", daemon=daemon, check=OK)
    assert ctl("get", "big", daemon=daemon, text=False, check=OK).stdout == data
