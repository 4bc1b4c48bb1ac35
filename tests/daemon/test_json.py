#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--json has one manner in every command of both tools.

An answer is one object in one line on standard output. A failure is one object a line on standard error, each with the
member "error" or "warning", and nothing else is there.
"""

import json
import re

import pytest

import harness
from harness import bench, ctl

TOOLS = {"kvcachectl": ctl, "kvcache-bench": bench}
SIZED = ["--model", "llama_3_1_8b", "--model_config", "block-tp1-pp16", "--isl", "100", "--num_requests", "1"]

# command, and what makes it succeed
SUCCEEDS = [
    ("kvcachectl", ["status"]), ("kvcachectl", ["top", "--count", "1", "--interval", "0.1"]), ("kvcachectl", ["ping"]), ("kvcachectl", ["stats"]), ("kvcachectl", ["config"]),
    ("kvcachectl", ["put", "-n", "a", "k2", "FILE"]), ("kvcachectl", ["get", "-n", "a", "-o", "OUT", "k"]),
    ("kvcachectl", ["exists", "-n", "a", "k"]), ("kvcachectl", ["exists", "-n", "a", "--from", "KEYS"]),
    ("kvcachectl", ["stat", "-n", "a", "k"]), ("kvcachectl", ["ls", "a"]), ("kvcachectl", ["ls", "--namespaces"]),
    ("kvcachectl", ["hint", "-n", "a", "final", "k"]), ("kvcachectl", ["pin", "-n", "a", "k"]), ("kvcachectl", ["unpin", "-n", "a", "k"]), ("kvcachectl", ["prefetch", "-n", "a", "k"]), ("kvcachectl", ["namespace", "ls"]), ("kvcachectl", ["namespace", "stat", "a"]),
    ("kvcachectl", ["device", "ls"]), ("kvcachectl", ["device", "resume", "0"]), ("kvcachectl", ["gds"]), ("kvcachectl", ["doctor"]), ("kvcachectl", ["report", "-o", "REPORT"]), ("kvcachectl", ["verify"]), ("kvcachectl", ["store", "check"]), ("kvcachectl", ["bench", "status", "SNAPSHOT"]),
    ("kvcachectl", ["record", "-o", "TRACE", "-d", "1s"]), ("kvcachectl", ["reload"]), ("kvcachectl", ["remote"]), ("kvcachectl", ["events", "--snapshot"]),
    ("kvcachectl", ["evict", "-n", "a", "k"]), ("kvcachectl", ["namespace", "rm", "--purge", "gone"]), ("kvcachectl", ["purge", "a"]),
    ("kvcache-bench", ["replay", "--synthetic", "chat", "--requests", "3", "--block-bytes", "4KiB"]),
    ("kvcache-bench", ["trace", "--batches", "2", "--block-bytes", "4KiB"]),
    ("kvcache-bench", ["simulate", "--synthetic", "chat", "--requests", "3"]),
    ("kvcache-bench", ["simulate", "--synthetic", "chat", "--requests", "3", "--hosts", "1,2"]),
    ("kvcache-bench", ["remote", "directory", "--path", "FOLDER", "--bare", "-n", "4", "-b", "64KiB"]),
    ("kvcache-bench", ["plan", *SIZED]), ("kvcache-bench", ["kvcache", *SIZED]), ("kvcache-bench", ["iosize", *SIZED]),
    ("kvcache-bench", ["profile", *SIZED, "--source", "memory", "--num_iter", "1", "--warmup_iter", "0"]),
    ("kvcache-bench", ["session", "status", "SNAPSHOT"]), ("kvcache-bench", ["session", "init", "A"]), ("kvcache-bench", ["session", "list"]),
]
# and what makes it fail, each in its own way
FAILS = [
    ("kvcachectl", ["status", "operand"], 2), ("kvcachectl", ["top", "--interval", "0"], 2), ("kvcachectl", ["ping", "--count", "0"], 2), ("kvcachectl", ["stats", "--prometheus"], 2),
    ("kvcachectl", ["config", "--nothing"], 2), ("kvcachectl", ["put", "-n", "a", "k3", "/nowhere"], 5),
    ("kvcachectl", ["get", "-n", "a", "-o", "OUT", "none"], 1), ("kvcachectl", ["get", "-n", "a", "k"], 2),
    ("kvcachectl", ["exists", "--from", "/nowhere"], 5), ("kvcachectl", ["exists"], 2), ("kvcachectl", ["stat", "-n", "none\n\x1b", "hex:1"], 2),
    ("kvcachectl", ["ls", "none"], 1), ("kvcachectl", ["hint", "k"], 2), ("kvcachectl", ["pin"], 2), ("kvcachectl", ["unpin", "hex:1"], 2), ("kvcachectl", ["prefetch", "hex:1"], 2), ("kvcachectl", ["namespace", "stat", "none"], 1),
    ("kvcachectl", ["namespace", "what"], 2), ("kvcachectl", ["device", "suspend", "/nowhere"], 1), ("kvcachectl", ["gds", "operand"], 2), ("kvcachectl", ["doctor", "operand"], 2), ("kvcachectl", ["report", "-o", "/nowhere/report"], 6), ("kvcachectl", ["verify", "--volume", "99"], 2), ("kvcachectl", ["store", "check", "/nowhere"], 5),
    ("kvcachectl", ["evict", "--tier", "disk", "k"], 2), ("kvcachectl", ["purge", "none"], 1), ("kvcachectl", ["bench", "status", "/nowhere"], 4), ("kvcachectl", ["record"], 2), ("kvcachectl", ["reload", "now"], 2), ("kvcachectl", ["events", "operand"], 2), ("kvcachectl", ["remote", "sweep"], 2), ("kvcachectl", ["stauts"], 2),
    ("kvcachectl", [], 2), ("kvcachectl", ["--sokcet"], 2), ("kvcachectl", ["replay"], 2),
    ("kvcache-bench", ["replay", "/nowhere"], 5), ("kvcache-bench", ["replay"], 2), ("kvcache-bench", ["trace", "--keys", "0"], 2), ("kvcache-bench", ["plan"], 2),
    ("kvcache-bench", ["remote", "tape"], 2), ("kvcache-bench", ["remote", "directory", "--path", "/nowhere", "--bare"], 4),
    ("kvcache-bench", ["simulate", "/nowhere"], 5), ("kvcache-bench", ["simulate"], 2), ("kvcache-bench", ["simulate", "--hosts", "0"], 2),
    ("kvcache-bench", ["plan", "--model", "llama", "--model_config", "block-tp1-pp16"], 1),
    ("kvcache-bench", ["kvcache", "--model", "BAD", "--model_config", "block-tp1-pp16"], 1),
    ("kvcache-bench", ["iosize", *SIZED, "--isl", "0"], 2), ("kvcache-bench", ["profile", *SIZED, "--mode", "MG"], 1),
    ("kvcache-bench", ["profile", *SIZED, "--source", "gpu"], 1),
    ("kvcache-bench", ["session", "status", "/nowhere"], 4), ("kvcache-bench", ["session", "disable"], 3), ("kvcache-bench", ["session", "init", ".A"], 2), ("kvcache-bench", ["session"], 2),
]


def one_object(text, kind=dict):
    assert text.endswith("\n") and text.count("\n") == 1, text
    said = json.loads(text)
    assert isinstance(said, kind), text
    return said


def messages(text):
    """Returns the kinds of messages on standard error: each line is an object with one member."""
    found = []
    for line in text.splitlines():
        (kind, inner), = json.loads(line).items()
        assert kind in ("error", "warning") and inner["message"] and isinstance(inner["message"], str), line
        found.append(kind)
    return found


@pytest.fixture
def filled(make_daemon, directory):
    daemon = make_daemon(settings={"io.stages": "on", "events.ring": "64KiB"}).start()
    (directory / "file").write_bytes(b"x" * 5000)
    (directory / "keys").write_text("# none\n")
    (directory / "bad").write_text("model_name: [\n")
    for words in (["-n", "a", "k"], ["-n", "gone", "k"]):
        ctl("put", *words, directory / "file", daemon=daemon, check=0)
    names = {"FILE": directory / "file", "OUT": directory / "out", "KEYS": directory / "keys", "BAD": directory / "bad", "TRACE": directory / "trace", "REPORT": directory / "report.tar",
             "FOLDER": directory, "SNAPSHOT": harness.SOURCE / "tests/golden/session/A.json"}
    return daemon, lambda words: [names.get(w, w) for w in words]


def places(words):
    """--json before the command, and at the end."""
    return [["--json", *words], [*words, "--json"]] if words and not words[0].startswith("-") else [["--json", *words]]


@pytest.mark.parametrize("tool, words", SUCCEEDS, ids=lambda v: "-".join(v[:2]) if isinstance(v, list) else v)
def test_success_is_one_object(filled, tool, words):
    daemon, named = filled
    # doctor looks at a host of which nothing is known, instead of the one that runs the tests.
    result = TOOLS[tool](*places(named(words))[-1], daemon=daemon, check=0, timeout=120, env={"KVCACHE_TEST_ROOT": "/nowhere"} if words[0] == "doctor" else {})
    one_object(result.stdout, kind=list if words[0] == "simulate" else dict)
    assert set(messages(result.stderr)) <= {"warning"}


@pytest.mark.parametrize("tool, words, status", FAILS, ids=lambda v: "-".join(v[:2]) if isinstance(v, list) else str(v))
def test_failure_is_an_object_on_standard_error(filled, tool, words, status):
    daemon, named = filled
    for form in places(named(words)):
        result = TOOLS[tool](*form, daemon=daemon, check=status)
        assert result.stdout == "" and "error" in messages(result.stderr), result


@pytest.mark.parametrize("command", ["status", "top", "ping", "stats", "config", "get", "exists", "stat", "ls", "prefetch", "hint", "evict", "purge",
                                     "namespace", "device", "verify"])
def test_no_daemon_is_an_object_too(directory, command):
    operands = {"get": ["-o", directory / "out", "k"], "exists": ["k"], "stat": ["k"], "prefetch": ["k"], "hint": ["final", "k"], "evict": ["k"], "purge": ["a"]}
    result = ctl("--socket", directory / "none", "--json", command, *operands.get(command, []))
    assert result.returncode in (2, 3) and messages(result.stderr) and (result.stdout == "" or one_object(result.stdout))


def test_every_command_is_tried():
    for name, tool in TOOLS.items():
        listed = tool("--help", check=0).stdout.split("Options of every command")[0]
        commands = set(re.findall(r"^  ([a-z]+) {2,}\S", listed, re.M))
        assert commands == {w[0] for t, w in SUCCEEDS if t == name}
        assert commands <= {w[0] for t, w, _ in FAILS if t == name and w}
