# SPDX-License-Identifier: Apache-2.0
"""`kvcachectl gds`: its checks of the host and the daemon, and its verdict.

The host is a folder, which $KVCACHE_TEST_ROOT puts in front of the paths of /proc, /dev, /etc and /run; the libraries are the stubs of
tests/gpu.
"""

import json
import os
import subprocess

import pytest

from harness import BUILD, CTL, KIB, ctl, items, limit_memlock
from test_gds import STRANGER, needs_users, verified
from kvwire import NotLent

STUBS = [BUILD / "tests" / "gpu" / "cuda", BUILD / "tests" / "gpu" / "cufile"]
HOST = ["libcuda.so.1", "libcufile.so.0", "nvidia-fs", "device nodes", "cufile.json", "locked memory"]
# The form of NVIDIA's own configuration file.
SETTINGS = """{ // NOTE: a comment
    "properties": { /* another */ "allow_compat_mode": %s, "force_compat_mode": %s } }
"""


class Host:
    """A host with everything that a direct path needs; tests remove parts of it."""

    def __init__(self, root, store):
        self.root, self.store = root, store
        self.settings = self.write("etc/cufile.json", SETTINGS % ("true", "false"))
        self.module = self.write("proc/driver/nvidia-fs/version", "version: 2.20\n")
        self.node = self.write("dev/nvidia-fs0", "")
        device = os.stat(store).st_dev
        self.number = f"{os.major(device)}:{os.minor(device)}"
        self.udev = self.write(f"run/udev/data/b{self.number}", "S:disk\nE:ID_FS_TYPE=ext4\nE:ID_FS_USAGE=filesystem\n")
        self.mount("ext4", "rw,data=ordered")
        self.env = {"KVCACHE_TEST_ROOT": str(root), "CUFILE_ENV_PATH_JSON": "",
                    "LD_LIBRARY_PATH": ":".join(str(s) for s in STUBS)}

    def write(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def mount(self, kind, options, number=None):
        self.write("proc/self/mountinfo", f"malformed\n21 1 0:99 / /proc rw - proc proc rw\n"
                                          f"22 1 {number or self.number} / / rw shared:1 - {kind} /dev/x {options}\n")

    def asked(self, daemon=None, *arguments, **env):
        result = ctl(*arguments, "--json", "gds", daemon=daemon, env={**self.env, **env}, check=0)
        answer = json.loads(result.stdout)
        for check in checks(answer):
            assert set(check) == {"name", "ok", "found", "remedy"} and check["found"], check
            assert check["found"].isprintable() and bool(check["remedy"]) != check["ok"], check
        return answer


def checks(answer):
    return answer["host"]["checks"] + answer["daemon"]["checks"] + [c for v in answer["volumes"] for c in v["checks"]]


def check_of(answer, name):
    (found,) = [c for c in checks(answer) if c["name"] == name]
    return found


@pytest.fixture
def host(daemon, directory):
    if not all(v["direct"] for v in daemon.status()["store"]["volumes"]):
        pytest.skip("no O_DIRECT here")
    if os.major(os.stat(daemon.store).st_dev) == 0:
        pytest.skip("the store is on no block device")
    return Host(directory / "root", daemon.store)


def test_all_that_a_direct_way_needs(host, daemon):
    answer = host.asked(daemon)
    assert [c["name"] for c in answer["host"]["checks"]] == HOST
    assert [c["name"] for c in checks(answer) if not c["ok"]] in (["puts"], ["locked memory", "puts"])  # off by default
    assert answer["verdict"] == "direct" and "reason" not in answer
    assert answer["daemon"]["connected"] and answer["daemon"]["lends"] and answer["daemon"]["policy"] == "auto"
    assert [v["volume"] for v in answer["volumes"]] == [str(daemon.store)]
    assert "2.20" in check_of(answer, "nvidia-fs")["found"] and "allow_compat_mode true" in check_of(answer, "cufile.json")["found"]
    assert check_of(answer, "file system")["found"] == "ext4, data=ordered" and check_of(answer, "owner")["ok"]
    text = ctl("gds", daemon=daemon, env=host.env, check=0).stdout
    assert text.splitlines()[-1] == "verdict: direct" and f"Volume {daemon.store}\n" in text and "lent" in text


def test_a_host_without_a_gpu_names_the_library(host, daemon):
    answer = host.asked(daemon, LD_LIBRARY_PATH="")
    if check_of(answer, "libcuda.so.1")["ok"]:
        pytest.skip("this host has a GPU's driver")
    assert answer["verdict"] == "staging" and "libcuda.so.1" in answer["reason"]
    assert "libcuda.so.1" in check_of(answer, "libcuda.so.1")["found"]
    answer = host.asked(daemon, LD_LIBRARY_PATH=str(STUBS[0]))
    assert check_of(answer, "libcuda.so.1")["ok"] and "libcufile.so.0" in answer["reason"]
    text = ctl("gds", daemon=daemon, env={**host.env, "LD_LIBRARY_PATH": ""}, check=0).stdout
    assert text.splitlines()[-1] == "verdict: staging: libcuda.so.1 does not load" and "remedy: install NVIDIA's driver" in text


@pytest.mark.parametrize("change, verdict, reason, name", [
    (lambda h: h.module.unlink(), "compatibility mode", "nvidia-fs", "nvidia-fs"),
    (lambda h: h.node.unlink(), "compatibility mode", "/dev/nvidia-fs*", "device nodes"),
    (lambda h: h.settings.write_text(SETTINGS % ("true", "true")), "compatibility mode", "cufile.json", None),
    (lambda h: (h.module.unlink(), h.settings.write_text(SETTINGS % ("false", "false"))), "staging", "cufile.json", "nvidia-fs"),
    (lambda h: h.settings.write_text(SETTINGS % ("false", "false")), "direct", "", None),
    (lambda h: h.settings.unlink(), "direct", "", "cufile.json"),
    (lambda h: h.udev.unlink(), "staging", "5027", "udev"),
    (lambda h: h.udev.write_text("S:disk\nE:XID_FS_TYPE=ext4\n"), "staging", "5027", "udev"),
    (lambda h: h.udev.write_text("E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=xfs"), "direct", "", None),
    (lambda h: h.udev.write_text("E:ID_FS_TYPE=ext4\nE:ID_FS_USAGE_ENC=filesystem"), "staging", "5027", "udev"),
    (lambda h: h.mount("ext4", "rw,data=writeback"), "compatibility mode", "ext4", "file system"),
    (lambda h: h.mount("ext4", "rw"), "direct", "", None),
    (lambda h: h.mount("xfs", "rw"), "direct", "", None),
    (lambda h: h.mount("btrfs", "rw"), "compatibility mode", "btrfs", "file system"),
    (lambda h: h.mount("tmpfs", "rw", "0:7"), "staging", "5027", "udev"),
    (lambda h: h.mount("nfs4", "rw", "0:7"), "direct", "", None),
    (lambda h: h.write("proc/self/mountinfo", ""), "unknown", "file system", "file system"),
])
def test_missing_requirements_are_named(host, daemon, change, verdict, reason, name):
    change(host)
    answer = host.asked(daemon)
    assert (answer["verdict"], reason in answer.get("reason", "")) == (verdict, True), answer
    assert name is None or not check_of(answer, name)["ok"]


def test_the_environment_names_the_settings(host, daemon):
    own = host.write("own.json", SETTINGS % ("false", "false"))
    found = check_of(host.asked(daemon, CUFILE_ENV_PATH_JSON=str(own)), "cufile.json")
    assert found["found"] == f"{own}: allow_compat_mode false"
    os.mkfifo(host.root / "fifo")
    for path, why in ((host.root, "not a regular file"), (host.root / "fifo", "not a regular file"), ("/nowhere", "No such file")):
        found = check_of(host.asked(daemon, CUFILE_ENV_PATH_JSON=str(path)), "cufile.json")
        assert not found["ok"] and why in found["found"]


@pytest.mark.parametrize("text, said", [
    (b"x" * (1 << 20), "larger than 64 KiB"), (b"\x1b]0;title\x07\xff\xfe\x80", "JSON"), (b"", "JSON"), (b"[1]", "JSON"),
    (b"[" * 60000, "JSON"), (b"/* no end", "JSON"), (b'{"properties": {"allow_compat_mode": "\x1b[2J\\', "JSON"),
    (b'{"properties": 1}', "is not set"), (b'{"properties": {"allow_compat_mode": "true"}}', "is not set"),
], ids=lambda v: v[:12].hex() if isinstance(v, bytes) else v)
def test_hostile_settings(host, daemon, text, said):
    host.settings.write_bytes(text)
    assert said in check_of(host.asked(daemon), "cufile.json")["found"]


def test_hostile_files_of_the_system(host, daemon):
    evil = b"\x1b[2J\x00\xff\xc2\x9b" + b"A" * 5000
    host.module.write_bytes(evil)
    host.udev.write_bytes(b"E:ID_FS_USAGE=\nE:ID_FS_TYPE=" + evil)
    host.write("proc/self/mountinfo", b" - \n1 2 3\n" + evil + b"\n22 1 %s / / rw - \x1b[2J%s \xff \xff\n" % (host.number.encode(), b"B" * 9000))
    answer = host.asked(daemon)
    assert answer["verdict"] in ("compatibility mode", "unknown")
    text = ctl("gds", daemon=daemon, env=host.env, check=0).stdout
    assert "\x1b" not in text and max(len(line) for line in text.splitlines()) < 600
    for path in (host.module, host.udev):
        path.write_bytes(b"x" * (1 << 20))
    answer = host.asked(daemon)
    assert "larger" in check_of(answer, "nvidia-fs")["found"] and "larger" in check_of(answer, "udev")["found"]


def test_without_a_daemon_the_host_is_looked_at(host, directory):
    result = ctl("--socket", directory / "none", "gds", env=host.env, check=0)
    assert "warning" in result.stderr and "/none" in result.stderr
    assert result.stdout.splitlines()[-1] == "verdict: unknown: no daemon answered" and "nvidia-fs" in result.stdout
    answer = host.asked(None, "--socket", str(directory / "none"))
    assert not answer["daemon"]["connected"] and answer["volumes"] == [] and answer["verdict"] == "unknown"
    host.udev.parent.rename(host.root / "away")
    answer = host.asked(None, "--socket", str(directory / "none"), LD_LIBRARY_PATH=str(STUBS[0]))
    assert answer["verdict"] == "staging" or check_of(answer, "libcufile.so.0")["ok"]


def test_a_daemon_that_does_not_lend(make_daemon, directory):
    daemon = make_daemon(settings={"io.gds": "off", "store.prewrite": "off"}).start()
    if not all(v["direct"] for v in daemon.status()["store"]["volumes"]):
        pytest.skip("no O_DIRECT here")
    pairs = items("mine", 3, 20 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        verified(c, ns, pairs)
        assert {r.not_lent for r in c.borrow(ns, [k for k, _ in pairs])} == {NotLent.DENIED}
    answer = Host(directory / "root", daemon.store).asked(daemon)
    said = answer["daemon"]
    assert said["not_lent_chunks"]["denied"] == 3 and said["lent_chunks"] == 0 and said["lent_bytes"] == 0
    assert not said["lends"] and said["policy"] == "off" and "io.gds: off" in check_of(answer, "lending")["found"]
    assert answer["verdict"] == "staging" and "io.gds" in answer["reason"]
    text = ctl("gds", daemon=daemon, check=0).stdout
    assert "lent            0 chunks, 0 B; not lent (denied): 3" in text, text


def test_a_volume_without_O_DIRECT(make_daemon, directory):
    daemon = make_daemon(settings={"io.direct": "off"}).start()
    answer = Host(directory / "root", daemon.store).asked(daemon)
    assert not check_of(answer, "O_DIRECT")["ok"] and answer["verdict"] == "staging" and "no O_DIRECT" in answer["reason"]


@needs_users
def test_a_user_who_is_no_admin(make_daemon, directory):
    """A user to whom nothing is lent, who may not read the policy, and who cannot reach the store gets a useful verdict."""
    daemon = make_daemon(settings={"listen.mode": "0666"}).start()
    host = Host(directory / "root", daemon.store)
    host.node.chmod(0o600)

    def deprive():
        limit_memlock()
        os.setgroups([])
        os.setgid(STRANGER)
        os.setuid(STRANGER)

    env = {k: v for k, v in os.environ.items() if not k.startswith("KVCACHE_")}
    try:
        result = subprocess.run([CTL, "--socket", daemon.socket, "--json", "gds"], env={**env, **host.env}, capture_output=True,
                                text=True, preexec_fn=deprive, timeout=60)
    except PermissionError:
        pytest.skip("the build folder is out of that user's reach")
    if result.returncode == 127:
        pytest.skip(f"so are its libraries: {result.stderr}")
    answer = json.loads(result.stdout)
    assert not answer["daemon"]["lends"] and "policy" not in answer["daemon"] and answer["verdict"] == "staging"
    assert not check_of(answer, "lending")["ok"] and check_of(answer, "file system")["found"] == "ext4, data=ordered"
    assert not check_of(answer, "owner")["ok"] and "root" in check_of(answer, "owner")["remedy"]
    assert check_of(answer, "locked memory")["found"] == "RLIMIT_MEMLOCK is 64 KiB" and not check_of(answer, "locked memory")["ok"]
    assert not check_of(answer, "device nodes")["ok"] and "permission" in check_of(answer, "device nodes")["found"]


def test_puts_from_files(make_daemon, directory):
    daemon = make_daemon().start()
    answer = Host(directory / "root", daemon.store).asked(daemon)
    check = check_of(answer, "puts")
    assert not check["ok"] and "io.gds_puts: off" in check["found"] and "gds_put_path" in check["remedy"]
    assert answer["daemon"]["takes_files"] is False
    daemon.stop()
    daemon.settings["io.gds_puts"] = "auto"
    daemon.start()
    answer = Host(directory / "root2", daemon.store).asked(daemon)
    assert check_of(answer, "puts")["ok"] and answer["daemon"]["takes_files"] and answer["daemon"]["file_puts"] == 0


def test_no_operand(daemon):
    assert "unexpected argument" in ctl("gds", "now", daemon=daemon, check=2).stderr
