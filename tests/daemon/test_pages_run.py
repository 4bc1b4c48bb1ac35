# SPDX-License-Identifier: Apache-2.0
"""Each command in the pages for users and in the man pages' examples runs as the page has it, against a real daemon.

A page's commands run in order, in bash, in a folder that looks like a checkout with its builds. Absolute paths of the pages lie below a
private root. Code without a language, or for a shell, has commands; text has them where it quotes kvcachectl, kvcache-bench,
kvcache-daemon or curl with an argument. EXCUSED gives the reasons for the commands that no test can run. Every other command must end with
status 0, with the status that its comment states ("exits with status 1"), or as EXPECTED says. An entry that matches nothing fails a test.
"""

import contextlib
import dataclasses
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

import harness
from harness import BUILD, SOURCE
from processes import spawn
from test_profile import HAS_DRIVER
from test_replay import write_trace

sys.path.insert(0, str(SOURCE / "conf/book"))
import book  # noqa: E402

pytestmark = [pytest.mark.documents, pytest.mark.skipif(harness.is_sanitized(), reason="Python loads no library with a sanitizer")]

# The protocol has no commands, those of the changelog are of earlier versions, and "Inside" is for developers of the daemon.
PAGES = [page for page in book.pages({name: below for name, below in book.CHAPTERS.items() if name != "Inside"})
         if page not in ("proto/README.md", "CHANGELOG.md")]
PAGES += [str(page.relative_to(SOURCE)) for page in book.manuals() if page.suffix in (".1", ".8")]

# A paragraph of code that has one of these patterns is not for a shell.
OTHER_CODE = {
    r"[─┌]|-->": "a drawing",
    r"^remote:": "a part of kvcache.yaml",
    r"^# (/etc/|systemctl edit)|^\[(Service|Timer|Install)\]": "a file",
    r"^(={20}|Backend +Block Size|KVCACHE: |GPU 0: )": "output of the tutorial's commands",
    r"^from kvcache|^store = ": "Python",
    r"^--kv-transfer-config|\[--json\]": "options without a command",
}

# A command that has one of these patterns cannot run in a test, for this reason.
EXCUSED = {
    r"^(apt-get|dpkg-deb|dpkg-buildpackage) ": "installs packages, which tests/packages does",
    r"^meson setup build-release .* meson install": "builds for minutes and installs into the system",
    r"pip install": "installs the package, which tests/python does",
    r"^(systemctl|systemd-sysusers|systemd-tmpfiles) ": "needs root and systemd",
    r"^journalctl ": "needs systemd",
    r"^ulimit -l unlimited": "needs root",
    r"^(runuser|usermod|umount) |\bch(own|grp) kv": "needs root and the users of a host",
    r"^smartctl ": "needs root and a disk",
    r"^(vllm serve|python -m sglang.launch_server|lmcache server) ": "needs an engine and a GPU",
    r"llama-prefix": "needs llama.cpp and a model",
    r"^(kubectl|helm) ": "needs a cluster",
    r"docker compose": "needs docker",
    r"^ceph ": "needs a cluster of Ceph",
    r"^aws ": "needs a service with a network",
    r"^(kvcachectl (purge|namespace rm( --purge)?|bench)|kvcache-daemon --config FILE|"
    r"kvcache-bench (plan|profile( …)?|session|iosize|--debug COMMAND))$": "names a command without its operands",
    r"tests/bench/(run\.sh|bench\.py)": "builds a release and measures for minutes",
}

