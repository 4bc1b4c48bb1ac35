# SPDX-License-Identifier: Apache-2.0
"""`kvcachectl doctor` and `kvcachectl report` at a daemon: every member of the status that they read exists."""

import io
import json
import os
import subprocess
import tarfile

import pytest

import harness
from harness import CTL, ctl, wait_until
from test_gds import STRANGER, needs_users

CHECKS = {"version", "ready", "health", "reload", "io_uring", "volume", "errors", "files", "room", "O_DIRECT", "limits", "socket",
          "file system", "space", "configuration", "locked memory", "memory", "cgroup", "clock", "memory nodes"}
# These checks depend on the machine that runs the tests, and not on the daemon.
MACHINE = {"clock", "file system", "space", "cgroup", "memory", "locked memory", "io_uring", "O_DIRECT", "memory nodes"}


def diagnose(daemon):
    return json.loads(ctl("--json", "doctor", daemon=daemon, check=None).stdout)["checks"]


@pytest.mark.smoke
def test_a_healthy_daemon_passes_each_check(make_daemon):
    daemon = make_daemon().start()
    checks = diagnose(daemon)
    # A machine without io_uring has no check for locked memory, and one without several nodes and GPUs none for nodes.
    assert {c["name"] for c in checks} | {"locked memory", "memory nodes"} == CHECKS
    for check in checks:
        assert check["name"] in MACHINE or check["level"] == "ok", check
        assert (check["remedy"] == "") == (check["level"] == "ok"), check
    assert "mode 0660" in next(c["found"] for c in checks if c["name"] == "socket")


def findings(daemon):
    """Returns the findings whose names a test of one fault may expect."""
    host = {"clock", "file system", "space", "cgroup", "memory", "memory nodes"}
    return [c for c in diagnose(daemon) if c["level"] in ("warning", "problem") and c["name"] not in host]


def test_a_suspended_volume_is_found(make_daemon):
    daemon = make_daemon().start()
    sound = [c["name"] for c in findings(daemon)]
    ctl("device", "suspend", "0", daemon=daemon, check=0)
    found = {c["name"]: c for c in findings(daemon) if c["name"] not in sound}
    assert set(found) == {"ready", "volume"}, found
    assert found["volume"]["level"] == "warning" and "suspended" in found["volume"]["found"]


def test_a_configured_posix_back_end_is_no_finding(make_daemon):
    checks = diagnose(make_daemon(settings={"io.backend": "posix"}).start())
    check, = [c for c in checks if c["name"] == "io_uring"]
    assert check == {"name": "io_uring", "level": "ok", "found": "the I/O backend is posix, as io.backend demands", "remedy": ""}, check


@pytest.mark.parametrize("leg, name, remedy", [("memlock", "locked memory", "LimitMEMLOCK=infinity"), ("seccomp", "io_uring", "seccomp")])
def test_a_limit_of_the_daemon_is_one_finding(make_daemon, leg, name, remedy):
    leg, = [one for one in harness.LEGS if one.name == leg]
    if leg.why_not():
        pytest.skip(leg.why_not())
    daemon = make_daemon(leg).start()
    if leg.name == "memlock" and daemon.populated_status()["io"]["backend"] == "posix":
        pytest.skip("another daemon of this user has taken all of RLIMIT_MEMLOCK")
    found = [c for c in findings(daemon) if c["name"] not in ("O_DIRECT", "configuration")]
    assert [c["name"] for c in found] == [name], found
    assert remedy in found[0]["remedy"] and (leg.name != "memlock" or "may lock 64 KiB" in found[0]["found"]), found


def test_a_change_that_waits_for_a_restart_is_found_by_its_key(make_daemon, directory):
    path = directory / "kvcache.yaml"
    path.write_text("io:\n  depth: 32\n")
    daemon = make_daemon(config=path).start()
    path.write_text("io:\n  depth: 7\n")
    ctl("reload", daemon=daemon, check=0)
    found = [c for c in diagnose(daemon) if c["name"] == "reload"]
    assert [c["level"] for c in found] == ["warning"] and found[0]["found"].endswith("waits for a restart: io.depth")
    daemon.restart()
    assert [c["level"] for c in diagnose(daemon) if c["name"] == "reload"] == ["ok"]


def test_a_report_has_all_parts_and_no_names(make_daemon, directory):
    path = directory / "kvcache.yaml"
    path.write_text("tenants:\n  - name: verysecrettenant\n    users: [4711]\n    pool: 16MiB\n")
    daemon = make_daemon(config=path, settings={"memory.pool": "64MiB"}).start()
    with daemon.client() as c:
        c.namespace("verysecretname", chunk_bytes=4096)
    # Changes that wait for a restart are reported to an admin with the old and the new value.
    path.write_text("tenants:\n  - name: verysecrettenant\n    users: [4712]\n    pool: 16MiB\n"
                    "remote:\n  path: /verysecretpath\naccess:\n  admin_users: [4713]\n")
    ctl("reload", daemon=daemon, check=0)
    pending = "\n".join(daemon.status()["reload_pending"])
    assert all(part in pending for part in ("tenant verysecrettenant: users: [4711] becomes [4712]", "/verysecretpath", "4713")), pending
    done = subprocess.run([CTL, "--socket", daemon.socket, "report", "-o", "-"], capture_output=True, check=True)
    assert b"verysecret" not in done.stdout and done.stderr == b""
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        names = archive.getnames()
        texts = {name: archive.extractfile(name).read().decode() for name in names}
    assert names == ["README.txt", "versions.txt", "doctor.json", "status.json", "metrics.txt", "config.yaml"]
    assert "kvcache_build_info" in texts["metrics.txt"] and "store:" in texts["config.yaml"]
    status = json.loads(texts["status.json"])
    assert sorted(status["reload_pending"]) == ["access.admin_users", "remote.path", "users"]
    assert status["ready"] is True and "namespaces" not in status
    assert [t["name"] for t in status["tenants"]] == ["tenant 1", "tenant 2"]
    for name, text in texts.items():
        assert "tenant=\"" not in text and "tenants:" not in text, name


