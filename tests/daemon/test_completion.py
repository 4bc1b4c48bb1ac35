# SPDX-License-Identifier: Apache-2.0
"""Completions for bash, zsh and fish in the real shells: those of the tools are generated from their tables; each other program has its own."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

from harness import BENCH, BUILD, CTL, DAEMON, SOURCE, slow
from left_out import first_of

TOOLS = {"kvcachectl": CTL, "kvcache-bench": BENCH}
SHELLS = ["bash", "zsh", "fish"]
# Programs without commands, and the folders of their completions.
PROGRAMS = {"kvcache-daemon": (DAEMON, SOURCE / "daemon/completion"),
            "kvcache-events": (BUILD / "client/events/kvcache-events", SOURCE / "client/events/completion")}
HERE = pathlib.Path(__file__).resolve().parent


def folder_of(tool):
    """Returns the folder of a program's completions."""
    return pathlib.Path(TOOLS[tool]).parent if tool in TOOLS else PROGRAMS[tool][1]


def complete_bash(tool, *lines):
    script = folder_of(tool) / f"{tool}.bash"
    code = ('source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); set -- $(complete -p ' + tool + ');'
            'while [[ $1 != -F ]]; do shift; done; "$2"; printf "%s\\n" "${COMPREPLY[@]}"')
    for words in lines:
        # bash takes "--option=value" for three words.
        split = [part for word in words for part in (re.split("(=)", word) if word.startswith("--") else [word]) if part or word == ""]
        done = subprocess.run(["bash", "--norc", "-c", code, script, tool, *split], capture_output=True, text=True, check=True)
        assert not done.stderr
        yield done.stdout.split()


def complete_zsh(tool, *lines):
    typed = [" ".join([tool, *words]) for words in lines]
    done = subprocess.run(["zsh", "-f", HERE / "complete.zsh", folder_of(tool), *typed], capture_output=True, text=True,
                          check=True, timeout=30 * slow())
    assert not done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def complete_fish(tool, *lines):
    code = 'source $argv[1]; for line in $argv[2..]; complete -C $line; echo =====; end'
    typed = [" ".join([tool, *words]) for words in lines]
    done = subprocess.run(["fish", "--no-config", "-c", code, folder_of(tool) / f"{tool}.fish", *typed], capture_output=True, text=True, check=True,
                          timeout=30 * slow())
    assert not done.stderr
    for offered in done.stdout.split("=====\n")[:-1]:
        yield [line.split("\t")[0] for line in offered.splitlines()]


def complete_all(shell, tool, *lines):
    """Returns what the shell offers for the last word of each line."""
    if not shutil.which(shell):
        pytest.skip(f"no {shell}: its completion is not tried")
    offered = [[re.sub("^--[a-z-]*=", "", word) for word in words] for words in
               {"bash": complete_bash, "zsh": complete_zsh, "fish": complete_fish}[shell](tool, *lines)]
    assert len(offered) == len(lines)
    return offered