# Each pattern is replaced in a command before a test runs it, in this order. {root} is the private root.
CHANGES = [
    (r"(?<![\w./$-])/(?=(etc|mnt|tmp|usr|var)/)", "{root}/"),
    (r"\.\.\./http.sock", "{root}/run/http.sock"),
    (r"(-o kvcache )?-g kvcache ", ""),                                     # only root may give files to others
    (r"^sh daemon/build-deps.sh", r"\g<0> --list"),                         # does not install them
    (r" && systemctl restart kvcache", ""),
    (r"(kvcache-daemon) (?=--(check|print)-config)", r"\1 --config {root}/etc/kvcache/kvcache.yaml "),
    (r"kvcachectl top\b(?! --)", "kvcachectl top --count 1 --interval 0.1"),  # otherwise the key q ends it
    (r"--interval 2\b", "--interval 0.1"),
    (r"(kvcachectl record .* --out (\S+))", r"\1 & until [ -e \2 ]; do sleep 0.01; done; ...; kill -INT $!; wait $!"),
    (r"^(kvcache-daemon .* listen.socket=(\S+)) &", r"\1 >{root}/log 2>&1 & until kvcachectl -s \2 ping >{root}/ping 2>&1; do sleep 0.01; done"),
    (r"--seconds 5", "--seconds 0.1"),
    (r"(session run )", r"\1--bytes 4MiB --iterations 1 "),
    (r"(kvcache-bench remote )", r"\1--objects 32 --block-bytes 64KiB "),
    (r"^(?=kvcache-bench profile --model conf/)", "KVCACHE_SOCKET=$PWD/none "),  # the tutorial needs no daemon
    (r"(kvcache-bench profile )", r"\1--num_iter 1 --warmup_iter 0 "),
    (r"(python3 -m venv )", r"\1--without-pip "),
]

# These commands may end with other statuses than 0, or must show something. The first match counts.
EXPECTED = [
    (r"profile .*(gpu|--backend GDS)", {1}, r"libcuda\.so\.1"),             # section 6 of the tutorial: without a GPU
    (r"kvcache-bench profile ", {0}, r"\b0 wrong bytes|\"wrong_bytes\":0|,0,"),
    (r"kvcachectl doctor", {0, 1}, r"\bproblems?, "),                      # kvcachectl(1): 1 if there is a problem
    (r"diff -u |namespace diff ", {0, 1}, ""),                              # 1 if they differ
    (r"\| head", {0, 141}, ""),                                             # 141: SIGPIPE
    (r"^dmesg \|", {0, 1}, ""),                                             # 1 where only root may read it
    (r"--fail-on-regress", {0, 5}, ""),                                     # 5 if the second is slower
    (r"/prompt && .*/prompt", {0}, r"^0 blocks loaded, 8 stored\n8 blocks loaded, 0 stored\n$"),
]
DEFAULT = ({0}, "")

# A page presumes the results of these commands, so they run first.
PRESUMED = {
    "README.md": "kvcache-bench replay --synthetic chat",                   # the quickstart
    "client/bench/kvcache-bench.1": "cp fleet.jsonl trace.jsonl; kvcache-bench session init B; ...; "
                                    "kvcache-bench session export B -o B.json; cp B.json A.json",
}


@dataclasses.dataclass
class Command:
    page: str
    line: int
    text: str

    def __str__(self):
        return f"{self.page}:{self.line}: {self.text}"

    def matches(self, pattern):
        return re.search(pattern, self.text, re.S) is not None

    def reason(self):
        """Returns why a test cannot run the command, or None."""
        return next((reason for pattern, reason in EXCUSED.items() if self.matches(pattern)), None)

    def expected(self):
        """Returns the permitted exit statuses and a pattern of the output."""
        stated = re.search(r"#.*\bexits with status (\d+)", self.text)
        if stated:
            return {int(stated[1])}, ""
        return next(((statuses, output) for pattern, statuses, output in EXPECTED if self.matches(pattern)), DEFAULT)

    def changed(self, root):
        text = self.text
        for pattern, replacement in CHANGES:
            text = re.sub(pattern, replacement.replace("{root}", str(root)), text)
        return text


def paragraphs(name, text):
    """Yields the number of the first line, and the lines, of each paragraph of a page's code without a language or for a shell, and of the
    commands in its text."""
    fence = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
    code = [(m.start(2), m[2]) for m in fence.finditer(text) if m[1] in ("", "sh")]
    if not name.endswith(".md"):
        code = [(m.start(1), m[1]) for m in re.finditer(r"^\.SH EXAMPLES\n\.nf\n(.*?)^\.fi", text, re.M | re.S)]
    for start, body in code:
        for m in re.finditer(r"(?:[^\n]*\S[^\n]*\n)+", body):
            yield text.count("\n", 0, start + m.start()) + 1, m[0].splitlines()
    text = fence.sub(lambda m: "\n" * m[0].count("\n"), text)
    for m in re.finditer(r"(?<=\n\n)(?: {4}[^\n]*\n)+", text):
        yield text.count("\n", 0, m.start()) + 1, [line[4:] for line in m[0].splitlines()]
    for m in re.finditer(r"^(?! {4}).*", text, re.M):
        for code in re.findall(r"`((?:kvcachectl|kvcache-bench|kvcache-daemon|curl) [^`]+)`", m[0]):
            yield text.count("\n", 0, m.start()) + 1, [code]