def test_a_report_does_not_name_the_hosts_and_users_of_a_shared_tier(make_daemon, directory):
    """Whether the tool may read the configuration, which has the names, or not."""
    credentials, path = directory / "credentials", directory / "kvcache.yaml"
    credentials.write_text("aws_access_key_id = verysecret\naws_secret_access_key = verysecret\n")
    credentials.chmod(0o600)
    path.write_text(f"remote:\n  backend: s3\n  endpoint: http://verysecret.invalid:9000\n  bucket: verysecretbucket\n"
                    f"  credentials: {credentials}\n  ceph_user: verysecretuser\n")
    daemon = make_daemon(config=path, settings={"listen.mode": "0666"}).start()
    os.chmod(directory, 0o755)
    with daemon.client() as c:
        c.namespace("n")
        wait_until(lambda: "verysecret.invalid" in daemon.status()["remote"]["reason"], "the daemon has asked the service", 20)
    for who in [{}, {"user": STRANGER, "group": STRANGER, "extra_groups": []}] if os.geteuid() == 0 else [{}]:
        done = subprocess.run([CTL, "--socket", daemon.socket, "report", "-o", "-"], capture_output=True, check=True, **who)
        assert b"verysecret" not in done.stdout
        assert (b"HOST" if not who else b"left out, because it may name a host") in done.stdout


@needs_users
def test_a_report_of_a_stranger_lacks_what_is_for_admins(make_daemon, directory):
    daemon = make_daemon(settings={"listen.mode": "0666"}).start()
    os.chmod(directory, 0o755)
    done = subprocess.run([CTL, "--socket", daemon.socket, "report", "-o", "-"], capture_output=True, user=STRANGER, group=STRANGER,
                          extra_groups=[])
    assert done.returncode == 0 and b"the archive lacks config.yaml: only admins may read it" in done.stderr
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        assert "config.yaml" not in archive.getnames() and "status.json" in archive.getnames()


def host_with_nodes(root, daemon, online, allowed, gpus):
    """Makes the files of a host with memory nodes, on whose GPUs and daemon they say this."""
    files = {"sys/devices/system/node/online": online, f"proc/{daemon.pid}/comm": "kvcache-daemon",
             f"proc/{daemon.pid}/status": f"Name:\tkvcache-daemon\nMems_allowed:\t00000003\nMems_allowed_list:\t{allowed}\n"}
    files.update({f"sys/bus/pci/drivers/nvidia/0000:{n:02x}:00.0/numa_node": node for n, node in enumerate(gpus)})
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


NODES = [
    ("0-1", "0", ["1", "1"], "warning", "GPUs are at memory nodes 1, and the daemon may use memory of nodes 0"),
    ("0-1", "1", ["0", "1", "-1"], "warning", "GPUs are at memory nodes 0,1, and the daemon may use memory of nodes 1"),
    ("0-1", "0-1", ["0", "1"], "ok", "GPUs are at memory nodes 0,1, and the daemon may use memory of nodes 0,1"),
    ("0,2-3", "2-3", ["3"], "ok", "GPUs are at memory nodes 3, and the daemon may use memory of nodes 2,3"),
    ("0-1", "", ["0"], "unknown", "cannot be read"),
    ("0-1", "0,x", ["0"], "unknown", "cannot be read"),
    ("0", "0", ["0"], None, None),
    ("0-1", "0", ["-1"], None, None),
    ("0-1", "0", [], None, None),
    ("3-1", "0", ["0"], None, None),
    ("0-99999999999999999999", "0", ["0"], "ok", "nodes 0"),
]


def test_memory_nodes_of_gpus_and_the_daemon(make_daemon, tmp_path):
    daemon = make_daemon().start()
    for n, (online, allowed, gpus, level, found) in enumerate(NODES):
        host_with_nodes(tmp_path / str(n), daemon, online, allowed, gpus)
        said = json.loads(ctl("--json", "doctor", daemon=daemon, env={"KVCACHE_TEST_ROOT": str(tmp_path / str(n))}).stdout)
        checks = [c for c in said["checks"] if c["name"] == "memory nodes"]
        assert [c["level"] for c in checks] == ([level] if level else []), (online, allowed, gpus)
        assert all(found in c["found"] and (level == "ok" or c["remedy"]) for c in checks), checks