def commands_of(tool):
    text = subprocess.run([TOOLS[tool], "--help"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in text.split("Commands:\n")[1].split("\n\n")[0].splitlines()]


def long_options(*command):
    """Returns the options that the output of a command, which prints help, lists."""
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.findall(r"^  (?:-\w,|   ) (--[\w-]+)", text, re.M)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("shell", first_of(SHELLS))
def test_every_command_and_each_of_its_options_is_offered(shell, tool):
    commands = commands_of(tool)
    first, helped, *each = complete_all(shell, tool, [""], ["help", ""], *[[command, "--"] for command in commands])
    assert sorted(first) == sorted(commands + ["help"])
    assert sorted(set(helped) - {"help"}) == sorted(commands)
    for command, offered in zip(commands, each):
        wanted = long_options(TOOLS[tool], "help", command)
        assert len(wanted) >= 4 and sorted(set(offered)) == sorted(wanted), command


TYPED = {
    "kvcachectl": [
        (["relo"], ["reload"]), (["--j"], ["--json"]), (["--socket", "/s", "devi"], ["device"]), (["--socket=/s", "devi"], ["device"]),
        (["--color", "never", "devi"], ["device"]), (["device", ""], ["ls", "suspend", "resume"]), (["device", "su"], ["suspend"]),
        (["hint", ""], ["final", "return", "tool-call", "turn-end", "demote", "share"]), (["put", "--namespace", ""], []), (["put", "-n", "l"], []),
        (["evict", "--js"], ["--json"]), (["put", "--ack", ""], ["accepted", "written", "durable"]), (["put", "--ack=w"], ["written"]),
        (["put", "--ack="], ["accepted", "written", "durable"]), (["evict", "--tier", "m"], ["memory"]),
        (["status", "names"], ["namespaces"]), (["status", "--color", "n"], ["never"]), (["--color", ""], ["auto", "always", "never"]),
        (["no-such-command", "--"], [])],
    "kvcache-bench": [
        (["session", "ena"], ["enable"]), (["simul"], ["simulate"]), (["remote", ""], ["directory", "rados", "s3"]), (["simulate", "--policy", ""], ["lru", "cq", "opt"]),
        (["simulate", "--remote-write", "a"], ["all"]), (["simulate", "--route", ""], ["session", "random", "events"]),
        (["plan", "--format", "c"], ["csv"]), (["profile", "--source", "g"], ["gpu"]), (["session", "--by", "l"], ["layout"])]}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("shell", first_of(SHELLS))
def test_typed_words_are_completed(shell, tool):
    offered = complete_all(shell, tool, *[words for words, _ in TYPED[tool]])
    for (words, wanted), words_offered in zip(TYPED[tool], offered):
        assert sorted(words_offered) == sorted(wanted), words


@pytest.mark.parametrize("shell", first_of(SHELLS))
def test_where_no_word_is_known_files_are_completed(shell, tmp_path, monkeypatch):
    """File names are completed. For bash the answer is empty, and bash itself completes (complete -o default)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.jsonl").touch()
    wanted = [] if shell == "bash" else ["trace.jsonl"]
    assert complete_all(shell, "kvcache-bench", ["replay", "tra"], ["simulate", "--svg", "tra"]) == [wanted, wanted]
    assert complete_all(shell, "kvcachectl", ["-s", "tra"], ["put", "key", "tra"]) == [wanted, wanted]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("shell", first_of(SHELLS))
def test_every_option_of_a_program_without_commands_is_offered(shell, program):
    path = PROGRAMS[program][0]
    if not path.exists():
        pytest.skip(f"{program} is not built")
    options = long_options(path, "--help")
    assert len(options) >= 6
    assert sorted(set(complete_all(shell, program, ["--"])[0])) == sorted(options)


@pytest.mark.parametrize("shell", first_of(SHELLS))
def test_the_daemon_s_keys_are_completed(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{pathlib.Path(DAEMON).parent}:{os.environ['PATH']}")
    keys = re.findall(r"^ROW\(\w+, (\w+), (\w+),", (SOURCE / "daemon/config/config.def").read_text(), re.M)
    sets, limit, again, check, nothing = complete_all(
        shell, "kvcache-daemon", ["--set", ""], ["-s", "store.li"], ["--config", "x", "--set", "store.limit=1GiB", "--set", "io.dep"],
        ["--set", "io.depth=3", "--che"], ["--config", "no-such"])
    assert sorted(word.rstrip("=") for word in sets) == sorted(f"{a}.{b}" for a, b in keys)
    assert [word.rstrip("=") for word in limit + again] == ["store.limit", "io.depth"] and check == ["--check-config"] and nothing == []


@pytest.mark.parametrize("shell", first_of(SHELLS))
def test_arguments_of_kvcache_events_are_completed(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "off-topic").touch()
    files = [] if shell == "bash" else ["off-topic"]
    assert complete_all(shell, "kvcache-events", ["--replay", ""], ["-r", "o"], ["--replay=o"], ["--socket", "off"], ["-r", "off", "--buf"]) == [
        ["off"], ["off"], ["off"], files, ["--buffer"]]


@pytest.fixture
def told(make_daemon, directory, tmp_path, monkeypatch):
    """A daemon with namespaces, some of whose names would do harm in a shell, and the tools in the PATH."""
    daemon = make_daemon(settings={"store.path": f"{directory / 'one'},{directory / 'two'}"}).start()
    with daemon.client() as c:
        for name in ("vllm/llama-1", "vllm/qwen", "a b", "$(touch harm)", "`touch harm`", "-x", "a;touch harm", "a'b", "x:y", "*"):
            c.namespace(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVCACHE_SOCKET", str(daemon.socket))
    monkeypatch.setenv("PATH", ":".join([*(str(pathlib.Path(t).parent) for t in TOOLS.values()), os.environ["PATH"]]))
    return daemon


@pytest.mark.parametrize("shell", first_of(SHELLS))
def test_names_that_the_tools_know_are_completed(shell, told, directory, tmp_path):
    namespaces, volumes = ["vllm/llama-1", "vllm/qwen"], sorted(str(directory / name) for name in ("one", "two"))
    of_ctl = complete_all(shell, "kvcachectl", ["namespace", "stat", ""], ["namespace", "rm", "vllm/q"], ["purge", ""], ["ls", "v"],
                          ["put", "--namespace", "v"], ["put", "-n", "vllm/l"], ["get", "--namespace=vllm/q"], ["device", "suspend", ""],
                          ["device", "su"], ["namespace", "st"])
    assert [sorted(words) for words in of_ctl] == [
        namespaces, ["vllm/qwen"], namespaces, namespaces, namespaces, ["vllm/llama-1"], ["vllm/qwen"], volumes, ["suspend"], ["stat"]]
    models, deployment, namespace = complete_all(shell, "kvcache-bench", ["plan", "--model", "llama"], ["kvcache", "--model_config", "block-tp8-pp1"],
                                                 ["replay", "-n", "vllm/q"])
    assert sorted(models) == ["llama_3_1_70b", "llama_3_1_8b"] and deployment == ["block-tp8-pp16"] and namespace == ["vllm/qwen"]
    assert not list(tmp_path.iterdir()), "a name was run as a command"


def test_words_without_a_daemon_are_none_and_say_nothing(tmp_path):
    env = {**os.environ, "KVCACHE_SOCKET": str(tmp_path / "none")}
    for kind in ("namespaces", "volumes", "no-such-kind", ""):
        done = subprocess.run([CTL, "--complete", kind], capture_output=True, text=True, env=env)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = subprocess.run([BENCH, "--complete", "models"], capture_output=True, text=True, env=env)
    assert done.returncode == 0 and "qwen3_8b" in done.stdout.split() and not done.stderr
    (tmp_path / "models").mkdir()
    for name in ("good.yaml", "b d.yaml", "$(x).yaml", "none.txt"):
        (tmp_path / "models" / name).touch()
    done = subprocess.run([BENCH, "--complete", "models"], capture_output=True, text=True, env={**env, "KVCACHE_DATA_DIR": str(tmp_path)})
    assert done.stdout == "good\n"


def test_a_shell_that_there_is_none_for(tmp_path):
    done = subprocess.run([CTL, "--print-completion", "tcsh"], capture_output=True, text=True)
    assert done.returncode == 2 and "'tcsh' is not bash, zsh or fish" in done.stderr and not done.stdout
    with open("/dev/full", "w") as full:
        assert subprocess.run([CTL, "--print-completion", "zsh"], stdout=full).returncode == 6