def is_complete(text):
    """Returns whether a command needs no further line: a continuation, the rest of a quotation, or of a document."""
    document = re.search(r"<<(\w+)", text)
    if document:
        return text.endswith(f"\n{document[1]}\n")
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return not text.endswith("\\\n")


def commands_in(name, text):
    """Returns the commands of a page in order. Where a paragraph has prompts, its other lines are output."""
    found = []
    for number, lines in sorted(paragraphs(name, text)):
        if any(re.search(pattern, "\n".join(lines), re.M) for pattern in OTHER_CODE):
            continue
        prompts, command = any(line.startswith("$ ") for line in lines), ""
        for n, line in enumerate(lines, number):
            if not command:
                if prompts and not line.startswith("$ ") or re.fullmatch(r"\s*#.*", line):
                    continue
                found.append(Command(name, n, ""))
            command += (line if command else line.removeprefix("$ ")) + "\n"
            found[-1].text = command.replace("\\\n", " ").strip()
            if is_complete(command):
                command = ""
    return found


@functools.cache
def commands_of(page):
    text = (SOURCE / page).read_text()
    return commands_in(page, text if page.endswith(".md") else text.replace(r"\-", "-").replace(r"\e", "\\"))


class Host:
    """A private root, in which a daemon serves two volumes, with a checkout, its builds and the programs of a package."""

    def __init__(self, directory, make_daemon, commands):
        self.root = root = directory / "root"
        self.checkout = root / "checkout"
        for folder in ("bin", "checkout/build-quickstart", "etc/kvcache", "home", "mnt/nvme0/kvcache", "mnt/nvme1", "mnt/shared/kvcache",
                       "mnt/cephfs/kvcache", "mnt/store", "run", "scratch", "tmp/other/usr", "usr/share/kvcache", "var/lib"):
            (root / folder).mkdir(parents=True, mode=0o700)
        self.daemon = make_daemon(settings={
            "store.path": f"[{root}/mnt/nvme0/kvcache, {root}/mnt/nvme1/kvcache]", "store.limit": "2GiB", "store.prewrite": "off",
            "memory.pool": "64MiB", "io.stages": "on", "listen.http": f"unix:{root}/run/http.sock",
            "remote.backend": "directory" if any(command.matches("^kvcachectl remote ") for command in commands) else "off",
            "remote.path": root / "mnt/shared/kvcache"}).start()
        links = {f"checkout/{name}": SOURCE / name for name in ("client", "conf", "daemon", "tests")}
        links |= {"checkout/build": BUILD, "checkout/build-quickstart/kvcache.sock": self.daemon.socket, "tmp/other/usr/bin": root / "bin",
                  "checkout/build-quickstart/client": BUILD / "client", "usr/share/kvcache/systemd": SOURCE / "systemd",
                  "etc/kvcache/kvcache.yaml": SOURCE / "conf/kvcache.yaml"}
        programs = (harness.CTL, harness.BENCH, harness.DAEMON, BUILD / "client/events/kvcache-events", BUILD / "tests/bench/measure")
        links |= {f"bin/{program.name}": program for program in programs}
        for link, target in links.items():
            (root / link).symlink_to(target)
        write_trace(self.checkout / "fleet.jsonl", 20)
        # In the pages "..." stands for the work of an engine.
        (root / "bin/...").write_text("#!/bin/sh\nkvcache-bench replay --namespace engine --seed $$ fleet.jsonl >/dev/null\n")
        (root / "bin/...").chmod(0o755)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("KVCACHE_")}, "HOME": f"{root}/home",
            "TMPDIR": f"{root}/scratch", "XDG_RUNTIME_DIR": f"{root}/run", "RUNTIME_DIRECTORY": f"{root}/run",
            "STATE_DIRECTORY": f"{root}/var/lib/kvcache", "KVCACHE_SOCKET": self.daemon.socket, "LC_ALL": "C.UTF-8", "TERM": "dumb",
            "PATH": f"{root}/bin:{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": f"{SOURCE}/client/python", "KVCACHE_LIBRARY": str(BUILD / "client/lib/libkvcache.so.1")}

    def run(self, text):
        """Runs a command. Returns its exit status, None after a timeout, and its output. Processes that it leaves end with the test."""
        with open(self.root / "output", "w+b") as output:
            process = spawn(["bash", "-e", "-o", "pipefail", "-c", text], cwd=self.checkout, env=self.environment,
                            stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60 * harness.slow())
            output.seek(0)
            return process.returncode, output.read().decode(errors="replace")

    def prepare(self, page, commands):
        """Makes what the page's commands presume: namespaces with the names in the page, a store without a daemon, and programs."""
        for name in ("A", "B", "NAME", "NAMESPACE"):
            if any(command.matches(rf"\b{name}\b") for command in commands):
                harness.ctl("put", "--namespace", name, "--fingerprint", f"name={name}", "key", input="a block", daemon=self.daemon, check=0)
        if any(command.matches(r"/var/lib/kvcache|\bDIR\b") for command in commands):
            closed = harness.Daemon(self.root / "run", settings={"store.limit": "16MiB"}).start()
            harness.ctl("put", "key", input="a block", daemon=closed, check=0)
            closed.stop()
            for copy in (self.root / "var/lib/kvcache", self.checkout / "DIR"):
                shutil.copytree(closed.store, copy)
        if page in PRESUMED:
            status, output = self.run(PRESUMED[page])
            assert status == 0, output


def runnable(page):
    return [command for command in commands_of(page) if not command.reason() and not (HAS_DRIVER and "libcuda" in command.expected()[1])]


@pytest.mark.limit(180)
@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)])
def test_commands_of_a_page_run(page, directory, make_daemon):
    commands = runnable(page)
    missing = [program for program in ("bash", "cc", "curl", "diff", "openssl", "pkg-config") if not shutil.which(program) and
               any(command.matches(rf"\b{program}\b") for command in commands)]
    if missing:
        pytest.skip(f"the page needs {', '.join(missing)}")
    host, exports, failed = Host(directory, make_daemon, commands), "", []
    host.prepare(page, commands)
    for command in commands:
        text = command.changed(host.root)
        status, output = host.run(exports + text)
        print(f"--- {command}\n{output}")
        if text.startswith("export "):
            exports += text + "\n"
        statuses, pattern = command.expected()
        if status not in statuses or not re.search(pattern, output):
            failed.append(f"{command}\nran as: {text}\nended with {status}, not {statuses}; the output must have {pattern!r}:\n{output[-3000:]}")
    assert not failed, "\n\n".join(failed)
    assert not os.listdir(host.root / "scratch"), "temporary files are left"


def test_each_entry_of_the_tables_has_a_command():
    """A reason or a change whose command is no longer in a page must go, too."""
    commands = [command for page in PAGES for command in commands_of(page)]
    code = "\n\n".join("\n".join(lines) for page in PAGES for _, lines in paragraphs(page, (SOURCE / page).read_text()))
    unused = [pattern for pattern in OTHER_CODE if not re.search(pattern, code, re.M)]
    unused += [pattern for pattern in EXCUSED if not any(command.matches(pattern) for command in commands)]
    ran = [command for command in commands if not command.reason()]
    unused += [pattern for pattern, _ in CHANGES if not any(command.matches(pattern) for command in ran)]
    unused += [pattern for pattern, _, _ in EXPECTED if not any(command.matches(pattern) for command in ran)]
    assert not unused, unused
    assert len(ran) > 100


PAGE = """A page.

    a --long \\
      command          # the page's comment
    # no command

    $ b '{"x": 1,
      "y": 2}'
    output

```
cat >f <<END
it's
END
c                      # exits with status 3
```
```yaml
d: 1
```
"""


def test_commands_of_each_kind_are_found():
    found = commands_in("x.md", PAGE)
    assert [(command.line, command.text.split()[0]) for command in found] == [(3, "a"), (7, "b"), (12, "cat"), (15, "c")]
    assert found[0].text.split()[:3] == ["a", "--long", "command"] and found[1].text.endswith("2}'")
    assert found[2].text.endswith("\nEND") and found[3].expected()[0] == {3} and found[1].expected() == DEFAULT
